// A served table: the lock, the waiting, the deadlines and the cancellation
// around one core::Table.
#ifndef REVERB_TF_CC_STORE_TABLE_RUNNER_H_
#define REVERB_TF_CC_STORE_TABLE_RUNNER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cc/base/clock.h"
#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/core/table.h"
#include "cc/store/wait_meter.h"

namespace reverb_tf {

// The stream of a writer, as its tables see it.
//
// Results are put down in the order they came about, under the table's lock;
// Notify() follows outside of it. So OnInserted must only store (it may take a
// lock under which the runner is never called), and Notify may do anything.
class InsertListener {
 public:
  virtual ~InsertListener() = default;
  // The insert of `cookie` was done, or was refused, or its wait ended.
  virtual void OnInserted(uint64_t cookie, Status status) = 0;
  virtual void Notify() = 0;
};

// The stream of a sampler; the same rules.
class SampleListener {
 public:
  virtual ~SampleListener() = default;
  // Grants, in order; part of a request or all of it.
  virtual void OnGranted(std::vector<SampledItem> items) = 0;
  // The request is over: OK when all was granted, DEADLINE_EXCEEDED with the
  // table's explain line. UNAVAILABLE when the server stopped; this ends all requests
  // at once, and is told to samplers without any too.
  virtual void OnRequestDone(Status status) = 0;
  // The table was reset and is now at `generation`.
  virtual void OnReset(uint64_t generation) = 0;
  virtual void Notify() = 0;
};

struct PendingInsert {
  NewItem item;
  uint64_t cookie = 0;
};

// Picks of a stream that has a seed of its own (instead of the table's).
using SeededRandom = std::shared_ptr<Random>;

struct SampleCall {
  int64_t num_samples = 0;
  TimePoint deadline = kNever;  // of the whole request's waiting
  SeededRandom random;          // null: the table's generator
  // If positive, each grant moves the deadline to so long after it: then it bounds
  // each wait and not the whole request's.
  Duration renewal{0};
};

// Wakes a runner when a deadline of its waiters passes; implemented by Store.
class DeadlineScheduler {
 public:
  virtual ~DeadlineScheduler() = default;
  // ExpireWaiters(now) is wanted at `when` or soon after. Any thread.
  virtual void ScheduleAt(TimePoint when) = 0;
};

// Owns a Table and lets many streams use it: one mutex, waiting inserts and
// waiting samples each first come first served, grants and inserts of a message
// under one hold. A waiter can be withdrawn; then nothing was committed for it,
// or its result was already put down. Thread-safe.
//
// Callers hold no lock that a listener takes.
class TableRunner {
 public:
  explicit TableRunner(TableConfig config, const Clock* clock = Clock::System());
  ~TableRunner();

  const std::string& name() const { return name_; }
  const TableConfig& config() const { return config_; }  // scope: as configured
  const Clock* clock() const { return clock_; }          // of SampleCall's deadlines

  // A table is served by at most one server, once. FAILED_PRECONDITION names the
  // address that has it.
  Status StartServing(const std::string& address, DeadlineScheduler* scheduler);
  // REQUIRES: it is served.
  void SetAddress(const std::string& address);
  // All waiters end with `reason`, and so does every later call.
  void StopServing(const Status& reason);
  // Undoes StartServing of a server that didn't start.
  void AbortServing();

  // Streams that are open; counted in info, told of resets. A removed listener
  // gets nothing more: its waiters are withdrawn. (A Notify() of a result that it
  // got before may still be running on another thread.)
  void AddWriter(const std::shared_ptr<InsertListener>& writer);
  void RemoveWriter(const InsertListener* writer);
  void AddSampler(const std::shared_ptr<SampleListener>& sampler);
  // Gives back `undelivered` too.
  void RemoveSampler(const SampleListener* sampler, const std::vector<Grant>& undelivered);

  // What Insert would refuse now: the status of the first item that is. No effect.
  Status CheckInserts(const std::vector<PendingInsert>& inserts) const;
  // Inserts in order; each reports to `writer`. An item that fails validation is
  // refused alone. Items that must wait queue up behind those that wait already.
  // No effect if `writer` isn't an added one (it was removed meanwhile).
  void Insert(const std::shared_ptr<InsertListener>& writer,
              std::vector<PendingInsert> inserts);
  // Asks for samples; requests of one sampler are served one after another. A
  // deadline that has passed already means: grant what can be granted without
  // waiting. No effect if `sampler` isn't an added one.
  void Sample(const std::shared_ptr<SampleListener>& sampler, SampleCall call);

  void Delivered(const std::vector<Grant>& grants, int64_t num_partial);
  void GiveBack(const std::vector<Grant>& grants);

  Result<MutateCounts> Mutate(const std::vector<PriorityUpdate>& updates,
                              const std::vector<uint64_t>& deletes);
  Status Reset();
  Status DecideScope(SignatureScope scope);

  TableInfo Info() const;
  std::string Explain() const;
  bool CanInsert(int64_t n) const;
  bool CanSample(int64_t n) const;
  int64_t size() const;

  // Ends the waits whose deadline is not after `now`; returns the next deadline.
  TimePoint ExpireWaiters(TimePoint now);
  // Bytes of items dropped since the last call (the store trims the heap by it).
  int64_t TakeFreedBytes();

 private:
  class Section;  // one hold of mu_: collects garbage and whom to notify

  // A stream that was added; its address is stable while it is.
  template <typename Listener>
  struct Stream {
    std::shared_ptr<Listener> listener;
    bool touched = false;  // it is in the list of whom this hold notifies
  };
  using Writer = Stream<InsertListener>;
  using Sampler = Stream<SampleListener>;

  struct InsertWaiter {
    Writer* writer;
    PendingInsert insert;
    TimePoint since;
  };
  struct SampleWaiter {
    Sampler* sampler;
    SampleCall call;  // num_samples: those still to be granted
    TimePoint since;
    bool waited = false;
  };

  // Reports an insert that needs no room: a refused one or a repeat.
  bool Settle(Writer* writer, const PendingInsert& insert, Section* section) REQUIRES(mu_);
  // The same, or inserts; false when it must wait.
  bool TryInsert(Writer* writer, PendingInsert* insert, Section* section) REQUIRES(mu_);
  // Grants what is allowed now; true if that ended the request.
  bool Serve(SampleWaiter* waiter, Section* section) REQUIRES(mu_);
  void Finish(Sampler* sampler, Status status, Section* section) REQUIRES(mu_);
  // Serves waiting inserts and samples in turn until neither moves.
  void Pump(Section* section) REQUIRES(mu_);
  TimePoint Expire(TimePoint now, Section* section) REQUIRES(mu_);
  void MeterWaits(TimePoint now) REQUIRES(mu_);
  TableInfo InfoAt(TimePoint now) const REQUIRES(mu_);
  void ScheduleAt(TimePoint when);
  void FreeGarbage(Garbage* garbage);

  const std::string name_;
  const TableConfig config_;
  const Clock* const clock_;
  const TimePoint start_;

  mutable Mutex mu_ ACQUIRED_BEFORE(scheduler_mu_);
  Table table_ GUARDED_BY(mu_);
  std::string address_ GUARDED_BY(mu_);            // empty: not served
  std::optional<Status> stopped_ GUARDED_BY(mu_);  // every call's answer from then on
  std::unordered_map<const InsertListener*, Writer> writers_ GUARDED_BY(mu_);
  std::unordered_map<const SampleListener*, Sampler> samplers_ GUARDED_BY(mu_);
  std::deque<InsertWaiter> insert_waiters_ GUARDED_BY(mu_);
  std::deque<SampleWaiter> sample_waiters_ GUARDED_BY(mu_);
  // No later than the earliest deadline of sample_waiters_.
  TimePoint next_deadline_ GUARDED_BY(mu_) = kNever;
  TimePoint next_forget_ GUARDED_BY(mu_);
  WaitMeter insert_waits_ GUARDED_BY(mu_);
  WaitMeter sample_waits_ GUARDED_BY(mu_);
  Duration inserting_ GUARDED_BY(mu_){0};
  Duration sampling_ GUARDED_BY(mu_){0};

  // Keeps the scheduler from going away while it is called.
  Mutex scheduler_mu_;
  DeadlineScheduler* scheduler_ GUARDED_BY(scheduler_mu_) = nullptr;

  std::atomic<int64_t> freed_bytes_{0};
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_STORE_TABLE_RUNNER_H_
