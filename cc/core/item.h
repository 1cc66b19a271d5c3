// An item: a key and, per column, the slices of chunks that make its trajectory.
#ifndef REVERB_TF_CC_CORE_ITEM_H_
#define REVERB_TF_CC_CORE_ITEM_H_

#include <cstdint>
#include <vector>

#include "cc/core/chunk.h"
#include "cc/core/signature.h"

namespace reverb_tf {

// Rows [offset, offset + length) of a chunk.
struct ChunkSlice {
  ChunkPtr chunk;
  int32_t offset = 0;
  int32_t length = 0;
};

// One column of a trajectory, on its way to or out of an Item.
struct ColumnView {
  const ChunkSlice* slices = nullptr;
  int32_t num_slices = 0;
  // The column is its only row, without the leading dimension.
  bool squeeze = false;

  const ChunkSlice* begin() const { return slices; }
  const ChunkSlice* end() const { return slices + num_slices; }
  // REQUIRES: num_slices > 0
  const TensorSpec& cell() const { return slices->chunk->cell(); }
  // Rows of all slices.
  int64_t length() const;
  // cell shape if squeezed, else [length] + cell shape.
  Shape shape() const;
};

// Immutable and thread-safe; one allocation. What changes of an item (priority,
// times sampled) is kept by its table.
class Item : public RefCounted<Item> {
 public:
  // INVALID_ARGUMENT naming the column unless there is a column, each has
  // rows, all slices are within their chunks, cells of a column agree in dtype
  // and shape, squeezed columns have one row, and a column's rows and elements can be
  // counted (int32, int64).
  static Result<RefPtr<const Item>> Create(uint64_t key, bool written_as_steps,
                                           const std::vector<ColumnView>& columns);

  uint64_t key() const { return key_; }
  // Written by insert or the row writer: its columns are steps (api: "written as").
  bool written_as_steps() const { return written_as_steps_; }
  int num_columns() const { return num_columns_; }
  ColumnView column(int i) const;
  int num_slices() const { return num_slices_; }
  const ChunkSlice* slices() const;

  static void Destroy(const Item* item);

 private:
  Item(uint64_t key, bool written_as_steps, int num_columns, int num_slices)
      : key_(key),
        num_columns_(num_columns),
        num_slices_(num_slices),
        written_as_steps_(written_as_steps) {}
  ~Item() = default;
  const int32_t* column_marks() const;

  const uint64_t key_;
  const int32_t num_columns_;
  const int32_t num_slices_;
  const bool written_as_steps_;
  // Followed by num_slices_ ChunkSlices and num_columns_ (end << 1 | squeeze).
};

using ItemPtr = RefPtr<const Item>;

// The columns as CheckSignature (signature.h) wants them.
std::vector<ColumnShape> ColumnShapes(const Item& item);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_ITEM_H_
