// One sampler's stream.
#ifndef REVERB_TF_CC_SERVICE_SAMPLE_SESSION_H_
#define REVERB_TF_CC_SERVICE_SAMPLE_SESSION_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/service/messages.h"
#include "cc/store/store.h"

namespace reverb_tf {

// Takes requests of one table and hands out grants in order. Remembers which of
// them the peer has not acknowledged and gives those back when the stream ends.
// Call order: (Handle | Take)* Close.
//
// Handle is called by one thread at a time; everything else by any.
class SampleSession : public SampleListener,
                      public std::enable_shared_from_this<SampleSession> {
 public:
  // `on_ready` is called, without locks, after there is something to Take; perhaps
  // inside Handle or Take, and on another thread perhaps still when Close has returned
  // (so what it uses must be safe then, by a weak_ptr say). It must not own the
  // session. `store` outlives the session.
  static std::shared_ptr<SampleSession> Open(Store* store, Peer peer,
                                             std::function<void()> on_ready);
  ~SampleSession() override;

  // INVALID_ARGUMENT for num_samples < 0 (or 0 from a foreign peer) or a bad
  // acknowledgement, NOT_FOUND for an unknown table; the table of a stream is
  // that of its first request (later ones may leave it empty). FAILED_PRECONDITION
  // for a scope that contradicts the table's, RESOURCE_EXHAUSTED beyond kMaxRequests
  // or kMaxUnacknowledged. Not OK ends the stream; then nothing of the request was
  // done.
  //
  // Requests are served one after another. Each yields exactly num_samples, unless
  // it times out; samples that a reset makes void before they are taken are drawn
  // anew. One of at most kMaxGranted / 2 samples is drawn in one critical section as
  // far as the table allows; of a larger one the rest is asked for as samples are
  // taken, and its timeout bounds each of these waits. A foreign peer's timeout always
  // bounds each wait, not the whole request's.
  Status Handle(const SampleRequest& request);

  // Moves up to `max_items` grants, and no more than fit `max_bytes` of stored
  // payload (at least one), into `reply`; false if there is nothing. An error ends
  // the stream: a foreign peer's time-out (DEADLINE_EXCEEDED "Rate Limiter:
  // Timeout exceeded before the right to insert was acquired."), a stopped server.
  // A foreign peer's samples count as delivered once taken. A reply holds samples of
  // one request; after a reset there may be one without any, to tell an own peer the
  // generation.
  Result<bool> Take(int64_t max_items, int64_t max_bytes, SampleReply* reply);

  static constexpr int64_t kMaxGranted = 8192;  // held for Take
  static constexpr size_t kMaxRequests = 1024;
  static constexpr size_t kMaxUnacknowledged = 4 << 20;

  // What ended the stream, which Take then returns; OK while it goes on.
  Status error() const;

  // The table's generation as last heard; 0 before anything was.
  uint64_t generation() const;

  // The stream is gone: withdraws its requests, gives back what was not
  // acknowledged. Idempotent.
  void Close();

  // SampleListener.
  void OnGranted(std::vector<SampledItem> items) override;
  void OnRequestDone(Status status) override;
  void OnReset(uint64_t generation) override;
  void Notify() override;

 private:
  struct Request {
    uint64_t id;
    int64_t untaken;  // samples that Take still owes
    Duration timeout;
    std::optional<Status> ended;  // by a time-out: no more are asked for
  };
  // A sample that was taken and not acknowledged.
  struct Unacknowledged {
    Grant grant;
    bool returned = false;
  };
  struct Acknowledgement {
    std::vector<Grant> delivered;
    std::vector<Grant> returned;
  };

  SampleSession(Store* store, Peer peer, std::function<void()> on_ready);
  Status CheckRequest(const SampleRequest& request) REQUIRES(mu_);
  // Finds the table of the first request and decides its scope.
  Status Join(const SampleRequest& request);
  Status CheckAcknowledgement(const SampleRequest& request) REQUIRES(mu_);
  Acknowledgement Acknowledge(const SampleRequest& request) REQUIRES(mu_);
  void AwaitAcknowledgement(const std::vector<SampledItem>& items) REQUIRES(mu_);
  Unacknowledged* UnacknowledgedAt(int64_t position) REQUIRES(mu_) {
    return &unacknowledged_[unacknowledged_begin_ +
                            static_cast<size_t>(position - first_unacknowledged_)];
  }
  // Samples that the peer was handed.
  int64_t num_taken() const REQUIRES(mu_) {
    return first_unacknowledged_ +
           static_cast<int64_t>(unacknowledged_.size() - unacknowledged_begin_);
  }
  // Asks the table for what the requests still lack, one call at a time.
  void AskMore();
  std::optional<SampleCall> NextCall(Garbage* garbage) REQUIRES(mu_);
  SampleCall CallFor(const Request& request, int64_t num_samples) REQUIRES(mu_);
  // Drops granted samples that a reset made void; those are asked for again.
  void DropVoid(Garbage* garbage) REQUIRES(mu_);
  bool FillReply(int64_t max_items, int64_t max_bytes, SampleReply* reply) REQUIRES(mu_);
  void TakeGranted(int64_t num_items, std::vector<SampledItem>* out) REQUIRES(mu_);
  // How many of the next `max_items` granted samples fit, at least one.
  int64_t NumThatFit(int64_t max_items, int64_t max_bytes) const REQUIRES(mu_);
  std::vector<Grant> RemoveUndelivered(Garbage* garbage) REQUIRES(mu_);
  int64_t num_granted() const REQUIRES(mu_) {
    return static_cast<int64_t>(granted_.size() - granted_begin_);
  }

  Store* const store_;
  const Peer peer_;
  const std::function<void()> on_ready_;

  mutable Mutex mu_;
  bool closed_ GUARDED_BY(mu_) = false;
  std::shared_ptr<TableRunner> runner_ GUARDED_BY(mu_);
  bool scope_decided_ GUARDED_BY(mu_) = false;
  SeededRandom random_ GUARDED_BY(mu_);
  Status error_ GUARDED_BY(mu_);  // ends the stream
  uint64_t generation_ GUARDED_BY(mu_) = 0;
  bool reset_unreported_ GUARDED_BY(mu_) = false;

  std::deque<Request> requests_ GUARDED_BY(mu_);  // served one after another
  uint64_t next_id_ GUARDED_BY(mu_) = 0;
  uint64_t asking_id_ GUARDED_BY(mu_) = 0;  // the request that the table works on
  bool asking_ GUARDED_BY(mu_) = false;
  bool in_ask_more_ GUARDED_BY(mu_) = false;  // some thread is

  // Granted and not taken: granted_[granted_begin_ …].
  std::vector<SampledItem> granted_ GUARDED_BY(mu_);
  size_t granted_begin_ GUARDED_BY(mu_) = 0;
  // Own peers: sample `first_unacknowledged_ + i` of the stream is
  // unacknowledged_[unacknowledged_begin_ + i].
  std::vector<Unacknowledged> unacknowledged_ GUARDED_BY(mu_);
  size_t unacknowledged_begin_ GUARDED_BY(mu_) = 0;
  int64_t first_unacknowledged_ GUARDED_BY(mu_) = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_SERVICE_SAMPLE_SESSION_H_
