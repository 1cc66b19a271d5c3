#include "cc/store/trim_policy.h"

#include <gtest/gtest.h>

namespace reverb_tf {
namespace {

constexpr int64_t kMuch = TrimPolicy::kWorthwhileBytes;

TEST(TrimPolicyTest, DoesNothingWhileNothingIsFreed) {
  TrimPolicy policy;
  const TrimPolicy::Decision decision = policy.Tick(0);
  EXPECT_FALSE(decision.release_pool);
  EXPECT_FALSE(decision.trim_heap);
}

TEST(TrimPolicyTest, ALargeReleaseIsTrimmedAtTheNextTick) {
  TrimPolicy policy;
  EXPECT_TRUE(policy.Tick(kMuch).trim_heap);
}

TEST(TrimPolicyTest, ThePoolFollowsASecondLaterAndIsTrimmedToo) {
  TrimPolicy policy;
  EXPECT_FALSE(policy.Tick(kMuch).release_pool) << "its pages may be in use";
  const TrimPolicy::Decision decision = policy.Tick(0);
  EXPECT_TRUE(decision.release_pool);
  EXPECT_TRUE(decision.trim_heap);
  EXPECT_FALSE(policy.Tick(0).release_pool);
  EXPECT_FALSE(policy.Tick(0).trim_heap);
}

TEST(TrimPolicyTest, ATrickleAfterALargeReleaseDoesNotHoldThePool) {
  TrimPolicy policy;
  policy.Tick(kMuch);
  EXPECT_TRUE(policy.Tick(1).release_pool);
}

TEST(TrimPolicyTest, SteadyTrafficKeepsThePool) {
  TrimPolicy policy;
  for (int i = 0; i < 100; ++i) {
    const TrimPolicy::Decision decision = policy.Tick(kMuch);
    EXPECT_FALSE(decision.release_pool);
    EXPECT_TRUE(decision.trim_heap);
  }
}

TEST(TrimPolicyTest, SmallReleasesAddUpToATrim) {
  TrimPolicy policy;
  int64_t freed = 0;
  for (; freed < kMuch - kMuch / 4; freed += kMuch / 4) {
    EXPECT_FALSE(policy.Tick(kMuch / 4).trim_heap);
  }
  EXPECT_TRUE(policy.Tick(kMuch / 4).trim_heap);
}

}  // namespace
}  // namespace reverb_tf
