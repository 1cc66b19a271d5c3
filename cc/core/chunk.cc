#include "cc/core/chunk.h"

#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "cc/base/varint.h"
#include "cc/compress/snappy.h"

namespace reverb_tf {
namespace {

// Payloads from this size on get a buffer of their own.
constexpr size_t kMinBufferBytes = 2 << 10;
constexpr size_t kMaxRank = 254;

Status BadChunk(const ChunkOptions& options, const std::string& problem) {
  return InvalidArgumentError("chunk " + std::to_string(options.key) + " of " +
                              std::to_string(options.num_rows) + " rows of " +
                              options.cell->ToString() + ": " + problem);
}

// Elements of all rows; INVALID_ARGUMENT if the description itself is wrong.
Result<int64_t> CountElements(const ChunkOptions& options) {
  if (options.cell == nullptr) return InvalidArgumentError("chunk without cell spec");
  const TensorSpec& cell = *options.cell;
  if (!IsSupported(cell.dtype)) {
    return BadChunk(options, "dtype " + std::to_string(static_cast<int>(cell.dtype)) +
                                 " can't be stored");
  }
  if (cell.shape.size() > kMaxRank) {
    return BadChunk(options, "a cell has at most 254 dimensions");
  }
  if (options.num_rows < 1) return BadChunk(options, "expected at least one row");
  if (options.encoding > Encoding::kSnappy) {
    return BadChunk(
        options, "unknown encoding " + std::to_string(static_cast<int>(options.encoding)));
  }
  const int64_t in_cell = cell.unknown_rank ? -1 : NumElements(cell.shape);
  if (in_cell < 0) return BadChunk(options, "the cell's shape must be known");
  int64_t elements = 0;
  if (__builtin_mul_overflow(in_cell, int64_t{options.num_rows}, &elements)) {
    return BadChunk(options, "too many elements");
  }
  return elements;
}

// OK if `content` is the content form of `count` strings. Allocates nothing.
Status CheckStrings(const ChunkOptions& options, std::string_view content, int64_t count) {
  const auto* p = reinterpret_cast<const uint8_t*>(content.data());
  const uint8_t* const end = p + content.size();
  uint64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t length = 0;
    p = GetVarint(p, end, &length);
    if (p == nullptr || length > content.size() - total) {
      return BadChunk(options, "string content is cut off at element " + std::to_string(i) +
                                   " of " + std::to_string(count));
    }
    total += length;
  }
  if (static_cast<uint64_t>(end - p) != total) {
    return BadChunk(options, "string content has " + std::to_string(end - p) +
                                 " bytes of elements, their lengths add up to " +
                                 std::to_string(total));
  }
  return OkStatus();
}

// Bytes that the payload decodes to.
Result<uint64_t> DecodedSize(const ChunkOptions& options, std::string_view payload) {
  if (options.encoding == Encoding::kRaw) return payload.size();
  uint64_t size = 0;
  if (!SnappyUncompressedLength(payload, &size)) {
    return BadChunk(options, "the payload is not a Snappy block");
  }
  return size;
}

Status CheckSnappy(const ChunkOptions& options, std::string_view payload) {
  if (options.encoding == Encoding::kRaw || SnappyIsValid(payload)) return OkStatus();
  return BadChunk(options, "the Snappy block is damaged");
}

// Checks every byte; returns the size of the plain payload.
Result<size_t> CheckPayload(const ChunkOptions& options, std::string_view payload) {
  RTF_ASSIGN_OR_RETURN(const int64_t elements, CountElements(options));
  RTF_ASSIGN_OR_RETURN(const uint64_t decoded, DecodedSize(options, payload));
  if (options.cell->dtype != DType::kString) {
    uint64_t expected = 0;
    if (__builtin_mul_overflow(static_cast<uint64_t>(elements),
                               uint64_t{ElementSize(options.cell->dtype)}, &expected) ||
        decoded != expected) {
      return BadChunk(options, "the payload decodes to " + std::to_string(decoded) +
                                   " bytes, expected " + std::to_string(elements) +
                                   " elements of " +
                                   std::to_string(ElementSize(options.cell->dtype)));
    }
    RTF_RETURN_IF_ERROR(CheckSnappy(options, payload));
    return static_cast<size_t>(decoded);
  }
  // Before it is believed, the claimed size is known to be true.
  RTF_RETURN_IF_ERROR(CheckSnappy(options, payload));
  if (options.encoding == Encoding::kRaw) {
    RTF_RETURN_IF_ERROR(CheckStrings(options, payload, elements));
  } else {
    std::string content(static_cast<size_t>(decoded), '\0');
    SnappyUncompress(payload, reinterpret_cast<uint8_t*>(content.data()));
    RTF_RETURN_IF_ERROR(CheckStrings(options, content, elements));
  }
  return static_cast<size_t>(decoded);
}

// Delta coding leaves other tensors than these as they are.
bool DeltaApplies(const TensorSpec& cell) {
  return IsInteger(cell.dtype) && !cell.shape.empty();
}

// sum[i] = previous[i] + delta[i] for the unsigned elements T of a row. `sum` may
// be `delta`; nothing need be aligned.
template <typename T>
void AddRow(const uint8_t* previous, const uint8_t* delta, size_t bytes, uint8_t* sum) {
  for (size_t i = 0; i < bytes; i += sizeof(T)) {
    T a;
    T b;
    std::memcpy(&a, previous + i, sizeof(T));
    std::memcpy(&b, delta + i, sizeof(T));
    a = static_cast<T>(a + b);
    std::memcpy(sum + i, &a, sizeof(T));
  }
}

using RowAdder = void (*)(const uint8_t*, const uint8_t*, size_t, uint8_t*);

RowAdder AdderFor(DType dtype) {
  switch (ElementSize(dtype)) {
    case 1:
      return AddRow<uint8_t>;
    case 2:
      return AddRow<uint16_t>;
    case 4:
      return AddRow<uint32_t>;
    default:
      return AddRow<uint64_t>;
  }
}

// Rows [offset, offset + length) of the delta coded `rows` as running sums.
// `dest` may be `rows` if offset is 0.
void SumRows(DType dtype, const uint8_t* rows, size_t row_bytes, int32_t offset,
             int32_t length, uint8_t* dest) {
  if (length == 0 || row_bytes == 0) return;
  const RowAdder add = AdderFor(dtype);
  if (dest != rows) std::memcpy(dest, rows, row_bytes);
  for (int32_t r = 1; r <= offset; ++r) {
    add(dest, rows + static_cast<size_t>(r) * row_bytes, row_bytes, dest);
  }
  for (int32_t r = 1; r < length; ++r) {
    uint8_t* const row = dest + static_cast<size_t>(r) * row_bytes;
    add(row - row_bytes, rows + static_cast<size_t>(offset + r) * row_bytes, row_bytes,
        row);
  }
}

const uint8_t* Bytes(std::string_view s) {
  return reinterpret_cast<const uint8_t*>(s.data());
}

}  // namespace

Chunk::Chunk(const ChunkOptions& options, std::string_view payload, BufferPtr buffer,
             size_t uncompressed_bytes)
    : options_(options),
      payload_(payload),
      buffer_(std::move(buffer)),
      row_bytes_(options.cell->dtype == DType::kString
                     ? 0
                     : uncompressed_bytes / static_cast<size_t>(options.num_rows)),
      uncompressed_bytes_(uncompressed_bytes) {}

ChunkPtr Chunk::Make(ChunkOptions options, std::string_view payload, BufferPtr buffer,
                     size_t uncompressed_bytes) {
  options.delta_encoded = options.delta_encoded && DeltaApplies(*options.cell);
  const size_t inline_bytes = buffer == nullptr ? payload.size() : 0;
  auto* memory = static_cast<char*>(::operator new(sizeof(Chunk) + inline_bytes));
  if (inline_bytes > 0) {
    std::memcpy(memory + sizeof(Chunk), payload.data(), inline_bytes);
    payload = {memory + sizeof(Chunk), inline_bytes};
  }
  return ChunkPtr::Adopt(
      new (memory) Chunk(options, payload, std::move(buffer), uncompressed_bytes));
}

void Chunk::Destroy(const Chunk* chunk) {
  chunk->~Chunk();
  ::operator delete(const_cast<Chunk*>(chunk));
}

Result<ChunkPtr> Chunk::Copy(const ChunkOptions& options, std::string_view payload) {
  RTF_ASSIGN_OR_RETURN(const size_t size, CheckPayload(options, payload));
  if (payload.size() < kMinBufferBytes) return Make(options, payload, nullptr, size);
  BufferPtr buffer = Buffer::CopyOf(payload);
  const std::string_view copy = buffer->view();
  return Make(options, copy, std::move(buffer), size);
}

Result<ChunkPtr> Chunk::Wrap(const ChunkOptions& options, BufferPtr payload) {
  if (payload == nullptr) return Copy(options, {});
  const std::string_view bytes = payload->view();
  if (bytes.size() < kMinBufferBytes) return Copy(options, bytes);
  RTF_ASSIGN_OR_RETURN(const size_t size, CheckPayload(options, bytes));
  return Make(options, bytes, std::move(payload), size);
}

Result<BufferPtr> Chunk::Decode() const {
  if (is_plain() && buffer_ != nullptr) return buffer_;
  BufferPtr plain = Buffer::Allocate(uncompressed_bytes_);
  if (cell().dtype != DType::kString) {
    RTF_RETURN_IF_ERROR(CopyRows(0, num_rows(), plain->mutable_data()));
  } else if (options_.encoding == Encoding::kRaw) {
    if (!payload_.empty()) {
      std::memcpy(plain->mutable_data(), payload_.data(), payload_.size());
    }
  } else if (!SnappyUncompress(payload_, plain->mutable_data())) {
    return Damaged();
  }
  return plain;
}

Status Chunk::CopyRows(int32_t offset, int32_t length, uint8_t* dest) const {
  const bool whole = length == num_rows();
  const size_t bytes = static_cast<size_t>(length) * row_bytes_;
  if (bytes == 0) return OkStatus();
  const uint8_t* rows = Bytes(payload_);
  std::unique_ptr<uint8_t[]> decompressed;
  if (options_.encoding == Encoding::kSnappy) {
    // Straight to its place, or aside if only some of the rows are wanted.
    uint8_t* target = dest;
    if (!whole) {
      decompressed.reset(new uint8_t[uncompressed_bytes_]);
      target = decompressed.get();
    }
    if (!SnappyUncompress(payload_, target)) return Damaged();
    rows = target;
  }
  if (options_.delta_encoded) {
    SumRows(cell().dtype, rows, row_bytes_, offset, length, dest);
  } else if (rows != dest) {
    std::memcpy(dest, rows + static_cast<size_t>(offset) * row_bytes_, bytes);
  }
  return OkStatus();
}

Status Chunk::Damaged() const {
  return DataLossError("chunk " + std::to_string(key()) + " of " +
                       std::to_string(num_rows()) + " rows of " + cell().ToString() +
                       " doesn't decode any more");
}

}  // namespace reverb_tf
