#include "cc/core/selectors/sum_tree.h"

#include <algorithm>

namespace reverb_tf {

double SumTree::Node::Sum() const {
  return ((child[0] + child[1]) + (child[2] + child[3])) +
         ((child[4] + child[5]) + (child[6] + child[7]));
}

size_t SumTree::Node::Descend(double* point) const {
  // Without branches, as nobody could predict them. A child of weight zero ends
  // where it begins, so that no point lies in it.
  size_t index = 0;
  double end = 0;
  double begin = 0;
  for (const double weight : child) {
    end += weight;
    const bool is_beyond = *point >= end;
    index += is_beyond ? 1 : 0;
    begin = is_beyond ? end : begin;
  }
  if (index == kFanOut) return LastChild(point);
  *point -= begin;
  return index;
}

size_t SumTree::Node::LastChild(double* point) const {
  // Reached when rounding pushed the point past the right edge.
  size_t last = kFanOut - 1;
  while (last > 0 && child[last] == 0) --last;
  *point = child[last];
  return last;
}

void SumTree::Grow(size_t size) {
  if (levels_.empty()) levels_.emplace_back();
  const size_t nodes = (size + kFanOut - 1) / kFanOut;
  if (levels_[0].size() < nodes) {
    levels_[0].resize(std::max(nodes, levels_[0].size() * 3 / 2));
  }
  for (size_t l = 1; levels_[l - 1].size() > 1; ++l) {
    if (l == levels_.size()) levels_.emplace_back();
    const std::vector<Node>& below = levels_[l - 1];
    levels_[l].resize((below.size() + kFanOut - 1) / kFanOut);
    // New nodes, and those above a level that was the top.
    for (size_t i = 0; i < below.size(); ++i) {
      levels_[l][i / kFanOut].child[i % kFanOut] = below[i].Sum();
    }
  }
}

void SumTree::Set(Slot slot, double weight) {
  size_t index = slot;
  if (levels_.empty() || index >= levels_[0].size() * kFanOut) Grow(index + 1);
  double value = weight;
  for (std::vector<Node>& level : levels_) {
    Node& node = level[index / kFanOut];
    node.child[index % kFanOut] = value;
    value = node.Sum();
    index /= kFanOut;
  }
  total_ = value;
}

double SumTree::Get(Slot slot) const {
  if (levels_.empty() || slot >= levels_[0].size() * kFanOut) return 0;
  return levels_[0][slot / kFanOut].child[slot % kFanOut];
}

void SumTree::Clear() {
  levels_ = std::vector<std::vector<Node>>();
  total_ = 0;
}

Slot SumTree::Find(double fraction) const {
  Slot slot = 0;
  Find(1, &fraction, &slot);
  return slot;
}

void SumTree::Find(size_t n, double* fractions, Slot* slots) const {
  for (size_t i = 0; i < n; ++i) {
    fractions[i] *= total_;
    slots[i] = 0;
  }
  for (size_t level = levels_.size(); level-- > 0;) {
    const std::vector<Node>& nodes = levels_[level];
    for (size_t i = 0; i < n; ++i) {
      const size_t child = nodes[slots[i]].Descend(&fractions[i]);
      slots[i] = static_cast<Slot>(slots[i] * kFanOut + child);
    }
  }
}

bool SumTree::IsExact() const {
  for (size_t level = 0; level < levels_.size(); ++level) {
    for (size_t i = 0; i < levels_[level].size(); ++i) {
      const double sum = level + 1 == levels_.size()
                             ? total_
                             : levels_[level + 1][i / kFanOut].child[i % kFanOut];
      if (sum != levels_[level][i].Sum()) return false;
    }
  }
  return true;
}

}  // namespace reverb_tf
