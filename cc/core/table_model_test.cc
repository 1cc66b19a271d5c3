// Random use of a table, compared step by step with a model that is slow and plain.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/random.h"
#include "cc/core/table.h"
#include "cc/core/testing.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

constexpr TimePoint kNow{std::chrono::hours(1)};
constexpr int kOperations = 25'000;

// The rules of a table over std::maps. Where a selector is random, the model is
// told what the table picked and says whether that was possible.
class Model {
 public:
  enum class Fate { kUsedUp, kEvicted, kDeleted };
  struct Item {
    uint64_t order = 0;
    uint64_t touched = 0;
    double priority = 0;
    int times = 0;
    int in_flight = 0;
    uint64_t episode = 0;
  };
  struct Gone {
    Item item;
    Fate fate;
  };

  explicit Model(const TableConfig& config) : config_(config) {}

  std::map<uint64_t, Item> present;
  std::map<uint64_t, Gone> gone;  // with grants in flight; consuming tables
  std::set<uint64_t> deleted;     // while grants are in flight; other tables
  int64_t inserts = 0, samples = 0, deletes = 0;
  int64_t granted = 0, delivered = 0, returned = 0;
  int64_t unique = 0, evicted = 0, expired = 0;
  uint64_t generation = 1;

  bool consuming() const { return config_.max_times_sampled >= 1; }
  int64_t in_flight() const { return granted - delivered - returned; }

  bool CanInsert() const {
    const auto& l = config_.rate_limiter;
    return inserts - deletes + 1 <= l.min_size_to_sample ||
           (inserts + 1) * l.samples_per_insert - samples <= l.max_diff;
  }
  bool CanSample() const {
    const auto& l = config_.rate_limiter;
    return inserts - deletes >= l.min_size_to_sample &&
           inserts * l.samples_per_insert - samples - 1 >= l.min_diff;
  }

  // True if `key` is what the selector may pick, and with which probability.
  std::optional<double> PickLaw(const SelectorConfig& selector, uint64_t key) const {
    const auto it = present.find(key);
    if (it == present.end()) return {};
    if (selector.kind == SelectorKind::kUniform) return 1.0 / present.size();
    if (selector.kind == SelectorKind::kPrioritized) {
      double sum = 0;
      for (const auto& [k, item] : present) sum += Weight(selector, item.priority);
      if (sum == 0) return 1.0 / present.size();
      const double weight = Weight(selector, it->second.priority);
      if (weight == 0) return {};
      return weight / sum;
    }
    for (const auto& [k, other] : present) {
      if (k != key && Before(selector.kind, other, it->second)) return {};
    }
    return 1;
  }

  void Insert(uint64_t key, uint64_t episode, double priority) {
    if (present.count(key)) return Update(key, priority);
    if (const auto it = gone.find(key); it != gone.end()) it->second.fate = Fate::kDeleted;
    const uint64_t order = next_order_++;
    present[key] = {order, order, priority, 0, 0, episode};
    ++inserts;
  }
  void Update(uint64_t key, double priority) {
    present[key].priority = priority;
    present[key].touched = next_order_++;
  }
  void Evict(uint64_t key) {
    Leave(key, Fate::kEvicted);
    ++evicted;
  }
  bool Delete(uint64_t key) {
    if (const auto it = gone.find(key); it != gone.end()) it->second.fate = Fate::kDeleted;
    if (!consuming() && in_flight() > 0) deleted.insert(key);
    if (!present.count(key)) return false;
    Leave(key, Fate::kDeleted);
    return true;
  }
  void Grant(uint64_t key) {
    Item& item = present[key];
    if (item.times++ == 0) ++unique;
    ++granted;
    ++samples;
    if (!consuming()) return;
    ++item.in_flight;
    if (item.times < config_.max_times_sampled) return;
    Leave(key, Fate::kUsedUp);
    ++expired;
  }
  void Deliver(uint64_t key) {
    if (consuming()) EndGrant(key);
    ++delivered;
    if (in_flight() == 0) deleted.clear();
  }
  void GiveBack(uint64_t key) {
    ++returned;
    if (!consuming()) {
      if (!deleted.count(key)) {
        --samples;
        if (const auto it = present.find(key); it != present.end()) Undo(&it->second);
      }
      if (in_flight() == 0) deleted.clear();
      return;
    }
    const auto it = present.find(key);
    if (it != present.end() && it->second.in_flight > 0) {
      --samples;
      Undo(&it->second);
    } else if (Gone& g = gone[key]; g.fate == Fate::kUsedUp) {
      --samples;
      --deletes;
      --expired;
      Undo(&g.item);
      present[key] = g.item;
      gone.erase(key);
    } else if (g.fate == Fate::kEvicted) {
      --samples;
    }
    EndGrant(key);
  }
  void Reset() {
    present.clear();
    gone.clear();
    deleted.clear();
    inserts = samples = deletes = unique = 0;
    returned += in_flight();
    ++generation;
  }

 private:
  static double Weight(const SelectorConfig& selector, double priority) {
    return priority == 0 ? 0 : std::pow(priority, selector.priority_exponent);
  }
  static bool Before(SelectorKind kind, const Item& a, const Item& b) {
    switch (kind) {
      case SelectorKind::kFifo:
        return a.order < b.order;
      case SelectorKind::kLifo:
        return a.order > b.order;
      case SelectorKind::kMinHeap:
        return std::make_pair(a.priority, a.touched) <
               std::make_pair(b.priority, b.touched);
      default:
        return std::make_pair(-a.priority, a.touched) <
               std::make_pair(-b.priority, b.touched);
    }
  }
  void Undo(Item* item) {
    if (item->times > 0 && --item->times == 0) --unique;
  }
  void Leave(uint64_t key, Fate fate) {
    Item item = present[key];
    present.erase(key);
    ++deletes;
    if (item.in_flight == 0) return;
    if (const auto it = gone.find(key); it != gone.end()) {
      item.in_flight += it->second.item.in_flight;
    }
    gone[key] = {item, fate};
  }
  void EndGrant(uint64_t key) {
    const auto it = present.find(key);
    if (it != present.end() && it->second.in_flight > 0) {
      --it->second.in_flight;
    } else if (--gone[key].item.in_flight == 0) {
      gone.erase(key);
    }
  }

  const TableConfig config_;
  uint64_t next_order_ = 1;
};

struct Case {
  std::string name;
  SelectorKind sampler;
  SelectorKind remover;
  int64_t max_size;
  int32_t max_times_sampled;
  RateLimiterConfig limiter;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

constexpr double kHuge = std::numeric_limits<double>::max();

class TableModelTest : public testing::TestWithParam<Case> {
 protected:
  static TableConfig ConfigOf(const Case& c) {
    TableConfig config;
    config.name = "t";
    config.sampler = {c.sampler, 0.7, uint64_t{1}};
    config.remover = {c.remover, 1.3, uint64_t{1}};
    config.max_size = c.max_size;
    config.max_times_sampled = c.max_times_sampled;
    config.rate_limiter = c.limiter;
    return config;
  }

  double RandomPriority() { return static_cast<double>(random_.Below(4)); }
  uint64_t RandomKey() { return 1 + random_.Below(next_key_); }
  uint64_t PresentOrAnyKey() {
    if (model_.present.empty() || random_.Below(4) == 0) return RandomKey();
    auto it = model_.present.lower_bound(RandomKey());
    if (it == model_.present.end()) it = model_.present.begin();
    return it->first;
  }

  void InsertOne();
  void SampleSome();
  void EndSomeGrants();
  void MutateSome();
  void CompareAll();

  const TableConfig config_ = ConfigOf(GetParam());
  Table table_{config_};
  Model model_{config_};
  Random random_{51};
  uint64_t next_key_ = 1;
  std::vector<Grant> grants_;  // in flight, also of older generations
  Garbage garbage_;
};

void TableModelTest::InsertOne() {
  const uint64_t key = random_.Below(5) == 0 ? RandomKey() : next_key_++;
  const uint64_t episode = key / 3;
  const double priority = RandomPriority();
  const ItemPtr item = SmallItem(key, episode);
  ASSERT_TRUE(table_.CheckInsert(*item, priority).ok());
  ASSERT_EQ(table_.CanInsert(), model_.CanInsert());
  if (!table_.CanInsert()) return;
  table_.Insert({item, priority}, kNow, &garbage_);
  const bool is_new = !model_.present.count(key);
  model_.Insert(key, episode, priority);
  if (!is_new) return;
  std::set<uint64_t> kept;
  for (const Table::Entry& entry : table_.Entries()) kept.insert(entry.item->key());
  while (static_cast<int64_t>(model_.present.size()) > config_.max_size) {
    std::optional<uint64_t> victim;
    for (const auto& [k, m] : model_.present) {
      // Of several evictions by a random remover, any order is possible.
      if (!kept.count(k) && model_.PickLaw(config_.remover, k)) victim = k;
    }
    ASSERT_TRUE(victim) << "nothing was evicted that should have been";
    model_.Evict(*victim);
  }
}

void TableModelTest::SampleSome() {
  const int64_t n = 1 + static_cast<int64_t>(random_.Below(6));
  std::vector<SampledItem> items;
  ASSERT_EQ(table_.LimiterAllowsSample(1), model_.CanSample());
  const int64_t granted = table_.Sample(n, nullptr, &items, &garbage_);
  ASSERT_EQ(granted, static_cast<int64_t>(items.size()));
  for (const SampledItem& sampled : items) {
    const uint64_t key = sampled.item->key();
    ASSERT_TRUE(model_.CanSample());
    const std::optional<double> law = model_.PickLaw(config_.sampler, key);
    ASSERT_TRUE(law) << "key " << key << " can't be picked";
    ASSERT_NEAR(sampled.probability, *law, 1e-12);
    ASSERT_EQ(sampled.table_size, static_cast<int64_t>(model_.present.size()));
    ASSERT_EQ(sampled.priority, model_.present[key].priority);
    ASSERT_EQ(sampled.times_sampled, model_.present[key].times + 1);
    ASSERT_EQ(sampled.generation, model_.generation);
    model_.Grant(key);
    grants_.push_back({key, sampled.generation});
  }
  ASSERT_TRUE(granted == n || !model_.CanSample()) << "less granted than allowed";
}

void TableModelTest::EndSomeGrants() {
  std::vector<Grant> ending;
  for (uint64_t n = random_.Below(6); n > 0 && !grants_.empty(); --n) {
    std::swap(grants_[random_.Below(grants_.size())], grants_.back());
    ending.push_back(grants_.back());
    grants_.pop_back();
  }
  const bool deliver = random_.Below(2) == 0;
  if (deliver) {
    table_.Delivered(ending, &garbage_);
  } else {
    table_.GiveBack(ending, &garbage_);
  }
  for (const Grant& grant : ending) {
    if (grant.generation != model_.generation) continue;
    deliver ? model_.Deliver(grant.key) : model_.GiveBack(grant.key);
  }
}

void TableModelTest::MutateSome() {
  std::vector<PriorityUpdate> updates;
  std::vector<uint64_t> deletes;
  for (uint64_t n = random_.Below(4); n > 0; --n) {
    updates.push_back({PresentOrAnyKey(), RandomPriority()});
  }
  if (random_.Below(3) == 0) deletes.push_back(PresentOrAnyKey());
  const MutateCounts counts = table_.Mutate(updates, deletes, &garbage_).value();
  int64_t deleted = 0;
  int64_t updated = 0;
  for (const uint64_t key : deletes) deleted += model_.Delete(key);
  for (const PriorityUpdate& update : updates) {
    if (!model_.present.count(update.key)) continue;
    model_.Update(update.key, update.priority);
    ++updated;
  }
  ASSERT_EQ(counts.deleted, deleted);
  ASSERT_EQ(counts.updated, updated);
  ASSERT_EQ(counts.not_found,
            static_cast<int64_t>(updates.size() + deletes.size()) - deleted - updated);
}

void TableModelTest::CompareAll() {
  const TableInfo info = table_.info();
  ASSERT_EQ(table_.size(), static_cast<int64_t>(model_.present.size()));
  ASSERT_EQ(info.insert_count, model_.inserts);
  ASSERT_EQ(info.sample_count, model_.samples);
  ASSERT_EQ(info.delete_count, model_.deletes);
  ASSERT_EQ(info.insert_count - info.delete_count, table_.size());
  ASSERT_EQ(info.sample_stats.completed, model_.granted);
  ASSERT_EQ(info.sample_stats.delivered, model_.delivered);
  ASSERT_EQ(info.sample_stats.returned, model_.returned);
  ASSERT_EQ(info.sample_stats.in_flight, model_.in_flight());
  ASSERT_EQ(info.num_unique_samples, model_.unique);
  ASSERT_EQ(info.num_evicted, model_.evicted);
  ASSERT_EQ(info.num_expired, model_.expired);
  ASSERT_EQ(info.generation, model_.generation);
  ASSERT_EQ(info.num_chunks, table_.size());
  std::set<uint64_t> episodes;
  std::map<uint64_t, uint64_t> by_order;
  for (const auto& [key, item] : model_.present) {
    episodes.insert(item.episode);
    by_order[item.order] = key;
  }
  ASSERT_EQ(info.num_episodes, static_cast<int64_t>(episodes.size()));
  const std::vector<Table::Entry> entries = table_.Entries();
  ASSERT_EQ(entries.size(), by_order.size());
  auto expected = by_order.begin();
  for (const Table::Entry& entry : entries) {
    const uint64_t key = (expected++)->second;
    ASSERT_EQ(entry.item->key(), key);
    ASSERT_EQ(entry.priority, model_.present[key].priority);
    ASSERT_EQ(entry.times_sampled, model_.present[key].times);
  }
}

TEST_P(TableModelTest, AgreesUnderRandomUse) {
  // Seed 51.
  for (int i = 0; i < kOperations; ++i) {
    SCOPED_TRACE("operation " + std::to_string(i));
    const uint64_t choice = random_.Below(100);
    if (choice < 40) {
      InsertOne();
    } else if (choice < 65) {
      SampleSome();
    } else if (choice < 85) {
      EndSomeGrants();
    } else if (choice < 99 || random_.Below(10) > 0) {
      MutateSome();
    } else {
      table_.Reset(&garbage_);
      model_.Reset();
    }
    if (HasFatalFailure()) return;
    CompareAll();
    if (HasFatalFailure()) return;
    garbage_.clear();
  }
  // Nothing but the table's own items is left behind once all grants have ended.
  while (!grants_.empty()) EndSomeGrants();
  CompareAll();
}

const RateLimiterConfig kOpen = {1, 1, -kHuge, kHuge};

std::vector<Case> Cases() {
  using K = SelectorKind;
  std::vector<Case> cases = {
      {"Queue", K::kFifo, K::kFifo, 20, 1, {1, 1, 0, 20}},
      {"Stack", K::kLifo, K::kLifo, 20, 1, {1, 1, 0, 20}},
      {"ReplayWithRatio", K::kUniform, K::kFifo, 25, 0, {1.5, 5, -2, 17.5}},
      {"PrioritizedReplay", K::kPrioritized, K::kFifo, 25, 0, kOpen},
      {"PrioritizedRemover", K::kUniform, K::kPrioritized, 25, 0, kOpen},
      {"ThreeSamplesEach", K::kUniform, K::kUniform, 15, 3, {2, 3, -kHuge, kHuge}},
      {"ThreePrioritizedSamples", K::kPrioritized, K::kLifo, 15, 3, {2, 1, -5, 30}},
      {"LargerMinSize", K::kFifo, K::kFifo, 30, 2, {1, 10, 0, 8}},
  };
  for (const auto& [name, kind] :
       std::vector<std::pair<std::string, K>>{{"Fifo", K::kFifo},
                                              {"Lifo", K::kLifo},
                                              {"MinHeap", K::kMinHeap},
                                              {"MaxHeap", K::kMaxHeap}}) {
    cases.push_back({"Shared" + name, kind, K::kFifo, 20, 0, kOpen});
    cases.push_back({"RemovedBy" + name, K::kFifo, kind, 20, 0, kOpen});
    cases.push_back({"UsedUpBy" + name, kind, K::kMinHeap, 20, 2, {1, 1, -kHuge, 30}});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, TableModelTest, testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace reverb_tf
