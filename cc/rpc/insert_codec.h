// InsertStreamRequest on the wire, by hand: chunks go straight from and to the
// stored form.
#ifndef REVERB_TF_CC_RPC_INSERT_CODEC_H_
#define REVERB_TF_CC_RPC_INSERT_CODEC_H_

#include <grpcpp/support/byte_buffer.h>

#include "cc/base/status.h"
#include "cc/rpc/wire_reader.h"
#include "cc/rpc/wire_writer.h"
#include "cc/service/messages.h"

namespace reverb_tf {

// The key of tensor `index` of a chunk that holds several columns (the form of row
// writers); each becomes a chunk of its own. MixKey(key, 0) == key.
inline uint64_t MixKey(uint64_t key, uint32_t index) {
  return key ^ (index * 0x9e3779b97f4a7c15u);
}

// For `peer` kForeign numeric payloads go out Snappy-coded. DATA_LOSS if a chunk
// doesn't decode.
Result<grpc::ByteBuffer> EncodeInsertRequest(const InsertRequest& request, Peer peer);

// Chunks are validated whole. INVALID_ARGUMENT for anything malformed.
Result<InsertRequest> DecodeInsertRequest(grpc::ByteBuffer* message);

// Appends a ChunkData field with this number; the form that `peer` understands.
Status WriteChunkData(uint32_t field, const ChunkPtr& chunk, Peer peer, WireWriter* out);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_INSERT_CODEC_H_
