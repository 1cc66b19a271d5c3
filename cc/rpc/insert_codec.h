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

// For `peer` kForeign numeric payloads go out Snappy-coded. DATA_LOSS if a chunk
// doesn't decode.
Result<grpc::ByteBuffer> EncodeInsertRequest(const InsertRequest& request, Peer peer);

// Chunks are validated whole. INVALID_ARGUMENT for anything malformed.
Result<InsertRequest> DecodeInsertRequest(grpc::ByteBuffer* message);

// Appends a ChunkData field with this number; the form that `peer` understands.
Status WriteChunkData(uint32_t field, const ChunkPtr& chunk, Peer peer, WireWriter* out);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_INSERT_CODEC_H_
