#include "cc/service/service.h"

#include <utility>

namespace reverb_tf {

Result<MutateCounts> Service::Mutate(const MutateRequest& request) {
  RTF_ASSIGN_OR_RETURN(const auto table, store_->Find(request.table));
  return table->Mutate(request.updates, request.deletes);
}

Status Service::Reset(const std::string& table) {
  RTF_ASSIGN_OR_RETURN(const auto runner, store_->Find(table));
  return runner->Reset();
}

ServerInfo Service::Info() const {
  ServerInfo info;
  info.state_id = store_->state_id();
  info.tables.reserve(store_->tables().size());
  for (const auto& table : store_->tables()) info.tables.push_back(table->Info());
  return info;
}

std::shared_ptr<InsertSession> Service::OpenInsert(Peer peer,
                                                   std::function<void()> on_ready) {
  return InsertSession::Open(store_.get(), peer, std::move(on_ready));
}

std::shared_ptr<SampleSession> Service::OpenSample(Peer peer,
                                                   std::function<void()> on_ready) {
  return SampleSession::Open(store_.get(), peer, std::move(on_ready));
}

}  // namespace reverb_tf
