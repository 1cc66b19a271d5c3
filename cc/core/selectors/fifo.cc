#include "cc/core/selectors/fifo.h"

#include <algorithm>

namespace reverb_tf {

void FifoSelector::Sample(Random*, size_t n, Pick* out) {
  std::fill_n(out, n, Pick{log_.first(), 1.0});
}

}  // namespace reverb_tf
