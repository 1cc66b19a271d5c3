#include "cc/rpc/build_info.h"

#include <google/protobuf/stubs/common.h>
#include <grpcpp/grpcpp.h>

namespace reverb_tf {

std::string RpcBuildInfo() {
  return "grpc: " + grpc::Version() + "\nprotobuf: " +
         google::protobuf::internal::VersionString(GOOGLE_PROTOBUF_VERSION);
}

}  // namespace reverb_tf
