#include "cc/service/local_registry.h"

#include <unordered_map>
#include <utility>

#include "cc/base/mutex.h"

namespace reverb_tf {
namespace {

struct Registry {
  Mutex mu;
  std::unordered_map<std::string, LocalServer> servers GUARDED_BY(mu);
};

// Never destroyed: servers may end after main.
Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

void RegisterLocalServer(const std::vector<std::string>& addresses,
                         const std::shared_ptr<Service>& service) {
  std::vector<LocalServer> replaced;  // released without the lock
  replaced.reserve(addresses.size());
  Registry& registry = GetRegistry();
  MutexLock lock(&registry.mu);
  for (const std::string& address : addresses) {
    replaced.push_back(std::exchange(registry.servers[address], {service, false}));
  }
}

void UnregisterLocalServer(const std::vector<std::string>& addresses,
                           const Service* service) {
  std::vector<std::shared_ptr<Service>> released;  // without the lock
  released.reserve(addresses.size());
  Registry& registry = GetRegistry();
  MutexLock lock(&registry.mu);
  for (const std::string& address : addresses) {
    const auto it = registry.servers.find(address);
    // Another server may have taken the address over.
    if (it == registry.servers.end() || it->second.service.get() != service) continue;
    it->second.ended = true;
    released.push_back(std::move(it->second.service));
  }
}

LocalServer FindLocalServer(const std::string& address) {
  Registry& registry = GetRegistry();
  MutexLock lock(&registry.mu);
  const auto it = registry.servers.find(address);
  return it == registry.servers.end() ? LocalServer() : it->second;
}

}  // namespace reverb_tf
