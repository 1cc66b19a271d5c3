// The Transport of cc/client over a gRPC channel.
#ifndef REVERB_TF_CC_RPC_GRPC_TRANSPORT_H_
#define REVERB_TF_CC_RPC_GRPC_TRANSPORT_H_

#include <memory>
#include <string>

#include "cc/client/transport.h"

namespace reverb_tf {

// Connects lazily; reconnects with back-off of 10 ms … 5 s. `address` as in
// ClientOptions (validated by the caller).
std::shared_ptr<Transport> MakeGrpcTransport(const std::string& address);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_GRPC_TRANSPORT_H_
