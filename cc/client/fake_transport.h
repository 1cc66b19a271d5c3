// A Transport whose server is the test: it sees what a client sends and decides what
// comes back, and when.
#ifndef REVERB_TF_CC_CLIENT_FAKE_TRANSPORT_H_
#define REVERB_TF_CC_CLIENT_FAKE_TRANSPORT_H_

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/client/transport.h"

namespace reverb_tf {

// How long a test waits for what must happen; only a failure limit.
inline constexpr Duration kFakeLimit = std::chrono::seconds(20);

// The server's end of an insert stream. Thread-safe. Outlives the client's end.
class FakeInsertPeer {
 public:
  explicit FakeInsertPeer(std::function<void()> on_ready)
      : on_ready_(std::move(on_ready)) {}

  // Waits until `n` items have arrived; false if they don't.
  bool WaitForItems(size_t n) {
    return WaitUntil([&]() REQUIRES(mu_) { return items_.size() >= n; });
  }
  bool WaitForClose() {
    return WaitUntil([&]() REQUIRES(mu_) { return closed_; });
  }
  std::vector<InsertItem> items() const {
    MutexLock lock(&mu_);
    return items_;
  }
  std::vector<InsertRequest> requests() const {
    MutexLock lock(&mu_);
    return requests_;
  }

  void Confirm(std::vector<uint64_t> keys) {
    InsertReply reply;
    reply.confirmed = std::move(keys);
    Reply(std::move(reply));
  }
  void ConfirmAll() {
    std::vector<uint64_t> keys;
    for (const InsertItem& item : items()) keys.push_back(item.key);
    Confirm(std::move(keys));
  }
  void Refuse(uint64_t key, Status status) {
    InsertReply reply;
    reply.refused.push_back({key, std::move(status)});
    Reply(std::move(reply));
  }
  void Reply(InsertReply reply) {
    Change([&]() REQUIRES(mu_) { replies_.push_back(std::move(reply)); });
  }
  // The stream ends once its replies are taken.
  void End(Status status) {
    Change([&]() REQUIRES(mu_) { end_ = std::move(status); });
  }
  // The same before the client has its end; calls nothing.
  void EndFromTheStart(Status status) {
    MutexLock lock(&mu_);
    end_ = std::move(status);
  }
  void SetCanSend(bool can_send) {
    Change([&]() REQUIRES(mu_) { can_send_ = can_send; });
  }

 private:
  friend class FakeInsertStream;

  template <typename Ready>
  bool WaitUntil(const Ready& ready) {
    const TimePoint limit = Clock::System()->Now() + kFakeLimit;
    MutexLock lock(&mu_);
    while (!ready()) {
      if (!changed_.WaitUntil(&mu_, limit)) return ready();
    }
    return true;
  }

  template <typename F>
  void Change(const F& change) {
    {
      MutexLock lock(&mu_);
      if (closed_) return;
      change();
      ++calling_;
    }
    on_ready_();
    MutexLock lock(&mu_);
    --calling_;
    changed_.SignalAll();
  }

  void Close() {
    MutexLock lock(&mu_);
    closed_ = true;
    changed_.SignalAll();
    while (calling_ > 0) changed_.Wait(&mu_);
  }

  const std::function<void()> on_ready_;
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<InsertItem> items_ GUARDED_BY(mu_);
  std::vector<InsertRequest> requests_ GUARDED_BY(mu_);
  std::deque<InsertReply> replies_ GUARDED_BY(mu_);
  std::optional<Status> end_ GUARDED_BY(mu_);
  bool can_send_ GUARDED_BY(mu_) = true;
  bool closed_ GUARDED_BY(mu_) = false;
  int calling_ GUARDED_BY(mu_) = 0;
};

// The client's end.
class FakeInsertStream : public InsertStream {
 public:
  explicit FakeInsertStream(std::shared_ptr<FakeInsertPeer> peer)
      : peer_(std::move(peer)) {}
  ~FakeInsertStream() override { peer_->Close(); }

  bool can_send() const override {
    MutexLock lock(&peer_->mu_);
    return peer_->can_send_;
  }
  void Send(InsertRequest request) override {
    MutexLock lock(&peer_->mu_);
    for (const InsertItem& item : request.items) peer_->items_.push_back(item);
    peer_->requests_.push_back(std::move(request));
    peer_->changed_.SignalAll();
  }
  bool Take(InsertReply* reply) override {
    MutexLock lock(&peer_->mu_);
    if (peer_->replies_.empty()) return false;
    *reply = std::move(peer_->replies_.front());
    peer_->replies_.pop_front();
    return true;
  }
  void HalfClose() override {}
  void Cancel() override { peer_->End(CancelledError("the stream was cancelled")); }
  std::optional<Status> finished() const override {
    MutexLock lock(&peer_->mu_);
    if (!peer_->replies_.empty()) return std::nullopt;
    return peer_->end_;
  }

 private:
  const std::shared_ptr<FakeInsertPeer> peer_;
};

// The client's end of a sample stream that answers nothing; a test that needs more
// sets FakeTransport::open_sample.
class FakeSilentSampleStream : public SampleStream {
 public:
  bool can_send() const override { return true; }
  void Send(SampleRequest) override {}
  bool Take(int64_t, SampleReply*) override { return false; }
  void HalfClose() override {}
  void Cancel() override {}
  std::optional<Status> finished() const override { return std::nullopt; }
  uint64_t generation() const override { return 0; }
};

// Unary calls are answered inside the call by the functions below (which must be set
// before the client uses them); insert streams are handed to the test.
class FakeTransport : public Transport {
 public:
  std::function<Result<ServerInfo>()> get_server_info = [] {
    return Result<ServerInfo>(ServerInfo());
  };
  std::function<Result<MutateCounts>(MutateRequest)> mutate = [](MutateRequest) {
    return Result<MutateCounts>(MutateCounts());
  };
  std::function<std::unique_ptr<SampleStream>(std::function<void()>)> open_sample =
      [](std::function<void()>) { return std::make_unique<FakeSilentSampleStream>(); };
  bool local = false;

  // Insert streams that are opened from now on end at once.
  void EndNewInserts(Status status) {
    MutexLock lock(&mu_);
    end_new_inserts_ = std::move(status);
  }
  // The insert stream that was opened as number `i` (from 0); null if it isn't.
  std::shared_ptr<FakeInsertPeer> WaitForInsert(size_t i) {
    const TimePoint limit = Clock::System()->Now() + kFakeLimit;
    MutexLock lock(&mu_);
    while (inserts_.size() <= i) {
      if (!opened_.WaitUntil(&mu_, limit)) return nullptr;
    }
    return inserts_[i];
  }
  size_t num_inserts() const {
    MutexLock lock(&mu_);
    return inserts_.size();
  }

  std::unique_ptr<Call> GetServerInfo(Done<ServerInfo> done) override {
    done(get_server_info());
    return std::make_unique<Call>();
  }
  std::unique_ptr<Call> Mutate(MutateRequest request, Done<MutateCounts> done) override {
    done(mutate(std::move(request)));
    return std::make_unique<Call>();
  }
  std::unique_ptr<Call> Reset(std::string, Done<bool> done) override {
    done(true);
    return std::make_unique<Call>();
  }
  std::unique_ptr<Call> Checkpoint(Done<std::string> done) override {
    done(UnimplementedError("no checkpointer"));
    return std::make_unique<Call>();
  }
  std::unique_ptr<InsertStream> OpenInsert(std::function<void()> on_ready) override {
    auto peer = std::make_shared<FakeInsertPeer>(std::move(on_ready));
    {
      MutexLock lock(&mu_);
      if (end_new_inserts_) peer->EndFromTheStart(*end_new_inserts_);
      inserts_.push_back(peer);
      opened_.SignalAll();
    }
    return std::make_unique<FakeInsertStream>(std::move(peer));
  }
  std::unique_ptr<SampleStream> OpenSample(std::function<void()> on_ready) override {
    return open_sample(std::move(on_ready));
  }
  bool is_local() const override { return local; }
  bool is_own_peer() const override { return true; }

 private:
  mutable Mutex mu_;
  CondVar opened_;
  std::vector<std::shared_ptr<FakeInsertPeer>> inserts_ GUARDED_BY(mu_);
  std::optional<Status> end_new_inserts_ GUARDED_BY(mu_);
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_FAKE_TRANSPORT_H_
