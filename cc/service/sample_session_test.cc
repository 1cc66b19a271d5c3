#include "cc/service/sample_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Longer than any test takes.
constexpr Duration kLong = std::chrono::hours(1);

// A store of the tables "t" (replay) and "q" (a queue of 100).
class SampleSessionTest : public testing::Test {
 protected:
  SampleSessionTest() {
    for (const auto& table : store_->tables()) table->AddWriter(writer_);
    Open(Peer::kOwn);
  }
  ~SampleSessionTest() override { session_->Close(); }

  void Open(Peer peer) {
    if (session_) session_->Close();
    session_ = SampleSession::Open(store_.get(), peer, [this] { ++ready_; });
  }
  TableRunner* Table(const std::string& name) { return store_->Find(name)->get(); }
  void Insert(const std::string& table, const std::vector<uint64_t>& keys) {
    Table(table)->Insert(writer_, Inserts(keys));
  }
  static SampleRequest Ask(const std::string& table, int64_t n,
                           Duration timeout = kForever) {
    SampleRequest request;
    request.table = table;
    request.num_samples = n;
    request.timeout = timeout;
    return request;
  }
  static SampleRequest Acknowledge(int64_t delivered, std::vector<int64_t> returned = {}) {
    SampleRequest request;
    request.delivered = delivered;
    request.returned = std::move(returned);
    return request;
  }
  StatusCode Handle(const SampleRequest& request) {
    return session_->Handle(request).code();
  }
  SampleReply Take(int64_t max_items = kNoLimit, int64_t max_bytes = kNoLimit) {
    SampleReply reply;
    const auto any = session_->Take(max_items, max_bytes, &reply);
    EXPECT_TRUE(any.ok()) << any.status();
    any_ = any.ok() && *any;
    return reply;
  }
  std::vector<uint64_t> TakeKeys() { return Keys(Take().items); }
  // Ends waits of kLong, as if that time had passed.
  void Expire(const std::string& table) {
    Table(table)->ExpireWaiters(Clock::System()->Now() + kLong);
  }

  std::unique_ptr<Store> store_ =
      Store::Create({std::make_shared<TableRunner>(ReplayConfig("t")),
                     std::make_shared<TableRunner>(QueueConfig(100, "q"))},
                    "localhost:1")
          .value();
  std::shared_ptr<RecordingWriter> writer_ = std::make_shared<RecordingWriter>();
  int ready_ = 0;
  bool any_ = false;
  std::shared_ptr<SampleSession> session_;
};

TEST_F(SampleSessionTest, YieldsExactlyWhatWasAskedFor) {
  Insert("q", {1, 2, 3, 4});
  EXPECT_EQ(Handle(Ask("q", 3)), StatusCode::kOk);
  EXPECT_EQ(ready_, 1);
  const SampleReply reply = Take();
  EXPECT_THAT(Keys(reply.items), ElementsAre(1, 2, 3));
  EXPECT_EQ(reply.request_done, OkStatus());
  EXPECT_EQ(reply.generation, reply.items[0].generation);
  Take();
  EXPECT_FALSE(any_);
}

TEST_F(SampleSessionTest, TakesAreCutByItemsAndBytes) {
  Insert("t", {1});
  EXPECT_EQ(Handle(Ask("t", 10)), StatusCode::kOk);
  EXPECT_THAT(Take(3).items, SizeIs(3));
  EXPECT_THAT(Take(kNoLimit, /*max_bytes=*/9).items, SizeIs(2));
  EXPECT_THAT(Take(kNoLimit, /*max_bytes=*/1).items, SizeIs(1)) << "at least one";
  const SampleReply rest = Take();
  EXPECT_THAT(rest.items, SizeIs(4));
  EXPECT_TRUE(rest.request_done);
}

TEST_F(SampleSessionTest, RequestsAreServedOneAfterAnother) {
  Insert("q", {1, 2});
  EXPECT_EQ(Handle(Ask("q", 3)), StatusCode::kOk);
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  EXPECT_EQ(Table("q")->Info().num_waiting_samples, 1);
  Insert("q", {3, 4, 5});
  SampleReply reply = Take();
  EXPECT_THAT(Keys(reply.items), ElementsAre(1, 2, 3));
  EXPECT_TRUE(reply.request_done) << "a reply never spans requests";
  reply = Take();
  EXPECT_THAT(Keys(reply.items), ElementsAre(4, 5));
  EXPECT_TRUE(reply.request_done);
}

TEST_F(SampleSessionTest, WhatIsGrantedPiecemealIsHandedOutPiecemeal) {
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  Insert("q", {1});
  SampleReply reply = Take();
  EXPECT_THAT(Keys(reply.items), ElementsAre(1));
  EXPECT_FALSE(reply.request_done);
  Insert("q", {2});
  reply = Take();
  EXPECT_THAT(Keys(reply.items), ElementsAre(2));
  EXPECT_TRUE(reply.request_done);
}

TEST_F(SampleSessionTest, AVeryLargeRequestIsDrawnAsItIsTaken) {
  Insert("t", {1});
  EXPECT_EQ(Handle(Ask("t", 1'000'000'000)), StatusCode::kOk);
  EXPECT_EQ(Table("t")->Info().sample_stats.completed, SampleSession::kMaxGranted);
  int64_t taken = 0;
  while (taken < 3 * SampleSession::kMaxGranted) {
    const SampleReply reply = Take(1000);
    ASSERT_THAT(reply.items, testing::Not(IsEmpty()));
    taken += static_cast<int64_t>(reply.items.size());
    EXPECT_LE(Table("t")->Info().sample_stats.completed,
              taken + SampleSession::kMaxGranted);
  }
}

TEST_F(SampleSessionTest, ManySmallRequestsAreServedWithoutDeepRecursion) {
  Insert("t", {1});
  for (size_t i = 0; i < SampleSession::kMaxRequests; ++i) {
    ASSERT_EQ(Handle(Ask("t", 1)), StatusCode::kOk);
  }
  EXPECT_EQ(Handle(Ask("t", 1)), StatusCode::kResourceExhausted);
  for (size_t i = 0; i < SampleSession::kMaxRequests; ++i) {
    ASSERT_TRUE(Take().request_done);
  }
}

TEST_F(SampleSessionTest, RefusesBadNumbers) {
  EXPECT_EQ(Handle(Ask("t", -1)), StatusCode::kInvalidArgument);
  EXPECT_EQ(Handle(Ask("t", 0)), StatusCode::kOk);
  Open(Peer::kForeign);
  EXPECT_EQ(Handle(Ask("t", 0)), StatusCode::kInvalidArgument);
}

TEST_F(SampleSessionTest, RefusesAnUnknownTable) {
  const Status status = session_->Handle(Ask("nowhere", 1));
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("Priority table nowhere was not found"));
}

TEST_F(SampleSessionTest, AStreamKeepsItsTable) {
  Insert("t", {1});
  EXPECT_EQ(Handle(Ask("t", 1)), StatusCode::kOk);
  EXPECT_EQ(Handle(Ask("", 1)), StatusCode::kOk);
  EXPECT_EQ(Handle(Ask("q", 1)), StatusCode::kInvalidArgument);
}

TEST_F(SampleSessionTest, AnOwnPeersTimeoutLeavesTheStreamOpen) {
  Insert("q", {1});
  EXPECT_EQ(Handle(Ask("q", 2, kLong)), StatusCode::kOk);
  Expire("q");
  const SampleReply reply = Take();
  EXPECT_THAT(Keys(reply.items), ElementsAre(1));
  ASSERT_TRUE(reply.request_done);
  EXPECT_EQ(reply.request_done->code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(reply.request_done->message(), HasSubstr("table 'q'"));
  EXPECT_EQ(Handle(Ask("q", 1)), StatusCode::kOk);
  Insert("q", {2});
  EXPECT_THAT(TakeKeys(), ElementsAre(2));
}

TEST_F(SampleSessionTest, ATimeoutOfZeroDoesNotWait) {
  EXPECT_EQ(Handle(Ask("q", 1, Duration(0))), StatusCode::kOk);
  const SampleReply reply = Take();
  EXPECT_THAT(reply.items, IsEmpty());
  EXPECT_EQ(reply.request_done->code(), StatusCode::kDeadlineExceeded);
}

TEST_F(SampleSessionTest, AForeignPeersTimeoutEndsTheStreamAfterWhatWasGranted) {
  Open(Peer::kForeign);
  Insert("q", {1});
  EXPECT_EQ(Handle(Ask("q", 2, kLong)), StatusCode::kOk);
  Expire("q");
  EXPECT_THAT(TakeKeys(), ElementsAre(1));
  SampleReply reply;
  const Status status = session_->Take(1, 1, &reply).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("Rate Limiter: Timeout exceeded before the "
                                          "right to insert was acquired."));
}

TEST_F(SampleSessionTest, AForeignPeersTimeoutBoundsEachWaitAnOwnOnesTheWholeRequest) {
  for (const Peer peer : {Peer::kForeign, Peer::kOwn}) {
    Open(peer);
    EXPECT_EQ(Handle(Ask("q", 2, kLong)), StatusCode::kOk);
    const TimePoint asked = Clock::System()->Now();
    while (Clock::System()->Now() == asked) continue;
    Insert("q", {1});
    Table("q")->ExpireWaiters(asked + kLong);
    const SampleReply reply = Take();
    EXPECT_THAT(reply.items, SizeIs(1));
    EXPECT_EQ(reply.request_done.has_value(), peer == Peer::kOwn);
  }
}

TEST_F(SampleSessionTest, AcknowledgementsAreCumulative) {
  Insert("q", {1, 2, 3, 4});
  EXPECT_EQ(Handle(Ask("q", 4)), StatusCode::kOk);
  TakeKeys();
  EXPECT_EQ(Handle(Acknowledge(2)), StatusCode::kOk);
  EXPECT_EQ(Table("q")->Info().sample_stats.delivered, 2);
  EXPECT_EQ(Handle(Acknowledge(2)), StatusCode::kOk);
  EXPECT_EQ(Handle(Acknowledge(4)), StatusCode::kOk);
  EXPECT_EQ(Table("q")->Info().sample_stats.delivered, 4);
  EXPECT_EQ(Table("q")->Info().sample_stats.in_flight, 0);
}

TEST_F(SampleSessionTest, ReturnedSamplesGoBackToTheirPlaces) {
  Insert("q", {1, 2, 3, 4});
  EXPECT_EQ(Handle(Ask("q", 3)), StatusCode::kOk);
  TakeKeys();
  EXPECT_EQ(Handle(Acknowledge(3, {1})), StatusCode::kOk);
  EXPECT_EQ(Table("q")->Info().sample_stats.delivered, 2);
  EXPECT_EQ(Table("q")->Info().sample_stats.returned, 1);
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  EXPECT_THAT(TakeKeys(), ElementsAre(2, 4));
}

TEST_F(SampleSessionTest, ASampleMayBeReturnedBeforeEarlierOnesAreDelivered) {
  Insert("q", {1, 2});
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  TakeKeys();
  EXPECT_EQ(Handle(Acknowledge(0, {1})), StatusCode::kOk);
  EXPECT_EQ(Table("q")->size(), 1);
  EXPECT_EQ(Handle(Acknowledge(2)), StatusCode::kOk);
  EXPECT_EQ(Table("q")->Info().sample_stats.delivered, 1);
}

TEST_F(SampleSessionTest, BadAcknowledgementsAreRefusedBeforeAnyEffect) {
  Insert("q", {1, 2});
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  TakeKeys();
  const StatusCode bad = StatusCode::kInvalidArgument;
  EXPECT_EQ(Handle(Acknowledge(3)), bad);
  EXPECT_EQ(Handle(Acknowledge(-1)), bad);
  EXPECT_EQ(Handle(Acknowledge(2, {2})), bad);
  EXPECT_EQ(Handle(Acknowledge(2, {-1})), bad);
  EXPECT_EQ(Handle(Acknowledge(2, {0, 0})), bad);
  SampleRequest partial = Acknowledge(2);
  partial.partial = 3;
  EXPECT_EQ(Handle(partial), bad);
  EXPECT_EQ(Table("q")->Info().sample_stats.in_flight, 2);
  EXPECT_EQ(Handle(Acknowledge(1)), StatusCode::kOk);
  EXPECT_EQ(Handle(Acknowledge(2, {0})), bad) << "it was delivered before";
}

TEST_F(SampleSessionTest, PartialDeliveriesAreCounted) {
  Insert("t", {1});
  EXPECT_EQ(Handle(Ask("t", 2)), StatusCode::kOk);
  TakeKeys();
  SampleRequest request = Acknowledge(2);
  request.partial = 1;
  EXPECT_EQ(Handle(request), StatusCode::kOk);
  EXPECT_EQ(Table("t")->Info().sample_stats.partial, 1);
}

TEST_F(SampleSessionTest, ClosingGivesBackWhatWasNotAcknowledged) {
  Insert("q", {1, 2, 3, 4, 5});
  EXPECT_EQ(Handle(Ask("q", 4)), StatusCode::kOk);
  EXPECT_THAT(Take(2).items, SizeIs(2));
  EXPECT_EQ(Handle(Acknowledge(1)), StatusCode::kOk);
  session_->Close();
  session_->Close();
  const TableInfo info = Table("q")->Info();
  EXPECT_EQ(info.sample_stats.delivered, 1);
  EXPECT_EQ(info.sample_stats.returned, 3);
  EXPECT_EQ(info.num_samplers, 0);
  Open(Peer::kOwn);
  EXPECT_EQ(Handle(Ask("q", 4)), StatusCode::kOk);
  EXPECT_THAT(TakeKeys(), ElementsAre(2, 3, 4, 5));
}

TEST_F(SampleSessionTest, ClosingWithdrawsAWaitingRequest) {
  EXPECT_EQ(Handle(Ask("q", 1)), StatusCode::kOk);
  session_->Close();
  Insert("q", {1});
  EXPECT_EQ(Table("q")->size(), 1);
  EXPECT_EQ(Handle(Ask("q", 1)), StatusCode::kCancelled);
  Take();
  EXPECT_FALSE(any_);
}

TEST_F(SampleSessionTest, AForeignPeersSamplesAreDeliveredOnceTaken) {
  Open(Peer::kForeign);
  Insert("q", {1, 2, 3});
  EXPECT_EQ(Handle(Ask("q", 3)), StatusCode::kOk);
  Take(2);
  EXPECT_EQ(Table("q")->Info().sample_stats.delivered, 2);
  session_->Close();
  EXPECT_EQ(Table("q")->Info().sample_stats.returned, 1);
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_F(SampleSessionTest, SamplesThatAResetMadeVoidAreDrawnAnew) {
  Insert("q", {1, 2, 3});
  EXPECT_EQ(Handle(Ask("q", 3)), StatusCode::kOk);
  EXPECT_THAT(Take(1).items, SizeIs(1));
  const uint64_t before = session_->generation();
  ASSERT_TRUE(Table("q")->Reset().ok());
  EXPECT_EQ(session_->generation(), before + 1);
  SampleReply reply = Take();
  EXPECT_TRUE(any_) << "the notice";
  EXPECT_THAT(reply.items, IsEmpty());
  EXPECT_EQ(reply.generation, before + 1);
  Insert("q", {4, 5, 6});
  reply = Take();
  EXPECT_THAT(Keys(reply.items), ElementsAre(4, 5));
  EXPECT_EQ(reply.request_done, OkStatus());
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_F(SampleSessionTest, AResetWithSeveralRequestsStillCompletesEach) {
  Insert("q", {1, 2, 3});
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  ASSERT_TRUE(Table("q")->Reset().ok());
  Insert("q", {4, 5, 6, 7, 8});
  EXPECT_TRUE(Take().items.size() == 2);
  EXPECT_TRUE(Take().request_done);
  Take();
  EXPECT_FALSE(any_);
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_F(SampleSessionTest, ATimedOutRequestLeavesItsPlaceToEarlierOnesAfterAReset) {
  Insert("q", {1, 2});
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  EXPECT_EQ(Handle(Ask("q", 2, kLong)), StatusCode::kOk);
  ASSERT_TRUE(Table("q")->Reset().ok());
  Insert("q", {3});
  Expire("q");
  Insert("q", {4, 5});
  SampleReply reply = Take();
  EXPECT_THAT(Keys(reply.items), ElementsAre(3, 4));
  EXPECT_EQ(reply.request_done, OkStatus());
  reply = Take();
  EXPECT_THAT(reply.items, IsEmpty());
  ASSERT_TRUE(reply.request_done);
  EXPECT_EQ(reply.request_done->code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_F(SampleSessionTest, ATimedOutRequestDoesNotAskAnewAfterAReset) {
  Insert("q", {1});
  EXPECT_EQ(Handle(Ask("q", 2, kLong)), StatusCode::kOk);
  Expire("q");
  ASSERT_TRUE(Table("q")->Reset().ok());
  Insert("q", {2});
  const SampleReply reply = Take();
  EXPECT_THAT(reply.items, IsEmpty());
  ASSERT_TRUE(reply.request_done);
  EXPECT_EQ(reply.request_done->code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_F(SampleSessionTest, ASeedRepeatsThePicks) {
  TableConfig config = ReplayConfig("u");
  config.sampler.kind = SelectorKind::kUniform;
  const auto runner = std::make_shared<TableRunner>(config);
  auto store = Store::Create({runner}, "localhost:2");
  runner->AddWriter(writer_);
  runner->Insert(writer_, Inserts({1, 2, 3, 4, 5, 6, 7, 8}));
  std::vector<uint64_t> picks[3];
  for (int i = 0; i < 3; ++i) {
    auto session = SampleSession::Open(store->get(), Peer::kOwn, nullptr);
    SampleRequest request = Ask("u", 20);
    request.seed = SampleSeed{7, i == 2 ? 1u : 0u};
    for (int round = 0; round < 2; ++round) {
      ASSERT_TRUE(session->Handle(request).ok());
      SampleReply reply;
      ASSERT_TRUE(session->Take(kNoLimit, kNoLimit, &reply).value());
      for (const uint64_t key : Keys(reply.items)) picks[i].push_back(key);
    }
    session->Close();
  }
  EXPECT_THAT(picks[0], SizeIs(40));
  EXPECT_EQ(picks[0], picks[1]);
  EXPECT_NE(picks[0], picks[2]) << "another stream of the seed";
}

TEST_F(SampleSessionTest, AReadersScopeIsDecidedOnce) {
  TableConfig config = ReplayConfig("s");
  Signature signature;
  TensorSpec leaf;
  leaf.dtype = DType::kInt32;
  leaf.shape = {-1};
  signature.leaves = {leaf};
  config.signature = signature;
  auto store = Store::Create({std::make_shared<TableRunner>(config)}, "localhost:2");
  auto session = SampleSession::Open(store->get(), Peer::kOwn, nullptr);
  SampleRequest request = Ask("s", 0);
  request.scope = SignatureScope::kTrajectory;
  EXPECT_TRUE(session->Handle(request).ok());
  EXPECT_EQ((*(*store)->Find("s"))->Info().config.signature_scope,
            SignatureScope::kTrajectory);
  auto other = SampleSession::Open(store->get(), Peer::kOwn, nullptr);
  request.scope = SignatureScope::kStep;
  EXPECT_EQ(other->Handle(request).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(session->Handle(request).ok()) << "asked once per stream";
  session->Close();
  other->Close();
}

TEST_F(SampleSessionTest, AStopEndsTheStreamAndCloseGivesBack) {
  Insert("q", {1});
  EXPECT_EQ(Handle(Ask("q", 2)), StatusCode::kOk);
  store_->Stop();
  SampleReply reply;
  EXPECT_EQ(session_->Take(1, 1, &reply).status(),
            UnavailableError("server at localhost:1 was stopped"));
  session_->Close();
  EXPECT_EQ(Table("q")->size(), 1);
  EXPECT_EQ(Table("q")->Info().sample_stats.returned, 1);
}

TEST_F(SampleSessionTest, AStopEndsAnIdleStream) {
  Insert("t", {1});
  EXPECT_EQ(Handle(Ask("t", 1)), StatusCode::kOk);
  Take();
  EXPECT_EQ(session_->error(), OkStatus());
  const int before = ready_;
  store_->Stop();
  EXPECT_EQ(ready_, before + 1);
  EXPECT_EQ(session_->error(), UnavailableError("server at localhost:1 was stopped"));
  SampleReply reply;
  EXPECT_EQ(session_->Take(1, 1, &reply).status(), session_->error());
}

TEST_F(SampleSessionTest, ReadyMayTakeAndAsk) {
  session_->Close();
  std::vector<uint64_t> keys;
  session_ = SampleSession::Open(store_.get(), Peer::kOwn, [&] {
    SampleReply reply;
    while (session_->Take(kNoLimit, kNoLimit, &reply).value()) {
      for (const uint64_t key : Keys(reply.items)) keys.push_back(key);
      if (keys.size() >= 3) continue;
      EXPECT_TRUE(session_->Handle(Ask("q", 1)).ok());
    }
  });
  EXPECT_EQ(Handle(Ask("q", 1)), StatusCode::kOk);
  Insert("q", {1, 2, 3, 4});
  EXPECT_THAT(keys, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace reverb_tf
