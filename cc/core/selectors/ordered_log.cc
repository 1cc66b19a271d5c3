#include "cc/core/selectors/ordered_log.h"

#include <algorithm>

namespace reverb_tf {

size_t OrderedLog::LowerBound(uint64_t order) const {
  if (entries_.empty() || order <= entries_.front().order()) return 0;
  if (order > entries_.back().order()) return entries_.size();
  // Orders are whole numbers that grow, so there is no more room for entries
  // between two of them than their difference; without gaps that leaves one place.
  const uint64_t from_front = order - entries_.front().order();
  const uint64_t to_back = entries_.back().order() - order;
  size_t high = static_cast<size_t>(std::min<uint64_t>(from_front, entries_.size() - 1));
  size_t low = to_back < entries_.size() - 1
                   ? entries_.size() - 1 - static_cast<size_t>(to_back)
                   : 0;
  low = std::min(low, high);
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (entries_[middle].order() < order) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

void OrderedLog::Insert(Slot slot, uint64_t order) {
  if (entries_.empty() || order > entries_.back().order()) {
    entries_.emplace_back(order, slot);
    return;
  }
  const size_t at = LowerBound(order);
  if (entries_[at].order() == order) {
    entries_[at].slot = slot;
    --tombstones_;
  } else {
    entries_.emplace(entries_.begin() + static_cast<std::ptrdiff_t>(at), order, slot);
  }
}

void OrderedLog::Remove(uint64_t order) {
  entries_[LowerBound(order)].slot = kNoSlot;
  ++tombstones_;
  while (!entries_.empty() && entries_.front().slot == kNoSlot) {
    entries_.pop_front();
    --tombstones_;
  }
  while (!entries_.empty() && entries_.back().slot == kNoSlot) {
    entries_.pop_back();
    --tombstones_;
  }
  if (tombstones_ > size() + kMaxIdleTombstones) Sweep();
}

void OrderedLog::Sweep() {
  const auto end = std::remove_if(entries_.begin(), entries_.end(),
                                  [](const Entry& e) { return e.slot == kNoSlot; });
  entries_.erase(end, entries_.end());
  tombstones_ = 0;
}

void OrderedLog::Clear() {
  entries_ = std::deque<Entry>();
  tombstones_ = 0;
}

}  // namespace reverb_tf
