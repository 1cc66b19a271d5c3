// Which selector a table has: a value that every layer may hold.
#ifndef REVERB_TF_CC_CORE_SELECTORS_SELECTOR_CONFIG_H_
#define REVERB_TF_CC_CORE_SELECTORS_SELECTOR_CONFIG_H_

#include <cstdint>
#include <optional>

#include "cc/base/status.h"

namespace reverb_tf {

enum class SelectorKind : uint8_t {
  kFifo,
  kLifo,
  kUniform,
  kPrioritized,
  kMinHeap,
  kMaxHeap
};

struct SelectorConfig {
  SelectorKind kind = SelectorKind::kUniform;
  double priority_exponent = 1.0;  // kPrioritized
  std::optional<uint64_t> seed;    // kUniform, kPrioritized

  // Fifo, Lifo and heaps.
  bool is_deterministic() const {
    return kind != SelectorKind::kUniform && kind != SelectorKind::kPrioritized;
  }
  // INVALID_ARGUMENT for an exponent that is negative or not finite.
  Status Validate() const;
  // OK if an item may have this priority under this selector: never NaN; for
  // kPrioritized finite, >= 0 and priority^exponent <= 1e280.
  Status CheckPriority(double priority) const;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_SELECTOR_CONFIG_H_
