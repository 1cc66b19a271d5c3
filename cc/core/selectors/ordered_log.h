// The slots of a table in the order of their insertion.
#ifndef REVERB_TF_CC_CORE_SELECTORS_ORDERED_LOG_H_
#define REVERB_TF_CC_CORE_SELECTORS_ORDERED_LOG_H_

#include <cstddef>
#include <cstdint>
#include <deque>

#include "cc/core/selectors/selector.h"

namespace reverb_tf {

// What Fifo and Lifo share: (order, slot) entries in growing order. An entry that
// is removed in the middle stays as a tombstone, which its slot may fill again;
// when tombstones outnumber the living they are swept out.
//
// Invariants: orders grow strictly; the entries at both ends are alive; at most
// size() + kMaxIdleTombstones tombstones. Costs: amortised O(1) at the ends and
// where orders have no gaps, O(log n) elsewhere; a slot that comes back after its
// tombstone was swept moves the entries between it and the nearer end.
// Thread-compatible.
class OrderedLog {
 public:
  // REQUIRES: no entry has this order
  void Insert(Slot slot, uint64_t order);
  // REQUIRES: an entry has this order
  void Remove(uint64_t order);
  void Clear();

  size_t size() const { return entries_.size() - tombstones_; }
  // REQUIRES: size() > 0
  Slot first() const { return entries_.front().slot; }
  Slot last() const { return entries_.back().slot; }

 private:
  static constexpr size_t kMaxIdleTombstones = 64;
  static constexpr Slot kNoSlot = ~Slot{0};

  // The order in two halves: 12 bytes instead of 16.
  struct Entry {
    Entry(uint64_t order, Slot slot)
        : low(static_cast<uint32_t>(order)),
          high(static_cast<uint32_t>(order >> 32)),
          slot(slot) {}
    uint64_t order() const { return uint64_t{high} << 32 | low; }

    uint32_t low;
    uint32_t high;
    Slot slot;
  };

  // Index of the first entry whose order is not below `order`.
  size_t LowerBound(uint64_t order) const;
  void Sweep();

  std::deque<Entry> entries_;
  size_t tombstones_ = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_ORDERED_LOG_H_
