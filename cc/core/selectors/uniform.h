#ifndef REVERB_TF_CC_CORE_SELECTORS_UNIFORM_H_
#define REVERB_TF_CC_CORE_SELECTORS_UNIFORM_H_

#include "cc/core/selectors/selector.h"
#include "cc/core/selectors/slot_set.h"

namespace reverb_tf {

// Picks all items alike. Everything O(1). Thread-compatible.
class UniformSelector : public Selector {
 public:
  void Insert(Slot slot, uint64_t, double) override { slots_.Insert(slot); }
  void Update(Slot, uint64_t, double) override {}
  void Remove(Slot slot, uint64_t) override { slots_.Remove(slot); }
  void Clear() override { slots_.Clear(); }
  void Sample(Random* random, size_t n, Pick* out) override;
  size_t size() const override { return slots_.size(); }

 private:
  SlotSet slots_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_UNIFORM_H_
