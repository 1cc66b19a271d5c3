#include "cc/core/item.h"

#include <limits>
#include <new>
#include <string>

namespace reverb_tf {
namespace {

constexpr size_t kMaxSlices = std::numeric_limits<int32_t>::max() >> 1;

Status BadColumn(uint64_t key, size_t column, const std::string& problem) {
  return InvalidArgumentError("item " + std::to_string(key) + ", column [" +
                              std::to_string(column) + "]: " + problem);
}

bool SameCell(const TensorSpec& a, const TensorSpec& b) {
  return &a == &b || (a.dtype == b.dtype && a.shape == b.shape);
}

Status CheckSlice(uint64_t key, size_t column, const ChunkSlice& slice,
                  const TensorSpec& cell) {
  if (slice.offset < 0 || slice.length < 1 ||
      slice.length > slice.chunk->num_rows() - slice.offset) {
    return BadColumn(key, column,
                     "rows " + std::to_string(slice.offset) + " to " +
                         std::to_string(int64_t{slice.offset} + slice.length) +
                         " are not within chunk " + std::to_string(slice.chunk->key()) +
                         " of " + std::to_string(slice.chunk->num_rows()) + " rows");
  }
  if (!SameCell(slice.chunk->cell(), cell)) {
    return BadColumn(
        key, column,
        "has cells of " + cell.ToString() + " and of " + slice.chunk->cell().ToString());
  }
  return OkStatus();
}

Status CheckColumn(uint64_t key, size_t index, const ColumnView& column) {
  if (column.num_slices < 1) return BadColumn(key, index, "has no rows");
  for (const ChunkSlice& slice : column) {
    if (slice.chunk == nullptr) return BadColumn(key, index, "a chunk is missing");
    RTF_RETURN_IF_ERROR(CheckSlice(key, index, slice, column.cell()));
  }
  const int64_t rows = column.length();
  if (rows > std::numeric_limits<int32_t>::max()) {
    return BadColumn(key, index, "has " + std::to_string(rows) + " rows, too many");
  }
  // Cells without bytes can claim any dimensions.
  if (column.slices->chunk->uncompressed_bytes() == 0 && NumElements(column.shape()) < 0) {
    return BadColumn(key, index, "has the impossible shape " + ShapeString(column.shape()));
  }
  if (column.squeeze && rows != 1) {
    return BadColumn(
        key, index,
        "is squeezed, so it must have one row, but has " + std::to_string(rows));
  }
  return OkStatus();
}

}  // namespace

int64_t ColumnView::length() const {
  int64_t rows = 0;
  for (const ChunkSlice& slice : *this) rows += slice.length;
  return rows;
}

Shape ColumnView::shape() const {
  const Shape& cell_shape = cell().shape;
  if (squeeze) return cell_shape;
  Shape shape;
  shape.reserve(cell_shape.size() + 1);
  shape.push_back(length());
  shape.insert(shape.end(), cell_shape.begin(), cell_shape.end());
  return shape;
}

Result<ItemPtr> Item::Create(uint64_t key, bool written_as_steps,
                             const std::vector<ColumnView>& columns) {
  if (columns.empty()) {
    return InvalidArgumentError("item " + std::to_string(key) +
                                " has no columns; expected at least one");
  }
  size_t num_slices = 0;
  for (size_t i = 0; i < columns.size(); ++i) {
    RTF_RETURN_IF_ERROR(CheckColumn(key, i, columns[i]));
    num_slices += static_cast<size_t>(columns[i].num_slices);
  }
  if (num_slices > kMaxSlices) {
    return InvalidArgumentError("item " + std::to_string(key) + " has " +
                                std::to_string(num_slices) + " slices; at most " +
                                std::to_string(kMaxSlices) + " are possible");
  }
  void* const memory = ::operator new(sizeof(Item) + num_slices * sizeof(ChunkSlice) +
                                      columns.size() * sizeof(int32_t));
  Item* const item =
      new (memory) Item(key, written_as_steps, static_cast<int>(columns.size()),
                        static_cast<int>(num_slices));
  auto* slice = const_cast<ChunkSlice*>(item->slices());
  auto* mark = const_cast<int32_t*>(item->column_marks());
  int32_t end = 0;
  for (const ColumnView& column : columns) {
    for (const ChunkSlice& s : column) new (slice++) ChunkSlice(s);
    end += column.num_slices;
    *mark++ = end * 2 + (column.squeeze ? 1 : 0);
  }
  return ItemPtr::Adopt(item);
}

const ChunkSlice* Item::slices() const {
  static_assert(sizeof(Item) % alignof(ChunkSlice) == 0);
  return reinterpret_cast<const ChunkSlice*>(this + 1);
}

const int32_t* Item::column_marks() const {
  return reinterpret_cast<const int32_t*>(slices() + num_slices_);
}

ColumnView Item::column(int i) const {
  const int32_t* const marks = column_marks();
  const int32_t begin = i == 0 ? 0 : marks[i - 1] >> 1;
  return {slices() + begin, (marks[i] >> 1) - begin, (marks[i] & 1) != 0};
}

void Item::Destroy(const Item* item) {
  for (int i = 0; i < item->num_slices_; ++i) item->slices()[i].~ChunkSlice();
  item->~Item();
  ::operator delete(const_cast<Item*>(item));
}

std::vector<ColumnShape> ColumnShapes(const Item& item) {
  std::vector<ColumnShape> shapes;
  shapes.reserve(static_cast<size_t>(item.num_columns()));
  for (int i = 0; i < item.num_columns(); ++i) {
    const ColumnView column = item.column(i);
    shapes.push_back(
        {column.cell().dtype, column.cell().shape, column.length(), column.squeeze});
  }
  return shapes;
}

}  // namespace reverb_tf
