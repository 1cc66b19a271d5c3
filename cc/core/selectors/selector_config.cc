#include "cc/core/selectors/selector_config.h"

#include <cmath>
#include <string>

#include "cc/core/selectors/priority_weight.h"

namespace reverb_tf {

Status SelectorConfig::Validate() const {
  if (kind > SelectorKind::kMaxHeap) {
    return InvalidArgumentError("selector: got the unknown kind " +
                                std::to_string(static_cast<int>(kind)));
  }
  if (kind == SelectorKind::kPrioritized &&
      !(std::isfinite(priority_exponent) && priority_exponent >= 0)) {
    return InvalidArgumentError("priority_exponent: got " +
                                std::to_string(priority_exponent) +
                                ", expected a finite number >= 0");
  }
  return OkStatus();
}

Status SelectorConfig::CheckPriority(double priority) const {
  if (std::isnan(priority)) {
    return InvalidArgumentError("priority: got NaN, expected a number");
  }
  if (kind != SelectorKind::kPrioritized) return OkStatus();
  if (!std::isfinite(priority) || priority < 0) {
    return InvalidArgumentError("priority: got " + std::to_string(priority) +
                                ", expected a finite number >= 0, as the table has a "
                                "Prioritized selector");
  }
  const double weight = PriorityWeight(priority, priority_exponent);
  if (!(weight <= kMaxPriorityWeight)) {
    return InvalidArgumentError(
        "priority: got " + std::to_string(priority) + ", whose weight (priority ^ " +
        std::to_string(priority_exponent) + ") exceeds 1e280; scale priorities down");
  }
  return OkStatus();
}

}  // namespace reverb_tf
