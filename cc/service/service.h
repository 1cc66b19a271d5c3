// The server without a transport: unary calls, and the sessions of its streams.
#ifndef REVERB_TF_CC_SERVICE_SERVICE_H_
#define REVERB_TF_CC_SERVICE_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "cc/service/insert_session.h"
#include "cc/service/messages.h"
#include "cc/service/sample_session.h"
#include "cc/store/store.h"

namespace reverb_tf {

// Thread-safe.
class Service {
 public:
  explicit Service(std::unique_ptr<Store> store) : store_(std::move(store)) {}

  // Deletes, then updates; all or nothing. NOT_FOUND for an unknown table.
  Result<MutateCounts> Mutate(const MutateRequest& request);
  Status Reset(const std::string& table);
  ServerInfo Info() const;

  std::shared_ptr<InsertSession> OpenInsert(Peer peer, std::function<void()> on_ready);
  std::shared_ptr<SampleSession> OpenSample(Peer peer, std::function<void()> on_ready);

  // See Store::Stop. Calls after it answer UNAVAILABLE.
  void Stop() { store_->Stop(); }
  Store* store() { return store_.get(); }

 private:
  const std::unique_ptr<Store> store_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_SERVICE_SERVICE_H_
