// Tables and the server that serves them, as the Python extension sees them.
#ifndef REVERB_TF_CC_API_SERVER_H_
#define REVERB_TF_CC_API_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/wait.h"
#include "cc/core/table_info.h"

namespace reverb_tf {

// Thread-safe. Exists before, during and after it is served.
class ReverbTable {
 public:
  virtual ~ReverbTable() = default;
  virtual TableInfo info() const = 0;
  virtual bool CanInsert(int64_t n) const = 0;
  virtual bool CanSample(int64_t n) const = 0;
};

struct ServerOptions {
  // "localhost" binds the loopback of IPv4 and IPv6 on one port; "unix:/path"
  // binds that socket (port is ignored).
  std::string host = "localhost";
  // 0: the system picks.
  int port = 0;
};

// Thread-safe. Destroying it stops it.
class ReverbServer {
 public:
  virtual ~ReverbServer() = default;
  virtual int port() const = 0;
  virtual std::string address() const = 0;
  virtual bool is_running() const = 0;
  // Refuses new calls, ends waiting ones with UNAVAILABLE "server at … was
  // stopped", gives undelivered grants back, frees the port: within 2 s + grace.
  virtual void Stop(Duration grace) = 0;
  // OK when it was stopped.
  virtual Status Wait(const WaitOptions& wait) = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_API_SERVER_H_
