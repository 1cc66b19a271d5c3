#include "cc/api/entry.h"

#include <atomic>
#include <utility>

#include "cc/base/buffer.h"
#include "cc/base/mutex.h"
#include "cc/client/client_impl.h"
#include "cc/client/local_transport.h"
#include "cc/client/pattern_check.h"
#include "cc/client/pattern_evaluator.h"
#include "cc/rpc/build_info.h"
#include "cc/rpc/grpc_server.h"
#include "cc/rpc/grpc_transport.h"
#include "cc/rpc/pattern_codec.h"
#include "cc/service/local_registry.h"
#include "cc/service/service.h"
#include "cc/store/store.h"

namespace reverb_tf {
namespace {

class TableImpl : public ReverbTable {
 public:
  explicit TableImpl(TableConfig config)
      : runner_(std::make_shared<TableRunner>(std::move(config))) {}

  TableInfo info() const override { return runner_->Info(); }
  bool CanInsert(int64_t n) const override { return runner_->CanInsert(n); }
  bool CanSample(int64_t n) const override { return runner_->CanSample(n); }

  const std::shared_ptr<TableRunner>& runner() const { return runner_; }

 private:
  const std::shared_ptr<TableRunner> runner_;
};

class ServerImpl : public ReverbServer {
 public:
  ServerImpl(std::shared_ptr<Service> service, std::unique_ptr<GrpcServer> grpc_server)
      : service_(std::move(service)),
        grpc_server_(std::move(grpc_server)),
        addresses_(grpc_server_->addresses()) {
    RegisterLocalServer(addresses_, service_);
  }
  ~ServerImpl() override { Stop(Duration::zero()); }

  int port() const override { return grpc_server_->port(); }
  std::string address() const override { return addresses_.front(); }
  bool is_running() const override { return !stopped_.load(); }

  void Stop(Duration grace) override {
    MutexLock lock(&stop_mu_);
    if (stopped_) return;
    service_->Stop();
    UnregisterLocalServer(addresses_, service_.get());
    grpc_server_->Stop(grace);
    MutexLock wait_lock(&mu_);
    stopped_ = true;
    stopped_cv_.SignalAll();
  }

  Status Wait(const WaitOptions& wait) override {
    const std::string address = addresses_.front();
    Waiter waiter(wait, [address] { return "server at " + address + " to be stopped"; });
    MutexLock lock(&mu_);
    return waiter.Until(&mu_, &stopped_cv_, [this] { return stopped_.load(); });
  }

 private:
  const std::shared_ptr<Service> service_;
  const std::unique_ptr<GrpcServer> grpc_server_;
  const std::vector<std::string> addresses_;
  Mutex stop_mu_ ACQUIRED_BEFORE(mu_);  // one Stop at a time
  Mutex mu_;
  CondVar stopped_cv_;
  std::atomic<bool> stopped_{false};
};

std::string Address(const ServerOptions& options) {
  if (options.host.rfind("unix:", 0) == 0) return options.host;
  return options.host + ":" + (options.port == 0 ? "?" : std::to_string(options.port));
}

class Api : public ReverbApi {
 public:
  int version() const override { return kReverbApiVersion; }

  Result<std::shared_ptr<ReverbTable>> MakeTable(TableConfig config) const override {
    if (config.signature && config.signature->leaves.empty()) {
      RTF_ASSIGN_OR_RETURN(config.signature,
                           Signature::Parse(std::move(config.signature->structured_value)));
    }
    RTF_RETURN_IF_ERROR(config.Validate());
    return std::shared_ptr<ReverbTable>(std::make_shared<TableImpl>(config));
  }

  Result<std::unique_ptr<ReverbServer>> MakeServer(
      const ServerOptions& options,
      const std::vector<std::shared_ptr<ReverbTable>>& tables) const override {
    TableRunners runners;
    for (const auto& table : tables) {
      runners.push_back(static_cast<const TableImpl*>(table.get())->runner());
    }
    RTF_ASSIGN_OR_RETURN(std::unique_ptr<Store> store,
                         Store::Create(runners, Address(options)));
    auto service = std::make_shared<Service>(std::move(store));
    Result<std::unique_ptr<GrpcServer>> server =
        GrpcServer::Start(options.host, options.port, service);
    if (!server.ok()) {
      for (const auto& runner : runners) runner->AbortServing();
      return server.status();
    }
    service->store()->SetAddress((*server)->addresses().front());
    return std::unique_ptr<ReverbServer>(
        std::make_unique<ServerImpl>(std::move(service), std::move(server).value()));
  }

  Result<std::unique_ptr<ReverbClient>> MakeClient(
      const ClientOptions& options) const override {
    RTF_RETURN_IF_ERROR(options.Validate());
    const std::string address = options.address;
    return MakeReverbClient(
        MakeRoutingTransport(address, options.in_process,
                             [address] { return MakeGrpcTransport(address); }),
        address);
  }

  Result<StructuredConfig> DecodeStructuredConfig(const std::string& bytes) const override {
    RTF_ASSIGN_OR_RETURN(StructuredConfig config, reverb_tf::DecodeStructuredConfig(bytes));
    RTF_RETURN_IF_ERROR(CheckPattern(config));
    return config;
  }

  Result<std::unique_ptr<PatternEvaluator>> MakePatternEvaluator(
      std::vector<StructuredConfig> configs) const override {
    return reverb_tf::MakePatternEvaluator(std::move(configs));
  }

  void SetLogSink(LogSink sink) const override { reverb_tf::SetLogSink(std::move(sink)); }

  std::string BuildInfo() const override {
    return RpcBuildInfo() + "\ncompiler: " __VERSION__;
  }
};

}  // namespace
}  // namespace reverb_tf

extern "C" __attribute__((visibility("default"))) const reverb_tf::ReverbApi* reverb_tf_api(
    int version) {
  // Never destroyed: callers keep the pointer for the life of the process.
  static const reverb_tf::Api* const api = [] {
    reverb_tf::KeepFreedMemory();
    return new reverb_tf::Api;
  }();
  return version == reverb_tf::kReverbApiVersion ? api : nullptr;
}
