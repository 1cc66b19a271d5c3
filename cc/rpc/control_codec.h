// Control messages: generated classes ⇄ the structs of cc/service. Also the sample
// replies of foreign peers, which come sample by sample.
#ifndef REVERB_TF_CC_RPC_CONTROL_CODEC_H_
#define REVERB_TF_CC_RPC_CONTROL_CODEC_H_

#include <grpcpp/support/byte_buffer.h>

#include <vector>

#include "cc/base/status.h"
#include "cc/rpc/reverb.pb.h"
#include "cc/service/messages.h"

namespace reverb_tf {

namespace pb = ::deepmind::reverb;

void ToProto(const ServerInfo& info, pb::ServerInfoResponse* out);
Result<ServerInfo> FromProto(const pb::ServerInfoResponse& in);

void ToProto(const MutateRequest& request, pb::MutatePrioritiesRequest* out);
MutateRequest FromProto(const pb::MutatePrioritiesRequest& in);

void ToProto(const SampleRequest& request, pb::SampleStreamRequest* out);
SampleRequest FromProto(const pb::SampleStreamRequest& in);

void ToProto(const InsertReply& reply, pb::InsertStreamResponse* out);
InsertReply FromProto(const pb::InsertStreamResponse& in);

// Any message as gRPC wants it, and back; false when it doesn't parse.
grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message);
bool Parse(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* message);

// The messages by which a foreign peer gets these samples: whole chunks, Snappy-
// coded, each once a sample; cut above 2 MiB of chunks. DATA_LOSS if a chunk
// doesn't decode.
Result<std::vector<grpc::ByteBuffer>> EncodeForeignSamples(
    const std::vector<SampledItem>& items);

// Puts samples together again from the entries of a foreign server.
class ForeignSampleReader {
 public:
  // Appends the samples that `message` completes. INVALID_ARGUMENT if malformed.
  Status Read(const pb::SampleStreamResponse& message, std::vector<SampledItem>* out);

 private:
  bool in_sample_ = false;
  pb::SampleInfo info_;
  std::vector<ChunkPtr> chunks_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_CONTROL_CODEC_H_
