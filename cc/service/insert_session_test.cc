#include "cc/service/insert_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

// A store of the tables "t" (replay) and "q" (a queue of two).
class InsertSessionTest : public testing::Test {
 protected:
  InsertSessionTest() { Open(Peer::kOwn); }
  ~InsertSessionTest() override { session_->Close(); }

  void Open(Peer peer) {
    if (session_) session_->Close();
    session_ = InsertSession::Open(store_.get(), peer, [this] { ++ready_; });
  }
  static InsertItem ItemOf(uint64_t key, uint64_t chunk, const std::string& table = "t") {
    InsertItem item;
    item.key = key;
    item.table = table;
    item.priority = 1;
    item.columns = {{1, false}};
    item.slices = {{chunk, 0, 1, nullptr}};
    return item;
  }
  static InsertRequest RequestOf(std::vector<uint64_t> chunks,
                                 std::vector<InsertItem> items,
                                 std::vector<uint64_t> keep = {}) {
    InsertRequest request;
    for (const uint64_t key : chunks) request.chunks.push_back(TestChunk(key));
    request.items = std::move(items);
    request.keep_chunk_keys = std::move(keep);
    return request;
  }
  StatusCode Handle(InsertRequest request) {
    return session_->Handle(std::move(request)).code();
  }
  std::vector<uint64_t> Confirmed() {
    InsertReply reply;
    const auto any = session_->Take(&reply);
    EXPECT_TRUE(any.ok()) << any.status();
    EXPECT_THAT(reply.refused, IsEmpty());
    return reply.confirmed;
  }
  void Drain(const std::string& table, int64_t n) {
    const auto runner = *store_->Find(table);
    auto sampler = std::make_shared<RecordingSampler>();
    runner->AddSampler(sampler);
    runner->Sample(sampler, {n, runner->clock()->Now(), nullptr});
    runner->RemoveSampler(sampler.get(), {});
  }
  int64_t Size(const std::string& table) { return (*store_->Find(table))->size(); }

  std::unique_ptr<Store> store_ =
      Store::Create({std::make_shared<TableRunner>(ReplayConfig("t")),
                     std::make_shared<TableRunner>(QueueConfig(2, "q"))},
                    "localhost:1")
          .value();
  int ready_ = 0;
  std::shared_ptr<InsertSession> session_;
};

TEST_F(InsertSessionTest, ConfirmsItemsOfAMessageTogether) {
  EXPECT_EQ(Handle(RequestOf({1, 2}, {ItemOf(10, 1), ItemOf(11, 2)})), StatusCode::kOk);
  EXPECT_EQ(ready_, 1);
  EXPECT_THAT(Confirmed(), ElementsAre(10, 11));
  EXPECT_THAT(Confirmed(), IsEmpty());
  EXPECT_EQ(session_->pending(), 0);
  EXPECT_EQ(Size("t"), 2);
}

TEST_F(InsertSessionTest, TakesChunksHandedOverByReference) {
  InsertItem item = ItemOf(10, 0);
  item.slices[0].chunk = TestChunk(5, 3);
  item.slices[0].length = 3;
  EXPECT_EQ(Handle(RequestOf({}, {item})), StatusCode::kOk);
  EXPECT_EQ(Size("t"), 1);
}

TEST_F(InsertSessionTest, RefusesAnEmptyRequest) {
  EXPECT_EQ(Handle(RequestOf({}, {}, {1})), StatusCode::kInvalidArgument);
}

TEST_F(InsertSessionTest, ChunksMayComeBeforeTheirItems) {
  EXPECT_EQ(Handle(RequestOf({1}, {})), StatusCode::kOk);
  EXPECT_EQ(Handle(RequestOf({2}, {})), StatusCode::kOk);
  EXPECT_EQ(Handle(RequestOf({}, {ItemOf(10, 1), ItemOf(11, 2)})), StatusCode::kOk);
  EXPECT_THAT(Confirmed(), ElementsAre(10, 11));
}

TEST_F(InsertSessionTest, ForgetsUnlistedChunksAfterARequestWithItems) {
  EXPECT_EQ(Handle(RequestOf({1, 2}, {ItemOf(10, 1)}, {2})), StatusCode::kOk);
  EXPECT_EQ(Handle(RequestOf({}, {ItemOf(11, 2)}, {2})), StatusCode::kOk);
  EXPECT_EQ(Handle(RequestOf({}, {ItemOf(12, 1)})), StatusCode::kInternal);
}

TEST_F(InsertSessionTest, KeepsAllColumnsOfAListedChunk) {
  const std::vector<uint64_t> columns = {1, MixKey(1, 1), MixKey(1, 2)};
  EXPECT_EQ(Handle(RequestOf(columns, {ItemOf(10, 1)}, {1})), StatusCode::kOk);
  EXPECT_EQ(Handle(RequestOf({}, {ItemOf(11, columns[1]), ItemOf(12, columns[2])})),
            StatusCode::kOk);
  EXPECT_THAT(Confirmed(), ElementsAre(10, 11, 12));
}

TEST_F(InsertSessionTest, RefusesToKeepAnUnknownChunkBeforeAnyEffect) {
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(10, 1)}, {1, 3})),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(Size("t"), 0);
}

TEST_F(InsertSessionTest, AnUnknownChunkOfAnItemEndsTheStreamBeforeAnyEffect) {
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(10, 1), ItemOf(11, 9)})), StatusCode::kInternal);
  EXPECT_EQ(Size("t"), 0);
  EXPECT_EQ(session_->pending(), 0);
}

TEST_F(InsertSessionTest, ABlockedTableDoesNotHoldBackAnother) {
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(1, 1, "q"), ItemOf(2, 1, "q"), ItemOf(3, 1, "q"),
                                   ItemOf(4, 1, "t"), ItemOf(5, 1, "q")})),
            StatusCode::kOk);
  EXPECT_THAT(Confirmed(), testing::UnorderedElementsAre(1, 2, 4));
  EXPECT_EQ(session_->pending(), 2);
  Drain("q", 1);
  EXPECT_THAT(Confirmed(), ElementsAre(3));
  Drain("q", 1);
  EXPECT_THAT(Confirmed(), ElementsAre(5));
  EXPECT_EQ(session_->pending(), 0);
}

TEST_F(InsertSessionTest, AnOwnPeersBadItemsAreRefusedAlone) {
  InsertItem nan = ItemOf(10, 1);
  nan.priority = std::nan("");
  InsertItem outside = ItemOf(12, 1);
  outside.slices[0].length = 2;
  InsertItem uneven = ItemOf(13, 1);
  uneven.columns[0].num_slices = 2;
  InsertItem negative = ItemOf(14, 1);
  negative.columns = {{-1, false}, {2, false}};
  EXPECT_EQ(Handle(RequestOf({1}, {nan, ItemOf(11, 1), outside, uneven, negative,
                                   ItemOf(15, 1, "nowhere")})),
            StatusCode::kOk);
  InsertReply reply;
  ASSERT_TRUE(*session_->Take(&reply));
  EXPECT_THAT(reply.confirmed, ElementsAre(11));
  std::map<uint64_t, StatusCode> refused;
  for (const auto& item : reply.refused) refused[item.key] = item.status.code();
  const StatusCode bad = StatusCode::kInvalidArgument;
  EXPECT_THAT(refused,
              ElementsAre(std::pair(10, bad), std::pair(12, bad), std::pair(13, bad),
                          std::pair(14, bad), std::pair(15, StatusCode::kNotFound)));
  EXPECT_EQ(session_->pending(), 0);
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(16, 1)})), StatusCode::kOk) << "goes on";
}

TEST_F(InsertSessionTest, AForeignPeersBadItemRefusesTheMessageBeforeAnyEffect) {
  Open(Peer::kForeign);
  InsertItem nan = ItemOf(11, 1, "q");
  nan.priority = std::nan("");
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(10, 1), nan})), StatusCode::kInvalidArgument);
  EXPECT_EQ(Size("t"), 0);
  EXPECT_EQ(session_->pending(), 0);
}

TEST_F(InsertSessionTest, AForeignPeersUnknownTableIsNotFound) {
  Open(Peer::kForeign);
  const Status status =
      session_->Handle(RequestOf({1}, {ItemOf(10, 1), ItemOf(11, 1, "nowhere")}));
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("Priority table nowhere was not found"));
  EXPECT_EQ(Size("t"), 0);
}

TEST_F(InsertSessionTest, SequenceNumbersMakeAResendHarmless) {
  InsertItem item = ItemOf(10, 1);
  item.writer_id = 3;
  item.sequence = 1;
  EXPECT_EQ(Handle(RequestOf({1}, {item})), StatusCode::kOk);
  Open(Peer::kOwn);
  EXPECT_EQ(Handle(RequestOf({1}, {item})), StatusCode::kOk);
  EXPECT_THAT(Confirmed(), ElementsAre(10));
  EXPECT_EQ((*store_->Find("t"))->Info().insert_count, 1);
}

TEST_F(InsertSessionTest, ForeignPeersCountNoSequence) {
  Open(Peer::kForeign);
  for (const uint64_t key : {10, 11}) {
    InsertItem item = ItemOf(key, 1);
    item.writer_id = 3;
    item.sequence = 1;
    EXPECT_EQ(Handle(RequestOf({1}, {item})), StatusCode::kOk);
  }
  EXPECT_EQ(Size("t"), 2);
}

TEST_F(InsertSessionTest, ItemsArePendingUntilTheirResultIsTaken) {
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(10, 1), ItemOf(11, 1, "nowhere")})),
            StatusCode::kOk);
  EXPECT_EQ(session_->pending(), 2);
  InsertReply reply;
  ASSERT_TRUE(*session_->Take(&reply));
  EXPECT_EQ(session_->pending(), 0);
}

TEST_F(InsertSessionTest, IsFullWhileTooManyItemsWait) {
  std::vector<InsertItem> items;
  for (int64_t i = 0; i <= InsertSession::kMaxPending + 2; ++i) {
    items.push_back(ItemOf(static_cast<uint64_t>(i), 1, "q"));
  }
  EXPECT_EQ(Handle(RequestOf({1}, std::move(items))), StatusCode::kOk);
  EXPECT_TRUE(session_->is_full());
  EXPECT_THAT(Confirmed(), SizeIs(2));
  EXPECT_TRUE(session_->is_full());
  Drain("q", 1);
  Confirmed();
  EXPECT_FALSE(session_->is_full());
}

TEST_F(InsertSessionTest, IsFullWhileLargeChunksWait) {
  constexpr int32_t kRows = 4 << 20;  // of 4 bytes
  int64_t bytes = 0;
  for (uint64_t key = 1; bytes <= InsertSession::kMaxPendingBytes; ++key) {
    EXPECT_FALSE(session_->is_full());
    InsertRequest request = RequestOf({}, {ItemOf(key, key, "q")});
    request.chunks.push_back(TestChunk(key, kRows));
    EXPECT_EQ(Handle(std::move(request)), StatusCode::kOk);
    bytes += int64_t{kRows} * 4;
  }
  EXPECT_TRUE(session_->is_full());
  Confirmed();
  Drain("q", 2);
  Confirmed();
  EXPECT_FALSE(session_->is_full());
}

TEST_F(InsertSessionTest, AKnownKeyIsAnUpdate) {
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(10, 1), ItemOf(10, 1)})), StatusCode::kOk);
  EXPECT_THAT(Confirmed(), ElementsAre(10, 10));
  EXPECT_EQ(Size("t"), 1);
}

TEST_F(InsertSessionTest, ClosingWithdrawsWhatWaits) {
  EXPECT_EQ(
      Handle(RequestOf({1}, {ItemOf(1, 1, "q"), ItemOf(2, 1, "q"), ItemOf(3, 1, "q")})),
      StatusCode::kOk);
  session_->Close();
  session_->Close();
  Drain("q", 2);
  EXPECT_EQ(Size("q"), 0);
  EXPECT_EQ((*store_->Find("q"))->Info().num_writers, 0);
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(4, 1)})), StatusCode::kCancelled);
}

TEST_F(InsertSessionTest, StoppingReportsWhatWasDoneThenUnavailable) {
  EXPECT_EQ(
      Handle(RequestOf({1}, {ItemOf(1, 1, "q"), ItemOf(2, 1, "q"), ItemOf(3, 1, "q")})),
      StatusCode::kOk);
  store_->Stop();
  EXPECT_THAT(Confirmed(), ElementsAre(1, 2));
  InsertReply reply;
  const auto end = session_->Take(&reply);
  EXPECT_EQ(end.status(), UnavailableError("server at localhost:1 was stopped"));
  EXPECT_THAT(reply.refused, IsEmpty());
}

TEST_F(InsertSessionTest, AWriterIsCountedFromItsFirstItem) {
  EXPECT_EQ(Handle(RequestOf({1}, {})), StatusCode::kOk);
  EXPECT_EQ((*store_->Find("t"))->Info().num_writers, 0);
  EXPECT_EQ(Handle(RequestOf({}, {ItemOf(1, 1)})), StatusCode::kOk);
  EXPECT_EQ((*store_->Find("t"))->Info().num_writers, 1);
}

TEST_F(InsertSessionTest, BoundsTheChunksThatAStreamKeeps) {
  InsertRequest request;
  Status status;
  size_t sent = 0;
  while (status.ok() && sent <= InsertSession::kMaxKeptChunks) {
    request.chunks.clear();
    for (int i = 0; i < 100'000; ++i) request.chunks.push_back(TestChunk(++sent));
    status = session_->Handle(std::move(request));
  }
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_GT(sent, InsertSession::kMaxKeptChunks);
}

TEST_F(InsertSessionTest, ReadyMayCallBackIntoTheSession) {
  session_->Close();
  std::vector<uint64_t> confirmed;
  session_ = InsertSession::Open(store_.get(), Peer::kOwn, [&] {
    InsertReply reply;
    if (session_->Take(&reply).value()) confirmed = reply.confirmed;
    session_->Close();
  });
  EXPECT_EQ(Handle(RequestOf({1}, {ItemOf(10, 1)})), StatusCode::kOk);
  EXPECT_THAT(confirmed, ElementsAre(10));
}

}  // namespace
}  // namespace reverb_tf
