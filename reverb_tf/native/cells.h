// The cells of one append, read from Python values.
#ifndef REVERB_TF_REVERB_TF_NATIVE_CELLS_H_
#define REVERB_TF_REVERB_TF_NATIVE_CELLS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "cc/api/trajectory_writer.h"
#include "reverb_tf/native/interop.h"

namespace reverb_tf {

// Keeps what its views point at. Filled with the GIL held.
class Cells {
 public:
  // Raises TypeError or ValueError with `path` for a value that can't be stored.
  void Add(int column, PyObject* value, const std::string& path) {
    leaves_.push_back(reader_.Read(value, path));
    CellView view;
    view.column = column;
    views_.push_back(view);
  }
  // The same, of a value that nothing else keeps.
  void AddOwned(int column, nb::object value, const std::string& path) {
    Add(column, value.ptr(), path);
    owned_.push_back(std::move(value));
  }

  size_t size() const { return views_.size(); }
  bool Has(int column) const {
    return std::any_of(views_.begin(), views_.end(),
                       [=](const CellView& view) { return view.column == column; });
  }
  // All cells; valid until the next Add.
  const CellView* views() {
    for (size_t i = 0; i < views_.size(); ++i) {
      const Leaf& leaf = leaves_[i];
      CellView& view = views_[i];
      view.dtype = leaf.dtype;
      view.dims = leaf.shape.data();
      view.rank = static_cast<int>(leaf.shape.size());
      view.data = leaf.data;
      view.bytes = leaf.bytes;
    }
    return views_.data();
  }

 private:
  LeafReader reader_;
  std::vector<Leaf> leaves_;
  std::vector<CellView> views_;
  std::vector<nb::object> owned_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_CELLS_H_
