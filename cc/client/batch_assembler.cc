#include "cc/client/batch_assembler.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "cc/base/varint.h"

namespace reverb_tf {
namespace {

void ClearInfo(SampleBatch* out) {
  out->keys.clear();
  out->probabilities.clear();
  out->table_sizes.clear();
  out->priorities.clear();
  out->times_sampled.clear();
}

void AppendInfo(const SampledItem& sample, SampleBatch* out) {
  out->keys.push_back(sample.item->key());
  out->probabilities.push_back(sample.probability);
  out->table_sizes.push_back(sample.table_size);
  out->priorities.push_back(sample.priority);
  out->times_sampled.push_back(sample.times_sampled);
}

void AppendInfo(const StepRun& run, SampleBatch* out) {
  const SampledItem& sample = *run.sample;
  const auto n = static_cast<size_t>(run.count);
  out->keys.insert(out->keys.end(), n, sample.item->key());
  out->probabilities.insert(out->probabilities.end(), n, sample.probability);
  out->table_sizes.insert(out->table_sizes.end(), n, sample.table_size);
  out->priorities.insert(out->priorities.end(), n, sample.priority);
  out->times_sampled.insert(out->times_sampled.end(), n, sample.times_sampled);
}

// The rows of `run`, of chunks that can be read in place where other batches use them too.
Status AppendSlices(const ColumnView& column, const StepRun& run, PlainChunks* plain,
                    std::vector<ChunkSlice>* slices) {
  int32_t skip = run.first;
  int32_t left = run.count;
  for (const ChunkSlice& slice : column) {
    if (left == 0) break;
    const int32_t length = std::min(slice.length - std::min(skip, slice.length), left);
    if (length > 0) {
      ChunkPtr chunk = slice.chunk;
      if (length < slice.length && !chunk->is_plain()) {
        RTF_ASSIGN_OR_RETURN(chunk, plain->Get(chunk));
      }
      slices->push_back({std::move(chunk), slice.offset + skip, length});
      left -= length;
    }
    skip -= std::min(skip, slice.length);
  }
  return OkStatus();
}

// A peer's small message may decode to more than there is memory.
Result<BufferPtr> AllocateBuffer(size_t count, size_t size) {
  size_t bytes = 0;
  if (!__builtin_mul_overflow(count, size, &bytes)) {
    try {
      return Buffer::Allocate(bytes);
    } catch (const std::bad_alloc&) {
    }
  }
  return ResourceExhaustedError("no memory for a tensor of " + std::to_string(count) +
                                " x " + std::to_string(size) + " bytes");
}

// The buffer of a column that can be read in place, else null.
BufferPtr SharedBuffer(const ColumnView& column) {
  if (column.num_slices != 1) return nullptr;
  const ChunkSlice& slice = *column.slices;
  const Chunk& chunk = *slice.chunk;
  const BufferPtr& buffer = chunk.payload_buffer();
  if (!buffer || !chunk.is_plain() || slice.length != chunk.num_rows() ||
      chunk.payload().data() != buffer->view().data() ||
      chunk.payload().size() != buffer->size() ||
      reinterpret_cast<uintptr_t>(buffer->data()) % Buffer::kAlignment != 0) {
    return nullptr;
  }
  return buffer;
}

// Columns of one name, of one or more samples.
struct ColumnSpan {
  const DeliveredColumn* data;
  size_t size;

  const DeliveredColumn* begin() const { return data; }
  const DeliveredColumn* end() const { return data + size; }
  const ColumnView& front() const { return data->view; }
};

// ---- numbers ----

// Copies rows; a chunk that must be decoded and is used more than once is decoded once.
class RowCopier {
 public:
  // To be told of all columns before the first Copy.
  void Announce(const ColumnView& column) {
    for (const ChunkSlice& slice : column) {
      if (!slice.chunk->is_plain()) ++uses_[slice.chunk.get()].left;
    }
  }

  Status Copy(const ColumnView& column, uint8_t* dest) {
    for (const ChunkSlice& slice : column) {
      const Chunk& chunk = *slice.chunk;
      const size_t bytes = static_cast<size_t>(slice.length) * chunk.row_bytes();
      if (bytes == 0) continue;
      if (chunk.is_plain()) {
        std::memcpy(dest, chunk.payload().data() + Offset(slice), bytes);
      } else {
        RTF_RETURN_IF_ERROR(CopyDecoded(slice, bytes, dest));
      }
      dest += bytes;
    }
    return OkStatus();
  }

 private:
  struct Uses {
    int64_t left = 0;
    BufferPtr plain;
  };

  static size_t Offset(const ChunkSlice& slice) {
    return static_cast<size_t>(slice.offset) * slice.chunk->row_bytes();
  }

  Status CopyDecoded(const ChunkSlice& slice, size_t bytes, uint8_t* dest) {
    Uses& uses = uses_[slice.chunk.get()];
    if (--uses.left == 0 && !uses.plain) {
      return slice.chunk->CopyRows(slice.offset, slice.length, dest);
    }
    if (!uses.plain) {
      RTF_ASSIGN_OR_RETURN(uses.plain, slice.chunk->Decode());
    }
    std::memcpy(dest, uses.plain->data() + Offset(slice), bytes);
    if (uses.left == 0) uses.plain = nullptr;
    return OkStatus();
  }

  std::unordered_map<const Chunk*, Uses> uses_;
};

// Rows of all columns, each padded with zeros to `rows`.
Result<BufferPtr> GatherRows(ColumnSpan columns, int64_t rows) {
  const size_t row_bytes = columns.front().slices->chunk->row_bytes();
  size_t stride = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(rows), row_bytes, &stride)) {
    return ResourceExhaustedError("a column of " + std::to_string(rows) +
                                  " rows is too large");
  }
  RTF_ASSIGN_OR_RETURN(BufferPtr buffer, AllocateBuffer(columns.size, stride));
  RowCopier copier;
  for (const DeliveredColumn& column : columns) copier.Announce(column.view);
  uint8_t* dest = buffer->mutable_data();
  for (const DeliveredColumn& column : columns) {
    RTF_RETURN_IF_ERROR(copier.Copy(column.view, dest));
    const size_t used = static_cast<size_t>(column.length()) * row_bytes;
    if (used < stride) std::memset(dest + used, 0, stride - used);
    dest += stride;
  }
  return buffer;
}

// ---- strings ----

// Joins slices of string chunks into one content form. Each chunk is decoded and parsed
// once.
class StringJoiner {
 public:
  Status Append(const ColumnView& column) {
    const int64_t per_row = NumElements(column.cell().shape);
    for (const ChunkSlice& slice : column) {
      RTF_ASSIGN_OR_RETURN(const Parsed* chunk, Parse(*slice.chunk, per_row));
      const auto begin = static_cast<size_t>(slice.offset * per_row);
      const auto end = begin + static_cast<size_t>(slice.length * per_row);
      for (size_t i = begin; i < end; ++i) AppendVarint(&lengths_, Length(*chunk, i));
      pieces_.push_back(chunk->bytes.substr(chunk->starts[begin],
                                            chunk->starts[end] - chunk->starts[begin]));
    }
    return OkStatus();
  }
  void AppendEmpty(int64_t n) { lengths_.append(static_cast<size_t>(n), '\0'); }

  Result<BufferPtr> Finish() const {
    size_t size = lengths_.size();
    for (const std::string_view piece : pieces_) size += piece.size();
    RTF_ASSIGN_OR_RETURN(BufferPtr buffer, AllocateBuffer(size, 1));
    uint8_t* dest = Put(lengths_, buffer->mutable_data());
    for (const std::string_view piece : pieces_) dest = Put(piece, dest);
    return buffer;
  }

 private:
  struct Parsed {
    BufferPtr plain;  // what `bytes` points into; null: the chunk
    std::string_view bytes;
    std::vector<uint64_t> starts;  // of the elements in bytes, and the end
  };

  static uint64_t Length(const Parsed& chunk, size_t i) {
    return chunk.starts[i + 1] - chunk.starts[i];
  }
  static uint8_t* Put(std::string_view bytes, uint8_t* dest) {
    if (!bytes.empty()) std::memcpy(dest, bytes.data(), bytes.size());
    return dest + bytes.size();
  }

  Result<const Parsed*> Parse(const Chunk& chunk, int64_t per_row) {
    const auto found = parsed_.find(&chunk);
    if (found != parsed_.end()) return &found->second;
    Parsed parsed;
    std::string_view content = chunk.payload();
    if (!chunk.is_plain()) {
      RTF_ASSIGN_OR_RETURN(parsed.plain, chunk.Decode());
      content = parsed.plain->view();
    }
    RTF_ASSIGN_OR_RETURN(StringContent strings,
                         ParseStringContent(content, per_row * chunk.num_rows()));
    parsed.bytes = strings.bytes;
    parsed.starts = std::move(strings.lengths);
    uint64_t at = 0;
    for (uint64_t& start : parsed.starts) at += std::exchange(start, at);
    parsed.starts.push_back(at);
    return &parsed_.emplace(&chunk, std::move(parsed)).first->second;
  }

  std::string lengths_;
  std::vector<std::string_view> pieces_;
  std::unordered_map<const Chunk*, Parsed> parsed_;
};

Result<BufferPtr> GatherStrings(ColumnSpan columns, int64_t rows) {
  StringJoiner joiner;
  const int64_t per_row = NumElements(columns.front().cell().shape);
  for (const DeliveredColumn& column : columns) {
    RTF_RETURN_IF_ERROR(joiner.Append(column.view));
    int64_t padding = 0;
    if (__builtin_mul_overflow(rows - column.length(), per_row, &padding)) {
      return ResourceExhaustedError("a string column is too large to be padded");
    }
    joiner.AppendEmpty(padding);
  }
  return joiner.Finish();
}

Result<BufferPtr> Gather(ColumnSpan columns, int64_t rows) {
  // Strings and decoders allocate what a peer's data say.
  try {
    return columns.front().cell().dtype == DType::kString ? GatherStrings(columns, rows)
                                                          : GatherRows(columns, rows);
  } catch (const std::bad_alloc&) {
    return ResourceExhaustedError("no memory to assemble a column");
  } catch (const std::length_error&) {
    return ResourceExhaustedError("no memory to assemble a column");
  }
}

bool SameCell(const TensorSpec& a, const TensorSpec& b) {
  return &a == &b || (a.dtype == b.dtype && a.shape == b.shape);
}

void SetShape(const DeliveredColumn& column, int64_t rows, Shape* shape) {
  if (!column.squeeze) shape->push_back(rows);
  const Shape& cell = column.view.cell().shape;
  shape->insert(shape->end(), cell.begin(), cell.end());
}

}  // namespace

void PlainChunks::BeginBatch() {
  last_.swap(current_);
  current_.clear();
}

Result<ChunkPtr> PlainChunks::Get(const ChunkPtr& chunk) {
  const auto found = current_.find(chunk.get());
  if (found != current_.end()) return found->second.plain;
  Entry entry;
  const auto before = last_.find(chunk.get());
  if (before != last_.end()) {
    entry = before->second;
  } else {
    RTF_ASSIGN_OR_RETURN(BufferPtr decoded, chunk->Decode());
    ChunkOptions options = chunk->options();
    options.encoding = Encoding::kRaw;
    options.delta_encoded = false;
    RTF_ASSIGN_OR_RETURN(entry.plain, Chunk::Wrap(options, std::move(decoded)));
    entry.chunk = chunk;
  }
  return current_.emplace(chunk.get(), std::move(entry)).first->second.plain;
}

Status BatchAssembler::AssembleOne(const SampledItem& sample, SampleBatch* out) const {
  const Item& item = *sample.item;
  ClearInfo(out);
  AppendInfo(sample, out);
  const auto num_columns = static_cast<size_t>(plan_.num_columns(item));
  out->columns.resize(num_columns);
  out->squeezed.resize(num_columns);
  out->lengths.clear();
  for (size_t i = 0; i < num_columns; ++i) {
    const DeliveredColumn column = plan_.column(item, static_cast<int>(i));
    Tensor& tensor = out->columns[i];
    tensor.dtype = column.view.cell().dtype;
    tensor.shape.clear();
    SetShape(column, column.length(), &tensor.shape);
    out->squeezed[i] = column.squeeze;
    tensor.buffer = SharedBuffer(column.view);
    tensor.writable = tensor.buffer == nullptr;
    if (tensor.writable) {
      RTF_ASSIGN_OR_RETURN(tensor.buffer, Gather({&column, 1}, column.length()));
    }
  }
  return OkStatus();
}

Status BatchAssembler::AssembleBatch(const std::vector<const SampledItem*>& samples,
                                     SampleBatch* out) const {
  const int num_columns = plan_.num_columns(*samples[0]->item);
  ClearInfo(out);
  for (const SampledItem* sample : samples) {
    AppendInfo(*sample, out);
    const int n = plan_.num_columns(*sample->item);
    if (n == num_columns) continue;
    return InvalidArgumentError(
        "items of " + std::to_string(num_columns) + " and of " + std::to_string(n) +
        " columns (keys " + std::to_string(samples[0]->item->key()) + ", " +
        std::to_string(sample->item->key()) + ") can't be one batch; read them unbatched");
  }
  out->columns.resize(static_cast<size_t>(num_columns));
  out->squeezed.resize(static_cast<size_t>(num_columns));
  out->lengths.resize(pad_to_longest_ ? static_cast<size_t>(num_columns) : 0);
  Columns columns;
  columns.reserve(samples.size());
  for (int i = 0; i < num_columns; ++i) {
    columns.clear();
    for (const SampledItem* sample : samples) {
      columns.push_back(plan_.column(*sample->item, i));
    }
    RTF_RETURN_IF_ERROR(FillColumn(i, columns, out));
  }
  return OkStatus();
}

Status BatchAssembler::AssembleSteps(const std::vector<StepRun>& runs, bool batched,
                                     PlainChunks* plain, SampleBatch* out) const {
  ClearInfo(out);
  for (const StepRun& run : runs) AppendInfo(run, out);
  const auto num_columns = static_cast<size_t>(plan_.num_columns(*runs[0].sample->item));
  out->columns.resize(num_columns);
  out->squeezed.assign(num_columns, true);
  out->lengths.clear();
  plain->BeginBatch();
  std::vector<ChunkSlice> slices;
  for (size_t i = 0; i < num_columns; ++i) {
    // Decoders and the like allocate what a peer's data say.
    try {
      RTF_RETURN_IF_ERROR(
          FillSteps(static_cast<int>(i), runs, batched, plain, &slices, out));
    } catch (const std::bad_alloc&) {
      return ResourceExhaustedError("no memory to assemble steps");
    }
  }
  return OkStatus();
}

Status BatchAssembler::CheckCell(int index, const StepRun& run,
                                 const TensorSpec& cell) const {
  const Item& item = *run.sample->item;
  if (index >= plan_.num_columns(item)) {
    return InvalidArgumentError("item " + std::to_string(item.key()) + " has " +
                                std::to_string(plan_.num_columns(item)) +
                                " columns, others in its batch have more; read unbatched");
  }
  const TensorSpec& got = plan_.column(item, index).view.cell();
  if (SameCell(got, cell)) return OkStatus();
  return InvalidArgumentError(plan_.Name(index) + " has steps " + DTypeName(cell.dtype) +
                              ShapeString(cell.shape) + " and " + DTypeName(got.dtype) +
                              ShapeString(got.shape) +
                              " in one batch; read such items unbatched, or give the "
                              "table a signature, which refuses one of the kinds");
}

Status BatchAssembler::FillSteps(int index, const std::vector<StepRun>& runs, bool batched,
                                 PlainChunks* plain, std::vector<ChunkSlice>* slices,
                                 SampleBatch* out) const {
  const TensorSpec& cell = plan_.column(*runs[0].sample->item, index).view.cell();
  slices->clear();
  for (const StepRun& run : runs) {
    RTF_RETURN_IF_ERROR(CheckCell(index, run, cell));
    const ColumnView view = plan_.column(*run.sample->item, index).view;
    RTF_RETURN_IF_ERROR(AppendSlices(view, run, plain, slices));
  }
  DeliveredColumn column;
  column.view.slices = slices->data();
  column.view.num_slices = static_cast<int32_t>(slices->size());
  column.squeeze = !batched;
  Tensor& tensor = out->columns[static_cast<size_t>(index)];
  tensor.dtype = cell.dtype;
  tensor.shape.clear();
  SetShape(column, column.length(), &tensor.shape);
  if (NumElements(tensor.shape) < 0) {
    return ResourceExhaustedError(plan_.Name(index) + ": a batch of shape " +
                                  ShapeString(tensor.shape) + " is too large");
  }
  tensor.buffer = batched ? nullptr : SharedBuffer(column.view);
  tensor.writable = tensor.buffer == nullptr;
  if (!tensor.writable) return OkStatus();
  RTF_ASSIGN_OR_RETURN(tensor.buffer, Gather({&column, 1}, column.length()));
  return OkStatus();
}

Status BatchAssembler::CheckAlike(int index, const Columns& columns) const {
  const DeliveredColumn& first = columns[0];
  const TensorSpec& cell = first.view.cell();
  const int64_t length = first.length();
  for (const DeliveredColumn& column : columns) {
    const bool same_type =
        SameCell(column.view.cell(), cell) && column.squeeze == first.squeeze;
    if (same_type && (pad_to_longest_ || column.length() == length)) continue;
    const std::string problem = plan_.Name(index) + " has shapes " + DTypeName(cell.dtype) +
                                ShapeString(first.shape()) + " and " +
                                DTypeName(column.view.cell().dtype) +
                                ShapeString(column.shape()) + " in one batch";
    if (!same_type) {
      return InvalidArgumentError(problem +
                                  "; read such items unbatched, or give the table a "
                                  "signature, which refuses one of the kinds");
    }
    return InvalidArgumentError(problem +
                                "; use pad_to_longest=True, or read unbatched and use "
                                "reverb_tf.data.padded_batch or ragged_batch");
  }
  return OkStatus();
}

Status BatchAssembler::FillColumn(int index, const Columns& columns,
                                  SampleBatch* out) const {
  RTF_RETURN_IF_ERROR(CheckAlike(index, columns));
  const auto at = static_cast<size_t>(index);
  int64_t longest = 0;
  for (const DeliveredColumn& column : columns) {
    longest = std::max(longest, column.length());
  }
  if (pad_to_longest_) {
    out->lengths[at].clear();
    for (const DeliveredColumn& column : columns) {
      out->lengths[at].push_back(static_cast<int32_t>(column.length()));
    }
  }
  Tensor& tensor = out->columns[at];
  tensor.dtype = columns[0].view.cell().dtype;
  tensor.shape.assign(1, static_cast<int64_t>(columns.size()));
  SetShape(columns[0], longest, &tensor.shape);
  if (NumElements(tensor.shape) < 0) {
    return ResourceExhaustedError(plan_.Name(index) + ": a batch of shape " +
                                  ShapeString(tensor.shape) + " is too large");
  }
  out->squeezed[at] = columns[0].squeeze;
  tensor.writable = true;
  RTF_ASSIGN_OR_RETURN(tensor.buffer, Gather({columns.data(), columns.size()}, longest));
  return OkStatus();
}

}  // namespace reverb_tf
