#include "cc/client/column_buffer.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "cc/base/varint.h"

namespace reverb_tf {
namespace {

// Below this a copy into the chunk's own allocation beats a buffer of its own.
constexpr size_t kShareBytes = 4 << 10;
// Bounds the rows of chunks whose rows have few or no bytes.
constexpr int64_t kMaxAutoRows = 1 << 16;
constexpr int kMaxRank = 254;

// The first bytes of a buffer that was allocated larger.
class PrefixBuffer : public Buffer {
 public:
  PrefixBuffer(BufferPtr whole, size_t size)
      : Buffer(whole->mutable_data(), size), whole_(std::move(whole)) {}

 private:
  const BufferPtr whole_;
};

std::string SpecString(DType dtype, const int64_t* dims, int rank) {
  return std::string(DTypeName(dtype)) + ShapeString(Shape(dims, dims + rank));
}

// Names the likely slip when only the width differs.
const char* WidthHint(DType got, DType expected) {
  const auto is = [&](DType a, DType b) {
    return (got == a && expected == b) || (got == b && expected == a);
  };
  if (is(DType::kFloat32, DType::kFloat64) || is(DType::kInt32, DType::kInt64)) {
    return "; 64- and 32-bit values are different types: cast one";
  }
  return "";
}

// The product of the dimensions; -1 if one is negative or it doesn't fit.
int64_t Elements(const int64_t* dims, int rank) {
  return NumElements(Shape(dims, dims + rank));
}

// Reads `count` varints at *p and adds them up; false when they are cut off or
// add up to more than `most`.
bool SumLengths(const uint8_t** p, const uint8_t* end, int64_t count, uint64_t most,
                uint64_t* sum) {
  *sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t length = 0;
    *p = GetVarint(*p, end, &length);
    if (*p == nullptr || length > most - *sum) return false;
    *sum += length;
  }
  return true;
}

const uint8_t* Bytes(const void* data) { return static_cast<const uint8_t*>(data); }

}  // namespace

Status ColumnBuffer::Configure(const ColumnOptions& options) {
  const int64_t keep = options.num_keep_alive_refs.value_or(num_keep_alive_refs_);
  if (keep < 1) {
    return InvalidArgumentError("configure '" + path_ + "': num_keep_alive_refs: got " +
                                std::to_string(keep) + ", expected at least 1");
  }
  const int64_t length =
      options.max_chunk_length.value_or(std::min(max_chunk_length_, keep));
  if (options.max_chunk_length && (length < 1 || length > keep)) {
    return InvalidArgumentError(
        "configure '" + path_ + "': max_chunk_length: got " + std::to_string(length) +
        ", expected 1 ... num_keep_alive_refs (" + std::to_string(keep) + ")");
  }
  if (open_.rows > 0) {
    return FailedPreconditionError(
        "configure '" + path_ + "': " + std::to_string(open_.rows) +
        " cells are not sent yet; configure before the episode's first append");
  }
  num_keep_alive_refs_ = keep;
  max_chunk_length_ = length;
  if (options.codec) encoder_.set_codec(*options.codec);
  if (options.delta_encode) encoder_.set_delta_encode(*options.delta_encode);
  DropExpired();
  return OkStatus();
}

Status ColumnBuffer::Check(const CellView& view, bool batch) const {
  if (!IsSupported(view.dtype)) {
    return InvalidArgumentError("column '" + path_ + "': unsupported dtype " +
                                std::to_string(static_cast<int>(view.dtype)));
  }
  const int lead = batch ? 1 : 0;
  if (view.rank < lead || view.rank > kMaxRank + lead) {
    return InvalidArgumentError(
        "column '" + path_ + "': got rank " + std::to_string(view.rank) + ", expected " +
        std::to_string(lead) + " ... " + std::to_string(kMaxRank + lead));
  }
  const int64_t elements = Elements(view.dims, view.rank);
  if (elements < 0) {
    return InvalidArgumentError("column '" + path_ + "': bad shape " +
                                ShapeString(Shape(view.dims, view.dims + view.rank)));
  }
  if (!may_change_) {
    RTF_RETURN_IF_ERROR(CheckSpec(view.dtype, view.dims + lead, view.rank - lead));
  }
  return CheckBytes(view, elements);
}

bool ColumnBuffer::IsLikeFirst(DType dtype, const int64_t* dims, int rank) const {
  return !spec_ ||
         (spec_->dtype == dtype && spec_->shape.size() == static_cast<size_t>(rank) &&
          std::equal(dims, dims + rank, spec_->shape.begin()));
}

Status ColumnBuffer::CheckSpec(DType dtype, const int64_t* dims, int rank) const {
  if (IsLikeFirst(dtype, dims, rank)) return OkStatus();
  return InvalidArgumentError(
      "column '" + path_ + "': got " + SpecString(dtype, dims, rank) + ", expected " +
      spec_->ToString() + " as in its first cell" + WidthHint(dtype, spec_->dtype));
}

Status ColumnBuffer::CheckBytes(const CellView& view, int64_t elements) const {
  const auto count = static_cast<uint64_t>(elements);
  bool fits = false;
  if (view.dtype == DType::kString) {
    const uint8_t* p = Bytes(view.data);
    const uint8_t* const end = p + view.bytes;
    uint64_t sum = 0;
    fits = count <= view.bytes && SumLengths(&p, end, elements, view.bytes, &sum) &&
           static_cast<uint64_t>(end - p) == sum;
  } else {
    uint64_t bytes = 0;
    fits = !__builtin_mul_overflow(count, ElementSize(view.dtype), &bytes) &&
           bytes == view.bytes;
  }
  if (fits) return OkStatus();
  return InvalidArgumentError("column '" + path_ + "': " + std::to_string(view.bytes) +
                              " bytes are not " +
                              SpecString(view.dtype, view.dims, view.rank));
}

void ColumnBuffer::SetSpec(const CellView& view, bool batch) {
  auto spec = std::make_shared<TensorSpec>();
  spec->path = path_;
  spec->dtype = view.dtype;
  spec->shape.assign(view.dims + (batch ? 1 : 0), view.dims + view.rank);
  row_elements_ = NumElements(spec->shape);
  row_bytes_ = static_cast<size_t>(row_elements_) * ElementSize(spec->dtype);
  spec_ = std::move(spec);
}

Status ColumnBuffer::Append(const CellView& view, bool batch, int64_t step,
                            const Episode& episode) {
  const int lead = batch ? 1 : 0;
  if (may_change_ && !IsLikeFirst(view.dtype, view.dims + lead, view.rank - lead)) {
    RTF_RETURN_IF_ERROR(EndEpisode(/*clear=*/true));
    spec_ = nullptr;
  }
  if (!spec_) SetSpec(view, batch);
  const int64_t count = batch ? view.dims[0] : 1;
  if (spec_->dtype == DType::kString) return AppendStrings(view, count, step, episode);
  return AppendNumbers(Bytes(view.data), count, step, episode);
}

Status ColumnBuffer::AppendNumbers(const uint8_t* data, int64_t count, int64_t step,
                                   const Episode& episode) {
  while (count > 0) {
    if (open_.rows == 0) BeginChunk(step, episode);
    const int64_t rows = std::min(count, MaxRows() - open_.rows);
    const size_t bytes = static_cast<size_t>(rows) * row_bytes_;
    if (bytes > 0) {
      Reserve(bytes);
      std::memcpy(open_.data->mutable_data() + open_.used, data, bytes);
      open_.used += bytes;
      data += bytes;
    }
    RTF_RETURN_IF_ERROR(NoteRows(step, rows));
    step += rows;
    count -= rows;
  }
  return OkStatus();
}

Status ColumnBuffer::AppendStrings(const CellView& view, int64_t count, int64_t step,
                                   const Episode& episode) {
  const uint8_t* lengths = Bytes(view.data);
  const uint8_t* const end = lengths + view.bytes;
  const uint8_t* bytes = lengths;  // the strings begin after all lengths
  uint64_t sum = 0;
  RTF_CHECK(SumLengths(&bytes, end, count * row_elements_, view.bytes, &sum));
  for (int64_t i = 0; i < count; ++i, ++step) {
    if (open_.rows == 0) BeginChunk(step, episode);
    const uint8_t* const row_lengths = lengths;
    RTF_CHECK(SumLengths(&lengths, end, row_elements_, view.bytes, &sum));
    open_.lengths.append(reinterpret_cast<const char*>(row_lengths),
                         static_cast<size_t>(lengths - row_lengths));
    if (sum > 0) {
      Reserve(sum);
      std::memcpy(open_.data->mutable_data() + open_.used, bytes, sum);
      open_.used += sum;
      bytes += sum;
    }
    open_.string_rows.push_back({open_.lengths.size(), open_.used});
    RTF_RETURN_IF_ERROR(NoteRows(step, 1));
  }
  return OkStatus();
}

void ColumnBuffer::Reserve(size_t bytes) {
  const size_t needed = open_.used + bytes;
  const size_t capacity = open_.data ? open_.data->size() : 0;
  if (needed <= capacity) return;
  size_t size = std::max(capacity * 2, open_.first_size);
  if (spec_->dtype != DType::kString) {
    // A full chunk is the most that is ever needed.
    size_t full = 0;
    const auto rows = static_cast<size_t>(MaxRows());
    if (!__builtin_mul_overflow(rows, row_bytes_, &full)) size = std::min(size, full);
  }
  BufferPtr larger = Buffer::Allocate(std::max(size, needed));
  if (open_.used > 0) {
    std::memcpy(larger->mutable_data(), open_.data->data(), open_.used);
  }
  open_.data = std::move(larger);
}

void ColumnBuffer::BeginChunk(int64_t step, const Episode& episode) {
  open_.handle = ChunkHandlePtr::Adopt(new ChunkHandle);
  do {
    open_.handle->key = keys_->Next();
  } while (open_.handle->key == 0);
  open_.handle->filler = this;
  open_.handle->in_column = true;
  open_.first_row = end_row_;
  open_.episode = episode;
  open_.first_step = step;
}

Status ColumnBuffer::NoteRows(int64_t step, int64_t rows) {
  if (segments_.empty() || segments_.back().first_step + segments_.back().count != step) {
    segments_.push_back({step, end_row_, rows});
  } else {
    segments_.back().count += rows;
  }
  end_row_ += rows;
  open_.rows += static_cast<int32_t>(rows);
  open_.last_step = last_step_ = step + rows - 1;
  open_.handle->bytes = static_cast<int64_t>(open_.lengths.size() + open_.used);
  if (IsFull()) RTF_RETURN_IF_ERROR(Seal());
  DropExpired();
  return OkStatus();
}

int64_t ColumnBuffer::MaxRows() const {
  if (max_chunk_length_ > 0) {
    return std::min<int64_t>(max_chunk_length_, std::numeric_limits<int32_t>::max());
  }
  const int64_t row_bytes = std::max<int64_t>(1, static_cast<int64_t>(row_bytes_));
  const int64_t fit = std::max<int64_t>(1, kChunkBytes / row_bytes);
  return std::min({num_keep_alive_refs_, fit, kMaxAutoRows});
}

bool ColumnBuffer::IsFull() const {
  if (open_.rows >= MaxRows()) return true;
  return max_chunk_length_ == 0 && open_.handle->bytes >= kChunkBytes;
}

Status ColumnBuffer::Seal() {
  if (open_.rows == 0) return OkStatus();
  RTF_ASSIGN_OR_RETURN(ChunkPtr chunk, EncodeOpen());
  ChunkHandlePtr handle = open_.handle;
  handle->bytes = static_cast<int64_t>(chunk->payload().size());
  // A shared buffer is the chunk's from now on.
  if (chunk->payload_buffer() && open_.data &&
      chunk->payload().data() == open_.data->view().data()) {
    open_.data = nullptr;
  }
  handle->chunk = std::move(chunk);
  closed_.push_back({open_.first_row, open_.rows, std::move(handle)});
  ResetOpen();
  return OkStatus();
}

Result<ChunkPtr> ColumnBuffer::EncodeOpen() {
  ChunkOptions options;
  options.key = open_.handle->key;
  options.cell = spec_;
  options.num_rows = open_.rows;
  options.episode_id = open_.episode.id;
  options.start = static_cast<int32_t>(open_.first_step - open_.episode.first_step);
  options.end = static_cast<int32_t>(open_.last_step - open_.episode.first_step);
  options.sparse = open_.last_step - open_.first_step + 1 != open_.rows;
  const std::string_view data =
      open_.data ? open_.data->view().substr(0, open_.used) : std::string_view();
  if (spec_->dtype == DType::kString) {
    return encoder_.Encode(options, open_.lengths.append(data), nullptr);
  }
  BufferPtr shared;
  if (open_.used >= kShareBytes && open_.used >= open_.data->size() / 4 * 3) {
    shared = open_.data;
    if (shared->size() > open_.used) {
      shared = BufferPtr::Adopt(new PrefixBuffer(open_.data, open_.used));
    }
  }
  return encoder_.Encode(options, data, shared);
}

void ColumnBuffer::ResetOpen() {
  open_.handle->filler = nullptr;
  open_.handle = nullptr;
  open_.first_size = open_.used;
  open_.rows = 0;
  open_.used = 0;
  open_.lengths.clear();
  open_.string_rows.clear();
}

void ColumnBuffer::DropExpired() {
  oldest_row_ = std::max(oldest_row_, end_row_ - num_keep_alive_refs_);
  while (!closed_.empty() &&
         closed_.front().first_row + closed_.front().rows <= oldest_row_) {
    closed_.front().handle->in_column = false;
    closed_.pop_front();
  }
}

Status ColumnBuffer::EndEpisode(bool clear) {
  if (open_.rows > 0) {
    if (!clear || open_.handle->pending_slices > 0) {
      RTF_RETURN_IF_ERROR(Seal());
    } else {
      open_.handle->in_column = false;
      ResetOpen();
    }
  }
  if (!clear) return OkStatus();
  oldest_row_ = end_row_;
  DropExpired();
  segments_.clear();
  return OkStatus();
}

ColumnBuffer::Found ColumnBuffer::Find(int64_t step, int64_t* row, int64_t* run) const {
  auto it = std::upper_bound(
      segments_.begin(), segments_.end(), step,
      [](int64_t s, const Segment& segment) { return s < segment.first_step; });
  if (it == segments_.begin()) return Found::kHole;
  --it;
  const int64_t offset = step - it->first_step;
  if (offset >= it->count) return Found::kHole;
  *row = it->first_row + offset;
  *run = it->count - offset;
  return *row < oldest_row_ ? Found::kExpired : Found::kRow;
}

const ColumnBuffer::ClosedChunk& ColumnBuffer::ClosedWith(int64_t row) const {
  auto it = std::upper_bound(
      closed_.begin(), closed_.end(), row,
      [](int64_t r, const ClosedChunk& chunk) { return r < chunk.first_row; });
  RTF_CHECK(it != closed_.begin()) << "row " << row << " of column " << path_;
  return *--it;
}

void ColumnBuffer::AppendSlices(int64_t row, int64_t count, size_t first,
                                std::vector<HandleSlice>* out) const {
  while (count > 0) {
    const bool open = open_.rows > 0 && row >= open_.first_row;
    const ClosedChunk* const closed = open ? nullptr : &ClosedWith(row);
    const ChunkHandlePtr& handle = open ? open_.handle : closed->handle;
    const int64_t offset = row - (open ? open_.first_row : closed->first_row);
    const int64_t n = std::min(count, (open ? open_.rows : closed->rows) - offset);
    HandleSlice* const last = out->size() > first ? &out->back() : nullptr;
    if (last && last->chunk == handle && last->offset + last->length == offset) {
      last->length += static_cast<int32_t>(n);
    } else {
      out->push_back({handle, static_cast<int32_t>(offset), static_cast<int32_t>(n)});
    }
    row += n;
    count -= n;
  }
}

Status ColumnBuffer::ReadRows(int64_t row, int64_t count, uint8_t* dest) const {
  while (count > 0) {
    int64_t n = count;
    if (open_.rows > 0 && row >= open_.first_row) {
      const size_t offset = static_cast<size_t>(row - open_.first_row) * row_bytes_;
      const size_t bytes = static_cast<size_t>(n) * row_bytes_;
      if (bytes > 0) std::memcpy(dest, open_.data->data() + offset, bytes);
    } else {
      const ClosedChunk& closed = ClosedWith(row);
      const int64_t offset = row - closed.first_row;
      n = std::min(count, closed.rows - offset);
      RTF_RETURN_IF_ERROR(closed.handle->chunk->CopyRows(static_cast<int32_t>(offset),
                                                         static_cast<int32_t>(n), dest));
    }
    dest += static_cast<size_t>(n) * row_bytes_;
    row += n;
    count -= n;
  }
  return OkStatus();
}

Status ColumnBuffer::ReadStrings(int64_t row, std::vector<uint64_t>* lengths,
                                 std::string* bytes) const {
  if (open_.rows > 0 && row >= open_.first_row) {
    const auto i = static_cast<size_t>(row - open_.first_row);
    const StringRow begin = i > 0 ? open_.string_rows[i - 1] : StringRow{0, 0};
    const uint8_t* p = Bytes(open_.lengths.data()) + begin.lengths_end;
    const uint8_t* const end = Bytes(open_.lengths.data()) + open_.lengths.size();
    for (int64_t e = 0; e < row_elements_; ++e) {
      uint64_t length = 0;
      p = GetVarint(p, end, &length);
      lengths->push_back(length);
    }
    const size_t size = open_.string_rows[i].bytes_end - begin.bytes_end;
    if (size > 0) bytes->append(open_.data->view().substr(begin.bytes_end, size));
    return OkStatus();
  }
  const ClosedChunk& closed = ClosedWith(row);
  RTF_ASSIGN_OR_RETURN(const BufferPtr content, closed.handle->chunk->Decode());
  RTF_ASSIGN_OR_RETURN(const StringContent parsed,
                       ParseStringContent(content->view(), closed.rows * row_elements_));
  const int64_t first = (row - closed.first_row) * row_elements_;
  uint64_t skipped = 0;
  for (int64_t e = 0; e < first; ++e) skipped += parsed.lengths[static_cast<size_t>(e)];
  uint64_t size = 0;
  for (int64_t e = first; e < first + row_elements_; ++e) {
    lengths->push_back(parsed.lengths[static_cast<size_t>(e)]);
    size += lengths->back();
  }
  bytes->append(parsed.bytes.substr(skipped, size));
  return OkStatus();
}

int64_t ColumnBuffer::OldestStep(int64_t none) const {
  if (oldest_row_ >= end_row_) return none;
  auto it = std::upper_bound(
      segments_.begin(), segments_.end(), oldest_row_,
      [](int64_t r, const Segment& segment) { return r < segment.first_row; });
  if (it == segments_.begin()) return none;
  --it;
  return it->first_step + (oldest_row_ - it->first_row);
}

}  // namespace reverb_tf
