// Random use of a writer against a plain model, read back from the table, over the
// in-process road and over a connection that keeps breaking.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "cc/client/trajectory_writer_impl.h"
#include "cc/client/writer_testing.h"
#include "cc/core/random.h"

namespace reverb_tf {
namespace {

// Looks remote and loses its streams: every so many messages the stream ends, with
// the answers to the last ones unheard.
class FlakyTransport : public Transport {
 public:
  FlakyTransport(std::shared_ptr<Transport> inner, int messages)
      : inner_(std::move(inner)), messages_(messages) {}

  std::unique_ptr<Call> GetServerInfo(Done<ServerInfo> done) override {
    return inner_->GetServerInfo(std::move(done));
  }
  std::unique_ptr<Call> Mutate(MutateRequest request, Done<MutateCounts> done) override {
    return inner_->Mutate(std::move(request), std::move(done));
  }
  std::unique_ptr<Call> Reset(std::string table, Done<bool> done) override {
    return inner_->Reset(std::move(table), std::move(done));
  }
  std::unique_ptr<Call> Checkpoint(Done<std::string> done) override {
    return inner_->Checkpoint(std::move(done));
  }
  std::unique_ptr<InsertStream> OpenInsert(std::function<void()> on_ready) override {
    return std::make_unique<FlakyStream>(inner_->OpenInsert(on_ready), messages_, on_ready);
  }
  std::unique_ptr<SampleStream> OpenSample(std::function<void()> on_ready) override {
    return inner_->OpenSample(std::move(on_ready));
  }
  bool is_local() const override { return false; }
  bool is_own_peer() const override { return true; }

 private:
  class FlakyStream : public InsertStream {
   public:
    FlakyStream(std::unique_ptr<InsertStream> inner, int messages,
                std::function<void()> on_ready)
        : inner_(std::move(inner)), messages_(messages), on_ready_(std::move(on_ready)) {}
    bool can_send() const override { return inner_->can_send(); }
    void HalfClose() override { inner_->HalfClose(); }
    void Cancel() override { inner_->Cancel(); }
    void Send(InsertRequest request) override {
      inner_->Send(std::move(request));
      if (--messages_ > 0) return;
      broken_ = true;
      on_ready_();
    }
    bool Take(InsertReply* reply) override { return !broken_ && inner_->Take(reply); }
    std::optional<Status> finished() const override {
      if (broken_) return UnavailableError("connection reset");
      return inner_->finished();
    }

   private:
    const std::unique_ptr<InsertStream> inner_;
    std::atomic<int> messages_;
    std::atomic<bool> broken_{false};
    const std::function<void()> on_ready_;
  };

  const std::shared_ptr<Transport> inner_;
  const int messages_;
};

constexpr int kColumns = 3;

// What the writer should hold: per column the value of each step, if any.
class Model {
 public:
  explicit Model(std::vector<int64_t> refs) : refs_(std::move(refs)) {}

  void Step(const std::vector<std::optional<float>>& values) {
    for (int c = 0; c < kColumns; ++c) cells_[c].push_back(values[static_cast<size_t>(c)]);
  }
  int64_t end() const { return static_cast<int64_t>(cells_[0].size()); }
  void Clear() { begin_ = end(); }
  int64_t begin() const { return begin_; }

  bool Usable(int c, int64_t step) const {
    if (step < begin_ || !cells_[c][static_cast<size_t>(step)]) return false;
    int64_t newer = 0;
    for (int64_t s = step + 1; s < end(); ++s) {
      if (cells_[c][static_cast<size_t>(s)]) ++newer;
    }
    return newer < refs_[static_cast<size_t>(c)];
  }
  float Value(int c, int64_t step) const { return *cells_[c][static_cast<size_t>(step)]; }

 private:
  const std::vector<int64_t> refs_;
  std::vector<std::optional<float>> cells_[kColumns];
  int64_t begin_ = 0;
};

struct Parameter {
  uint64_t seed;
  int break_after;  // messages; 0: in process
};

class WriterModelTest : public ::testing::TestWithParam<Parameter> {
 protected:
  WriterModelTest() : random_(GetParam().seed) {
    TableConfig table = OpenTable("t");
    table.max_times_sampled = 1;  // so that each item can be drawn once
    service_ = MakeTestService({table});
    transport_ = MakeLocalTransport(service_);
    if (GetParam().break_after > 0) {
      transport_ = std::make_shared<FlakyTransport>(transport_, GetParam().break_after);
    }
    auto cache = std::make_shared<TableCache>(transport_, kTestAddress);
    TrajectoryWriterOptions options;
    options.num_keep_alive_refs = 5;
    writer_ = MakeTrajectoryWriter(transport_, cache, kTestAddress, options).value();
    std::vector<int64_t> refs;
    for (int c = 0; c < kColumns; ++c) {
      ColumnOptions column;
      refs.push_back(static_cast<int64_t>(random_.Below(20)) + 1);
      column.num_keep_alive_refs = refs.back();
      if (random_.Below(2) == 0) {
        column.max_chunk_length =
            static_cast<int64_t>(random_.Below(static_cast<uint64_t>(refs.back()))) + 1;
      }
      if (random_.Below(3) == 0) column.codec = Codec::kSnappy;
      const std::string path(1, static_cast<char>('a' + c));
      RTF_CHECK(writer_->Configure(path, column).ok());
      columns_.push_back(writer_->Column(path));
    }
    model_.emplace(refs);
  }

  void AppendStep() {
    std::vector<std::optional<float>> values(kColumns);
    std::vector<TestCell> cells;
    for (int c = 0; c < kColumns; ++c) {
      if (random_.Below(12) == 0) continue;
      const float value = next_value_++;
      values[static_cast<size_t>(c)] = value;
      cells.push_back({columns_[static_cast<size_t>(c)], {}, {value}});
    }
    const size_t split = random_.Below(cells.size() + 1);
    std::vector<CellView> views;
    for (const TestCell& cell : cells) views.push_back(cell.view());
    if (split > 0) {
      ASSERT_TRUE(writer_->Append(views.data(), split, true).ok());
    }
    ASSERT_TRUE(writer_->Append(views.data() + split, views.size() - split, false).ok());
    model_->Step(values);
  }

  // A run that is within the history.
  CellRun RandomRun(int c) {
    const int64_t length = model_->end() - model_->begin();
    CellRun run;
    run.column = columns_[static_cast<size_t>(c)];
    const auto back = static_cast<int64_t>(
        random_.Below(static_cast<uint64_t>(std::min<int64_t>(length, 12))));
    run.first = model_->end() - 1 - back;
    run.stride = static_cast<int64_t>(random_.Below(5)) - 2;
    int64_t most = 4;
    if (run.stride > 0) most = (model_->end() - 1 - run.first) / run.stride + 1;
    if (run.stride < 0) most = (run.first - model_->begin()) / -run.stride + 1;
    run.count = static_cast<int64_t>(
                    random_.Below(static_cast<uint64_t>(std::min<int64_t>(most, 6)))) +
                1;
    return run;
  }

  void CreateRandomItem() {
    if (model_->end() == model_->begin()) return;
    std::vector<ItemColumn> columns(random_.Below(3) + 1);
    std::vector<std::vector<float>> expected(columns.size());
    bool usable = true;
    for (size_t i = 0; i < columns.size(); ++i) {
      columns[i].path = "column" + std::to_string(i);
      for (uint64_t r = random_.Below(3) + 1; r > 0; --r) {
        const int c = static_cast<int>(random_.Below(kColumns));
        const CellRun run = RandomRun(c);
        columns[i].runs.push_back(run);
        for (int64_t k = 0; k < run.count; ++k) {
          const int64_t step = run.first + k * run.stride;
          usable = usable && model_->Usable(c, step);
          if (usable) expected[i].push_back(model_->Value(c, step));
        }
      }
      columns[i].squeeze = usable && expected[i].size() == 1;
    }
    CheckReads(columns, expected, usable);
    const Result<uint64_t> key = CreateItem(writer_.get(), "t", columns);
    // Spec-less columns (no value yet) count as unusable too.
    ASSERT_EQ(key.ok(), usable) << key.status();
    if (usable) expected_[*key] = expected;
  }

  void CheckReads(const std::vector<ItemColumn>& columns,
                  const std::vector<std::vector<float>>& expected, bool usable) {
    if (!usable) return;
    for (size_t i = 0; i < columns.size(); ++i) {
      const Result<Tensor> read = writer_->Read(columns[i]);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_EQ(read->buffer->size(), expected[i].size() * sizeof(float));
      EXPECT_EQ(
          0, std::memcmp(read->buffer->data(), expected[i].data(), read->buffer->size()));
    }
  }

  // The table holds each item once, in creation order (that of the keys).
  void CheckStored() {
    const auto n = static_cast<int64_t>(expected_.size());
    EXPECT_EQ(service_->store()->Find("t").value()->Info().insert_count, n);
    const std::vector<ItemPtr> items = ItemsOf(service_.get(), "t", n);
    ASSERT_EQ(items.size(), expected_.size());
    size_t i = 0;
    for (const auto& [key, columns] : expected_) {
      ASSERT_EQ(items[i]->key(), key) << "item " << i;
      ASSERT_EQ(items[i]->num_columns(), static_cast<int>(columns.size()));
      for (size_t c = 0; c < columns.size(); ++c) {
        EXPECT_EQ(Floats(items[i]->column(static_cast<int>(c))), columns[c]);
      }
      ++i;
    }
  }

  Random random_;
  std::shared_ptr<Service> service_;
  std::shared_ptr<Transport> transport_;
  std::unique_ptr<TrajectoryWriter> writer_;
  std::vector<int> columns_;
  std::optional<Model> model_;
  float next_value_ = 0;
  std::map<uint64_t, std::vector<std::vector<float>>> expected_;
};

TEST_P(WriterModelTest, StoresExactlyTheChosenCellsOnceAndInOrder) {
  for (int i = 0; i < 4000; ++i) {
    switch (random_.Below(8)) {
      case 0:
      case 1:
      case 2:
      case 3:
        AppendStep();
        break;
      case 4:
        if (random_.Below(6) == 0) {
          const bool clear = random_.Below(2) == 0;
          ASSERT_TRUE(writer_->EndEpisode(clear, Soon()).ok());
          if (clear) model_->Clear();
        }
        break;
      default:
        CreateRandomItem();
    }
    if (HasFatalFailure()) return;
  }
  ASSERT_TRUE(writer_->Flush(0, Soon()).ok());
  ASSERT_GT(expected_.size(), 200u);
  CheckStored();
}

INSTANTIATE_TEST_SUITE_P(InProcess, WriterModelTest,
                         ::testing::Values(Parameter{1, 0}, Parameter{2, 0},
                                           Parameter{3, 0}, Parameter{4, 0}));
INSTANTIATE_TEST_SUITE_P(LosesItsConnection, WriterModelTest,
                         ::testing::Values(Parameter{5, 1000000}, Parameter{6, 7},
                                           Parameter{7, 2}, Parameter{8, 30}));

}  // namespace
}  // namespace reverb_tf
