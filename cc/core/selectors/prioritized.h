#ifndef REVERB_TF_CC_CORE_SELECTORS_PRIORITIZED_H_
#define REVERB_TF_CC_CORE_SELECTORS_PRIORITIZED_H_

#include "cc/core/selectors/selector.h"
#include "cc/core/selectors/slot_set.h"
#include "cc/core/selectors/sum_tree.h"

namespace reverb_tf {

// Picks an item with probability w / sum(w), w = priority ^ exponent; see
// priority_weight.h. While all weights are zero, all items alike. O(log n).
// Thread-compatible.
class PrioritizedSelector : public Selector {
 public:
  explicit PrioritizedSelector(double exponent) : exponent_(exponent) {}

  // REQUIRES, also Update: SelectorConfig::CheckPriority(priority) is OK
  void Insert(Slot slot, uint64_t order, double priority) override;
  void Update(Slot slot, uint64_t order, double priority) override;
  void Remove(Slot slot, uint64_t order) override;
  void Clear() override;
  void Sample(Random* random, size_t n, Pick* out) override;
  size_t size() const override { return size_; }
  double mass() const override { return weights_.total(); }

 private:
  const double exponent_;
  size_t size_ = 0;
  SumTree weights_;
  SlotSet zeros_;  // the slots of weight zero: all slots when the total is zero
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_PRIORITIZED_H_
