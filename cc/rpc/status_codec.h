// Status ⇄ grpc::Status, and the metadata by which peers of this project know
// each other.
#ifndef REVERB_TF_CC_RPC_STATUS_CODEC_H_
#define REVERB_TF_CC_RPC_STATUS_CODEC_H_

#include <grpcpp/support/status.h>

#include "cc/base/status.h"

namespace reverb_tf {

inline constexpr char kPeerKey[] = "x-reverb-tf";
inline constexpr char kPeerRevision[] = "1";

inline grpc::Status ToGrpc(const Status& status) {
  static_assert(static_cast<int>(StatusCode::kInvalidArgument) ==
                static_cast<int>(grpc::StatusCode::INVALID_ARGUMENT));
  static_assert(static_cast<int>(StatusCode::kUnavailable) ==
                static_cast<int>(grpc::StatusCode::UNAVAILABLE));
  static_assert(static_cast<int>(StatusCode::kUnauthenticated) ==
                static_cast<int>(grpc::StatusCode::UNAUTHENTICATED));
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message());
}

inline Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return OkStatus();
  // How gRPC reports a connection that broke under a stream: the client's own, and that of
  // a proxy to its server, which the proxy tells of by HTTP/2's INTERNAL_ERROR.
  if ((status.error_code() == grpc::StatusCode::UNKNOWN &&
       status.error_message() == "Stream removed") ||
      (status.error_code() == grpc::StatusCode::INTERNAL &&
       status.error_message() == "Received RST_STREAM with error code 2")) {
    return UnavailableError(status.error_message());
  }
  const int code = status.error_code();
  if (code < 0 || code > 16) return Status(StatusCode::kUnknown, status.error_message());
  return Status(static_cast<StatusCode>(code), status.error_message());
}

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_STATUS_CODEC_H_
