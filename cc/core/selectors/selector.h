// How a table picks items, to sample them or to remove them.
#ifndef REVERB_TF_CC_CORE_SELECTORS_SELECTOR_H_
#define REVERB_TF_CC_CORE_SELECTORS_SELECTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cc/core/random.h"
#include "cc/core/selectors/selector_config.h"

namespace reverb_tf {

// The place of an item in its table: small, dense, reused.
using Slot = uint32_t;

struct Pick {
  Slot slot = 0;
  // The probability that this pick was made with.
  double probability = 0;
};

// One order over the items of a table. Implementations: uniform, prioritized,
// fifo, lifo, heap. Thread-compatible; the table serialises calls.
class Selector {
 public:
  virtual ~Selector() = default;

  // Adds a slot that isn't in. `order` grows from insert to insert, except for
  // an item that comes back to its old place, which brings its old order.
  virtual void Insert(Slot slot, uint64_t order, double priority) = 0;
  // `slot` is in. `order` > any order seen so far (ties of heaps).
  virtual void Update(Slot slot, uint64_t order, double priority) = 0;
  // `slot` is in; `order` is the one it was inserted with.
  virtual void Remove(Slot slot, uint64_t order) = 0;
  virtual void Clear() = 0;

  // Draws `n` picks, with replacement, into out[0..n). REQUIRES: size() > 0
  virtual void Sample(Random* random, size_t n, Pick* out) = 0;

  virtual size_t size() const = 0;
  // The total of what picks are proportional to (sum of weights for
  // prioritized, size otherwise).
  virtual double mass() const { return static_cast<double>(size()); }
};

std::unique_ptr<Selector> MakeSelector(const SelectorConfig& config);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_SELECTOR_H_
