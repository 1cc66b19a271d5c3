// Which servers live in this process, so that clients of their addresses take
// the in-process road.
#ifndef REVERB_TF_CC_SERVICE_LOCAL_REGISTRY_H_
#define REVERB_TF_CC_SERVICE_LOCAL_REGISTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/service/service.h"

namespace reverb_tf {

// What is known of an address.
struct LocalServer {
  // Set while a server of this process serves the address.
  std::shared_ptr<Service> service;
  // A server of this process had the address and was stopped, and nobody of this
  // process took it since.
  bool ended = false;
};

// Process-wide, thread-safe. Addresses are compared as written ("localhost:80",
// "127.0.0.1:80", "[::1]:80", "unix:/path"), so a server registers all its names.
void RegisterLocalServer(const std::vector<std::string>& addresses,
                         const std::shared_ptr<Service>& service);
// Marks the addresses as ended. Idempotent.
void UnregisterLocalServer(const std::vector<std::string>& addresses,
                           const Service* service);
LocalServer FindLocalServer(const std::string& address);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_SERVICE_LOCAL_REGISTRY_H_
