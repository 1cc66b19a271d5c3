#include "cc/core/selectors/prioritized.h"

#include "cc/core/selectors/priority_weight.h"

namespace reverb_tf {

void PrioritizedSelector::Insert(Slot slot, uint64_t, double priority) {
  const double weight = PriorityWeight(priority, exponent_);
  if (weight == 0) {
    zeros_.Insert(slot);
  } else {
    weights_.Set(slot, weight);
  }
  ++size_;
}

void PrioritizedSelector::Update(Slot slot, uint64_t, double priority) {
  const double weight = PriorityWeight(priority, exponent_);
  const double old = weights_.Get(slot);
  if (weight == old) return;
  if (old == 0) zeros_.Remove(slot);
  if (weight == 0) zeros_.Insert(slot);
  weights_.Set(slot, weight);
}

void PrioritizedSelector::Remove(Slot slot, uint64_t) {
  if (weights_.Get(slot) == 0) {
    zeros_.Remove(slot);
  } else {
    weights_.Set(slot, 0);
  }
  --size_;
}

void PrioritizedSelector::Clear() {
  size_ = 0;
  weights_.Clear();
  zeros_.Clear();
}

void PrioritizedSelector::Sample(Random* random, size_t n, Pick* out) {
  const double total = weights_.total();
  for (size_t i = 0; i < n; ++i) {
    if (total > 0) {
      const Slot slot = weights_.Find(random->Unit());
      out[i] = {slot, weights_.Get(slot) / total};
    } else {
      out[i] = {zeros_[random->Below(size_)], 1.0 / static_cast<double>(size_)};
    }
  }
}

}  // namespace reverb_tf
