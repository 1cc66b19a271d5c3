// Weights by slot, and the draw of a slot in proportion to them.
#ifndef REVERB_TF_CC_CORE_SELECTORS_SUM_TREE_H_
#define REVERB_TF_CC_CORE_SELECTORS_SUM_TREE_H_

#include <cstddef>
#include <vector>

#include "cc/core/selectors/selector.h"

namespace reverb_tf {

// A tree of sums in arrays, eight children (a cache line) a node.
//
// Invariant: every sum is that of its children, added in a fixed order. A change
// recomputes the sums on its path to the root from their children instead of
// adding differences, so rounding errors never pile up, and equal weights give
// equal sums whatever came before. Set and Find: O(log8 n). Thread-compatible.
class SumTree {
 public:
  // REQUIRES: weight finite and >= 0, the sum of all weights finite
  void Set(Slot slot, double weight);
  // 0 for slots never set.
  double Get(Slot slot) const;
  void Clear();

  double total() const { return total_; }
  // The slot in whose share of the total the point `fraction` lies, 0 <= fraction
  // < 1. Never one of weight 0. REQUIRES: total() > 0
  Slot Find(double fraction) const;
  // The same for `n` fractions at once, level by level, so that the cache misses of
  // a large tree overlap. Overwrites `fractions`.
  void Find(size_t n, double* fractions, Slot* slots) const;

  // True if the invariant holds (for tests).
  bool IsExact() const;

 private:
  static constexpr size_t kFanOut = 8;

  struct alignas(64) Node {
    double child[kFanOut] = {};
    double Sum() const;
    // The child in whose share *point lies; *point becomes relative to it.
    size_t Descend(double* point) const;
    // The last child that is not zero, and the end of its share.
    size_t LastChild(double* point) const;
  };

  void Grow(size_t num_slots);

  // levels_[0] holds the weights, levels_[i + 1] the sums of the nodes of
  // levels_[i]; the last level is one node, the root.
  std::vector<std::vector<Node>> levels_;
  double total_ = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_SUM_TREE_H_
