#include "cc/core/selectors/slot_set.h"

namespace reverb_tf {

void SlotSet::Insert(Slot slot) {
  if (slot >= places_.size()) places_.resize(slot + size_t{1});
  places_[slot] = static_cast<uint32_t>(members_.size());
  members_.push_back(slot);
}

void SlotSet::Remove(Slot slot) {
  const uint32_t place = places_[slot];
  const Slot last = members_.back();
  members_[place] = last;
  places_[last] = place;
  members_.pop_back();
}

void SlotSet::Clear() {
  members_ = std::vector<Slot>();
  places_ = std::vector<uint32_t>();
}

}  // namespace reverb_tf
