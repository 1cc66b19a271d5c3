// Random streams on one table, first one thread for all, then a thread for each;
// in the end the books must balance exactly.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <thread>

#include "cc/base/fake_clock.h"
#include "cc/core/random.h"
#include "cc/store/table_runner.h"
#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

uint64_t KeyOf(uint64_t writer, uint64_t number) { return writer << 32 | number; }

// Inserts numbered items in messages; now and then loses its stream and sends what
// was not confirmed (and some that was) on a new one.
class ModelWriter {
 public:
  ModelWriter(TableRunner* runner, uint64_t id)
      : runner_(runner), id_(id), random_(11, id) {
    Open();
  }

  void Step() {
    Collect();
    if (random_.Below(16) == 0) {
      Reopen();
    } else if (unconfirmed_.size() < 20) {
      std::vector<uint64_t> numbers;
      for (uint64_t n = 1 + random_.Below(4); n > 0; --n) numbers.push_back(next_++);
      Send(numbers);
    }
  }
  void Close() {
    runner_->RemoveWriter(stream_.get());
    Collect();
  }
  const std::set<uint64_t>& confirmed() const { return confirmed_; }

 private:
  void Open() {
    stream_ = std::make_shared<RecordingWriter>();
    seen_ = 0;
    runner_->AddWriter(stream_);
  }
  void Reopen() {
    Close();
    Open();
    std::vector<uint64_t> numbers(unconfirmed_.begin(), unconfirmed_.end());
    const uint64_t first = numbers.empty() ? next_ : numbers.front();
    if (first > 1 && confirmed_.count(KeyOf(id_, first - 1)) > 0) {
      numbers.insert(numbers.begin(), first - 1);
    }
    Send(numbers);
  }
  void Send(const std::vector<uint64_t>& numbers) {
    std::vector<PendingInsert> inserts;
    for (const uint64_t n : numbers) {
      inserts.push_back({{TestItem(KeyOf(id_, n)), 1.0, id_, n}, KeyOf(id_, n)});
      if (confirmed_.count(KeyOf(id_, n)) == 0) unconfirmed_.insert(n);
    }
    runner_->Insert(stream_, std::move(inserts));
  }
  void Collect() {
    EXPECT_THAT(stream_->failed(), testing::IsEmpty());
    const auto inserted = stream_->inserted();
    for (; seen_ < inserted.size(); ++seen_) {
      confirmed_.insert(inserted[seen_]);
      unconfirmed_.erase(inserted[seen_] & 0xffffffff);
    }
  }

  TableRunner* const runner_;
  const uint64_t id_;
  Random random_;
  std::shared_ptr<RecordingWriter> stream_;
  size_t seen_ = 0;
  uint64_t next_ = 1;
  std::set<uint64_t> unconfirmed_;
  std::set<uint64_t> confirmed_;
};

// Asks, delivers, gives back, closes and comes back.
class ModelSampler {
 public:
  ModelSampler(TableRunner* runner, const Clock* clock, uint64_t id, bool returns)
      : runner_(runner), clock_(clock), returns_(returns), random_(12, id) {
    Open();
  }

  void Step() {
    Settle();
    if (random_.Below(32) == 0) {
      Close();
      Open();
    } else if (stream_->done().size() == asked_) {
      ++asked_;
      const bool wait = random_.Below(2) == 0;
      const int64_t n = 1 + static_cast<int64_t>(random_.Below(5));
      runner_->Sample(stream_, {n, wait ? kNever : clock_->Now(), nullptr});
    }
  }
  // Without returns, a sampler that closes has delivered all it was granted.
  void Close() {
    if (returns_) {
      runner_->RemoveSampler(stream_.get(), Grants(Count(stream_->TakeItems())));
      granted_back_ += last_count_;
    } else {
      runner_->RemoveSampler(stream_.get(), {});
    }
    Settle();  // what came between
  }

  std::vector<uint64_t> delivered;
  int64_t granted() const { return granted_; }
  int64_t given_back() const { return granted_back_; }
  bool in_order() const { return in_order_; }

 private:
  void Open() {
    stream_ = std::make_shared<RecordingSampler>();
    asked_ = 0;
    last_.clear();
    runner_->AddSampler(stream_);
  }
  std::vector<SampledItem> Count(std::vector<SampledItem> items) {
    last_count_ = static_cast<int64_t>(items.size());
    granted_ += last_count_;
    return items;
  }
  void Settle() {
    const auto items = Count(stream_->TakeItems());
    if (items.empty()) return;
    if (returns_ && random_.Below(3) == 0) {
      granted_back_ += last_count_;
      return runner_->GiveBack(Grants(items));
    }
    for (const uint64_t key : Keys(items)) {
      uint64_t& last = last_[key >> 32];
      in_order_ = in_order_ && last < key;
      last = key;
      delivered.push_back(key);
    }
    runner_->Delivered(Grants(items), 0);
  }

  TableRunner* const runner_;
  const Clock* const clock_;
  const bool returns_;
  Random random_;
  std::shared_ptr<RecordingSampler> stream_;
  size_t asked_ = 0;
  std::map<uint64_t, uint64_t> last_;  // key by writer
  bool in_order_ = true;
  int64_t last_count_ = 0;
  int64_t granted_ = 0;
  int64_t granted_back_ = 0;
};

class ModelMutator {
 public:
  ModelMutator(TableRunner* runner, bool deletes)
      : runner_(runner), deletes_(deletes), random_(13, 0) {}
  void Step() {
    const uint64_t key = KeyOf(1 + random_.Below(3), 1 + random_.Below(2000));
    std::vector<uint64_t> deletes;
    if (deletes_ && random_.Below(4) == 0) deletes.push_back(key);
    const auto counts = runner_->Mutate({{key + 1, random_.Unit()}}, deletes);
    ASSERT_TRUE(counts.ok());
    deleted += counts->deleted;
    runner_->ExpireWaiters(clock_.Now());
    if (random_.Below(8) == 0) runner_->Info();
  }
  int64_t deleted = 0;

 private:
  TableRunner* const runner_;
  FakeClock clock_;
  const bool deletes_;
  Random random_;
};

struct Scenario {
  bool threads;
  bool returns;
  bool deletes;
};

class Model {
 public:
  Model(TableConfig config, Scenario scenario)
      : scenario_(scenario),
        runner_(std::move(config), &clock_),
        mutator_(&runner_, scenario.deletes) {
    for (uint64_t id = 1; id <= 3; ++id) {
      writers_.push_back(std::make_unique<ModelWriter>(&runner_, id));
      samplers_.push_back(
          std::make_unique<ModelSampler>(&runner_, &clock_, id, scenario.returns));
    }
  }

  // Until `num_delivered` samples were delivered; then closes all streams.
  void Run(int64_t num_delivered) {
    std::vector<std::function<void()>> actors;
    for (auto& w : writers_) actors.push_back([&w] { w->Step(); });
    for (auto& s : samplers_) {
      actors.push_back([this, &s] {
        const size_t before = s->delivered.size();
        s->Step();
        delivered_ += static_cast<int64_t>(s->delivered.size() - before);
      });
    }
    actors.push_back([this] { mutator_.Step(); });
    if (scenario_.threads) {
      std::vector<std::thread> threads;
      for (auto& actor : actors) {
        threads.emplace_back([this, &actor, num_delivered] {
          while (delivered_ < num_delivered) actor();
        });
      }
      for (auto& thread : threads) thread.join();
    } else {
      Random random(10);
      while (delivered_ < num_delivered) actors[random.Below(actors.size())]();
    }
    for (auto& w : writers_) w->Close();
    for (auto& s : samplers_) s->Close();
  }

  std::set<uint64_t> Inserted() const {
    std::set<uint64_t> all;
    for (auto& w : writers_) all.insert(w->confirmed().begin(), w->confirmed().end());
    return all;
  }
  // What is left in a consuming table.
  std::vector<uint64_t> Drain() {
    auto last = std::make_shared<RecordingSampler>();
    runner_.AddSampler(last);
    const int64_t size = runner_.size();
    if (size > 0) runner_.Sample(last, {size, clock_.Now(), nullptr});
    runner_.RemoveSampler(last.get(), {});
    return last->keys();
  }

  TableRunner& runner() { return runner_; }
  const std::vector<std::unique_ptr<ModelSampler>>& samplers() const { return samplers_; }
  int64_t deleted() const { return mutator_.deleted; }

 private:
  const Scenario scenario_;
  FakeClock clock_;
  TableRunner runner_;
  std::vector<std::unique_ptr<ModelWriter>> writers_;
  std::vector<std::unique_ptr<ModelSampler>> samplers_;
  ModelMutator mutator_;
  std::atomic<int64_t> delivered_{0};
};

class TableRunnerModelTest : public testing::TestWithParam<Scenario> {};

TEST_P(TableRunnerModelTest, EachItemOfAQueueIsDeliveredExactlyOnce) {
  // Deleting by key gives a queue no room back, so its limiter would close for good.
  TableConfig config = QueueConfig(8);
  if (GetParam().deletes) config.rate_limiter = ReplayConfig().rate_limiter;
  config.max_size = 1 << 20;
  Model model(config, GetParam());
  model.Run(4000);
  const std::set<uint64_t> inserted = model.Inserted();
  std::vector<uint64_t> delivered;
  for (const auto& s : model.samplers()) {
    delivered.insert(delivered.end(), s->delivered.begin(), s->delivered.end());
    if (!GetParam().returns) {
      EXPECT_TRUE(s->in_order());
    }
  }
  const TableInfo info = model.runner().Info();
  EXPECT_EQ(info.sample_stats.delivered, static_cast<int64_t>(delivered.size()));
  const auto rest = model.Drain();
  delivered.insert(delivered.end(), rest.begin(), rest.end());
  std::sort(delivered.begin(), delivered.end());
  EXPECT_EQ(std::adjacent_find(delivered.begin(), delivered.end()), delivered.end())
      << "an item was delivered twice";
  EXPECT_TRUE(
      std::includes(inserted.begin(), inserted.end(), delivered.begin(), delivered.end()));
  // An item that was deleted while it was granted stays away when it is given back,
  // and its sample stays counted.
  const int64_t undone = info.sample_stats.completed - info.sample_count;
  const int64_t left_out = info.sample_stats.returned - undone;
  if (!GetParam().deletes) {
    EXPECT_EQ(left_out, 0);
  }
  EXPECT_EQ(static_cast<int64_t>(delivered.size()) + model.deleted() + left_out,
            static_cast<int64_t>(inserted.size()));
}

TEST_P(TableRunnerModelTest, CountsOfAReplayTableBalance) {
  TableConfig config = ReplayConfig();
  config.sampler.kind = SelectorKind::kUniform;
  config.max_size = 50;
  config.rate_limiter.max_diff = 40;
  config.rate_limiter.min_diff = -40;
  Model model(config, GetParam());
  model.Run(4000);
  int64_t granted = 0, given_back = 0, delivered = 0;
  for (const auto& s : model.samplers()) {
    granted += s->granted();
    given_back += s->given_back();
    delivered += static_cast<int64_t>(s->delivered.size());
  }
  const TableInfo info = model.runner().Info();
  EXPECT_EQ(info.sample_stats.completed, granted);
  EXPECT_EQ(info.sample_stats.delivered, delivered);
  EXPECT_EQ(info.sample_stats.in_flight, 0);
  EXPECT_EQ(info.insert_count, static_cast<int64_t>(model.Inserted().size()));
  EXPECT_EQ(info.current_size, info.insert_count - info.delete_count);
  EXPECT_EQ(info.num_waiting_inserts + info.num_waiting_samples, 0);
  if (!GetParam().deletes) {
    EXPECT_EQ(info.sample_count, granted - info.sample_stats.returned);
  }
  EXPECT_EQ(info.sample_stats.returned, given_back);
}

INSTANTIATE_TEST_SUITE_P(
    Scenarios, TableRunnerModelTest,
    testing::Values(Scenario{false, false, false}, Scenario{false, true, false},
                    Scenario{false, true, true}, Scenario{true, false, false},
                    Scenario{true, true, false}, Scenario{true, true, true}),
    [](const auto& info) {
      return std::string(info.param.threads ? "Threads" : "OneThread") +
             (info.param.returns ? "WithReturns" : "") +
             (info.param.deletes ? "AndDeletes" : "");
    });

}  // namespace
}  // namespace reverb_tf
