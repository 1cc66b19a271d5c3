// Samplers over a real Service: in process, as if it were remote, and foreign.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "cc/client/sampler_impl.h"
#include "cc/client/sampler_testing.h"

namespace reverb_tf {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::SizeIs;

// "t": Fifo, "u": uniform, "lifo", "q": a queue, "l": two samples an insert.
std::vector<TableConfig> Tables() {
  TableConfig uniform = ReplayConfig("u");
  uniform.sampler.kind = SelectorKind::kUniform;
  uniform.max_size = 10'000;
  TableConfig lifo = ReplayConfig("lifo");
  lifo.sampler.kind = SelectorKind::kLifo;
  TableConfig limited = ReplayConfig("l");
  limited.rate_limiter.samples_per_insert = 2;
  limited.rate_limiter.min_diff = 0;
  limited.rate_limiter.min_size_to_sample = 1;
  TableConfig queue = QueueConfig(100'000, "q");
  TableConfig with_signature = ReplayConfig("s");
  with_signature.signature = Signature();
  with_signature.signature->leaves = {Spec("a", DType::kInt32, {-1}),
                                      Spec("b", DType::kInt32, {-1})};
  return {ReplayConfig("t"), uniform, lifo, limited, queue, with_signature};
}

enum class Road { kLocal, kRelay };

class SamplerTest : public testing::TestWithParam<Road> {
 protected:
  SamplerTest() {
    TableRunners runners;
    for (const TableConfig& config : Tables()) {
      runners.push_back(std::make_shared<TableRunner>(config));
      runners.back()->AddWriter(writer_);
    }
    service_ = std::make_shared<Service>(Store::Create(runners, "localhost:1").value());
    relay_ = std::make_shared<RelayTransport>(service_);
    transport_ = GetParam() == Road::kLocal ? MakeLocalTransport(service_) : relay_;
  }

  static SamplerOptions For(const std::string& table) {
    SamplerOptions options;
    options.table = table;
    return options;
  }
  static SamplerOptions Batches(const std::string& table, int64_t batch_size) {
    SamplerOptions options = For(table);
    options.batch_size = batch_size;
    return options;
  }
  std::unique_ptr<Sampler> Make(const SamplerOptions& options) {
    auto cache = std::make_shared<TableCache>(transport_, "localhost:1");
    return MakeSampler(transport_, cache, "localhost:1", options).value();
  }

  TableRunner* Table(const std::string& name) {
    return service_->store()->Find(name)->get();
  }
  CallStats Stats(const std::string& name) { return Table(name)->Info().sample_stats; }
  void InsertItems(const std::string& table, const std::vector<ItemPtr>& items) {
    std::vector<PendingInsert> inserts;
    for (const ItemPtr& item : items) inserts.push_back({{item, 1.0, 0, 0}, item->key()});
    Table(table)->Insert(writer_, std::move(inserts));
  }
  // Items of one int32 column of `rows` rows.
  void Insert(const std::string& table, const std::vector<uint64_t>& keys, int rows = 1) {
    std::vector<ItemPtr> items;
    for (const uint64_t key : keys) {
      items.push_back(
          MakeItem(key, {Whole(Int32Chunk(std::vector<int32_t>(
                            static_cast<size_t>(rows), static_cast<int32_t>(key))))}));
    }
    InsertItems(table, items);
  }
  static std::vector<uint64_t> Range(uint64_t from, uint64_t to) {
    std::vector<uint64_t> keys;
    for (uint64_t k = from; k <= to; ++k) keys.push_back(k);
    return keys;
  }

  static WaitOptions Within(Duration timeout) {
    WaitOptions wait;
    wait.timeout = timeout;
    return wait;
  }
  // Keys of the next batch; the test fails if there is none.
  static std::vector<uint64_t> Next(Sampler* sampler) {
    SampleBatch batch;
    const Status status = sampler->Next(Within(seconds(30)), &batch);
    EXPECT_TRUE(status.ok()) << status;
    return status.ok() ? batch.keys : std::vector<uint64_t>();
  }
  static Status NextStatus(Sampler* sampler, Duration timeout = seconds(30)) {
    SampleBatch batch;
    return sampler->Next(Within(timeout), &batch);
  }
  // Until the statistics are as wanted (a late acknowledgement).
  template <typename F>
  void Eventually(const F& reached) {
    const TimePoint limit = Clock::System()->Now() + seconds(20);
    while (!reached() && Clock::System()->Now() < limit) std::this_thread::yield();
    EXPECT_TRUE(reached());
  }

  std::shared_ptr<RecordingWriter> writer_ = std::make_shared<RecordingWriter>();
  std::shared_ptr<Service> service_;
  std::shared_ptr<RelayTransport> relay_;
  std::shared_ptr<Transport> transport_;
};

INSTANTIATE_TEST_SUITE_P(Roads, SamplerTest, testing::Values(Road::kLocal, Road::kRelay),
                         [](const auto& info) {
                           return info.param == Road::kLocal ? "Local" : "Relay";
                         });

// ---- what is delivered ----

TEST_P(SamplerTest, GivesSamplesWithInfoAndColumns) {
  Insert("t", {7}, 3);
  auto sampler = Make(For("t"));
  SampleBatch batch;
  ASSERT_TRUE(sampler->Next(Within(seconds(30)), &batch).ok());
  EXPECT_THAT(batch.keys, ElementsAre(7));
  EXPECT_THAT(batch.probabilities, ElementsAre(1.0));
  EXPECT_THAT(batch.table_sizes, ElementsAre(1));
  EXPECT_THAT(batch.priorities, ElementsAre(1.0));
  EXPECT_THAT(batch.times_sampled, ElementsAre(1));
  EXPECT_THAT(Int32s(batch.columns.at(0)), ElementsAre(7, 7, 7));
  EXPECT_EQ(sampler->delivered(), 1);
}

TEST_P(SamplerTest, BatchesOfAQueueComeInItsOrder) {
  Insert("q", Range(1, 9));
  auto sampler = Make(Batches("q", 3));
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1, 2, 3));
  EXPECT_THAT(Next(sampler.get()), ElementsAre(4, 5, 6));
  SampleBatch batch;
  ASSERT_TRUE(sampler->Next(Within(seconds(30)), &batch).ok());
  EXPECT_THAT(batch.columns.at(0).shape, ElementsAre(3, 1));
  EXPECT_THAT(Int32s(batch.columns[0]), ElementsAre(7, 8, 9));
}

TEST_P(SamplerTest, ColumnsComeInDeclaredOrder) {
  InsertItems("s", {MakeItem(1, {Whole(Int32Chunk({1})), Whole(Int32Chunk({2, 3}))})});
  SamplerOptions options = For("s");
  options.specs = {{Spec("b", DType::kInt32, {-1}), Spec("a", DType::kInt32, {-1})}};
  SampleBatch batch;
  ASSERT_TRUE(Make(options)->Next(Within(seconds(30)), &batch).ok());
  EXPECT_THAT(Int32s(batch.columns.at(0)), ElementsAre(2, 3));
  EXPECT_THAT(Int32s(batch.columns.at(1)), ElementsAre(1));
}

TEST_P(SamplerTest, ALargeColumnSharesItsChunk) {
  const ChunkPtr chunk = Int32Chunk(std::vector<int32_t>(4096, 1));
  InsertItems("t", {MakeItem(1, {Whole(chunk)})});
  SampleBatch batch;
  ASSERT_TRUE(Make(For("t"))->Next(Within(seconds(30)), &batch).ok());
  EXPECT_EQ(batch.columns.at(0).buffer, chunk->payload_buffer());
  EXPECT_FALSE(batch.columns[0].writable);
}

// ---- how much is taken ----

TEST_P(SamplerTest, PrefetchTakesRoundsAndAtMostOneAndAHalf) {
  Insert("u", Range(1, 100));
  SamplerOptions options = For("u");
  options.max_in_flight = 16;
  auto sampler = Make(options);
  for (int i = 0; i < 200; ++i) {
    Next(sampler.get());
    const CallStats stats = Stats("u");
    ASSERT_LE(stats.completed - sampler->delivered(), 24);
  }
  for (const SampleRequest& request : relay_->requests()) {
    EXPECT_TRUE(request.num_samples == 16 || request.num_samples == 0);
    EXPECT_EQ(request.timeout, kForever);
  }
}

TEST_P(SamplerTest, DeliveredAndGrantedAreCountedApart) {
  Insert("u", Range(1, 5));
  SamplerOptions options = For("u");
  options.max_in_flight = 32;
  auto sampler = Make(options);
  Next(sampler.get());
  Eventually([&] { return Stats("u").delivered == 1; });
  EXPECT_EQ(Stats("u").completed, 32);
  EXPECT_EQ(Stats("u").in_flight, 31);
  sampler->Close();
  EXPECT_EQ(Stats("u").delivered, 1);
  EXPECT_EQ(Stats("u").returned, 31);
  EXPECT_EQ(Stats("u").in_flight, 0);
}

TEST_P(SamplerTest, AQueueLosesOnlyWhatACallerGets) {
  Insert("q", Range(1, 10));
  SamplerOptions options = For("q");
  options.num_workers = 4;
  auto sampler = Make(options);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
  EXPECT_EQ(Table("q")->size(), 9);
  EXPECT_EQ(Stats("q").completed, 1);
  Eventually([&] { return Stats("q").delivered == 1; });
}

TEST_P(SamplerTest, ConsumeAheadIsHeldAndGivenBackOnClose) {
  Insert("q", Range(1, 10));
  SamplerOptions options = For("q");
  options.consume_ahead = 3;
  auto sampler = Make(options);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
  EXPECT_EQ(Table("q")->size(), 6);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(2));
  sampler->Close();
  EXPECT_EQ(Table("q")->size(), 8);
  EXPECT_THAT(Next(Make(Batches("q", 8)).get()), ElementsAre(3, 4, 5, 6, 7, 8, 9, 10));
}

TEST_P(SamplerTest, EachItemOfAQueueIsDeliveredOnceWhateverIsClosed) {
  constexpr uint64_t kItems = 3000;
  Insert("q", Range(1, kItems));
  Mutex mu;
  std::multiset<uint64_t> got;
  std::atomic<uint64_t> left{kItems};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      // Iterators of all kinds that are closed after a few samples each.
      for (int round = 0; left > 0; ++round) {
        SamplerOptions options = For("q");
        if (i % 2 == 1) options.batch_size = 1 + round % 7;
        options.consume_ahead = round % 5;
        options.max_samples_per_stream = 1 + round % 9;
        options.rate_limiter_timeout = milliseconds(0);
        options.end_on_timeout = true;
        auto sampler = Make(options);
        SampleBatch batch;
        for (int n = 0; n < 20 && sampler->Next(Within(seconds(30)), &batch).ok(); ++n) {
          left -= batch.keys.size();
          MutexLock lock(&mu);
          got.insert(batch.keys.begin(), batch.keys.end());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(got.size(), kItems);
  EXPECT_EQ(std::set<uint64_t>(got.begin(), got.end()).size(), kItems);
  EXPECT_EQ(Stats("q").in_flight, 0);
  EXPECT_EQ(Stats("q").delivered, static_cast<int64_t>(kItems));
}

TEST_P(SamplerTest, MaxSamplesIsExactOverWorkersAndBatches) {
  Insert("u", Range(1, 20));
  SamplerOptions options = Batches("u", 8);
  options.max_samples = 50;
  options.num_workers = 3;
  options.max_in_flight = 8;
  auto sampler = Make(options);
  std::vector<size_t> sizes;
  SampleBatch batch;
  Status status;
  while ((status = sampler->Next(Within(seconds(30)), &batch)).ok()) {
    sizes.push_back(batch.keys.size());
  }
  EXPECT_EQ(status.code(), StatusCode::kOutOfRange);
  EXPECT_THAT(sizes, ElementsAre(8, 8, 8, 8, 8, 8, 2));
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
  sampler->Close();
  EXPECT_EQ(Stats("u").completed, 50);
  EXPECT_EQ(Stats("u").delivered, 50);
}

TEST_P(SamplerTest, DropRemainderTakesNoShortBatch) {
  Insert("q", Range(1, 10));
  SamplerOptions options = Batches("q", 3);
  options.max_samples = 8;
  options.drop_remainder = true;
  auto sampler = Make(options);
  EXPECT_THAT(Next(sampler.get()), SizeIs(3));
  EXPECT_THAT(Next(sampler.get()), SizeIs(3));
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(Table("q")->size(), 4);
}

TEST_P(SamplerTest, RestoredCountGoesTowardsMaxSamples) {
  Insert("u", Range(1, 3));
  SamplerOptions options = For("u");
  options.max_samples = 10;
  auto sampler = Make(options);
  sampler->set_delivered(8);
  Next(sampler.get());
  Next(sampler.get());
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(sampler->delivered(), 10);
}

TEST_P(SamplerTest, BatchesLargerThanARoundArrive) {
  Insert("u", Range(1, 5));
  SamplerOptions options = Batches("u", 17);
  options.max_in_flight = 4;
  auto sampler = Make(options);
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Next(sampler.get()), SizeIs(17));
}

TEST_P(SamplerTest, RoundsThatDoNotDivideIntoBatchesDoNotStall) {
  Insert("u", Range(1, 5));
  SamplerOptions options = Batches("u", 16);
  options.max_in_flight = 17;
  auto sampler = Make(options);
  for (int i = 0; i < 40; ++i) EXPECT_THAT(Next(sampler.get()), SizeIs(16));
}

TEST_P(SamplerTest, StreamsAreReopenedAfterTheirNumber) {
  Insert("u", Range(1, 5));
  SamplerOptions options = For("u");
  options.max_samples_per_stream = 3;
  options.max_samples = 10;
  auto sampler = Make(options);
  for (int i = 0; i < 10; ++i) Next(sampler.get());
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
  sampler->Close();
  EXPECT_EQ(Stats("u").completed, 10);
  EXPECT_EQ(Stats("u").delivered, 10);
  if (GetParam() == Road::kRelay) {
    EXPECT_EQ(relay_->num_streams(), 4);
  }
}

// ---- time-outs ----

TEST_P(SamplerTest, WithTimeoutZeroOnlyWhatIsThereIsGiven) {
  SamplerOptions options = For("u");
  options.rate_limiter_timeout = Duration::zero();
  auto sampler = Make(options);
  const Status status = NextStatus(sampler.get());
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("table 'u'"));
  Insert("u", {1});
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
  EXPECT_EQ(Stats("u").completed, 1) << "nothing ahead";
}

TEST_P(SamplerTest, ALimiterTimeoutTellsWhyAndLeavesTheSamplerUsable) {
  SamplerOptions options = For("u");
  options.rate_limiter_timeout = milliseconds(20);
  auto sampler = Make(options);
  const Status status = NextStatus(sampler.get());
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), EndsWith(Table("u")->Explain()));
  Insert("u", {1});
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
}

TEST_P(SamplerTest, AQueueTimeoutTellsWhyAndTakesNothingLater) {
  SamplerOptions options = For("q");
  options.rate_limiter_timeout = milliseconds(20);
  auto sampler = Make(options);
  const Status status = NextStatus(sampler.get());
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("size 0"));
  Insert("q", {1});
  EXPECT_EQ(Table("q")->size(), 1);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
}

TEST_P(SamplerTest, EndOnTimeoutEndsTheSequenceForGood) {
  Insert("u", {1});
  for (const Duration timeout : {Duration(milliseconds(0)), Duration(milliseconds(20))}) {
    SamplerOptions options = For("l");
    options.rate_limiter_timeout = timeout;
    options.end_on_timeout = true;
    auto sampler = Make(options);
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
  }
}

TEST_P(SamplerTest, WhatWasGatheredIsKeptForTheNextCall) {
  SamplerOptions options = Batches("q", 3);
  options.rate_limiter_timeout = milliseconds(20);
  auto sampler = Make(options);
  Insert("q", {1, 2});
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kDeadlineExceeded);
  Insert("q", {3});
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1, 2, 3));
}

TEST_P(SamplerTest, WhatWasGatheredIsKeptByPrefetchToo) {
  SamplerOptions options = Batches("l", 3);
  options.rate_limiter_timeout = milliseconds(20);
  auto sampler = Make(options);
  Insert("l", {1});  // permits two
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kDeadlineExceeded);
  Insert("l", {2});
  EXPECT_THAT(Next(sampler.get()), SizeIs(3));
}

TEST_P(SamplerTest, AShortBatchComesBeforeTheEnd) {
  for (const char* table : {"q", "l"}) {
    SamplerOptions options = Batches(table, 3);
    options.rate_limiter_timeout = milliseconds(20);
    options.end_on_timeout = true;
    auto sampler = Make(options);
    Insert(table, {1});
    if (std::string(table) == "q") Insert(table, {2});
    EXPECT_THAT(Next(sampler.get()), SizeIs(2));
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
    sampler->Close();
    EXPECT_EQ(Stats(table).delivered, 2);
    EXPECT_EQ(Stats(table).in_flight, 0);
  }
}

TEST_P(SamplerTest, DropRemainderGivesTheShortBatchBack) {
  SamplerOptions options = Batches("q", 3);
  options.rate_limiter_timeout = milliseconds(20);
  options.end_on_timeout = true;
  options.drop_remainder = true;
  auto sampler = Make(options);
  Insert("q", {1, 2});
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
  Eventually([&] { return Table("q")->size() == 2; });
}

TEST_P(SamplerTest, ACallersOwnBoundNeverEndsTheSequence) {
  for (const char* table : {"q", "u"}) {
    SamplerOptions options = For(table);
    options.end_on_timeout = true;
    auto sampler = Make(options);
    EXPECT_EQ(NextStatus(sampler.get(), milliseconds(20)).code(),
              StatusCode::kDeadlineExceeded);
    Insert(table, {1});
    EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
  }
}

TEST_P(SamplerTest, NotWaitingGivesWhatIsThere) {
  for (const char* table : {"q", "u"}) {
    Insert(table, {1, 2});
    auto sampler = Make(For(table));
    // The table must be known first: not waiting does not include that call.
    EXPECT_THAT(Next(sampler.get()), SizeIs(1));
    SampleBatch batch;
    EXPECT_TRUE(sampler->Next(Within(Duration::zero()), &batch).ok());
  }
}

TEST_P(SamplerTest, SeveralWorkersShareWhatTheLimiterGrants) {
  SamplerOptions options = Batches("l", 4);
  options.num_workers = 3;
  options.max_in_flight = 4;
  auto sampler = Make(options);
  Insert("l", {1, 2});  // permits four in all, whoever asked
  EXPECT_THAT(Next(sampler.get()), SizeIs(4));
}

// ---- what doesn't fit ----

TEST_P(SamplerTest, UnequalLengthsAreRefusedAndGivenBack) {
  Insert("q", {1}, 2);
  Insert("q", {2}, 3);
  Insert("q", {3}, 3);
  auto sampler = Make(Batches("q", 2));
  const Status status = NextStatus(sampler.get());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("pad_to_longest=True"));
  Eventually([&] { return Table("q")->size() == 3; });
  ASSERT_TRUE(Table("q")->Mutate({}, {1}).ok());
  EXPECT_THAT(Next(sampler.get()), ElementsAre(2, 3));
}

TEST_P(SamplerTest, AnItemThatBreaksTheDeclaredSpecsIsRefusedAlone) {
  Insert("q", {1}, 2);
  Insert("q", {2}, 3);
  SamplerOptions options = For("q");
  options.specs = {{Spec("x", DType::kInt32, {3})}};
  auto sampler = Make(options);
  const Status status = NextStatus(sampler.get());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("item 1"), HasSubstr("'x' got int32[2] expected int32[3]"),
                    HasSubstr("mutate_priorities")));
  Eventually([&] { return Table("q")->size() == 2; });
  ASSERT_TRUE(Table("q")->Mutate({}, {1}).ok());
  EXPECT_THAT(Next(sampler.get()), ElementsAre(2));
}

TEST_P(SamplerTest, PrefetchStaysUsableAfterAnItemThatDoesNotFit) {
  Insert("t", {1}, 2);
  SamplerOptions options = For("t");
  options.specs = {{Spec("x", DType::kInt32, {3})}};
  auto sampler = Make(options);
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(Table("t")->Mutate({}, {1}).ok());
  Insert("t", {2}, 3);
  SampleBatch batch;
  Status status;
  do {
    status = sampler->Next(Within(seconds(30)), &batch);
  } while (status.code() == StatusCode::kInvalidArgument);  // sampled before the delete
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_THAT(batch.keys, ElementsAre(2));
}

TEST_P(SamplerTest, ItemsWithoutStepsAreRefusedIfRequired) {
  InsertItems("q", {MakeItem(1, {Whole(Int32Chunk({1})), Whole(Int32Chunk({2, 3}))})});
  SamplerOptions options = For("q");
  options.require_steps = true;
  auto sampler = Make(options);
  const Status status = NextStatus(sampler.get());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("emit_timesteps=False"));
}

TEST_P(SamplerTest, SpecsThatDoNotFitTheSignatureAreRefused) {
  SamplerOptions options = For("s");
  options.specs = {{Spec("a", DType::kFloat32, {-1}), Spec("b", DType::kInt32, {-1})}};
  const Status status = NextStatus(Make(options).get());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'a' got float32[?] expected int32[?]"));
}

TEST_P(SamplerTest, SpecsDecideTheScopeOfTheTable) {
  SamplerOptions options = For("s");
  options.specs = {{Spec("a", DType::kInt32, {-1, 2}), Spec("b", DType::kInt32, {-1, 2})}};
  options.rate_limiter_timeout = Duration::zero();
  EXPECT_EQ(NextStatus(Make(options).get()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Table("s")->Info().config.signature_scope, SignatureScope::kStep);
}

TEST_P(SamplerTest, AnUnknownTableIsNotFound) {
  auto sampler = Make(For("nowhere"));
  const Status status = NextStatus(sampler.get());
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("'q'"));
}

// ---- steps ----

SamplerOptions Steps(SamplerOptions options) {
  options.emit_steps = true;
  return options;
}

TEST_P(SamplerTest, StepsOfItemsComeOneAfterAnother) {
  for (const char* table : {"t", "q"}) {
    Insert(table, {1}, 3);
    auto sampler = Make(Steps(For(table)));
    for (int i = 0; i < 3; ++i) {
      SampleBatch step;
      ASSERT_TRUE(sampler->Next(Within(seconds(30)), &step).ok());
      EXPECT_THAT(step.keys, ElementsAre(1));
      EXPECT_THAT(step.columns[0].shape, SizeIs(0));
      EXPECT_THAT(Int32s(step.columns[0]), ElementsAre(1));
      EXPECT_EQ(sampler->delivered(), 1);
    }
  }
}

TEST_P(SamplerTest, BatchesOfStepsCrossItems) {
  Insert("q", {1, 2, 3}, 3);
  auto sampler = Make(Steps(Batches("q", 4)));
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1, 1, 1, 2));
  EXPECT_THAT(Next(sampler.get()), ElementsAre(2, 2, 3, 3));
  EXPECT_EQ(sampler->delivered(), 3);
}

TEST_P(SamplerTest, StepsOfPrefetchedItemsFillBatchesOfAnySize) {
  Insert("u", Range(1, 50), 2);
  for (const int64_t size : {1, 3, 64, 1000}) {
    SamplerOptions options = Steps(Batches("u", size));
    options.max_in_flight = 4;
    auto sampler = Make(options);
    for (int i = 0; i < 5; ++i) {
      EXPECT_THAT(Next(sampler.get()), SizeIs(static_cast<size_t>(size)));
    }
  }
}

TEST_P(SamplerTest, WorkersShareTheStepsThatACallerGets) {
  Insert("u", Range(1, 50), 5);
  SamplerOptions options = Steps(Batches("u", 7));
  options.num_workers = 3;
  options.max_in_flight = 4;
  options.max_samples = 40;
  auto sampler = Make(options);
  std::map<uint64_t, int> steps;
  int total = 0;
  SampleBatch batch;
  while (sampler->Next(Within(seconds(30)), &batch).ok()) {
    for (const uint64_t key : batch.keys) ++steps[key];
    total += static_cast<int>(batch.keys.size());
  }
  EXPECT_EQ(total, 200);
  for (const auto& [key, n] : steps) EXPECT_EQ(n % 5, 0) << key;
  EXPECT_EQ(sampler->delivered(), 40);
}

TEST_P(SamplerTest, AReaderOfStepsTakesNoMoreItemsOfAQueueThanItNeeds) {
  Insert("q", Range(1, 10), 4);
  auto sampler = Make(Steps(Batches("q", 6)));
  Next(sampler.get());
  EXPECT_EQ(Table("q")->size(), 8);
  Next(sampler.get());
  EXPECT_EQ(Table("q")->size(), 7);
}

TEST_P(SamplerTest, ItemsThatALongerOneMadeSuperfluousGoBack) {
  // Two steps are missing after item 1 of one step, so two items are asked for.
  Insert("q", {1}, 1);
  Insert("q", {2}, 10);
  Insert("q", {3}, 1);
  auto sampler = Make(Steps(Batches("q", 3)));
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1, 2, 2));
  Eventually([&] { return Table("q")->size() == 1; });
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Next(sampler.get()), ElementsAre(2, 2, 2));
  Insert("q", {4}, 5);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(2, 2, 3)) << "in its old place";
}

TEST_P(SamplerTest, ConsumeAheadHoldsItemsOfSteps) {
  Insert("q", Range(1, 10), 2);
  SamplerOptions options = Steps(For("q"));
  options.consume_ahead = 3;
  auto sampler = Make(options);
  Next(sampler.get());
  Eventually([&] { return Table("q")->size() == 6; });
  sampler->Close();
  EXPECT_EQ(Table("q")->size(), 9);
}

TEST_P(SamplerTest, AnItemIsDeliveredWithItsFirstStepAndPartialAtClose) {
  for (const char* table : {"q", "u"}) {
    Insert(table, {1, 2}, 3);
    auto sampler = Make(Steps(For(table)));
    Next(sampler.get());
    Eventually([&] { return Stats(table).delivered == 1; });
    EXPECT_EQ(Stats(table).partial, 0);
    sampler->Close();
    Eventually([&] { return Stats(table).partial == 1; });
    EXPECT_EQ(Stats(table).delivered, 1);
    EXPECT_EQ(Stats(table).in_flight, 0);
  }
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_P(SamplerTest, AnItemReadToItsLastStepIsNotPartial) {
  Insert("q", {1, 2}, 3);
  auto sampler = Make(Steps(Batches("q", 3)));
  Next(sampler.get());
  sampler->Close();
  Eventually([&] { return Stats("q").delivered == 1 && Table("q")->size() == 1; });
  EXPECT_EQ(Stats("q").partial, 0);
}

TEST_P(SamplerTest, MaxSamplesCountsItemsOfSteps) {
  Insert("q", Range(1, 10), 3);
  Insert("u", Range(1, 10), 3);
  for (const char* table : {"q", "u"}) {
    SamplerOptions options = Steps(Batches(table, 4));
    options.max_samples = 2;
    auto sampler = Make(options);
    EXPECT_THAT(Next(sampler.get()), SizeIs(4));
    EXPECT_THAT(Next(sampler.get()), SizeIs(2));
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
    sampler->Close();
    Eventually([&] { return Stats(table).delivered == 2; });
    EXPECT_EQ(Stats(table).partial, 0);
  }
}

TEST_P(SamplerTest, DropRemainderDropsTheStepsThatMakeNoBatch) {
  Insert("q", Range(1, 10), 3);
  Insert("u", Range(1, 10), 3);
  for (const char* table : {"q", "u"}) {
    SamplerOptions options = Steps(Batches(table, 4));
    options.max_samples = 2;
    options.drop_remainder = true;
    auto sampler = Make(options);
    EXPECT_THAT(Next(sampler.get()), SizeIs(4));
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
    sampler->Close();
    Eventually([&] { return Stats(table).partial == 1; });
    EXPECT_EQ(Stats(table).delivered, 2);
  }
}

TEST_P(SamplerTest, StepsThatAreThereComeBeforeTheEnd) {
  for (const auto& [table, last] : {std::pair("q", 1u), std::pair("l", 2u)}) {
    Insert(table, {1}, 5);  // "l" permits two samples of it
    SamplerOptions options = Steps(Batches(table, 4));
    options.rate_limiter_timeout = milliseconds(20);
    options.end_on_timeout = true;
    auto sampler = Make(options);
    for (unsigned i = 0; i < last; ++i) EXPECT_THAT(Next(sampler.get()), SizeIs(4));
    EXPECT_THAT(Next(sampler.get()), SizeIs(last));
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kOutOfRange);
  }
}

TEST_P(SamplerTest, GatheredStepsAreKeptForTheNextCall) {
  SamplerOptions options = Steps(Batches("q", 5));
  options.rate_limiter_timeout = milliseconds(20);
  auto sampler = Make(options);
  Insert("q", {1}, 3);
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kDeadlineExceeded);
  Insert("q", {2}, 3);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1, 1, 1, 2, 2));
}

TEST_P(SamplerTest, AnItemWithoutStepsIsGivenBackAndTheNextOnesAreRead) {
  InsertItems("q", {MakeItem(1, {Whole(Int32Chunk({1})), Whole(Int32Chunk({2, 3}))})});
  auto sampler = Make(Steps(For("q")));
  const Status status = NextStatus(sampler.get());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("column [1] has length 2"));
  Eventually([&] { return Table("q")->size() == 1; });
  ASSERT_TRUE(Table("q")->Mutate({}, {1}).ok());
  Insert("q", {2}, 2);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(2));
}

TEST_P(SamplerTest, StepsThatMakeNoBatchAreGivenBackOrPartial) {
  InsertItems("q", {MakeItem(1, {Whole(Int32Chunk({1, 2, 3}))}),
                    MakeItem(2, {Whole(Int32Chunk({1, 2}, {2}))})});
  auto sampler = Make(Steps(Batches("q", 2)));
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1, 1));
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kInvalidArgument);
  Eventually([&] { return Table("q")->size() == 1 && Stats("q").partial == 1; });
  Insert("q", {3}, 5);
  sampler->Close();
  EXPECT_EQ(Stats("q").in_flight, 0);
}

TEST_P(SamplerTest, NoStepFromBeforeAResetIsDelivered) {
  for (const char* table : {"q", "u"}) {
    Insert(table, Range(1, 10), 3);
    auto sampler = Make(Steps(For(table)));
    Next(sampler.get());
    ASSERT_TRUE(Table(table)->Reset().ok());
    Insert(table, Range(101, 110), 3);
    for (int i = 0; i < 10; ++i) {
      EXPECT_THAT(Next(sampler.get()), Each(testing::Gt(100u)));
    }
  }
}

TEST_P(SamplerTest, AnOpenItemIsNeverTooOld) {
  Insert("lifo", {1}, 3);
  SamplerOptions options = Steps(For("lifo"));
  options.max_age = Duration::zero();
  auto sampler = Make(options);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
  Insert("lifo", {2}, 3);
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
  EXPECT_THAT(Next(sampler.get()), ElementsAre(2));
}

TEST_P(SamplerTest, StreamsThatEndWhileAnItemIsOpenAreReopened) {
  Insert("q", Range(1, 10), 3);
  SamplerOptions options = Steps(Batches("q", 2));
  options.max_samples_per_stream = 1;
  auto sampler = Make(options);
  std::vector<uint64_t> keys;
  for (int i = 0; i < 15; ++i) {
    for (const uint64_t key : Next(sampler.get())) keys.push_back(key);
  }
  EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
  Eventually([&] { return Stats("q").delivered == 10; });
  sampler->Close();
  EXPECT_EQ(Stats("q").partial, 0);
}

// ---- freshness ----

TEST_P(SamplerTest, NothingFromBeforeAResetIsDelivered) {
  for (const bool batched : {false, true}) {
    Insert("u", Range(1, 10));
    SamplerOptions options = batched ? Batches("u", 4) : For("u");
    auto sampler = Make(options);
    Next(sampler.get());
    ASSERT_TRUE(Table("u")->Reset().ok());
    Insert("u", Range(101, 110));
    for (int i = 0; i < 20; ++i) {
      EXPECT_THAT(Next(sampler.get()), Each(testing::Gt(100u)));
    }
    sampler->Close();
    ASSERT_TRUE(Table("u")->Reset().ok());
  }
}

TEST_P(SamplerTest, WhatAQueueSamplerHeldAheadIsVoidAfterAReset) {
  Insert("q", Range(1, 10));
  SamplerOptions options = For("q");
  options.consume_ahead = 4;
  auto sampler = Make(options);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
  ASSERT_TRUE(Table("q")->Reset().ok());
  Insert("q", Range(101, 103));
  EXPECT_THAT(Next(sampler.get()), ElementsAre(101));
}

TEST_P(SamplerTest, SamplesOlderThanMaxAgeAreReplaced) {
  Insert("lifo", {1});
  SamplerOptions options = For("lifo");
  options.max_age = Duration::zero();
  auto sampler = Make(options);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1));
  Insert("lifo", {2});
  EXPECT_THAT(Next(sampler.get()), ElementsAre(2));
  Insert("lifo", {3});
  EXPECT_THAT(Next(sampler.get()), ElementsAre(3));
}

// ---- seeds ----

TEST_P(SamplerTest, TheSameSeedMakesTheSamePicks) {
  Insert("u", Range(1, 1000));
  const auto picks = [&](uint64_t seed, uint64_t iterator, int64_t per_stream) {
    SamplerOptions options = For("u");
    options.seed = seed;
    options.seed_iterator = iterator;
    options.max_samples_per_stream = per_stream;
    auto sampler = Make(options);
    std::vector<uint64_t> keys;
    for (int i = 0; i < 30; ++i) keys.push_back(Next(sampler.get()).at(0));
    return keys;
  };
  EXPECT_EQ(picks(1, 0, 1000), picks(1, 0, 1000));
  EXPECT_NE(picks(1, 0, 1000), picks(1, 1, 1000));
  EXPECT_NE(picks(1, 0, 1000), picks(2, 0, 1000));
  const std::vector<uint64_t> reopened = picks(1, 0, 3);
  EXPECT_EQ(reopened, picks(1, 0, 3));
  // 30 of 1000 drawn afresh; a stream that began anew would repeat 3 keys.
  EXPECT_GT(std::set<uint64_t>(reopened.begin(), reopened.end()).size(), 20u);
}

// ---- ends ----

TEST_P(SamplerTest, AnInterruptionEndsTheWaitAndLeavesNoRequestBehind) {
  auto sampler = Make(For("q"));
  WaitOptions wait;
  std::atomic<int> asked{0};
  wait.interrupted = [&] { return ++asked < 3 ? OkStatus() : CancelledError("Ctrl-C"); };
  SampleBatch batch;
  EXPECT_EQ(sampler->Next(wait, &batch), CancelledError("Ctrl-C"));
  Eventually([&] { return Table("q")->Info().num_waiting_samples == 0; });
  Insert("q", {1});
  EXPECT_EQ(Table("q")->size(), 1);
  EXPECT_THAT(Next(sampler.get()), ElementsAre(1)) << "and the sampler stays usable";
}

TEST_P(SamplerTest, CloseWakesAWaitingNext) {
  for (const char* table : {"q", "u"}) {
    auto sampler = Make(For(table));
    std::thread closer([&] {
      Eventually([&] { return Table(table)->Info().num_waiting_samples > 0; });
      sampler->Close();
    });
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kCancelled);
    closer.join();
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kCancelled);
    EXPECT_EQ(Table(table)->Info().num_waiting_samples, 0);
  }
}

TEST_P(SamplerTest, CloseWithoutNextIsFineAndIdempotent) {
  auto sampler = Make(For("q"));
  sampler->Close();
  sampler->Close();
}

TEST_P(SamplerTest, PartialBatchesAreGivenBackOnClose) {
  SamplerOptions options = Batches("q", 3);
  options.rate_limiter_timeout = milliseconds(10);
  auto sampler = Make(options);
  Insert("q", {1, 2});
  EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Table("q")->size(), 0);
  sampler->Close();
  EXPECT_EQ(Table("q")->size(), 2);
}

// ---- connections ----

class LocalTest : public SamplerTest {};
INSTANTIATE_TEST_SUITE_P(Local, LocalTest, testing::Values(Road::kLocal));

TEST_P(LocalTest, AStoppedServerOfThisProcessIsUnavailable) {
  for (const char* table : {"q", "u"}) {
    auto sampler = Make(For(table));
    std::thread stopper([&] {
      Eventually([&] { return Table(table)->Info().num_waiting_samples > 0; });
      Table(table)->StopServing(UnavailableError("server at localhost:1 was stopped"));
    });
    const Status status = NextStatus(sampler.get());
    stopper.join();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("was stopped"));
  }
}

class RelayTest : public SamplerTest {};
INSTANTIATE_TEST_SUITE_P(Relay, RelayTest, testing::Values(Road::kRelay));

TEST_P(RelayTest, DeliveriesAreAcknowledgedWithoutARequest) {
  Insert("u", Range(1, 5));
  auto sampler = Make(For("u"));
  Next(sampler.get());
  relay_->WaitForRequest(
      [](const SampleRequest& r) { return r.num_samples == 0 && r.delivered == 1; });
  Next(sampler.get());
  relay_->WaitForRequest(
      [](const SampleRequest& r) { return r.num_samples == 0 && r.delivered == 2; });
}

TEST_P(RelayTest, ALostConnectionIsTriedAgain) {
  Insert("u", Range(1, 5));
  Insert("q", Range(1, 5));
  for (const char* table : {"q", "u"}) {
    auto sampler = Make(For(table));
    Next(sampler.get());
    const int streams = relay_->num_streams();
    relay_->SetError(UnavailableError("connection refused"));
    std::thread healer([&] {
      relay_->WaitForStreams(streams + 2);
      relay_->SetError(OkStatus());
    });
    for (int i = 0; i < 40 && relay_->num_streams() < streams + 2; ++i) {
      Insert("q", {100 + static_cast<uint64_t>(i)});
      Next(sampler.get());
    }
    healer.join();
    Next(sampler.get());
  }
}

TEST_P(RelayTest, ReconnectTimeoutEndsTheTries) {
  Insert("u", Range(1, 5));
  for (const char* table : {"q", "u"}) {
    Insert("q", {1, 2});
    SamplerOptions options = For(table);
    options.reconnect_timeout = Duration::zero();
    options.max_in_flight = 1;
    auto sampler = Make(options);
    Next(sampler.get());
    relay_->SetError(UnavailableError("connection refused"));
    SampleBatch batch;
    Status status;
    for (int i = 0; i < 10 && status.ok(); ++i) {  // buffered ones come first
      status = sampler->Next(Within(seconds(30)), &batch);
    }
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("connection refused"), HasSubstr("localhost:1")));
    relay_->SetError(OkStatus());
    while (!(status = sampler->Next(Within(seconds(30)), &batch)).ok()) {
      ASSERT_EQ(status.code(), StatusCode::kUnavailable);
    }
  }
}

TEST_P(RelayTest, ATimeoutWhileTheServerIsAwayIsNotTheLimiters) {
  for (const char* table : {"q", "u"}) {
    SamplerOptions options = For(table);
    options.rate_limiter_timeout = milliseconds(10);
    options.end_on_timeout = true;
    auto sampler = Make(options);
    relay_->SetError(OkStatus());
    {
      // Learn of the table, then lose the server.
      Insert(table, {1});
      Next(sampler.get());
    }
    ASSERT_TRUE(Table(table)->Reset().ok());
    relay_->SetError(UnavailableError("connection refused"));
    const Status status = NextStatus(sampler.get(), milliseconds(300));
    EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(status.message(), HasSubstr("connection refused"));
    relay_->SetError(OkStatus());
  }
}

TEST_P(RelayTest, AnUnreachableServerIsNamedWhenTheWaitEnds) {
  relay_->SetError(UnavailableError("connection refused"));
  const Status status = NextStatus(Make(For("u")).get(), milliseconds(50));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("localhost:1"), HasSubstr("connection refused")));
}

TEST_P(RelayTest, OtherErrorsOfAStreamAreReturned) {
  Insert("q", {1, 2});
  auto sampler = Make(For("q"));
  Next(sampler.get());
  relay_->SetError(FailedPreconditionError("the scopes differ"));
  EXPECT_EQ(NextStatus(sampler.get()), FailedPreconditionError("the scopes differ"));
  relay_->SetError(OkStatus());
  Eventually([&] { return NextStatus(sampler.get()).ok(); });
}

TEST_P(RelayTest, AForeignServerGivesSamplesAndTimesOut) {
  relay_->own_peer = false;
  for (const char* table : {"q", "u"}) {
    SamplerOptions options = Batches(table, 2);
    options.rate_limiter_timeout = milliseconds(20);
    auto sampler = Make(options);
    EXPECT_EQ(NextStatus(sampler.get()).code(), StatusCode::kDeadlineExceeded);
    Insert(table, {1, 2, 3, 4, 5});
    EXPECT_THAT(Next(sampler.get()), SizeIs(2));
    EXPECT_THAT(Next(sampler.get()), SizeIs(2));
  }
  SamplerOptions options = For("l");
  options.rate_limiter_timeout = Duration::zero();
  options.end_on_timeout = true;
  EXPECT_EQ(NextStatus(Make(options).get()).code(), StatusCode::kOutOfRange);
}

// ---- options ----

TEST(SamplerOptionsTest, BadOnesAreRefusedByName) {
  const auto refused = [](const std::function<void(SamplerOptions*)>& change) {
    SamplerOptions options;
    options.table = "t";
    EXPECT_TRUE(options.Validate().ok());
    change(&options);
    const Status status = options.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(refused([](auto* o) { o->table = ""; }), HasSubstr("table"));
  EXPECT_THAT(refused([](auto* o) { o->max_in_flight = 0; }), HasSubstr("got 0"));
  EXPECT_THAT(refused([](auto* o) { o->num_workers = 0; }), HasSubstr("num_workers"));
  EXPECT_THAT(refused([](auto* o) { o->num_workers = 1'000'000; }), HasSubstr("at most"));
  EXPECT_THAT(refused([](auto* o) { o->max_samples_per_stream = -1; }), HasSubstr("-1"));
  EXPECT_THAT(refused([](auto* o) { o->max_samples = 0; }), HasSubstr("max_samples"));
  EXPECT_THAT(refused([](auto* o) { o->batch_size = 0; }), HasSubstr("batch_size"));
  EXPECT_THAT(refused([](auto* o) { o->pad_to_longest = true; }), HasSubstr("batch_size"));
  EXPECT_THAT(refused([](auto* o) {
                o->pad_to_longest = o->emit_steps = true;
                o->batch_size = 2;
              }),
              HasSubstr("steps, which have no length"));
  EXPECT_THAT(refused([](auto* o) { o->consume_ahead = -1; }), HasSubstr("consume_ahead"));
  EXPECT_THAT(refused([](auto* o) { o->max_age = Duration(-1); }), HasSubstr("max_age"));
  EXPECT_THAT(refused([](auto* o) { o->rate_limiter_timeout = Duration(-1); }),
              HasSubstr("rate_limiter_timeout"));
  EXPECT_THAT(refused([](auto* o) { o->reconnect_timeout = Duration(-1); }),
              HasSubstr("reconnect_timeout"));
  EXPECT_THAT(refused([](auto* o) { o->specs.emplace(); }), HasSubstr("dtypes"));
  EXPECT_THAT(refused([](auto* o) { o->specs = {{TensorSpec()}}; }), HasSubstr("dtype 0"));
}

}  // namespace
}  // namespace reverb_tf
