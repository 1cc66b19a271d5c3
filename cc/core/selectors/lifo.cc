#include "cc/core/selectors/lifo.h"

#include <algorithm>

namespace reverb_tf {

void LifoSelector::Sample(Random*, size_t n, Pick* out) {
  std::fill_n(out, n, Pick{log_.last(), 1.0});
}

}  // namespace reverb_tf
