#include "cc/core/selectors/prioritized.h"

#include <algorithm>

#include "cc/core/selectors/priority_weight.h"

namespace reverb_tf {
namespace {

// Picks that are looked up together.
constexpr size_t kBatch = 64;

}  // namespace

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
  if (weights_.total() <= 0) {
    const double probability = 1.0 / static_cast<double>(size_);
    for (size_t i = 0; i < n; ++i) out[i] = {zeros_[random->Below(size_)], probability};
    return;
  }
  double fractions[kBatch];
  Slot slots[kBatch];
  for (size_t done = 0; done < n; done += kBatch) {
    const size_t batch = std::min(kBatch, n - done);
    for (size_t i = 0; i < batch; ++i) fractions[i] = random->Unit();
    weights_.Find(batch, fractions, slots);
    for (size_t i = 0; i < batch; ++i) {
      out[done + i] = {slots[i], weights_.Get(slots[i]) / weights_.total()};
    }
  }
}

}  // namespace reverb_tf
