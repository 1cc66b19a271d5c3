// A Service behind gRPC: the listening server.
#ifndef REVERB_TF_CC_RPC_GRPC_SERVER_H_
#define REVERB_TF_CC_RPC_GRPC_SERVER_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/base/clock.h"
#include "cc/base/status.h"
#include "cc/service/service.h"

namespace reverb_tf {

// Thread-safe. Std types only, so that gRPC's headers stay in this folder.
class GrpcServer {
 public:
  // Binds `host` ("localhost": 127.0.0.1 and, where there is IPv6, [::1], on one
  // port; "unix:/path") and serves `service`.
  // ALREADY_EXISTS when the address is in use, INVALID_ARGUMENT when it can't be
  // bound. Ports are never shared with another server.
  static Result<std::unique_ptr<GrpcServer>> Start(const std::string& host, int port,
                                                   std::shared_ptr<Service> service);
  // Stops with no grace.
  virtual ~GrpcServer() = default;

  virtual int port() const = 0;
  // All addresses it is known by, the canonical one ("localhost:PORT") first.
  virtual std::vector<std::string> addresses() const = 0;
  // New calls are refused, streams end with UNAVAILABLE; returns within
  // grace + 2 s with the port free. Idempotent. Call Service::Stop first.
  virtual void Stop(Duration grace) = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_GRPC_SERVER_H_
