// The unit of storage: consecutive steps of one column.
#ifndef REVERB_TF_CC_CORE_CHUNK_H_
#define REVERB_TF_CC_CORE_CHUNK_H_

#include <cstdint>
#include <memory>
#include <string_view>

#include "cc/base/buffer.h"
#include "cc/base/status.h"
#include "cc/base/tensor.h"

namespace reverb_tf {

enum class Encoding : uint8_t { kRaw = 0, kSnappy = 1 };

// Dtype and shape of one cell (one step of one column); shared by the chunks of
// a column. Only TensorSpec::dtype and ::shape (fully known) are used.
using CellSpecPtr = std::shared_ptr<const TensorSpec>;

// What is told of a chunk when it is made.
struct ChunkOptions {
  uint64_t key = 0;
  CellSpecPtr cell;
  int32_t num_rows = 0;
  // Steps of the episode that the rows cover; `sparse` when some step between
  // start and end is missing from this column.
  uint64_t episode_id = 0;
  int32_t start = 0;
  int32_t end = 0;
  bool sparse = false;
  Encoding encoding = Encoding::kRaw;
  // Rows after the first hold the difference to the row before (integers).
  bool delta_encoded = false;
};

// Immutable rows of one column, row-contiguous, in one payload that may be
// compressed; strings are in content form (base/tensor.h) over all rows.
// Thread-safe. Small payloads live in the chunk's own allocation.
class Chunk : public RefCounted<Chunk> {
 public:
  // Copies `payload`. INVALID_ARGUMENT unless the payload decodes to num_rows
  // cells of `cell` (every byte is checked, nothing is allocated for it).
  static Result<RefPtr<const Chunk>> Copy(const ChunkOptions& options,
                                          std::string_view payload);
  // The same without a copy when the payload is worth a buffer of its own.
  static Result<RefPtr<const Chunk>> Wrap(const ChunkOptions& options, BufferPtr payload);

  uint64_t key() const { return options_.key; }
  const ChunkOptions& options() const { return options_; }
  const TensorSpec& cell() const { return *options_.cell; }
  int32_t num_rows() const { return options_.num_rows; }
  std::string_view payload() const { return payload_; }
  // The buffer behind payload() if it is one of its own, else null.
  const BufferPtr& payload_buffer() const { return buffer_; }
  // Raw and not delta coded: rows can be read in place.
  bool is_plain() const {
    return options_.encoding == Encoding::kRaw && !options_.delta_encoded;
  }
  // Bytes of one row; 0 for strings.
  size_t row_bytes() const { return row_bytes_; }
  // Bytes it holds in memory (payload and its own), and the plain payload's size.
  size_t stored_bytes() const { return sizeof(Chunk) + payload_.size(); }
  size_t uncompressed_bytes() const { return uncompressed_bytes_; }

  // The plain payload: row-major bytes, or string content. DATA_LOSS when it
  // doesn't decode. Plain chunks return their own buffer or a copy.
  Result<BufferPtr> Decode() const;
  // Decodes rows [offset, offset + length) to `dest`. REQUIRES: not a string
  // chunk, rows in range. One memcpy when plain; one decoding pass when not.
  Status CopyRows(int32_t offset, int32_t length, uint8_t* dest) const;

  static void Destroy(const Chunk* chunk);

 private:
  Chunk(const ChunkOptions& options, std::string_view payload, BufferPtr buffer,
        size_t uncompressed_bytes);
  ~Chunk() = default;
  // `payload` is that of `buffer`, or is copied behind the object if that is null.
  static RefPtr<const Chunk> Make(ChunkOptions options, std::string_view payload,
                                  BufferPtr buffer, size_t uncompressed_bytes);
  Status Damaged() const;

  const ChunkOptions options_;
  const std::string_view payload_;
  const BufferPtr buffer_;
  const size_t row_bytes_;
  const size_t uncompressed_bytes_;
};

using ChunkPtr = RefPtr<const Chunk>;

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_CHUNK_H_
