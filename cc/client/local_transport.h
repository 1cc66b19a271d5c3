// The in-process road: a Transport straight onto a Service of this process. No
// thread, no copy, no serialisation; chunk and item references are handed over.
#ifndef REVERB_TF_CC_CLIENT_LOCAL_TRANSPORT_H_
#define REVERB_TF_CC_CLIENT_LOCAL_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>

#include "cc/client/transport.h"
#include "cc/service/service.h"

namespace reverb_tf {

std::shared_ptr<Transport> MakeLocalTransport(std::shared_ptr<Service> service);

// Decides anew for each call and stream: the server of `address` in this process
// if there is one (service/local_registry.h); if there was one, since this transport was
// made, that ended, UNAVAILABLE "server at … of this process was stopped"; else the remote
// transport, made by `make_remote` when first needed. With in_process false always remote.
std::shared_ptr<Transport> MakeRoutingTransport(
    std::string address, bool in_process,
    std::function<std::shared_ptr<Transport>()> make_remote);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_LOCAL_TRANSPORT_H_
