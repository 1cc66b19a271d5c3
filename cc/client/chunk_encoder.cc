#include "cc/client/chunk_encoder.h"

#include <cstdint>
#include <cstring>

#include "cc/compress/snappy.h"

namespace reverb_tf {
namespace {

template <typename T>
void DeltaEncodeAs(size_t row_bytes, std::string* rows) {
  char* const data = rows->data();
  // Backwards, so that the row before is still plain.
  for (size_t at = rows->size(); at > row_bytes;) {
    at -= sizeof(T);
    T value, before;
    std::memcpy(&value, data + at, sizeof(T));
    std::memcpy(&before, data + at - row_bytes, sizeof(T));
    value = static_cast<T>(value - before);
    std::memcpy(data + at, &value, sizeof(T));
  }
}

}  // namespace

void DeltaEncodeRows(size_t element_size, size_t row_bytes, std::string* rows) {
  if (row_bytes == 0) return;
  switch (element_size) {
    case 1:
      return DeltaEncodeAs<uint8_t>(row_bytes, rows);
    case 2:
      return DeltaEncodeAs<uint16_t>(row_bytes, rows);
    case 4:
      return DeltaEncodeAs<uint32_t>(row_bytes, rows);
    case 8:
      return DeltaEncodeAs<uint64_t>(row_bytes, rows);
    default:
      RTF_CHECK(false) << "no integer has " << element_size << " bytes";
  }
}

bool ChunkEncoder::Compress(const ChunkOptions& options, std::string_view payload,
                            std::string* packed, bool* delta_encoded) {
  if (codec_ == Codec::kNone) return false;
  if (codec_ == Codec::kAuto) {
    if (payload.size() < kMinBytes) return false;
    if (skip_ > 0) {
      --skip_;
      return false;
    }
  }
  const TensorSpec& cell = *options.cell;
  // Scalars are left as they are: the protocol delta-codes tensors of rank 2 and up.
  *delta_encoded =
      delta_encode_ && options.num_rows > 1 && IsInteger(cell.dtype) && !cell.shape.empty();
  if (*delta_encoded) {
    std::string rows(payload);
    DeltaEncodeRows(ElementSize(cell.dtype),
                    payload.size() / static_cast<size_t>(options.num_rows), &rows);
    *packed = SnappyCompress(rows);
  } else {
    *packed = SnappyCompress(payload);
  }
  if (codec_ == Codec::kSnappy) return true;
  if (packed->size() <= payload.size() - payload.size() / 10) return true;
  skip_ = kRetryInterval - 1;
  return false;
}

Result<ChunkPtr> ChunkEncoder::Encode(ChunkOptions options, std::string_view payload,
                                      const BufferPtr& buffer) {
  std::string packed;
  bool delta_encoded = false;
  if (Compress(options, payload, &packed, &delta_encoded)) {
    options.encoding = Encoding::kSnappy;
    options.delta_encoded = delta_encoded;
    return Chunk::Copy(options, packed);
  }
  options.encoding = Encoding::kRaw;
  options.delta_encoded = false;
  return buffer ? Chunk::Wrap(options, buffer) : Chunk::Copy(options, payload);
}

}  // namespace reverb_tf
