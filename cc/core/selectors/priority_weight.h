// What a priority weighs for the Prioritized selector.
#ifndef REVERB_TF_CC_CORE_SELECTORS_PRIORITY_WEIGHT_H_
#define REVERB_TF_CC_CORE_SELECTORS_PRIORITY_WEIGHT_H_

#include <algorithm>
#include <cmath>
#include <limits>

namespace reverb_tf {

// Sums of as many weights as there are slots stay finite.
inline constexpr double kMaxPriorityWeight = 1e280;

// priority^exponent, but 0 for priority 0 whatever the exponent, and never less
// than the smallest normal number for others, so that no positive priority is
// as good as zero. REQUIRES: priority >= 0, exponent >= 0, both finite.
inline double PriorityWeight(double priority, double exponent) {
  if (priority == 0) return 0;
  if (exponent == 0) return 1;
  const double weight = exponent == 1 ? priority : std::pow(priority, exponent);
  return std::max(weight, std::numeric_limits<double>::min());
}

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_PRIORITY_WEIGHT_H_
