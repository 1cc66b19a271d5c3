// What a client knows of its server's tables, and how it asks.
#ifndef REVERB_TF_CC_CLIENT_TABLE_CACHE_H_
#define REVERB_TF_CC_CLIENT_TABLE_CACHE_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cc/base/mutex.h"
#include "cc/base/wait.h"
#include "cc/client/transport.h"

namespace reverb_tf {

// Runs a unary call until it is answered, its wait ends or it fails with
// something other than UNAVAILABLE: waits with back-off (10 ms … 5 s) between the
// tries; `what` ("server_info") and the address and the transport's last error
// make the texts. `start` starts one try. A local server that ended is
// UNAVAILABLE at once (Transport::is_local()). Instantiated for the reply types of
// Transport in table_cache.cc.
template <typename T>
Result<T> CallWithRetry(const std::string& what, const std::string& address,
                        Transport* transport, const WaitOptions& wait,
                        const std::function<std::unique_ptr<Call>(Done<T>)>& start);

// Table infos by name, fetched once and again when a name is missing. Thread-safe.
class TableCache {
 public:
  TableCache(std::shared_ptr<Transport> transport, std::string address)
      : transport_(std::move(transport)), address_(std::move(address)) {}

  // Always asks the server, and remembers the answer.
  Result<ServerInfo> Refresh(const WaitOptions& wait);
  // From memory if known, else after a Refresh. NOT_FOUND lists the tables there are.
  Result<std::shared_ptr<const TableInfo>> Find(const std::string& table,
                                                const WaitOptions& wait);
  // From memory only.
  std::shared_ptr<const TableInfo> Known(const std::string& table) const;

 private:
  const std::shared_ptr<Transport> transport_;
  const std::string address_;
  mutable Mutex mu_;
  std::vector<std::shared_ptr<const TableInfo>> tables_ GUARDED_BY(mu_);
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_TABLE_CACHE_H_
