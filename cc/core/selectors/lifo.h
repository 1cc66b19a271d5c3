#ifndef REVERB_TF_CC_CORE_SELECTORS_LIFO_H_
#define REVERB_TF_CC_CORE_SELECTORS_LIFO_H_

#include "cc/core/selectors/ordered_log.h"
#include "cc/core/selectors/selector.h"

namespace reverb_tf {

// Picks the newest item. See OrderedLog for costs. Thread-compatible.
class LifoSelector : public Selector {
 public:
  void Insert(Slot slot, uint64_t order, double) override { log_.Insert(slot, order); }
  void Update(Slot, uint64_t, double) override {}
  void Remove(Slot, uint64_t order) override { log_.Remove(order); }
  void Clear() override { log_.Clear(); }
  void Sample(Random* random, size_t n, Pick* out) override;
  size_t size() const override { return log_.size(); }

 private:
  OrderedLog log_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_LIFO_H_
