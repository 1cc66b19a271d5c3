// Where a table keeps its items: by slot.
#ifndef REVERB_TF_CC_CORE_ITEM_SLAB_H_
#define REVERB_TF_CC_CORE_ITEM_SLAB_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/core/item.h"
#include "cc/core/selectors/selector.h"

namespace reverb_tf {

// Whether an item is in its table, or why not: it was used up, evicted or replaced,
// deleted by key. Items that left stay known while grants of them are in flight.
enum class Presence : uint32_t { kPresent = 0, kExpired = 1, kEvicted = 2, kDeleted = 3 };

// What a table knows of one of its items.
struct ItemRecord {
  ItemPtr item;  // null: the slot is free, or the item left for good
  double priority = 0;
  uint64_t order = 0;       // of its insertion
  uint64_t last_order = 0;  // of its insertion or last update (ties of heaps)
  int32_t times_sampled = 0;
  uint32_t in_flight : 30;  // grants that didn't end, on consuming tables
  Presence presence : 2;

  ItemRecord() : in_flight(0), presence(Presence::kPresent) {}
};

// Records in blocks that never move; slots that were freed are used again first.
// When the last record leaves, all memory but one block is given back (a queue that
// runs empty fills again). Thread-compatible.
class ItemSlab {
 public:
  Slot Add(ItemRecord record);
  // Frees the slot. REQUIRES: in use
  ItemRecord Take(Slot slot);
  void Clear();

  ItemRecord& operator[](Slot slot) {
    return blocks_[slot / kBlockSize][slot % kBlockSize];
  }
  const ItemRecord& operator[](Slot slot) const {
    return blocks_[slot / kBlockSize][slot % kBlockSize];
  }

  // f(record) of each record with an item, in the order of slots.
  template <typename F>
  void ForEach(F f) {
    for (Slot slot = 0; slot < num_slots_; ++slot) {
      if ((*this)[slot].item) f(&(*this)[slot]);
    }
  }
  template <typename F>
  void ForEach(F f) const {
    for (Slot slot = 0; slot < num_slots_; ++slot) {
      if ((*this)[slot].item) f((*this)[slot]);
    }
  }

 private:
  static constexpr size_t kBlockSize = 256;
  static constexpr Slot kNoSlot = ~Slot{0};

  std::vector<std::unique_ptr<ItemRecord[]>> blocks_;
  Slot num_slots_ = 0;  // those ever used
  Slot num_free_ = 0;
  Slot first_free_ = kNoSlot;  // a list, linked by ItemRecord::order
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_ITEM_SLAB_H_
