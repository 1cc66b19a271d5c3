#include "cc/core/item_slab.h"

#include <algorithm>
#include <utility>

#include "cc/base/check.h"

namespace reverb_tf {

Slot ItemSlab::Add(ItemRecord record) {
  Slot slot = first_free_;
  if (slot != kNoSlot) {
    first_free_ = static_cast<Slot>((*this)[slot].order);
    --num_free_;
  } else {
    RTF_CHECK(num_slots_ != kNoSlot) << "a table holds less than 2^32 items";
    slot = num_slots_++;
    if (slot / kBlockSize == blocks_.size()) {
      blocks_.push_back(std::make_unique<ItemRecord[]>(kBlockSize));
    }
  }
  (*this)[slot] = std::move(record);
  return slot;
}

ItemRecord ItemSlab::Take(Slot slot) {
  ItemRecord record = std::move((*this)[slot]);
  (*this)[slot].order = first_free_;
  first_free_ = slot;
  ++num_free_;
  if (num_free_ == num_slots_) Clear();
  return record;
}

void ItemSlab::Clear() {
  for (Slot slot = 0; slot < std::min<size_t>(num_slots_, kBlockSize); ++slot) {
    (*this)[slot].item = nullptr;
  }
  if (blocks_.size() > 1) {
    blocks_.resize(1);
    blocks_.shrink_to_fit();
  }
  num_slots_ = 0;
  num_free_ = 0;
  first_free_ = kNoSlot;
}

}  // namespace reverb_tf
