#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc/client/sampler_impl.h"
#include "cc/client/writer_testing.h"
#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

// Collects what becomes of inserts; nobody looks.
class SilentWriter : public InsertListener {
 public:
  void OnInserted(uint64_t, Status) override {}
  void Notify() override {}
};

// Tables of a service of this process, filled and sampled.
class SamplerTest : public testing::Test {
 protected:
  void Serve(const TableConfig& config) {
    service_ = MakeTestService({config});
    table_ = service_->store()->tables()[0];
    writer_ = std::make_shared<SilentWriter>();
    table_->AddWriter(writer_);
  }

  // Items of `rows` int32 rows with keys begin … end-1.
  void Fill(uint64_t begin, uint64_t end, int32_t rows = 1) {
    std::vector<PendingInsert> inserts;
    for (uint64_t key = begin; key < end; ++key) {
      inserts.push_back({{TestItem(key, rows), 1.0, 0, 0}, key});
    }
    table_->Insert(writer_, std::move(inserts));
  }

  SamplerOptions Options(std::optional<int64_t> batch = std::nullopt) {
    SamplerOptions options;
    options.table = table_->name();
    options.batch_size = batch;
    return options;
  }

  std::unique_ptr<Sampler> Open(const SamplerOptions& options) {
    std::shared_ptr<Transport> transport = MakeLocalTransport(service_);
    auto cache = std::make_shared<TableCache>(transport, kTestAddress);
    return MakeSampler(transport, cache, kTestAddress, options).value();
  }

  std::shared_ptr<Service> service_;
  std::shared_ptr<TableRunner> table_;
  std::shared_ptr<SilentWriter> writer_;
};

TEST_F(SamplerTest, BatchHasInfoVectorsAndStackedRows) {
  Serve(ReplayConfig());
  Fill(1, 2, 3);
  SampleBatch batch;
  ASSERT_TRUE(Open(Options(4))->Next(Soon(), &batch).ok());
  EXPECT_EQ(batch.keys, (std::vector<uint64_t>{1, 1, 1, 1}));
  EXPECT_EQ(batch.table_sizes, (std::vector<int64_t>{1, 1, 1, 1}));
  ASSERT_EQ(batch.columns.size(), 1u);
  EXPECT_EQ(batch.columns[0].shape, (Shape{4, 3}));
  int32_t values[12];
  std::memcpy(values, batch.columns[0].buffer->data(), sizeof values);
  for (int i = 0; i < 12; ++i) EXPECT_EQ(values[i], i % 3);
}

TEST_F(SamplerTest, QueueGivesEachItemOnceInOrderAndTakesNoMoreThanAskedFor) {
  Serve(QueueConfig(100));
  Fill(1, 11);
  auto sampler = Open(Options());
  for (uint64_t key = 1; key <= 4; ++key) {
    SampleBatch one;
    ASSERT_TRUE(sampler->Next(Soon(), &one).ok());
    EXPECT_EQ(one.keys[0], key);
  }
  EXPECT_EQ(table_->size(), 6);
  const TableInfo info = table_->Info();
  EXPECT_EQ(info.sample_stats.delivered, 4);
  EXPECT_EQ(info.sample_stats.in_flight, 0);
}

TEST_F(SamplerTest, ClosingGivesBackAnUnfinishedBatch) {
  Serve(QueueConfig(100));
  Fill(1, 4);
  auto sampler = Open(Options(5));
  SampleBatch batch;
  const Status status = sampler->Next(Within(std::chrono::milliseconds(50)), &batch);
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  sampler->Close();
  EXPECT_EQ(table_->size(), 3);
  EXPECT_EQ(table_->Info().sample_stats.in_flight, 0);
}

TEST_F(SamplerTest, MaxSamplesEndsTheSequenceWithAShortBatch) {
  for (const TableConfig& config : {ReplayConfig(), QueueConfig(100)}) {
    Serve(config);
    Fill(1, 21);
    SamplerOptions options = Options(4);
    options.max_samples = 10;
    auto sampler = Open(options);
    std::vector<size_t> sizes;
    SampleBatch batch;
    Status status;
    while ((status = sampler->Next(Soon(), &batch)).ok()) {
      sizes.push_back(batch.keys.size());
      batch = SampleBatch();
    }
    EXPECT_EQ(status.code(), StatusCode::kOutOfRange) << status;
    EXPECT_EQ(sizes, (std::vector<size_t>{4, 4, 2}));
    sampler->Close();
    EXPECT_EQ(table_->Info().sample_stats.delivered, 10);
  }
}

TEST_F(SamplerTest, ZeroTimeoutTakesOnlyWhatIsThere) {
  Serve(QueueConfig(100));
  Fill(1, 2);
  SamplerOptions options = Options();
  options.rate_limiter_timeout = Duration::zero();
  auto sampler = Open(options);
  SampleBatch batch;
  EXPECT_TRUE(sampler->Next(Soon(), &batch).ok());
  batch = SampleBatch();
  EXPECT_EQ(sampler->Next(Soon(), &batch).code(), StatusCode::kDeadlineExceeded);
  Fill(2, 3);
  EXPECT_TRUE(sampler->Next(Soon(), &batch).ok());
}

TEST_F(SamplerTest, TimeoutEndsOrIsAnErrorThatSaysWhy) {
  for (const TableConfig& config : {ReplayConfig(), QueueConfig(100)}) {
    for (bool end : {true, false}) {
      Serve(config);
      SamplerOptions options = Options(2);
      options.rate_limiter_timeout = std::chrono::milliseconds(30);
      options.end_on_timeout = end;
      SampleBatch batch;
      const Status status = Open(options)->Next(Soon(), &batch);
      EXPECT_EQ(status.code(),
                end ? StatusCode::kOutOfRange : StatusCode::kDeadlineExceeded);
      const bool says_why = status.message().find("table empty") != std::string::npos;
      EXPECT_TRUE(end || says_why) << status;
    }
  }
}

TEST_F(SamplerTest, UnequalLengthsNameBothShapesAndTheCures) {
  Serve(QueueConfig(100));
  Fill(1, 2, 2);
  Fill(2, 3, 3);
  SampleBatch batch;
  auto sampler = Open(Options(2));
  const Status status = sampler->Next(Soon(), &batch);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  for (const char* part : {"[2]", "[3]", "pad_to_longest=True", "ragged_batch"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status;
  }
  EXPECT_EQ(table_->size(), 2);
}

TEST_F(SamplerTest, PaddingFillsWithZerosAndTellsLengths) {
  Serve(QueueConfig(100));
  Fill(1, 2, 2);
  Fill(2, 3, 3);
  SamplerOptions options = Options(2);
  options.pad_to_longest = true;
  SampleBatch batch;
  ASSERT_TRUE(Open(options)->Next(Soon(), &batch).ok());
  EXPECT_EQ(batch.columns[0].shape, (Shape{2, 3}));
  int32_t values[6];
  std::memcpy(values, batch.columns[0].buffer->data(), sizeof values);
  EXPECT_EQ((std::vector<int32_t>(values, values + 6)),
            (std::vector<int32_t>{0, 1, 0, 0, 1, 2}));
  EXPECT_EQ(batch.lengths[0], (std::vector<int32_t>{2, 3}));
}

TEST_F(SamplerTest, DeclaredSpecsAreCheckedAgainstItemsOfUnsignedTables) {
  Serve(QueueConfig(100));
  Fill(1, 2, 2);
  SamplerOptions options = Options();
  options.specs = std::vector<TensorSpec>{{"x", DType::kFloat32, {-1}, false}};
  auto sampler = Open(options);
  SampleBatch batch;
  const Status status = sampler->Next(Soon(), &batch);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("'x' got int32[2] expected float32[?]"),
            std::string::npos)
      << status;
  EXPECT_EQ(table_->size(), 1);
}

TEST_F(SamplerTest, InterruptionEndsAWaitAndGivesBack) {
  Serve(QueueConfig(100));
  std::atomic<bool> stop{false};
  WaitOptions wait;
  wait.interrupted = [&] { return stop ? CancelledError("stop") : OkStatus(); };
  auto sampler = Open(Options());
  std::thread thread([&] {
    while (table_->Info().num_waiting_samples == 0) std::this_thread::yield();
    stop = true;
  });
  SampleBatch batch;
  EXPECT_EQ(sampler->Next(wait, &batch).code(), StatusCode::kCancelled);
  thread.join();
  EXPECT_EQ(table_->Info().num_waiting_samples, 0);
  Fill(1, 2);
  EXPECT_TRUE(sampler->Next(Soon(), &batch).ok());
}

TEST_F(SamplerTest, CloseWakesAWaitingNext) {
  for (const TableConfig& config : {ReplayConfig(), QueueConfig(100)}) {
    Serve(config);
    auto sampler = Open(Options());
    std::thread thread([&] {
      while (table_->Info().num_waiting_samples == 0) std::this_thread::yield();
      sampler->Close();
    });
    SampleBatch batch;
    EXPECT_EQ(sampler->Next(Soon(), &batch).code(), StatusCode::kCancelled);
    thread.join();
  }
}

TEST_F(SamplerTest, NothingGrantedBeforeAResetIsDelivered) {
  Serve(ReplayConfig());
  Fill(1, 2);
  auto sampler = Open(Options());
  SampleBatch batch;
  ASSERT_TRUE(sampler->Next(Soon(), &batch).ok());
  ASSERT_TRUE(table_->Reset().ok());
  Fill(2, 3);
  for (int i = 0; i < 50; ++i) {
    batch = SampleBatch();
    ASSERT_TRUE(sampler->Next(Soon(), &batch).ok());
    EXPECT_EQ(batch.keys[0], 2u);
  }
}

TEST_F(SamplerTest, StoppedServerIsUnavailable) {
  for (const TableConfig& config : {ReplayConfig(), QueueConfig(100)}) {
    Serve(config);
    auto sampler = Open(Options());
    std::thread thread([&] {
      while (table_->Info().num_waiting_samples == 0) std::this_thread::yield();
      service_->Stop();
    });
    SampleBatch batch;
    EXPECT_EQ(sampler->Next(Soon(), &batch).code(), StatusCode::kUnavailable);
    thread.join();
  }
}

// Four samplers empty a queue while it is filled; 2,000 items, each once.
TEST_F(SamplerTest, ConcurrentSamplersOfAQueueShareItsItems) {
  Serve(QueueConfig(50));
  constexpr uint64_t kItems = 2000;
  std::vector<std::vector<uint64_t>> got(4);
  std::vector<std::thread> threads;
  for (auto& keys : got) {
    threads.emplace_back([this, &keys] {
      SamplerOptions options = Options(3);
      options.rate_limiter_timeout = std::chrono::milliseconds(500);
      options.end_on_timeout = true;
      auto sampler = Open(options);
      SampleBatch batch;
      while (sampler->Next(Soon(), &batch).ok()) {
        keys.insert(keys.end(), batch.keys.begin(), batch.keys.end());
        batch = SampleBatch();
      }
    });
  }
  for (uint64_t key = 1; key <= kItems; ++key) Fill(key, key + 1);
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  size_t total = 0;
  for (const auto& keys : got) {
    EXPECT_TRUE(std::is_sorted(keys.begin(), keys.end()));
    all.insert(keys.begin(), keys.end());
    total += keys.size();
  }
  EXPECT_EQ(total, kItems);
  EXPECT_EQ(all.size(), kItems);
}

}  // namespace
}  // namespace reverb_tf
