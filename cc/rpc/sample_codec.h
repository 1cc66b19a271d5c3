// SampleStreamResponse on the wire, by hand: stored payloads are sent from where
// they lie, received ones stay where they arrived.
#ifndef REVERB_TF_CC_RPC_SAMPLE_CODEC_H_
#define REVERB_TF_CC_RPC_SAMPLE_CODEC_H_

#include <grpcpp/support/byte_buffer.h>

#include <vector>

#include "cc/base/status.h"
#include "cc/service/messages.h"

namespace reverb_tf {

// The batched form, for peers of this project: info vectors, each chunk once a
// message, of plain chunks only the rows that items of the message use.
grpc::ByteBuffer EncodeSampleReply(const SampleReply& reply);
// INVALID_ARGUMENT for anything malformed.
Result<SampleReply> DecodeSampleReply(grpc::ByteBuffer* message);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_SAMPLE_CODEC_H_
