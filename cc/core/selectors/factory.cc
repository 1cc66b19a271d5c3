#include "cc/base/check.h"
#include "cc/core/selectors/fifo.h"
#include "cc/core/selectors/heap.h"
#include "cc/core/selectors/lifo.h"
#include "cc/core/selectors/prioritized.h"
#include "cc/core/selectors/selector.h"
#include "cc/core/selectors/uniform.h"

namespace reverb_tf {

std::unique_ptr<Selector> MakeSelector(const SelectorConfig& config) {
  switch (config.kind) {
    case SelectorKind::kFifo:
      return std::make_unique<FifoSelector>();
    case SelectorKind::kLifo:
      return std::make_unique<LifoSelector>();
    case SelectorKind::kUniform:
      return std::make_unique<UniformSelector>();
    case SelectorKind::kPrioritized:
      return std::make_unique<PrioritizedSelector>(config.priority_exponent);
    case SelectorKind::kMinHeap:
      return std::make_unique<HeapSelector>(HeapSelector::kMinFirst);
    case SelectorKind::kMaxHeap:
      return std::make_unique<HeapSelector>(HeapSelector::kMaxFirst);
  }
  RTF_CHECK(false) << "selector kind " << static_cast<int>(config.kind);
  return nullptr;
}

}  // namespace reverb_tf
