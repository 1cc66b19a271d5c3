// The gRPC service over a Service: each RPC converts, calls, converts.
#ifndef REVERB_TF_CC_RPC_GRPC_SERVICE_H_
#define REVERB_TF_CC_RPC_GRPC_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "cc/rpc/reverb.grpc.pb.h"
#include "cc/service/service.h"

namespace reverb_tf {

// Thread-safe.
std::unique_ptr<grpc::Service> MakeGrpcService(std::shared_ptr<Service> service);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_GRPC_SERVICE_H_
