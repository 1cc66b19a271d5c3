#include "cc/core/selectors/heap.h"

#include <algorithm>

namespace reverb_tf {

void HeapSelector::Place(size_t i, const Node& node) {
  nodes_[i] = node;
  places_[node.slot] = static_cast<uint32_t>(i);
}

void HeapSelector::SiftUp(size_t i, const Node& node) {
  while (i > 0) {
    const size_t parent = (i - 1) / kArity;
    if (!(node < nodes_[parent])) break;
    Place(i, nodes_[parent]);
    i = parent;
  }
  Place(i, node);
}

void HeapSelector::SiftDown(size_t i, const Node& node) {
  for (;;) {
    const size_t begin = i * kArity + 1;
    const size_t end = std::min(begin + kArity, nodes_.size());
    if (begin >= end) break;
    size_t least = begin;
    for (size_t c = begin + 1; c < end; ++c) {
      if (nodes_[c] < nodes_[least]) least = c;
    }
    if (!(nodes_[least] < node)) break;
    Place(i, nodes_[least]);
    i = least;
  }
  Place(i, node);
}

void HeapSelector::Sift(size_t i, const Node& node) {
  if (i > 0 && node < nodes_[(i - 1) / kArity]) {
    SiftUp(i, node);
  } else {
    SiftDown(i, node);
  }
}

void HeapSelector::Insert(Slot slot, uint64_t order, double priority) {
  if (slot >= places_.size()) places_.resize(slot + size_t{1});
  nodes_.emplace_back();
  SiftUp(nodes_.size() - 1, {sign_ * priority, order, slot});
}

void HeapSelector::Update(Slot slot, uint64_t order, double priority) {
  Sift(places_[slot], {sign_ * priority, order, slot});
}

void HeapSelector::Remove(Slot slot, uint64_t) {
  const size_t i = places_[slot];
  const Node last = nodes_.back();
  nodes_.pop_back();
  if (i < nodes_.size()) Sift(i, last);
}

void HeapSelector::Clear() {
  nodes_ = std::vector<Node>();
  places_ = std::vector<uint32_t>();
}

void HeapSelector::Sample(Random*, size_t n, Pick* out) {
  std::fill_n(out, n, Pick{nodes_.front().slot, 1.0});
}

}  // namespace reverb_tf
