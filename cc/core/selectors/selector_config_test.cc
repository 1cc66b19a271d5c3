#include "cc/core/selectors/selector_config.h"

#include <limits>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

SelectorConfig Prioritized(double exponent) {
  SelectorConfig config;
  config.kind = SelectorKind::kPrioritized;
  config.priority_exponent = exponent;
  return config;
}

TEST(SelectorConfigTest, ExponentIsFiniteAndNotNegative) {
  for (double good : {0.0, 0.5, 1.0, 100.0}) EXPECT_TRUE(Prioritized(good).Validate().ok());
  for (double bad : {-0.1, kInf, -kInf, kNan}) {
    EXPECT_EQ(Prioritized(bad).Validate().code(), StatusCode::kInvalidArgument);
  }
}

TEST(SelectorConfigTest, NanIsRefusedByEverySelector) {
  for (auto kind :
       {SelectorKind::kFifo, SelectorKind::kLifo, SelectorKind::kUniform,
        SelectorKind::kPrioritized, SelectorKind::kMinHeap, SelectorKind::kMaxHeap}) {
    SelectorConfig config;
    config.kind = kind;
    EXPECT_EQ(config.CheckPriority(kNan).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(config.CheckPriority(-1).ok(), kind != SelectorKind::kPrioritized);
    EXPECT_EQ(config.CheckPriority(kInf).ok(), kind != SelectorKind::kPrioritized);
  }
}

TEST(SelectorConfigTest, WeightMustNotExceedItsLimit) {
  EXPECT_TRUE(Prioritized(1).CheckPriority(1e280).ok());
  EXPECT_FALSE(Prioritized(1).CheckPriority(1.1e280).ok());
  EXPECT_TRUE(Prioritized(2).CheckPriority(1e140).ok());
  EXPECT_FALSE(Prioritized(2).CheckPriority(1e141).ok());
  EXPECT_FALSE(Prioritized(1000).CheckPriority(1e10).ok());
  EXPECT_TRUE(Prioritized(0).CheckPriority(1e308).ok());
  EXPECT_TRUE(Prioritized(0.5).CheckPriority(1e308).ok());
}

}  // namespace
}  // namespace reverb_tf
