#ifndef REVERB_TF_CC_CORE_SELECTORS_HEAP_H_
#define REVERB_TF_CC_CORE_SELECTORS_HEAP_H_

#include <cstdint>
#include <vector>

#include "cc/core/selectors/selector.h"

namespace reverb_tf {

// Picks the item of lowest or highest priority; of equal ones the least recently
// inserted or updated. A four-ary heap that knows the place of every slot: pick
// O(1), changes O(log n). Thread-compatible.
class HeapSelector : public Selector {
 public:
  enum Order { kMinFirst, kMaxFirst };
  explicit HeapSelector(Order order) : sign_(order == kMinFirst ? 1 : -1) {}

  void Insert(Slot slot, uint64_t order, double priority) override;
  void Update(Slot slot, uint64_t order, double priority) override;
  void Remove(Slot slot, uint64_t order) override;
  void Clear() override;
  void Sample(Random* random, size_t n, Pick* out) override;
  size_t size() const override { return nodes_.size(); }

 private:
  static constexpr size_t kArity = 4;

  struct Node {
    double key;  // sign_ * priority: the lowest comes first
    uint64_t order;
    Slot slot;
    bool operator<(const Node& o) const {
      return key < o.key || (key == o.key && order < o.order);
    }
  };

  void Place(size_t i, const Node& node);
  // Moves `node`, which belongs at `i` or above (below), to its place.
  void SiftUp(size_t i, const Node& node);
  void SiftDown(size_t i, const Node& node);
  // Either, as `node` demands.
  void Sift(size_t i, const Node& node);

  const double sign_;
  std::vector<Node> nodes_;
  std::vector<uint32_t> places_;  // by slot
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_HEAP_H_
