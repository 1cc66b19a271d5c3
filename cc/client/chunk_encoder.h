// Rows of a column in, chunks out.
#ifndef REVERB_TF_CC_CLIENT_CHUNK_ENCODER_H_
#define REVERB_TF_CC_CLIENT_CHUNK_ENCODER_H_

#include <string>
#include <string_view>

#include "cc/api/trajectory_writer.h"
#include "cc/base/status.h"
#include "cc/core/chunk.h"

namespace reverb_tf {

// Chooses how the chunks of one column are coded, and codes them. With
// Codec::kAuto a payload is compressed if that saves at least 10 %; one that
// doesn't spares the next kRetryInterval - 1 chunks the attempt, so data that
// doesn't compress costs next to nothing. Payloads below kMinBytes stay plain.
// Delta coding goes with compression only: alone it would save nothing.
// Thread-compatible.
class ChunkEncoder {
 public:
  static constexpr size_t kMinBytes = 1024;
  static constexpr int kRetryInterval = 64;

  void set_codec(Codec codec) { codec_ = codec; }
  void set_delta_encode(bool on) { delta_encode_ = on; }

  // A chunk of `options` (whose encoding and delta_encoded are set here) that holds
  // the plain rows `payload`. `buffer` may be null; else its bytes are `payload`, and
  // the chunk may share it.
  Result<ChunkPtr> Encode(ChunkOptions options, std::string_view payload,
                          const BufferPtr& buffer);

 private:
  // Codes `payload` into `packed`; false when it should stay plain.
  bool Compress(const ChunkOptions& options, std::string_view payload, std::string* packed,
                bool* delta_encoded);

  Codec codec_ = Codec::kAuto;
  bool delta_encode_ = false;
  int skip_ = 0;  // chunks left that are not tried (kAuto)
};

// Replaces each row after the first by its difference to the row before, modulo
// 2^bits. REQUIRES: `element_size` is 1, 2, 4 or 8 and divides `row_bytes`.
void DeltaEncodeRows(size_t element_size, size_t row_bytes, std::string* rows);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_CHUNK_ENCODER_H_
