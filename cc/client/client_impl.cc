#include "cc/client/client_impl.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "cc/client/sampler_impl.h"
#include "cc/client/step_inserter.h"
#include "cc/client/structured_writer_impl.h"
#include "cc/client/table_cache.h"
#include "cc/client/trajectory_writer_impl.h"

namespace reverb_tf {
namespace {

constexpr size_t kMaxIdleInserters = 8;

Status ClosedError(const std::string& address) {
  return FailedPreconditionError("the client of " + address + " is closed; make a new one");
}

// A sampler that its client can end as well.
class ClientSampler : public Sampler {
 public:
  explicit ClientSampler(std::shared_ptr<Sampler> sampler) : sampler_(std::move(sampler)) {}
  // The client may hold the other reference for a moment: give back now.
  ~ClientSampler() override { sampler_->Close(); }

  Status Next(const WaitOptions& wait, SampleBatch* out) override {
    return sampler_->Next(wait, out);
  }
  void Close() override { sampler_->Close(); }
  int64_t delivered() const override { return sampler_->delivered(); }
  void set_delivered(int64_t n) override { sampler_->set_delivered(n); }

 private:
  const std::shared_ptr<Sampler> sampler_;
};

template <typename T>
void DropExpired(std::vector<std::weak_ptr<T>>* list) {
  const auto end =
      std::remove_if(list->begin(), list->end(), [](const auto& p) { return p.expired(); });
  list->erase(end, list->end());
}

template <typename T>
std::vector<std::shared_ptr<T>> Alive(const std::vector<std::weak_ptr<T>>& list) {
  std::vector<std::shared_ptr<T>> alive;
  for (const auto& weak : list) {
    if (auto p = weak.lock()) alive.push_back(std::move(p));
  }
  return alive;
}

class ClientImpl : public ReverbClient {
 public:
  ClientImpl(std::shared_ptr<Transport> transport, std::string address)
      : transport_(std::move(transport)),
        address_(std::move(address)),
        cache_(std::make_shared<TableCache>(transport_, address_)),
        closed_(std::make_shared<std::atomic<bool>>(false)) {}

  Result<ServerTables> GetServerInfo(const WaitOptions& wait) override;
  Result<MutateReply> Mutate(const std::string& table,
                             const std::vector<KeyPriority>& updates,
                             const std::vector<uint64_t>& deletes,
                             const WaitOptions& wait) override;
  Status Reset(const std::string& table, const WaitOptions& wait) override;
  Result<std::string> Checkpoint(const WaitOptions& wait) override;
  Result<std::vector<uint64_t>> Insert(
      const std::vector<StepLeaf>& step,
      const std::vector<std::pair<std::string, double>>& priorities,
      const WaitOptions& wait) override;
  Result<std::vector<uint64_t>> InsertBatch(const std::vector<StepLeaf>& steps,
                                            const std::vector<std::string>& tables,
                                            const std::vector<double>& priorities,
                                            const WaitOptions& wait) override;
  Result<std::unique_ptr<TrajectoryWriter>> NewTrajectoryWriter(
      const TrajectoryWriterOptions& options, const WaitOptions& wait) override;
  Result<std::unique_ptr<StructuredWriter>> NewStructuredWriter(
      std::vector<StructuredConfig> configs, const StructuredWriterOptions& options,
      const WaitOptions& wait) override;
  Result<std::unique_ptr<Sampler>> NewSampler(const SamplerOptions& options) override;
  std::string DescribeConnection() const override;
  void Close() override;

 private:
  Status CheckOpen() const { return *closed_ ? ClosedError(address_) : OkStatus(); }
  // `wait` that Close() ends too.
  WaitOptions UntilClosed(const WaitOptions& wait) const;
  template <typename T>
  Result<T> CallServer(const std::string& what, const WaitOptions& wait,
                       const std::function<std::unique_ptr<Call>(Done<T>)>& start);
  std::unique_ptr<StepInserter> TakeInserter();
  void GiveInserter(std::unique_ptr<StepInserter> inserter);

  const std::shared_ptr<Transport> transport_;
  const std::string address_;
  const std::shared_ptr<TableCache> cache_;
  const std::shared_ptr<std::atomic<bool>> closed_;

  mutable Mutex mu_;
  std::vector<std::unique_ptr<StepInserter>> idle_inserters_ GUARDED_BY(mu_);
  std::vector<std::weak_ptr<ItemSender>> writers_ GUARDED_BY(mu_);
  std::vector<std::weak_ptr<Sampler>> samplers_ GUARDED_BY(mu_);
};

WaitOptions ClientImpl::UntilClosed(const WaitOptions& wait) const {
  WaitOptions until;
  until.timeout = wait.timeout;
  until.interrupted = [closed = closed_, asked = wait.interrupted] {
    if (*closed) return CancelledError("the client was closed");
    return asked ? asked() : OkStatus();
  };
  return until;
}

template <typename T>
Result<T> ClientImpl::CallServer(
    const std::string& what, const WaitOptions& wait,
    const std::function<std::unique_ptr<Call>(Done<T>)>& start) {
  RTF_RETURN_IF_ERROR(CheckOpen());
  return CallWithRetry<T>(what, address_, transport_.get(), UntilClosed(wait), start);
}

Result<ServerTables> ClientImpl::GetServerInfo(const WaitOptions& wait) {
  RTF_RETURN_IF_ERROR(CheckOpen());
  RTF_ASSIGN_OR_RETURN(ServerInfo info, cache_->Refresh(UntilClosed(wait)));
  return ServerTables{info.state_id, std::move(info.tables)};
}

Result<MutateReply> ClientImpl::Mutate(const std::string& table,
                                       const std::vector<KeyPriority>& updates,
                                       const std::vector<uint64_t>& deletes,
                                       const WaitOptions& wait) {
  MutateRequest request;
  request.table = table;
  request.updates.reserve(updates.size());
  for (const KeyPriority& u : updates) request.updates.push_back({u.key, u.priority});
  request.deletes = deletes;
  RTF_ASSIGN_OR_RETURN(
      const MutateCounts counts,
      CallServer<MutateCounts>("mutate_priorities", wait, [&](Done<MutateCounts> done) {
        return transport_->Mutate(request, std::move(done));
      }));
  return MutateReply{counts.updated, counts.deleted, counts.not_found};
}

Status ClientImpl::Reset(const std::string& table, const WaitOptions& wait) {
  return CallServer<bool>(
             "reset", wait,
             [&](Done<bool> done) { return transport_->Reset(table, std::move(done)); })
      .status();
}

Result<std::string> ClientImpl::Checkpoint(const WaitOptions& wait) {
  return CallServer<std::string>("checkpoint", wait, [&](Done<std::string> done) {
    return transport_->Checkpoint(std::move(done));
  });
}

std::unique_ptr<StepInserter> ClientImpl::TakeInserter() {
  {
    MutexLock lock(&mu_);
    if (!idle_inserters_.empty()) {
      auto inserter = std::move(idle_inserters_.back());
      idle_inserters_.pop_back();
      return inserter;
    }
  }
  return std::make_unique<StepInserter>(transport_, cache_, address_);
}

void ClientImpl::GiveInserter(std::unique_ptr<StepInserter> inserter) {
  if (!inserter->is_usable()) return;
  MutexLock lock(&mu_);
  if (*closed_ || idle_inserters_.size() >= kMaxIdleInserters) return;
  idle_inserters_.push_back(std::move(inserter));
}

Result<std::vector<uint64_t>> ClientImpl::Insert(
    const std::vector<StepLeaf>& step,
    const std::vector<std::pair<std::string, double>>& priorities,
    const WaitOptions& wait) {
  RTF_RETURN_IF_ERROR(CheckOpen());
  std::unique_ptr<StepInserter> inserter = TakeInserter();
  Result<std::vector<uint64_t>> keys =
      inserter->Insert(step, priorities, UntilClosed(wait));
  GiveInserter(std::move(inserter));
  return keys;
}

Result<std::vector<uint64_t>> ClientImpl::InsertBatch(
    const std::vector<StepLeaf>& steps, const std::vector<std::string>& tables,
    const std::vector<double>& priorities, const WaitOptions& wait) {
  RTF_RETURN_IF_ERROR(CheckOpen());
  std::unique_ptr<StepInserter> inserter = TakeInserter();
  Result<std::vector<uint64_t>> keys =
      inserter->InsertBatch(steps, tables, priorities, UntilClosed(wait));
  GiveInserter(std::move(inserter));
  return keys;
}

Result<std::unique_ptr<TrajectoryWriter>> ClientImpl::NewTrajectoryWriter(
    const TrajectoryWriterOptions& options, const WaitOptions& wait) {
  RTF_RETURN_IF_ERROR(CheckOpen());
  std::weak_ptr<ItemSender> sender;
  RTF_ASSIGN_OR_RETURN(
      auto writer, MakeTrajectoryWriter(transport_, cache_, address_, options, &sender));
  if (options.validate_items) {
    RTF_RETURN_IF_ERROR(cache_->Refresh(UntilClosed(wait)).status());
  }
  MutexLock lock(&mu_);
  DropExpired(&writers_);
  writers_.push_back(std::move(sender));
  return writer;
}

Result<std::unique_ptr<StructuredWriter>> ClientImpl::NewStructuredWriter(
    std::vector<StructuredConfig> configs, const StructuredWriterOptions& options,
    const WaitOptions& wait) {
  RTF_RETURN_IF_ERROR(CheckOpen());
  if (options.validate_items) {
    RTF_RETURN_IF_ERROR(cache_->Refresh(UntilClosed(wait)).status());
  }
  std::weak_ptr<ItemSender> sender;
  RTF_ASSIGN_OR_RETURN(
      auto writer, MakeStructuredWriter(transport_, cache_, address_, std::move(configs),
                                        options, UntilClosed(wait), &sender));
  MutexLock lock(&mu_);
  DropExpired(&writers_);
  writers_.push_back(std::move(sender));
  return writer;
}

Result<std::unique_ptr<Sampler>> ClientImpl::NewSampler(const SamplerOptions& options) {
  RTF_RETURN_IF_ERROR(CheckOpen());
  RTF_ASSIGN_OR_RETURN(std::shared_ptr<Sampler> sampler,
                       MakeSampler(transport_, cache_, address_, options));
  {
    MutexLock lock(&mu_);
    DropExpired(&samplers_);
    samplers_.push_back(sampler);
  }
  if (*closed_) sampler->Close();  // it came while Close ran
  return std::unique_ptr<Sampler>(std::make_unique<ClientSampler>(std::move(sampler)));
}

std::string ClientImpl::DescribeConnection() const {
  std::vector<std::shared_ptr<ItemSender>> writers;
  std::vector<std::shared_ptr<Sampler>> samplers;
  {
    MutexLock lock(&mu_);
    writers = Alive(writers_);
    samplers = Alive(samplers_);
  }
  const char* const state = *closed_                 ? "closed"
                            : transport_->is_local() ? "in process"
                                                     : "remote";
  std::string text = "client of " + address_ + ": " + state + ", " +
                     std::to_string(writers.size()) + " writers, " +
                     std::to_string(samplers.size()) + " samplers";
  for (const auto& writer : writers) text += "\n" + writer->Describe(/*ask=*/false);
  return text;
}

void ClientImpl::Close() {
  *closed_ = true;
  std::vector<std::shared_ptr<Sampler>> samplers;
  std::vector<std::unique_ptr<StepInserter>> inserters;
  {
    MutexLock lock(&mu_);
    samplers = Alive(samplers_);
    samplers_.clear();
    inserters.swap(idle_inserters_);
  }
  for (const auto& sampler : samplers) sampler->Close();
}

}  // namespace

std::unique_ptr<ReverbClient> MakeReverbClient(std::shared_ptr<Transport> transport,
                                               std::string address) {
  return std::make_unique<ClientImpl>(std::move(transport), std::move(address));
}

}  // namespace reverb_tf
