#include "cc/client/local_transport.h"

#include <atomic>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/service/local_registry.h"

namespace reverb_tf {
namespace {

// Passes on_ready on until it is shut; then no call is running or will ever run.
class Gate {
 public:
  explicit Gate(std::function<void()> on_ready) : on_ready_(std::move(on_ready)) {}

  void Call() {
    {
      MutexLock lock(&mu_);
      if (shut_) return;
      ++running_;
    }
    on_ready_();
    MutexLock lock(&mu_);
    if (--running_ == 0 && shut_) idle_.SignalAll();
  }

  void Shut() {
    MutexLock lock(&mu_);
    shut_ = true;
    while (running_ > 0) idle_.Wait(&mu_);
  }

 private:
  const std::function<void()> on_ready_;
  Mutex mu_;
  CondVar idle_;
  int running_ GUARDED_BY(mu_) = 0;
  bool shut_ GUARDED_BY(mu_) = false;
};

class LocalInsertStream : public InsertStream {
 public:
  LocalInsertStream(std::shared_ptr<Service> service, std::function<void()> on_ready)
      : service_(std::move(service)),
        gate_(std::make_shared<Gate>(std::move(on_ready))),
        session_(service_->OpenInsert(Peer::kOwn, [gate = gate_] { gate->Call(); })) {}

  ~LocalInsertStream() override {
    session_->Close();
    gate_->Shut();
  }

  bool can_send() const override {
    MutexLock lock(&mu_);
    if (handling_) missed_ = true;
    return !handling_ && !half_closed_ && error_.ok();
  }

  void Send(InsertRequest request) override {
    {
      MutexLock lock(&mu_);
      if (handling_ || !error_.ok()) {
        if (error_.ok()) queued_.push_back(std::move(request));
        return;
      }
      handling_ = true;
    }
    std::optional<InsertRequest> next = std::move(request);
    while (next) {
      Status status = session_->Handle(*std::move(next));
      if (!status.ok()) session_->Close();  // what waits is withdrawn
      next.reset();
      bool tell = false;
      {
        MutexLock lock(&mu_);
        if (!status.ok()) {
          if (error_.ok()) error_ = std::move(status);
          queued_.clear();
          tell = true;
        }
        if (queued_.empty()) {
          handling_ = false;
          tell |= std::exchange(missed_, false);
        } else {
          next = std::move(queued_.front());
          queued_.pop_front();
        }
      }
      if (tell) gate_->Call();
    }
  }

  bool Take(InsertReply* reply) override {
    MutexLock lock(&mu_);
    Fetch();
    if (!fetched_) return false;
    *reply = std::move(*fetched_);
    fetched_.reset();
    return true;
  }

  void HalfClose() override {
    {
      MutexLock lock(&mu_);
      half_closed_ = true;
    }
    gate_->Call();
  }

  void Cancel() override {
    session_->Close();
    {
      MutexLock lock(&mu_);
      if (error_.ok()) error_ = CancelledError("the stream was cancelled");
    }
    gate_->Call();
  }

  std::optional<Status> finished() const override {
    MutexLock lock(&mu_);
    Fetch();
    return fetched_ ? std::nullopt : finished_;
  }

 private:
  // Looks for a reply that wasn't taken, or else for the end.
  void Fetch() const REQUIRES(mu_) {
    if (fetched_ || finished_) return;
    InsertReply reply;
    const Result<bool> any = session_->Take(&reply);
    if (any.ok() && *any) {
      fetched_ = std::move(reply);
    } else if (!any.ok()) {
      finished_ = any.status();
    } else if (!error_.ok()) {
      finished_ = error_;
    } else if (half_closed_ && !handling_ && session_->pending() == 0) {
      finished_ = OkStatus();
    }
  }

  const std::shared_ptr<Service> service_;
  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<InsertSession> session_;

  // Before the session's own lock.
  mutable Mutex mu_;
  bool handling_ GUARDED_BY(mu_) = false;             // some thread is in session_->Handle
  std::deque<InsertRequest> queued_ GUARDED_BY(mu_);  // sent meanwhile
  mutable bool missed_ GUARDED_BY(mu_) = false;       // can_send() was asked meanwhile
  bool half_closed_ GUARDED_BY(mu_) = false;
  Status error_ GUARDED_BY(mu_);
  mutable std::optional<InsertReply> fetched_ GUARDED_BY(mu_);
  mutable std::optional<Status> finished_ GUARDED_BY(mu_);
};

class LocalSampleStream : public SampleStream {
 public:
  LocalSampleStream(std::shared_ptr<Service> service, std::function<void()> on_ready)
      : service_(std::move(service)),
        gate_(std::make_shared<Gate>(std::move(on_ready))),
        session_(service_->OpenSample(Peer::kOwn, [gate = gate_] { gate->Call(); })) {}

  ~LocalSampleStream() override {
    session_->Close();
    gate_->Shut();
  }

  bool can_send() const override {
    MutexLock lock(&mu_);
    return !finished_;
  }

  void Send(SampleRequest request) override {
    const Status status = session_->Handle(request);
    if (status.ok()) return;
    session_->Close();
    End(status);
  }

  bool Take(int64_t max_items, SampleReply* reply) override {
    const Result<bool> any =
        session_->Take(max_items, std::numeric_limits<int64_t>::max(), reply);
    if (any.ok()) return *any;
    Finish(any.status());
    return false;
  }

  uint64_t generation() const override { return session_->generation(); }

  void HalfClose() override {
    session_->Close();
    End(OkStatus());
  }

  void Cancel() override {
    session_->Close();
    End(CancelledError("the stream was cancelled"));
  }

  std::optional<Status> finished() const override {
    const Status error = session_->error();
    MutexLock lock(&mu_);
    if (finished_) return finished_;
    return error.ok() ? std::nullopt : std::optional<Status>(error);
  }

 private:
  void Finish(const Status& status) {
    MutexLock lock(&mu_);
    if (!finished_) finished_ = status;
  }
  void End(const Status& status) {
    Finish(status);
    gate_->Call();
  }

  const std::shared_ptr<Service> service_;
  const std::shared_ptr<Gate> gate_;
  const std::shared_ptr<SampleSession> session_;

  mutable Mutex mu_;
  std::optional<Status> finished_ GUARDED_BY(mu_);
};

class LocalTransport : public Transport {
 public:
  explicit LocalTransport(std::shared_ptr<Service> service)
      : service_(std::move(service)) {}

  std::unique_ptr<Call> GetServerInfo(Done<ServerInfo> done) override {
    done(service_->Info());
    return std::make_unique<Call>();
  }
  std::unique_ptr<Call> Mutate(MutateRequest request, Done<MutateCounts> done) override {
    done(service_->Mutate(request));
    return std::make_unique<Call>();
  }
  std::unique_ptr<Call> Reset(std::string table, Done<bool> done) override {
    const Status status = service_->Reset(table);
    done(status.ok() ? Result<bool>(true) : Result<bool>(status));
    return std::make_unique<Call>();
  }
  std::unique_ptr<Call> Checkpoint(Done<std::string> done) override {
    done(UnimplementedError("this server has no checkpointer"));
    return std::make_unique<Call>();
  }
  std::unique_ptr<InsertStream> OpenInsert(std::function<void()> on_ready) override {
    return std::make_unique<LocalInsertStream>(service_, std::move(on_ready));
  }
  std::unique_ptr<SampleStream> OpenSample(std::function<void()> on_ready) override {
    return std::make_unique<LocalSampleStream>(service_, std::move(on_ready));
  }
  bool is_local() const override { return true; }
  bool is_own_peer() const override { return true; }

 private:
  const std::shared_ptr<Service> service_;
};

// A stream that is over before it began.
template <typename Base>
class EndedStream : public Base {
 public:
  EndedStream(Status status, std::function<void()> on_ready)
      : status_(std::move(status)), on_ready_(std::move(on_ready)) {}

  bool can_send() const override { return true; }
  void HalfClose() override { on_ready_(); }
  void Cancel() override {}
  std::optional<Status> finished() const override { return status_; }

 protected:
  void Tell() { on_ready_(); }

 private:
  const Status status_;
  const std::function<void()> on_ready_;
};

class EndedInsertStream : public EndedStream<InsertStream> {
 public:
  using EndedStream::EndedStream;
  void Send(InsertRequest) override { Tell(); }
  bool Take(InsertReply*) override { return false; }
};

class EndedSampleStream : public EndedStream<SampleStream> {
 public:
  using EndedStream::EndedStream;
  void Send(SampleRequest) override { Tell(); }
  bool Take(int64_t, SampleReply*) override { return false; }
  uint64_t generation() const override { return 0; }
};

class RoutingTransport : public Transport {
 public:
  RoutingTransport(std::string address, bool in_process,
                   std::function<std::shared_ptr<Transport>()> make_remote)
      : address_(std::move(address)),
        in_process_(in_process),
        make_remote_(std::move(make_remote)) {
    FindLocal();
  }

  std::unique_ptr<Call> GetServerInfo(Done<ServerInfo> done) override {
    return Start(std::move(done), [](Transport* transport, Done<ServerInfo> d) {
      return transport->GetServerInfo(std::move(d));
    });
  }
  std::unique_ptr<Call> Mutate(MutateRequest request, Done<MutateCounts> done) override {
    return Start(std::move(done), [&](Transport* transport, Done<MutateCounts> d) {
      return transport->Mutate(std::move(request), std::move(d));
    });
  }
  std::unique_ptr<Call> Reset(std::string table, Done<bool> done) override {
    return Start(std::move(done), [&](Transport* transport, Done<bool> d) {
      return transport->Reset(std::move(table), std::move(d));
    });
  }
  std::unique_ptr<Call> Checkpoint(Done<std::string> done) override {
    return Start(std::move(done), [](Transport* transport, Done<std::string> d) {
      return transport->Checkpoint(std::move(d));
    });
  }
  std::unique_ptr<InsertStream> OpenInsert(std::function<void()> on_ready) override {
    const auto route = Route();
    if (route.ok()) return (*route)->OpenInsert(std::move(on_ready));
    return std::make_unique<EndedInsertStream>(route.status(), std::move(on_ready));
  }
  std::unique_ptr<SampleStream> OpenSample(std::function<void()> on_ready) override {
    const auto route = Route();
    if (route.ok()) return (*route)->OpenSample(std::move(on_ready));
    return std::make_unique<EndedSampleStream>(route.status(), std::move(on_ready));
  }

  bool is_local() const override {
    const LocalServer server = FindLocal();
    return server.service != nullptr || server.ended;
  }
  bool is_own_peer() const override {
    if (is_local()) return true;
    MutexLock lock(&mu_);
    return remote_ ? remote_->is_own_peer() : true;
  }

 private:
  template <typename T, typename Starter>
  std::unique_ptr<Call> Start(Done<T> done, const Starter& start) {
    const auto route = Route();
    if (route.ok()) return start(route->get(), std::move(done));
    done(route.status());
    return std::make_unique<Call>();
  }

  // That a server of this process ended counts only for a transport that knew it: to
  // others the address may by now be that of another process.
  LocalServer FindLocal() const {
    if (!in_process_) return LocalServer();
    LocalServer server = FindLocalServer(address_);
    if (server.service) knew_local_ = true;
    server.ended &= knew_local_;
    return server;
  }

  Result<std::shared_ptr<Transport>> Route() {
    const LocalServer server = FindLocal();
    if (server.service) return MakeLocalTransport(server.service);
    if (server.ended) {
      return UnavailableError("server at " + address_ + " of this process was stopped");
    }
    std::call_once(remote_made_, [this] {
      std::shared_ptr<Transport> remote = make_remote_();
      MutexLock lock(&mu_);
      remote_ = std::move(remote);
    });
    MutexLock lock(&mu_);
    return remote_;
  }

  const std::string address_;
  const bool in_process_;
  const std::function<std::shared_ptr<Transport>()> make_remote_;
  mutable std::atomic<bool> knew_local_{false};

  std::once_flag remote_made_;
  mutable Mutex mu_;
  std::shared_ptr<Transport> remote_ GUARDED_BY(mu_);
};

}  // namespace

std::shared_ptr<Transport> MakeLocalTransport(std::shared_ptr<Service> service) {
  return std::make_shared<LocalTransport>(std::move(service));
}

std::shared_ptr<Transport> MakeRoutingTransport(
    std::string address, bool in_process,
    std::function<std::shared_ptr<Transport>()> make_remote) {
  return std::make_shared<RoutingTransport>(std::move(address), in_process,
                                            std::move(make_remote));
}

}  // namespace reverb_tf
