// A set of slots that can be drawn from uniformly.
#ifndef REVERB_TF_CC_CORE_SELECTORS_SLOT_SET_H_
#define REVERB_TF_CC_CORE_SELECTORS_SLOT_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/core/selectors/selector.h"

namespace reverb_tf {

// The members stand in one array without holes, and every slot knows its place
// in it; a removed one is replaced by the last. All O(1), 8 bytes a slot.
// Thread-compatible.
class SlotSet {
 public:
  void Insert(Slot slot);  // REQUIRES: not in
  void Remove(Slot slot);  // REQUIRES: in
  void Clear();

  size_t size() const { return members_.size(); }
  // REQUIRES: i < size()
  Slot operator[](size_t i) const { return members_[i]; }

 private:
  std::vector<Slot> members_;
  std::vector<uint32_t> places_;  // by slot; meaningless for slots that aren't in
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SELECTORS_SLOT_SET_H_
