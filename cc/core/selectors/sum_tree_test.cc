#include "cc/core/selectors/sum_tree.h"

#include <cmath>
#include <limits>
#include <vector>

#include "cc/core/random.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

constexpr double kBelowOne = 1 - 0x1p-53;
constexpr double kTiny = std::numeric_limits<double>::min();

TEST(SumTreeTest, FindsTheSlotInWhoseShareThePointLies) {
  SumTree tree;
  tree.Set(0, 1);
  tree.Set(1, 2);
  tree.Set(3, 1);
  EXPECT_EQ(tree.total(), 4);
  EXPECT_EQ(tree.Find(0), 0u);
  EXPECT_EQ(tree.Find(0.25), 1u);
  EXPECT_EQ(tree.Find(0.7499), 1u);
  EXPECT_EQ(tree.Find(0.75), 3u);
  EXPECT_EQ(tree.Find(kBelowOne), 3u);
}

TEST(SumTreeTest, SlotsNeverSetWeighNothing) {
  SumTree tree;
  EXPECT_EQ(tree.Get(5), 0);
  tree.Set(700, 3);
  EXPECT_EQ(tree.Get(5), 0);
  EXPECT_EQ(tree.Get(100'000), 0);
  EXPECT_EQ(tree.total(), 3);
  EXPECT_EQ(tree.Find(0.5), 700u);
}

TEST(SumTreeTest, GrowthKeepsWeightsAndSums) {
  SumTree tree;
  double sum = 0;
  for (Slot slot = 0; slot < 5000; ++slot) {
    tree.Set(slot, slot % 7);
    sum += slot % 7;
    ASSERT_EQ(tree.total(), sum);
  }
  EXPECT_TRUE(tree.IsExact());
  for (Slot slot = 0; slot < 5000; ++slot) ASSERT_EQ(tree.Get(slot), slot % 7);
}

TEST(SumTreeTest, GrowthOverSeveralLevelsAtOnce) {
  SumTree tree;
  tree.Set(0, 0.1);
  tree.Set(1'000'000, 0.2);
  EXPECT_TRUE(tree.IsExact());
  EXPECT_EQ(tree.total(), 0.1 + 0.2);
  EXPECT_EQ(tree.Find(0), 0u);
  EXPECT_EQ(tree.Find(0.5), 1'000'000u);
}

TEST(SumTreeTest, ZeroWeightIsNeverFoundWhateverTheRounding) {
  // Weights of very different sizes, so that subtracting them rounds; the right
  // edge is where a point can fall off. Seed 3, 200000 points.
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    SumTree tree;
    for (Slot slot = 0; slot < 100; ++slot) {
      const double weight =
          random.Below(3) == 0 ? std::pow(10, 40 * random.Unit() - 20) : 0;
      tree.Set(slot, weight);
    }
    tree.Set(static_cast<Slot>(random.Below(100)), 1e-300);
    for (int i = 0; i < 1000; ++i) {
      const double fraction = i == 0 ? kBelowOne : i == 1 ? 0 : random.Unit();
      ASSERT_GT(tree.Get(tree.Find(fraction)), 0);
    }
  }
}

TEST(SumTreeTest, FindingManyEqualsFindingOneByOne) {
  // Seed 6.
  Random random(6);
  SumTree tree;
  for (Slot slot = 0; slot < 1000; ++slot) tree.Set(slot, random.Unit());
  std::vector<double> fractions;
  for (int i = 0; i < 500; ++i) fractions.push_back(random.Unit());
  std::vector<double> scratch = fractions;
  std::vector<Slot> slots(fractions.size());
  tree.Find(slots.size(), scratch.data(), slots.data());
  for (size_t i = 0; i < slots.size(); ++i) EXPECT_EQ(slots[i], tree.Find(fractions[i]));
}

TEST(SumTreeTest, SmallestWeightsCanBeFound) {
  SumTree tree;
  tree.Set(4, kTiny);
  EXPECT_EQ(tree.Find(0), 4u);
  EXPECT_EQ(tree.Find(kBelowOne), 4u);
  tree.Set(9, kTiny);
  EXPECT_EQ(tree.Find(kBelowOne), 9u);
}

TEST(SumTreeTest, LargestWeightsStayFinite) {
  SumTree tree;
  for (Slot slot = 0; slot < 1000; ++slot) tree.Set(slot, 1e280);
  EXPECT_TRUE(std::isfinite(tree.total()));
  EXPECT_LT(tree.Find(kBelowOne), 1000u);
}

TEST(SumTreeTest, StaysExactOverTenMillionRandomUpdates) {
  // Seed 4. Weights over 60 orders of magnitude would leave differences of sums
  // with nothing but rounding errors.
  constexpr Slot kSlots = 20'000;
  Random random(4);
  SumTree tree;
  std::vector<double> weights(kSlots);
  for (int i = 0; i < 10'000'000; ++i) {
    const uint64_t bits = random.Next();
    const Slot slot = static_cast<Slot>(bits % kSlots);
    const double weight = bits % 16 == 0
                              ? 0
                              : std::ldexp(1.0 + 1e-9 * (bits >> 40),
                                           static_cast<int>(bits >> 32) % 100 - 50);
    weights[slot] = weight;
    tree.Set(slot, weight);
  }
  EXPECT_TRUE(tree.IsExact());
  SumTree fresh;
  for (Slot slot = 0; slot < kSlots; ++slot) {
    ASSERT_EQ(tree.Get(slot), weights[slot]);
    fresh.Set(slot, weights[slot]);
  }
  EXPECT_EQ(tree.total(), fresh.total());
  for (Slot slot = 0; slot < kSlots; ++slot) tree.Set(slot, 0);
  EXPECT_EQ(tree.total(), 0);
}

}  // namespace
}  // namespace reverb_tf
