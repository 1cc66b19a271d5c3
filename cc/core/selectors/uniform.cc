#include "cc/core/selectors/uniform.h"

namespace reverb_tf {

void UniformSelector::Sample(Random* random, size_t n, Pick* out) {
  const size_t size = slots_.size();
  const double probability = 1.0 / static_cast<double>(size);
  for (size_t i = 0; i < n; ++i) out[i] = {slots_[random->Below(size)], probability};
}

}  // namespace reverb_tf
