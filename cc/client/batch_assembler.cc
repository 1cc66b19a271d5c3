#include "cc/client/batch_assembler.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace reverb_tf {

// A column as it is delivered: with time dimension or without.
struct BatchAssembler::View {
  ColumnView column;
  bool squeeze = false;

  Shape shape() const {
    Shape shape = column.cell().shape;
    if (!squeeze) shape.insert(shape.begin(), column.length());
    return shape;
  }
};

namespace {

void AppendInfo(const SampledItem& s, SampleBatch* out) {
  out->keys.push_back(s.item->key());
  out->probabilities.push_back(s.probability);
  out->table_sizes.push_back(s.table_size);
  out->priorities.push_back(s.priority);
  out->times_sampled.push_back(s.times_sampled);
}

// Rows of a column, decoding each compressed chunk once though slices share it.
Status CopyColumn(const ColumnView& column, uint8_t* dest) {
  for (const ChunkSlice& slice : column) {
    RTF_RETURN_IF_ERROR(slice.chunk->CopyRows(slice.offset, slice.length, dest));
    dest += static_cast<size_t>(slice.length) * slice.chunk->row_bytes();
  }
  return OkStatus();
}

// Appends the strings of a column to `out`, content by content.
class StringGatherer {
 public:
  Status Add(const ColumnView& column) {
    const int64_t cell = NumElements(column.cell().shape);
    for (const ChunkSlice& slice : column) {
      RTF_ASSIGN_OR_RETURN(BufferPtr plain, slice.chunk->Decode());
      RTF_ASSIGN_OR_RETURN(
          const StringContent content,
          ParseStringContent(plain->view(), cell * slice.chunk->num_rows()));
      size_t at = 0;
      const auto begin = static_cast<size_t>(cell * slice.offset);
      const auto end = begin + static_cast<size_t>(cell * slice.length);
      for (size_t i = 0; i < end; ++i) {
        if (i >= begin) elements_.push_back(content.bytes.substr(at, content.lengths[i]));
        at += content.lengths[i];
      }
      kept_.push_back(std::move(plain));
    }
    return OkStatus();
  }
  void AddEmpty(int64_t n) { elements_.resize(elements_.size() + static_cast<size_t>(n)); }
  BufferPtr Finish() const { return Buffer::CopyOf(MakeStringContent(elements_)); }

 private:
  std::vector<std::string_view> elements_;
  std::vector<BufferPtr> kept_;
};

bool IsAligned(const BufferPtr& buffer) {
  return reinterpret_cast<uintptr_t>(buffer->data()) % Buffer::kAlignment == 0;
}

// The chunk's own buffer if the column is all of it and it can be read in place.
BufferPtr WholeChunk(const ColumnView& column) {
  if (column.num_slices != 1) return nullptr;
  const ChunkSlice& slice = *column.slices;
  const Chunk& chunk = *slice.chunk;
  if (!chunk.is_plain() || slice.length != chunk.num_rows()) return nullptr;
  const BufferPtr& buffer = chunk.payload_buffer();
  return buffer && IsAligned(buffer) ? buffer : nullptr;
}

}  // namespace

int BatchAssembler::NumColumns(const Item& item) const {
  return layout_.order.empty() ? item.num_columns()
                               : static_cast<int>(layout_.order.size());
}

BatchAssembler::View BatchAssembler::ColumnOf(const Item& item, int i) const {
  const auto at = static_cast<size_t>(i);
  View view{item.column(layout_.order.empty() ? i : layout_.order[at]), false};
  view.squeeze = view.column.squeeze;
  // An item written as one step comes in the rank that the reader declared.
  if (!view.squeeze && at < layout_.specs.size() && view.column.length() == 1) {
    const TensorSpec& spec = layout_.specs[at];
    view.squeeze =
        !spec.unknown_rank && spec.shape.size() == view.column.cell().shape.size();
  }
  return view;
}

std::string BatchAssembler::PathOf(int i) const {
  const auto at = static_cast<size_t>(i);
  if (at < layout_.specs.size() && !layout_.specs[at].path.empty()) {
    return "'" + layout_.specs[at].path + "'";
  }
  return "column " + std::to_string(i);
}

Status BatchAssembler::CheckSteps(const SampledItem& sample) const {
  const Item& item = *sample.item;
  bool ok = true;
  std::string columns;
  for (int i = 0; i < NumColumns(item); ++i) {
    const ColumnView column = item.column(i);
    ok &= column.squeeze == item.column(0).squeeze &&
          column.length() == item.column(0).length();
    columns +=
        (i ? ", " : "") + PathOf(i) + " has " +
        (column.squeeze ? "no time dimension" : std::to_string(column.length()) + " steps");
  }
  if (ok) return OkStatus();
  return InvalidArgumentError(
      "item " + std::to_string(item.key()) +
      " can't be split into steps, it is a non timestep trajectory: " + columns +
      "; use emit_timesteps=False to get columns whole");
}

Status BatchAssembler::Check(const SampledItem& sample) const {
  const Item& item = *sample.item;
  const auto key = std::to_string(item.key());
  for (int column : layout_.order) {
    if (column < item.num_columns()) continue;
    return InvalidArgumentError("item " + key + " has " +
                                std::to_string(item.num_columns()) + " columns, expected " +
                                std::to_string(layout_.order.size()));
  }
  if (layout_.require_steps) RTF_RETURN_IF_ERROR(CheckSteps(sample));
  if (!layout_.check_specs) return OkStatus();
  if (item.num_columns() != static_cast<int>(layout_.specs.size())) {
    return InvalidArgumentError("item " + key + " has " +
                                std::to_string(item.num_columns()) + " columns, expected " +
                                std::to_string(layout_.specs.size()) +
                                " (dtypes and shapes of the dataset)");
  }
  for (int i = 0; i < item.num_columns(); ++i) {
    const View view = ColumnOf(item, i);
    const TensorSpec& spec = layout_.specs[static_cast<size_t>(i)];
    const Shape shape = view.shape();
    if (view.column.cell().dtype == spec.dtype && ShapeIsCompatible(spec, shape)) continue;
    return InvalidArgumentError(
        "item " + key + ": " + PathOf(i) + " got " + DTypeName(view.column.cell().dtype) +
        ShapeString(shape) + " expected " + spec.ToString() +
        "; it was given back: delete it with mutate_priorities(table, deletes=[" + key +
        "]), or give the table a signature so that such items are refused");
  }
  return OkStatus();
}

Status BatchAssembler::AssembleOne(const SampledItem& sample, SampleBatch* out) const {
  AppendInfo(sample, out);
  const Item& item = *sample.item;
  for (int i = 0; i < NumColumns(item); ++i) {
    const View view = ColumnOf(item, i);
    Tensor tensor;
    tensor.dtype = view.column.cell().dtype;
    tensor.shape = view.shape();
    tensor.buffer = WholeChunk(view.column);
    if (!tensor.buffer) {
      tensor.writable = true;
      if (tensor.dtype == DType::kString) {
        StringGatherer strings;
        RTF_RETURN_IF_ERROR(strings.Add(view.column));
        tensor.buffer = strings.Finish();
      } else {
        const size_t row = view.column.slices->chunk->row_bytes();
        tensor.buffer = Buffer::Allocate(static_cast<size_t>(view.column.length()) * row);
        RTF_RETURN_IF_ERROR(CopyColumn(view.column, tensor.buffer->mutable_data()));
      }
    }
    out->columns.push_back(std::move(tensor));
    out->squeezed.push_back(view.squeeze);
  }
  return OkStatus();
}

Status BatchAssembler::Batch(const std::vector<SampledItem>& samples, int i,
                             SampleBatch* out) const {
  const View first = ColumnOf(*samples[0].item, i);
  const TensorSpec& cell = first.column.cell();
  int64_t longest = 0;
  std::vector<int32_t> lengths;
  for (const SampledItem& sample : samples) {
    const View view = ColumnOf(*sample.item, i);
    const int64_t n = view.column.length();
    const TensorSpec& c = view.column.cell();
    const bool same_cell = &c == &cell || (c.dtype == cell.dtype && c.shape == cell.shape);
    if (!same_cell || view.squeeze != first.squeeze ||
        (!layout_.pad_to_longest && n != first.column.length())) {
      return InvalidArgumentError(
          PathOf(i) + ": items of " + DTypeName(cell.dtype) + ShapeString(first.shape()) +
          " and " + DTypeName(c.dtype) + ShapeString(view.shape()) +
          " can't be batched; use pad_to_longest=True, reverb_tf.data.padded_batch or "
          "reverb_tf.data.ragged_batch for trajectories of different lengths");
    }
    longest = std::max(longest, n);
    if (layout_.pad_to_longest) lengths.push_back(static_cast<int32_t>(n));
  }
  Tensor tensor;
  tensor.dtype = cell.dtype;
  tensor.writable = true;
  tensor.shape = cell.shape;
  if (!first.squeeze) tensor.shape.insert(tensor.shape.begin(), longest);
  tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(samples.size()));
  if (cell.dtype == DType::kString) {
    StringGatherer strings;
    for (const SampledItem& sample : samples) {
      const ColumnView column = ColumnOf(*sample.item, i).column;
      RTF_RETURN_IF_ERROR(strings.Add(column));
      strings.AddEmpty((longest - column.length()) * NumElements(cell.shape));
    }
    tensor.buffer = strings.Finish();
  } else {
    const size_t row = first.column.slices->chunk->row_bytes();
    const size_t stride = row * static_cast<size_t>(longest);
    tensor.buffer = Buffer::Allocate(stride * samples.size());
    uint8_t* dest = tensor.buffer->mutable_data();
    for (const SampledItem& sample : samples) {
      const ColumnView column = ColumnOf(*sample.item, i).column;
      RTF_RETURN_IF_ERROR(CopyColumn(column, dest));
      const size_t used = row * static_cast<size_t>(column.length());
      if (used < stride) std::memset(dest + used, 0, stride - used);
      dest += stride;
    }
  }
  out->columns.push_back(std::move(tensor));
  out->squeezed.push_back(first.squeeze);
  if (layout_.pad_to_longest) out->lengths.push_back(std::move(lengths));
  return OkStatus();
}

Status BatchAssembler::AssembleBatch(const std::vector<SampledItem>& samples,
                                     SampleBatch* out) const {
  const int num_columns = NumColumns(*samples[0].item);
  for (const SampledItem& sample : samples) {
    AppendInfo(sample, out);
    if (NumColumns(*sample.item) == num_columns) continue;
    return InvalidArgumentError("items of " + std::to_string(num_columns) + " and " +
                                std::to_string(NumColumns(*sample.item)) +
                                " columns can't be batched");
  }
  for (int i = 0; i < num_columns; ++i) RTF_RETURN_IF_ERROR(Batch(samples, i, out));
  return OkStatus();
}

}  // namespace reverb_tf
