// Every selector against a plain model, and the laws that picks follow.

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "cc/core/random.h"
#include "cc/core/selectors/selector.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Case {
  std::string name;
  SelectorKind kind;
  double exponent = 1;
};
void PrintTo(const Case& c, std::ostream* os) { *os << c.name; }

SelectorConfig ConfigOf(const Case& c) {
  SelectorConfig config;
  config.kind = c.kind;
  config.priority_exponent = c.exponent;
  return config;
}

// The rules of the selectors, word by word, over a std::map.
class Model {
 public:
  explicit Model(const Case& c) : case_(c) {}

  struct Member {
    uint64_t order;
    uint64_t touched;
    double priority;
  };
  std::map<Slot, Member> members;

  // What each slot is picked with.
  std::map<Slot, double> Law() const {
    std::map<Slot, double> law;
    if (case_.kind == SelectorKind::kUniform) {
      for (const auto& [slot, m] : members) law[slot] = 1.0 / members.size();
    } else if (case_.kind == SelectorKind::kPrioritized) {
      double total = 0;
      for (const auto& [slot, m] : members) total += Weight(m.priority);
      for (const auto& [slot, m] : members) {
        law[slot] = total > 0 ? Weight(m.priority) / total : 1.0 / members.size();
      }
    } else {
      law[std::min_element(members.begin(), members.end(), [this](auto& a, auto& b) {
            return Before(a.second, b.second);
          })->first] = 1;
    }
    return law;
  }

 private:
  double Weight(double priority) const {
    if (priority == 0) return 0;
    return std::max(std::pow(priority, case_.exponent), std::numeric_limits<double>::min());
  }
  bool Before(const Member& a, const Member& b) const {
    switch (case_.kind) {
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

  const Case case_;
};

class SelectorTest : public testing::TestWithParam<Case> {
 protected:
  bool is_heap() const {
    return GetParam().kind == SelectorKind::kMinHeap ||
           GetParam().kind == SelectorKind::kMaxHeap;
  }
  double RandomPriority(Random* random) const {
    const uint64_t kind = random->Below(8);
    if (kind == 0) return 0;
    if (is_heap() && kind == 1) return random->Below(2) ? kInf : -kInf;
    if (is_heap() && kind < 5) return -static_cast<double>(random->Below(5));
    return static_cast<double>(random->Below(5));
  }
  void Add(Slot slot, double priority) {
    ++order_;
    selector_->Insert(slot, order_, priority);
    model_.members[slot] = {order_, order_, priority};
  }

  const std::unique_ptr<Selector> selector_ = MakeSelector(ConfigOf(GetParam()));
  Model model_{GetParam()};
  uint64_t order_ = 0;
};

TEST_P(SelectorTest, AgreesWithTheModelUnderRandomUse) {
  // Seed 11, 30000 operations on up to 300 slots.
  Random random(11);
  Random picks(12);
  std::vector<std::pair<Slot, Model::Member>> gone;
  std::vector<Slot> free;
  Slot next_slot = 0;
  for (int i = 0; i < 30'000; ++i) {
    const uint64_t choice = random.Below(12);
    auto& members = model_.members;
    auto any = members.lower_bound(static_cast<Slot>(random.Below(next_slot + 1)));
    if (any == members.end() && !members.empty()) any = members.begin();
    if (members.empty() || (choice < 4 && members.size() < 300)) {
      Slot slot = next_slot;
      if (free.empty()) {
        ++next_slot;
      } else {
        slot = free.back();
        free.pop_back();
      }
      Add(slot, RandomPriority(&random));
    } else if (choice < 7) {
      any->second.priority = RandomPriority(&random);
      any->second.touched = ++order_;
      selector_->Update(any->first, order_, any->second.priority);
    } else if (choice < 10) {
      selector_->Remove(any->first, any->second.order);
      gone.push_back(*any);
      members.erase(any);
    } else if (!gone.empty()) {
      const auto back = gone[random.Below(gone.size())];
      gone.erase(std::find_if(gone.begin(), gone.end(),
                              [&](auto& g) { return g.first == back.first; }));
      selector_->Insert(back.first, is_heap() ? back.second.touched : back.second.order,
                        back.second.priority);
      members.insert(back);
    }
    if (gone.size() > 20) {
      for (const auto& [slot, member] : gone) free.push_back(slot);
      gone.clear();
    }
    ASSERT_EQ(selector_->size(), members.size());
    if (members.empty()) continue;
    const std::map<Slot, double> law = model_.Law();
    Pick pick[3];
    selector_->Sample(&picks, 3, pick);
    for (const Pick& p : pick) {
      ASSERT_TRUE(law.count(p.slot)) << "operation " << i << " slot " << p.slot;
      ASSERT_GT(p.probability, 0);
      ASSERT_NEAR(p.probability, law.at(p.slot), 1e-12) << "operation " << i;
    }
  }
}

TEST_P(SelectorTest, PicksFollowTheirReportedProbabilities) {
  // N = 200000, seed 13, 37 slots. Chi-square over the slots of positive
  // probability: (chi2 - df) / sqrt(2 df) stays below 5 (p < 1e-5).
  constexpr int kDraws = 200'000;
  Random random(13);
  for (Slot slot = 0; slot < 37; ++slot) Add(slot, slot % 5);
  const std::map<Slot, double> law = model_.Law();
  std::vector<Pick> picks(kDraws);
  selector_->Sample(&random, picks.size(), picks.data());
  std::map<Slot, int> counts;
  for (const Pick& pick : picks) ++counts[pick.slot];
  double chi2 = 0;
  double df = -1;
  for (const auto& [slot, probability] : law) {
    if (probability == 0) {
      EXPECT_EQ(counts[slot], 0);
      continue;
    }
    const double expected = kDraws * probability;
    chi2 += std::pow(counts[slot] - expected, 2) / expected;
    ++df;
  }
  if (df == 0) {
    EXPECT_EQ(chi2, 0);
  } else {
    EXPECT_LT((chi2 - df) / std::sqrt(2 * df), 5);
  }
}

TEST_P(SelectorTest, ProbabilitiesAddUpToOne) {
  Random random(14);
  for (Slot slot = 0; slot < 1000; ++slot) Add(slot, 1e-3 * (slot % 97));
  std::map<Slot, double> seen;
  std::vector<Pick> picks(200'000);
  selector_->Sample(&random, picks.size(), picks.data());
  for (const Pick& pick : picks) seen[pick.slot] = pick.probability;
  double sum = 0;
  for (const auto& [slot, probability] : seen) sum += probability;
  const std::map<Slot, double> law = model_.Law();
  for (const auto& [slot, probability] : law) {
    if (!seen.count(slot)) sum += probability;
  }
  EXPECT_NEAR(sum, 1, 1e-9);
}

TEST_P(SelectorTest, EqualSeedsGiveEqualPicks) {
  for (Slot slot = 0; slot < 100; ++slot) Add(slot, slot);
  Random a(15);
  Random b(15);
  Pick batch[50];
  selector_->Sample(&a, 50, batch);
  for (const Pick& expected : batch) {
    Pick single;
    selector_->Sample(&b, 1, &single);
    EXPECT_EQ(single.slot, expected.slot);
    EXPECT_EQ(single.probability, expected.probability);
  }
}

TEST_P(SelectorTest, ClearEmptiesIt) {
  for (Slot slot = 0; slot < 100; ++slot) Add(slot, slot);
  selector_->Clear();
  EXPECT_EQ(selector_->size(), 0u);
  Add(7, 1);
  Random random(16);
  Pick pick;
  selector_->Sample(&random, 1, &pick);
  EXPECT_EQ(pick.slot, 7u);
  EXPECT_EQ(pick.probability, 1);
}

INSTANTIATE_TEST_SUITE_P(
    All, SelectorTest,
    testing::Values(Case{"Fifo", SelectorKind::kFifo}, Case{"Lifo", SelectorKind::kLifo},
                    Case{"Uniform", SelectorKind::kUniform},
                    Case{"Prioritized0", SelectorKind::kPrioritized, 0},
                    Case{"PrioritizedHalf", SelectorKind::kPrioritized, 0.5},
                    Case{"Prioritized1", SelectorKind::kPrioritized, 1},
                    Case{"Prioritized3", SelectorKind::kPrioritized, 3},
                    Case{"MinHeap", SelectorKind::kMinHeap},
                    Case{"MaxHeap", SelectorKind::kMaxHeap}),
    [](const auto& info) { return info.param.name; });

// ---- what is particular to Prioritized ----

class PrioritizedTest : public testing::Test {
 protected:
  static std::unique_ptr<Selector> Make(double exponent) {
    return MakeSelector(ConfigOf({"", SelectorKind::kPrioritized, exponent}));
  }
  Random random_{17};
};

TEST_F(PrioritizedTest, AllWeightsZeroMeansUniform) {
  // N = 100000, seed 17, 4 slots: chi-square with 3 degrees of freedom exceeds 21.1
  // with probability 1e-4.
  const auto selector = Make(1);
  for (Slot slot = 0; slot < 5; ++slot) selector->Insert(slot, slot, 0);
  selector->Remove(2, 2);
  std::vector<Pick> picks(100'000);
  selector->Sample(&random_, picks.size(), picks.data());
  std::map<Slot, int> counts;
  for (const Pick& pick : picks) {
    ASSERT_EQ(pick.probability, 0.25);
    ++counts[pick.slot];
  }
  ASSERT_EQ(counts.size(), 4u);
  double chi2 = 0;
  for (const auto& [slot, count] : counts) chi2 += std::pow(count - 25e3, 2) / 25e3;
  EXPECT_LT(chi2, 21.1);
}

TEST_F(PrioritizedTest, ExponentZeroStillExcludesPriorityZero) {
  const auto selector = Make(0);
  selector->Insert(0, 0, 0);
  selector->Insert(1, 1, 5);
  selector->Insert(2, 2, 1e-300);
  std::vector<Pick> picks(1000);
  selector->Sample(&random_, picks.size(), picks.data());
  for (const Pick& pick : picks) {
    EXPECT_NE(pick.slot, 0u);
    EXPECT_EQ(pick.probability, 0.5);
  }
}

TEST_F(PrioritizedTest, WeightThatUnderflowsIsStillPositive) {
  const auto selector = Make(3);
  selector->Insert(0, 0, 0);
  selector->Insert(1, 1, 1e-200);
  Pick pick;
  selector->Sample(&random_, 1, &pick);
  EXPECT_EQ(pick.slot, 1u);
  EXPECT_EQ(pick.probability, 1);
}

TEST_F(PrioritizedTest, ZeroWeightIsNotPickedBesideTheSmallestOne) {
  const auto selector = Make(1);
  for (Slot slot = 0; slot < 100; ++slot) selector->Insert(slot, slot, 0);
  selector->Update(50, 200, std::numeric_limits<double>::denorm_min());
  std::vector<Pick> picks(10'000);
  selector->Sample(&random_, picks.size(), picks.data());
  for (const Pick& pick : picks) ASSERT_EQ(pick.slot, 50u);
}

TEST_F(PrioritizedTest, MassIsTheSumOfWeights) {
  const auto selector = Make(2);
  selector->Insert(0, 0, 3);
  selector->Insert(1, 1, 4);
  EXPECT_EQ(selector->mass(), 25);
  selector->Remove(0, 0);
  EXPECT_EQ(selector->mass(), 16);
}

}  // namespace
}  // namespace reverb_tf
