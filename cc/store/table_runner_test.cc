#include "cc/store/table_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "cc/base/fake_clock.h"
#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class FakeScheduler : public DeadlineScheduler {
 public:
  void ScheduleAt(TimePoint when) override { calls.push_back(when); }
  std::vector<TimePoint> calls;
};

// A table with two writers and two samplers.
class TableRunnerTest : public testing::Test {
 protected:
  void Make(TableConfig config) {
    runner_.emplace(std::move(config), &clock_);
    for (const auto& w : {writer_, writer2_}) runner_->AddWriter(w);
    for (const auto& s : {sampler_, sampler2_}) runner_->AddSampler(s);
  }
  void Insert(const std::vector<uint64_t>& keys) {
    runner_->Insert(writer_, Inserts(keys));
  }
  void Sample(int64_t n, TimePoint deadline = kNever) {
    runner_->Sample(sampler_, {n, deadline, nullptr});
  }
  TimePoint In(Duration d) const { return clock_.Now() + d; }

  FakeClock clock_;
  std::shared_ptr<RecordingWriter> writer_ = std::make_shared<RecordingWriter>();
  std::shared_ptr<RecordingWriter> writer2_ = std::make_shared<RecordingWriter>();
  std::shared_ptr<RecordingSampler> sampler_ = std::make_shared<RecordingSampler>();
  std::shared_ptr<RecordingSampler> sampler2_ = std::make_shared<RecordingSampler>();
  std::optional<TableRunner> runner_;
};

TEST_F(TableRunnerTest, AMessageIsInsertedAndNotifiedOnce) {
  Make(ReplayConfig());
  Insert({1, 2, 3});
  EXPECT_THAT(writer_->inserted(), ElementsAre(1, 2, 3));
  EXPECT_EQ(writer_->notified(), 1);
  EXPECT_EQ(runner_->size(), 3);
}

TEST_F(TableRunnerTest, ARequestIsGrantedInOnePiece) {
  Make(ReplayConfig());
  Insert({1, 2, 3});
  Sample(5);
  EXPECT_THAT(sampler_->batches(), ElementsAre(5));
  EXPECT_THAT(sampler_->done(), ElementsAre(OkStatus()));
  EXPECT_EQ(sampler_->notified(), 1);
  for (const auto& item : sampler_->items()) EXPECT_FALSE(item.rate_limited);
}

TEST_F(TableRunnerTest, SampleWaitsForAnInsertAndIsMarkedRateLimited) {
  Make(ReplayConfig());
  Sample(1);
  EXPECT_EQ(runner_->Info().num_waiting_samples, 1);
  EXPECT_THAT(sampler_->done(), IsEmpty());
  Insert({1});
  EXPECT_THAT(sampler_->keys(), ElementsAre(1));
  EXPECT_TRUE(sampler_->items()[0].rate_limited);
  EXPECT_EQ(runner_->Info().num_waiting_samples, 0);
}

TEST_F(TableRunnerTest, WhatIsThereIsGrantedWhileTheRestWaits) {
  Make(QueueConfig(10));
  Insert({1, 2});
  Sample(3);
  EXPECT_THAT(sampler_->keys(), ElementsAre(1, 2));
  EXPECT_THAT(sampler_->done(), IsEmpty());
  Insert({3, 4});
  EXPECT_THAT(sampler_->keys(), ElementsAre(1, 2, 3));
  EXPECT_THAT(sampler_->done(), ElementsAre(OkStatus()));
  EXPECT_EQ(runner_->size(), 1);
}

TEST_F(TableRunnerTest, InsertWaitsForRoomAndKeepsItsOrder) {
  Make(QueueConfig(2));
  Insert({1, 2, 3});
  runner_->Insert(writer2_, Inserts({4}));
  Insert({5});
  EXPECT_THAT(writer_->inserted(), ElementsAre(1, 2));
  EXPECT_EQ(runner_->Info().num_waiting_inserts, 3);
  Sample(1);
  EXPECT_THAT(writer_->inserted(), ElementsAre(1, 2, 3));
  EXPECT_THAT(writer2_->inserted(), IsEmpty());
  Sample(2);
  EXPECT_THAT(writer2_->inserted(), ElementsAre(4));
  EXPECT_THAT(writer_->inserted(), ElementsAre(1, 2, 3, 5));
  Sample(2);
  EXPECT_THAT(sampler_->keys(), ElementsAre(1, 2, 3, 4, 5));
}

TEST_F(TableRunnerTest, ALargeRequestAndALargeMessagePassThroughASmallQueue) {
  Make(QueueConfig(1));
  Sample(5);
  Insert({1, 2, 3, 4, 5, 6});
  EXPECT_THAT(sampler_->keys(), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(writer_->inserted(), SizeIs(6));
  EXPECT_EQ(sampler_->notified(), 1) << "all of it under one hold";
}

TEST_F(TableRunnerTest, SamplersAreServedInTurn) {
  Make(QueueConfig(10));
  Sample(2);
  runner_->Sample(sampler2_, {1, kNever, nullptr});
  Insert({1});
  EXPECT_THAT(sampler_->keys(), ElementsAre(1));
  Insert({2});
  EXPECT_THAT(sampler_->keys(), ElementsAre(1, 2));
  EXPECT_THAT(sampler2_->keys(), IsEmpty());
  Insert({3});
  EXPECT_THAT(sampler2_->keys(), ElementsAre(3));
}

TEST_F(TableRunnerTest, ALaterRequestDoesNotPassAWaitingOne) {
  TableConfig config = ReplayConfig();
  config.rate_limiter.min_size_to_sample = 2;
  Make(config);
  Insert({1});
  Sample(1);
  runner_->Sample(sampler2_, {1, clock_.Now(), nullptr});
  EXPECT_THAT(sampler2_->done(), SizeIs(1));
  EXPECT_THAT(sampler2_->keys(), IsEmpty());
}

TEST_F(TableRunnerTest, TwoRequestsOfASamplerAreServedOneAfterAnother) {
  Make(QueueConfig(10));
  Sample(1);
  Sample(2);
  Insert({1, 2, 3});
  EXPECT_THAT(sampler_->keys(), ElementsAre(1, 2, 3));
  EXPECT_THAT(sampler_->done(), ElementsAre(OkStatus(), OkStatus()));
}

TEST_F(TableRunnerTest, DeadlineEndsAWaitWithTheExplanation) {
  Make(QueueConfig(10));
  FakeScheduler scheduler;
  ASSERT_TRUE(runner_->StartServing("localhost:1", &scheduler).ok());
  Insert({1});
  Sample(3, In(milliseconds(50)));
  EXPECT_THAT(scheduler.calls, ElementsAre(In(milliseconds(50))));
  EXPECT_EQ(runner_->ExpireWaiters(clock_.Now()), In(milliseconds(50)));
  EXPECT_THAT(sampler_->done(), IsEmpty());
  clock_.Advance(milliseconds(50));
  EXPECT_EQ(runner_->ExpireWaiters(clock_.Now()), kNever);
  ASSERT_THAT(sampler_->done(), SizeIs(1));
  EXPECT_EQ(sampler_->done()[0].code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(sampler_->done()[0].message(), HasSubstr("table 'q'"));
  EXPECT_THAT(sampler_->done()[0].message(), HasSubstr("1 sample"));
  EXPECT_THAT(sampler_->keys(), ElementsAre(1)) << "stays granted";
  EXPECT_EQ(runner_->Info().sample_stats.timed_out, 1);
  Insert({2});
  EXPECT_THAT(sampler_->keys(), ElementsAre(1));
  runner_->StopServing(UnavailableError("end"));
}

TEST_F(TableRunnerTest, ARenewedDeadlineBoundsEachWait) {
  Make(QueueConfig(10));
  runner_->Sample(sampler_, {3, In(seconds(2)), nullptr, seconds(2)});
  clock_.Advance(seconds(1));
  Insert({1});
  clock_.Advance(seconds(1));
  EXPECT_EQ(runner_->ExpireWaiters(clock_.Now()), In(seconds(1)));
  EXPECT_THAT(sampler_->done(), IsEmpty());
  clock_.Advance(seconds(1));
  EXPECT_EQ(runner_->ExpireWaiters(clock_.Now()), kNever);
  ASSERT_THAT(sampler_->done(), SizeIs(1));
  EXPECT_EQ(sampler_->done()[0].code(), StatusCode::kDeadlineExceeded);
}

TEST_F(TableRunnerTest, ARequestBehindAnotherExpiresOnItsOwn) {
  Make(QueueConfig(10));
  Sample(1, In(seconds(9)));
  runner_->Sample(sampler2_, {1, In(seconds(1)), nullptr});
  clock_.Advance(seconds(1));
  EXPECT_EQ(runner_->ExpireWaiters(clock_.Now()), In(seconds(8)));
  EXPECT_THAT(sampler2_->done(), SizeIs(1));
  EXPECT_THAT(sampler_->done(), IsEmpty());
}

TEST_F(TableRunnerTest, OnlyAnEarlierDeadlineIsScheduled) {
  Make(QueueConfig(10));
  FakeScheduler scheduler;
  ASSERT_TRUE(runner_->StartServing("localhost:1", &scheduler).ok());
  Sample(1, In(seconds(5)));
  Sample(1, In(seconds(9)));
  Sample(1, In(seconds(2)));
  EXPECT_THAT(scheduler.calls, ElementsAre(In(seconds(5)), In(seconds(2))));
  runner_->StopServing(UnavailableError("end"));
}

TEST_F(TableRunnerTest, APassedDeadlineGrantsWhatIsPossibleAndDoesNotWait) {
  Make(QueueConfig(10));
  Insert({1, 2});
  Sample(1, clock_.Now());
  EXPECT_THAT(sampler_->done(), ElementsAre(OkStatus()));
  Sample(3, clock_.Now());
  EXPECT_THAT(sampler_->keys(), ElementsAre(1, 2));
  EXPECT_EQ(sampler_->done()[1].code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(runner_->Info().num_waiting_samples, 0);
}

TEST_F(TableRunnerTest, ARemovedWriterCommitsNothingMore) {
  Make(QueueConfig(1));
  Insert({1, 2});
  runner_->Insert(writer2_, Inserts({3}));
  runner_->RemoveWriter(writer_.get());
  Sample(2);
  EXPECT_THAT(writer_->inserted(), ElementsAre(1));
  EXPECT_THAT(writer_->failed(), IsEmpty());
  EXPECT_THAT(sampler_->keys(), ElementsAre(1, 3));
  EXPECT_EQ(runner_->Info().num_writers, 1);
}

TEST_F(TableRunnerTest, InsertsOfARemovedWriterHaveNoEffect) {
  Make(ReplayConfig());
  runner_->RemoveWriter(writer_.get());
  Insert({1});
  EXPECT_EQ(runner_->size(), 0);
  EXPECT_EQ(writer_->notified(), 0);
}

TEST_F(TableRunnerTest, ARemovedSamplerIsGrantedNothingMore) {
  Make(QueueConfig(10));
  Sample(2);
  runner_->Sample(sampler2_, {1, kNever, nullptr});
  runner_->RemoveSampler(sampler_.get(), {});
  Insert({1});
  Sample(1);
  EXPECT_THAT(sampler_->keys(), IsEmpty());
  EXPECT_THAT(sampler2_->keys(), ElementsAre(1));
  EXPECT_EQ(runner_->Info().num_samplers, 1);
}

TEST_F(TableRunnerTest, RemovingASamplerGivesItsGrantsToTheNextInLine) {
  Make(QueueConfig(10));
  Insert({1, 2, 3});
  Sample(2);
  runner_->Sample(sampler2_, {3, kNever, nullptr});
  EXPECT_THAT(sampler2_->keys(), ElementsAre(3));
  runner_->RemoveSampler(sampler_.get(), Grants(sampler_->items()));
  EXPECT_THAT(sampler2_->keys(), ElementsAre(3, 1, 2)) << "back in their old places";
  EXPECT_EQ(runner_->Info().sample_stats.returned, 2);
}

TEST_F(TableRunnerTest, GivingBackWakesWaitingSamples) {
  Make(QueueConfig(10));
  Insert({1});
  Sample(1);
  runner_->Sample(sampler2_, {1, kNever, nullptr});
  runner_->GiveBack(Grants(sampler_->TakeItems()));
  EXPECT_THAT(sampler2_->keys(), ElementsAre(1));
}

TEST_F(TableRunnerTest, DeliveredAndPartialAreCounted) {
  Make(QueueConfig(10));
  Insert({1, 2});
  Sample(2);
  EXPECT_EQ(runner_->Info().sample_stats.in_flight, 2);
  runner_->Delivered(Grants(sampler_->items()), /*num_partial=*/1);
  const CallStats stats = runner_->Info().sample_stats;
  EXPECT_EQ(stats.completed, 2);
  EXPECT_EQ(stats.delivered, 2);
  EXPECT_EQ(stats.partial, 1);
  EXPECT_EQ(stats.in_flight, 0);
}

TEST_F(TableRunnerTest, ABadItemIsRefusedAlone) {
  Make(ReplayConfig());
  auto inserts = Inserts({1, 2, 3});
  inserts[1].item.priority = std::nan("");
  EXPECT_EQ(runner_->CheckInserts(inserts).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(runner_->size(), 0);
  runner_->Insert(writer_, std::move(inserts));
  EXPECT_THAT(writer_->inserted(), ElementsAre(1, 3));
  ASSERT_THAT(writer_->failed(), SizeIs(1));
  EXPECT_EQ(writer_->failed()[0].first, 2u);
  EXPECT_EQ(writer_->failed()[0].second.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(runner_->Info().insert_stats.refused, 1);
}

TEST_F(TableRunnerTest, ABadItemIsRefusedAtOnceThoughOthersWait) {
  Make(QueueConfig(1));
  Insert({1, 2});
  auto inserts = Inserts({3});
  inserts[0].item.priority = std::nan("");
  runner_->Insert(writer_, std::move(inserts));
  EXPECT_THAT(writer_->failed(), SizeIs(1));
}

std::vector<PendingInsert> Numbered(uint64_t key, uint64_t sequence) {
  auto inserts = Inserts({key});
  inserts[0].item.writer_id = 7;
  inserts[0].item.sequence = sequence;
  return inserts;
}

TEST_F(TableRunnerTest, ARepeatIsConfirmedWithoutInserting) {
  Make(ReplayConfig());
  runner_->Insert(writer_, Numbered(1, 1));
  runner_->Insert(writer2_, Numbered(1, 1));
  EXPECT_THAT(writer2_->inserted(), ElementsAre(1));
  EXPECT_EQ(runner_->Info().insert_count, 1);
}

TEST_F(TableRunnerTest, ARepeatOfAWaitingInsertIsInsertedOnce) {
  Make(QueueConfig(1));
  Insert({9});
  runner_->Insert(writer_, Numbered(1, 1));
  runner_->Insert(writer2_, Numbered(1, 1));
  EXPECT_THAT(writer2_->inserted(), IsEmpty());
  Sample(1);
  EXPECT_THAT(writer_->inserted(), ElementsAre(9, 1));
  EXPECT_THAT(writer2_->inserted(), ElementsAre(1));
  EXPECT_EQ(runner_->Info().insert_count, 2);
}

TEST_F(TableRunnerTest, AResendAfterAWithdrawnWaitIsInserted) {
  Make(QueueConfig(1));
  Insert({9});
  runner_->Insert(writer_, Numbered(1, 1));
  runner_->RemoveWriter(writer_.get());
  runner_->Insert(writer2_, Numbered(1, 1));
  Sample(2);
  EXPECT_THAT(sampler_->keys(), ElementsAre(9, 1));
  EXPECT_THAT(writer2_->inserted(), ElementsAre(1));
}

TEST_F(TableRunnerTest, StoppingEndsAllWaitsWithTheReason) {
  Make(QueueConfig(1));
  Insert({1, 2});
  const Status reason = UnavailableError("server at localhost:1 was stopped");
  runner_->StopServing(reason);
  ASSERT_THAT(writer_->failed(), SizeIs(1));
  EXPECT_EQ(writer_->failed()[0].second, reason);
  Sample(1);
  EXPECT_THAT(sampler_->done(), ElementsAre(reason, reason)) << "of the stop and after it";
  Insert({3});
  EXPECT_THAT(writer_->failed(), SizeIs(2));
  EXPECT_EQ(runner_->Mutate({}, {}).status(), reason);
  EXPECT_EQ(runner_->Reset(), reason);
  EXPECT_EQ(runner_->Info().current_size, 1) << "keeps its last info";
}

TEST_F(TableRunnerTest, StoppingEndsAWaitingSample) {
  Make(QueueConfig(1));
  Sample(1);
  runner_->StopServing(UnavailableError("end"));
  EXPECT_THAT(sampler_->done(), ElementsAre(UnavailableError("end")));
  EXPECT_EQ(sampler_->notified(), 1);
}

TEST_F(TableRunnerTest, StoppingTellsSamplersThatWaitForNothing) {
  Make(QueueConfig(1));
  Sample(1);
  runner_->StopServing(UnavailableError("end"));
  EXPECT_THAT(sampler2_->done(), ElementsAre(UnavailableError("end")));
  EXPECT_EQ(sampler2_->notified(), 1);
  EXPECT_THAT(sampler_->done(), SizeIs(1)) << "told once";
}

TEST_F(TableRunnerTest, GrantsCanBeGivenBackAfterTheStop) {
  Make(QueueConfig(10));
  Insert({1});
  Sample(1);
  runner_->StopServing(UnavailableError("end"));
  runner_->RemoveSampler(sampler_.get(), Grants(sampler_->items()));
  EXPECT_EQ(runner_->size(), 1);
}

TEST_F(TableRunnerTest, IsServedOnce) {
  Make(ReplayConfig());
  FakeScheduler scheduler;
  ASSERT_TRUE(runner_->StartServing("localhost:1", &scheduler).ok());
  const Status again = runner_->StartServing("localhost:2", &scheduler);
  EXPECT_EQ(again.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(again.message(), HasSubstr("localhost:1"));
  runner_->AbortServing();
  EXPECT_TRUE(runner_->StartServing("localhost:2", &scheduler).ok());
  runner_->StopServing(UnavailableError("end"));
  EXPECT_FALSE(runner_->StartServing("localhost:3", &scheduler).ok());
}

TEST_F(TableRunnerTest, ResetTellsEverySamplerAndLetsInsertsIn) {
  Make(QueueConfig(1));
  Insert({1, 2});
  const uint64_t before = runner_->Info().generation;
  ASSERT_TRUE(runner_->Reset().ok());
  EXPECT_THAT(sampler_->resets(), ElementsAre(before + 1));
  EXPECT_THAT(sampler2_->resets(), ElementsAre(before + 1));
  EXPECT_EQ(sampler_->notified(), 1);
  EXPECT_THAT(writer_->inserted(), ElementsAre(1, 2));
  EXPECT_EQ(runner_->size(), 1);
}

TEST_F(TableRunnerTest, MutateCountsWhatItDid) {
  Make(ReplayConfig());
  Insert({1, 2});
  const auto counts = runner_->Mutate({{1, 2.0}, {5, 1.0}}, {2, 6});
  ASSERT_TRUE(counts.ok());
  EXPECT_EQ(counts->updated, 1);
  EXPECT_EQ(counts->deleted, 1);
  EXPECT_EQ(counts->not_found, 2);
  EXPECT_EQ(runner_->size(), 1);
}

TEST_F(TableRunnerTest, DeletingBelowTheMinimumSizeLetsAWaitingInsertIn) {
  TableConfig config = ReplayConfig();
  config.rate_limiter = {/*samples_per_insert=*/1, /*min_size_to_sample=*/1,
                         /*min_diff=*/-10, /*max_diff=*/1};
  Make(config);
  Insert({1, 2});
  EXPECT_THAT(writer_->inserted(), ElementsAre(1));
  ASSERT_TRUE(runner_->Mutate({}, {1}).ok());
  EXPECT_THAT(writer_->inserted(), ElementsAre(1, 2));
}

TEST_F(TableRunnerTest, ListenersMayCallBackFromNotify) {
  Make(QueueConfig(1));
  sampler_->on_notify = [this] {
    runner_->Delivered(Grants(sampler_->TakeItems()), 0);
    if (sampler_->done().size() < 3) Sample(1);
  };
  uint64_t next = 2;
  writer_->on_notify = [this, &next] {
    if (next <= 3) Insert({next++});
  };
  Sample(1);
  Insert({1});
  EXPECT_THAT(sampler_->done(), SizeIs(3));
  EXPECT_EQ(runner_->Info().sample_stats.delivered, 3);
}

TEST_F(TableRunnerTest, AListenerMayRemoveItselfFromNotify) {
  Make(QueueConfig(1));
  writer_->on_notify = [this] { runner_->RemoveWriter(writer_.get()); };
  Insert({1, 2});
  EXPECT_EQ(runner_->Info().num_waiting_inserts, 0);
}

TEST_F(TableRunnerTest, WaitsAreMeasured) {
  Make(QueueConfig(1));
  Insert({1, 2, 3});
  clock_.Advance(seconds(2));
  TableInfo info = runner_->Info();
  EXPECT_DOUBLE_EQ(info.oldest_wait_s, 2);
  EXPECT_EQ(info.insert_stats.blocked_ms, 4000);
  EXPECT_EQ(info.worker_time.waiting_for_sampling_ms, 2000);
  Sample(4);
  clock_.Advance(seconds(1));
  info = runner_->Info();
  EXPECT_EQ(info.insert_stats.blocked_ms, 4000);
  EXPECT_EQ(info.sample_stats.blocked_ms, 1000);
  EXPECT_EQ(info.worker_time.waiting_for_inserts_ms, 1000);
}

TEST_F(TableRunnerTest, InfoExplainsABlockedInsert) {
  TableConfig config = ReplayConfig();
  config.rate_limiter = {/*samples_per_insert=*/3, /*min_size_to_sample=*/3,
                         /*min_diff=*/6, /*max_diff=*/12};
  Make(config);
  Insert({1, 2, 3, 4, 5});
  clock_.Advance(milliseconds(6200));
  const std::string text = runner_->Explain();
  EXPECT_THAT(text, HasSubstr("inserts 4, samples 0, diff 12 = max_diff 12"));
  EXPECT_THAT(text, HasSubstr("oldest 6.2 s"));
}

TEST_F(TableRunnerTest, ASeedOfItsOwnRepeatsThePicks) {
  TableConfig config = ReplayConfig();
  config.sampler.kind = SelectorKind::kUniform;
  Make(config);
  Insert({1, 2, 3, 4, 5, 6, 7, 8});
  runner_->Sample(sampler_, {50, kNever, std::make_shared<Random>(3, 1)});
  runner_->Sample(sampler2_, {50, kNever, std::make_shared<Random>(3, 1)});
  EXPECT_EQ(sampler_->keys(), sampler2_->keys());
}

TEST_F(TableRunnerTest, FreedBytesAreCountedOnce) {
  TableConfig config = ReplayConfig();
  config.max_size = 1;
  Make(config);
  std::vector<PendingInsert> inserts;
  inserts.push_back({{TestItem(1, 1000), 1.0, 0, 0}, 1});
  inserts.push_back({{TestItem(2, 1000), 1.0, 0, 0}, 2});
  runner_->Insert(writer_, std::move(inserts));
  EXPECT_GE(runner_->TakeFreedBytes(), 4000);
  EXPECT_EQ(runner_->TakeFreedBytes(), 0);
}

}  // namespace
}  // namespace reverb_tf
