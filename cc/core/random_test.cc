#include "cc/core/random.h"

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

TEST(RandomTest, FollowsThePublishedXoshiro256PlusPlus) {
  // The first outputs for the state {1, 2, 3, 4}, worked out by hand from the
  // algorithm: rotl(1 + 4, 23) + 1, …
  Random random(0);
  random.set_state({1, 2, 3, 4});
  EXPECT_EQ(random.Next(), (uint64_t{5} << 23) + 1);
  // After one step the state is {7, 0, 262146, 211106232532992}.
  EXPECT_EQ(random.state(), (std::array<uint64_t, 4>{7, 0, 262146, 211106232532992}));
}

TEST(RandomTest, SameSeedAndStreamGiveTheSameSequence) {
  Random a(7, 3);
  Random b(7, 3);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.Next(), b.Next());
}

TEST(RandomTest, SequenceOfASeedNeverChanges) {
  // Checkpoints and seeded programs rely on it.
  EXPECT_EQ(Random(42).Next(), 16917435633991974622u);
  EXPECT_EQ(Random(42, 1).Next(), 16952325622244263635u);
}

TEST(RandomTest, StreamsOfNeighbouringSeedsDoNotMeet) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (uint64_t stream = 0; stream < 50; ++stream) {
      Random random(seed, stream);
      for (int i = 0; i < 4; ++i) seen.insert(random.Next());
    }
  }
  EXPECT_EQ(seen.size(), 50u * 50u * 4u);
}

TEST(RandomTest, StateGoesOnWhereItWasTaken) {
  Random random(5);
  random.Next();
  Random copy(0);
  copy.set_state(random.state());
  for (int i = 0; i < 10; ++i) EXPECT_EQ(copy.Next(), random.Next());
}

TEST(RandomTest, BelowIsUniform) {
  // N = 600000, seed 1, 6 results: chi-square with 5 degrees of freedom exceeds
  // 25.7 with probability 1e-4.
  constexpr int kDraws = 600'000;
  Random random(1);
  std::vector<int> counts(6);
  for (int i = 0; i < kDraws; ++i) ++counts[random.Below(6)];
  double chi2 = 0;
  for (int count : counts) chi2 += std::pow(count - kDraws / 6.0, 2) / (kDraws / 6.0);
  EXPECT_LT(chi2, 25.7);
}

TEST(RandomTest, BelowHandlesTheLargestRange) {
  Random random(1);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(random.Below(1), 0u);
    EXPECT_LT(random.Below(~uint64_t{0}), ~uint64_t{0});
  }
}

TEST(RandomTest, UnitLiesInTheHalfOpenInterval) {
  // N = 100000, seed 2: the mean of N uniforms has deviation 1/sqrt(12 N); 5 of them.
  Random random(2);
  double sum = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double u = random.Unit();
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
  }
  EXPECT_NEAR(sum / 1e5, 0.5, 5 / std::sqrt(12e5));
}

TEST(RandomTest, UnseededGeneratorsDiffer) {
  EXPECT_NE(Random::FromOptionalSeed({}, 0).Next(), Random::FromOptionalSeed({}, 0).Next());
  EXPECT_NE(RandomSeed(), 0u);
}

}  // namespace
}  // namespace reverb_tf
