// What a sampler holds between its streams and its caller, and the books on it.
#ifndef REVERB_TF_CC_CLIENT_SAMPLE_BUFFER_H_
#define REVERB_TF_CC_CLIENT_SAMPLE_BUFFER_H_

#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/api/sampler.h"
#include "cc/base/mutex.h"
#include "cc/base/wait.h"
#include "cc/client/ack_ledger.h"
#include "cc/client/transport.h"

namespace reverb_tf {

// The books on one stream. Only the thread that works the stream changes `stream` (under
// the buffer's lock) and calls it but for generation(); the rest is the buffer's.
struct StreamRecord {
  int worker = 0;
  bool acknowledges = true;              // the server is of this project
  bool local = false;                    // and of this process
  std::unique_ptr<SampleStream> stream;  // null: it ended
  AckLedger ledger;
  uint64_t generation = 0;  // of the table, as heard before the stream ended
  int64_t requested = 0;
  int64_t outstanding = 0;  // requested, and neither here nor given up
  bool retired = false;     // nothing more is requested
  int64_t open = 0;     // items of which some steps were delivered and others weren't yet
  int64_t partial = 0;  // and those of which the others never will be, to be reported

  // Samples of the stream are on their way to the caller.
  bool is_pending() const { return ledger.num_pending() > 0 || open > 0; }
  // The server has something to hear.
  bool has_news() const { return ledger.has_news() || partial > 0; }
};

// A sample on its way to the caller.
struct BufferedSample {
  SampledItem sample;
  StreamRecord* stream = nullptr;
  int64_t position = 0;
  TimePoint arrived;
  // Readers of steps: those which this stands for.
  int32_t first_step = 0;
  int32_t num_steps = 1;
};

// A run of a stream's samples that went into a batch.
struct SampleRun {
  StreamRecord* stream = nullptr;
  int64_t first = 0;
  int64_t count = 0;
  TimePoint oldest;
  uint64_t generation = 0;  // the oldest
};
// Appends `sample` to the runs.
void AddToRuns(const BufferedSample& sample, std::vector<SampleRun>* runs);

// What Next hands out: a batch (or single sample), or an error in its place.
struct ReadyBatch {
  Status status;
  SampleBatch batch;
  std::vector<SampleRun> runs;
};
using ReadyPtr = std::unique_ptr<ReadyBatch>;

// One mutex for all of a sampler's accounting. Samples go
//   requested -> pool -> (assembled) ready -> delivered, or are given back.
//
// Invariants: held_ is the number of samples requested and not yet delivered, given back
// or given up; delivered_ + held_ <= limit. Per worker, `undelivered` is its part of held_.
//
// In prefetch mode workers keep their rounds coming; on demand only what a caller waits
// for (Demand) is requested. Readers of steps take them from the pool themselves in both
// modes; its first item may be open: some of its steps were taken, and with them it was
// delivered. Thread-safe. Calls no callback and no stream (but for
// generation()) under its lock.
class SampleBuffer {
 public:
  struct Options {
    bool on_demand = false;
    bool consuming = false;
    // The caller works the stream of the only worker itself.
    bool caller_pumps = false;
    // Take gives steps, and batch_size counts them.
    bool steps = false;
    // Of steps: what is left of `limit` items and makes no batch is given back.
    bool drop_remainder = false;
    int num_workers = 1;
    int64_t round = 1;  // samples a request in prefetch mode
    std::optional<int64_t> batch_size;
    int64_t limit = std::numeric_limits<int64_t>::max();  // of samples delivered in all
    int64_t max_samples_per_stream = 1;
    std::optional<Duration> max_age;
  };

  // ---- the caller's side ----

  // REQUIRES: no worker has begun.
  void Configure(const Options& options);
  // Around Next: CANCELLED once closed. Workers that failed may try again, and samples
  // too old for a call that starts `now` are given back.
  Status BeginNext(TimePoint now);
  void EndNext();
  bool is_closed() const;
  // Wakes everybody, and returns when no Next is running.
  void Close();
  // Drops what is left. REQUIRES: closed, and all streams are.
  void Clear();

  int64_t delivered() const;
  void set_delivered(int64_t n);

  // The next batch or error, or null when there is none yet; OUT_OF_RANGE at the end,
  // CANCELLED once closed. `spare` (may be null) is kept for reuse.
  Status Poll(TimePoint call_start, ReadyPtr spare, ReadyPtr* ready);
  // On demand, or of steps: the same with `n` samples (steps), which the caller assembles
  // and settles. `n` is cut to what the limit leaves; `samples` stays empty if there aren't
  // so many yet.
  Status Take(TimePoint call_start, int64_t n, std::vector<BufferedSample>* samples);
  // Whatever there is, up to `n`.
  void TakeRest(int64_t n, std::vector<BufferedSample>* samples);
  // The samples were delivered, or (false) couldn't be and are given back.
  void Settle(const std::vector<BufferedSample>& samples, bool delivered);

  // On demand: keep `target` samples (steps) and `ahead` samples more here or requested (0:
  // none more); the server is to wait for them until `deadline`.
  void SetDemand(int64_t target, int64_t ahead, TimePoint deadline);
  // The server's reason, if it told that the demand timed out.
  std::optional<std::string> demand_timeout() const;

  // Waits until Poll or Take may have something new, or explain text came or is due.
  Status Wait(Waiter* waiter, TimePoint explain_at);
  // Waits for the same, or until no worker has anything to do but wait.
  Status WaitForRest(Waiter* waiter);
  int64_t outstanding() const;
  // Nothing more is requested, what no batch was made of is given back, and Poll and Take
  // tell OUT_OF_RANGE with `reason`.
  void End(const std::string& reason);
  // Every worker shall close its stream; what is undelivered goes back.
  void Abandon();

  // The transport's error if no worker has a connection; else empty.
  std::string lost() const;
  void ClearExplanation();
  void SetExplanation(std::string text);
  std::optional<std::string> explanation() const;
  Status WaitForExplanation(Waiter* waiter);

  // ---- a worker's side ----

  // Sleeps until there may be work for `worker` or `until` comes; false once closed.
  bool WaitForWork(int worker, TimePoint until);
  // The same without regard to closing.
  void WaitForPoke(int worker, TimePoint until);
  // Something happened to a stream of `worker`.
  void Poke(int worker);
  // What happened since the last turn.
  struct Turn {
    bool ack_due = false;  // an acknowledgement
    bool abandon = false;  // Abandon was called
    bool reached = false;  // NoteReached was
  };
  Turn BeginTurn(int worker);
  // A stream of `worker` would be used.
  bool WantsStream(int worker) const;

  // Fills number, timeout and acknowledgement of the stream's next request (of an
  // acknowledgement alone if `ack_due`).
  enum class Planned { kNothing, kRequest, kStreamIsFull };
  Planned PlanRequest(StreamRecord* record, bool ack_due, SampleRequest* request);
  // The acknowledgement alone; false if there is no news.
  bool PlanAck(StreamRecord* record, SampleRequest* request);
  // Samples came, those in `refused` (by their index) don't fit.
  struct Refusal {
    size_t index;
    Status status;
  };
  void Arrived(StreamRecord* record, uint64_t generation, std::vector<SampledItem> items,
               const std::vector<Refusal>& refused);
  // `missing` samples of a request won't come; `timeout` tells why if it timed out.
  void GiveUp(StreamRecord* record, int64_t missing,
              const std::optional<std::string>& timeout);
  // Gives back the samples of the record that no batch was made of.
  void DropSamples(StreamRecord* record);
  // Destroys the stream: what it wasn't told to be delivered, its server gives back.
  void EndStream(StreamRecord* record);
  // Samples of the record are on their way to the caller.
  bool is_pending(const StreamRecord& record) const;
  void Retire(StreamRecord* record);

  // Prefetch mode: samples for the next batch (unbatched: several), and one ReadyBatch
  // for each batch to make of them. Empty: nothing to do.
  struct Work {
    std::vector<BufferedSample> samples;
    std::vector<ReadyPtr> out;
  };
  void TakeWork(Work* work);
  // Those with an error are given back.
  void PushReady(Work* work);

  // The server has answered a question, so it can be reached.
  void NoteReached(int worker);
  // The connection is lost ("": it is there again).
  void SetLost(int worker, std::string error);
  // The error is told by Next; the worker rests until a later one.
  void Fail(int worker, Status status);

 private:
  struct WorkerState {
    CondVar wake;
    bool poked = true;
    bool resting = false;  // in WaitForWork
    bool failed = false;
    bool abandon = false;
    bool reached = false;
    int64_t undelivered = 0;
    // When the next acknowledgement is due, if there is news; kNever: nothing was
    // delivered lately.
    TimePoint ack_at = kNever;
    std::string lost;
  };
  struct Demand {
    int64_t target = 0;
    int64_t ahead = 0;
    TimePoint deadline = kNever;
    bool timed_out = false;
    std::string reason;  // the server's, if it timed out
  };

  int64_t group() const { return options_.batch_size.value_or(1); }
  Status CheckEnd() const REQUIRES(mu_);
  int64_t pool_size() const REQUIRES(mu_) {
    return static_cast<int64_t>(pool_.size() - pool_begin_);
  }
  bool caller_takes() const REQUIRES(mu_) { return options_.on_demand || options_.steps; }
  bool has_open() const REQUIRES(mu_) {
    return pool_size() > 0 && pool_[pool_begin_].first_step > 0;
  }
  // Samples in the pool that aren't open.
  int64_t unopened() const REQUIRES(mu_) { return pool_size() - (has_open() ? 1 : 0); }
  // The pool has a batch, or all that is to come.
  bool HasGroup() const REQUIRES(mu_) {
    return pool_steps_ >= group() || delivered_ + unopened() >= options_.limit;
  }
  // So many items have so many steps, if none is longer than those seen.
  int64_t ItemsFor(int64_t steps) const REQUIRES(mu_);
  int64_t Demanded() const REQUIRES(mu_);
  int64_t Wanted(int worker) const REQUIRES(mu_);
  void SetDemandLocked(int64_t target, int64_t ahead, TimePoint deadline) REQUIRES(mu_);
  // Puts an error in its place in the sequence, unless Next is about to tell it anyway.
  void PushError(Status status) REQUIRES(mu_);
  ReadyPtr PopReady() REQUIRES(mu_);
  void PokeLocked(int worker) REQUIRES(mu_);
  void PokeIfWanted(int worker) REQUIRES(mu_);
  void SettleRun(StreamRecord* record, int64_t first, int64_t count, bool delivered)
      REQUIRES(mu_);
  void SettleSteps(const BufferedSample& steps, bool delivered) REQUIRES(mu_);
  // There is something to acknowledge, or an end of the record may come of it.
  void NoteSettled(StreamRecord* record) REQUIRES(mu_);
  // What `sample` stands for won't be delivered. It is still to be taken out of the pool.
  void Drop(BufferedSample* sample, Garbage* garbage) REQUIRES(mu_);
  // The open item won't be delivered further.
  void DropOpen(Garbage* garbage) REQUIRES(mu_);
  void EndLocked(const std::string& reason, Garbage* garbage) REQUIRES(mu_);
  // Of a table whose items are used up: what isn't asked for after all, of steps.
  void GiveBackSurplus(Garbage* garbage) REQUIRES(mu_);
  void Report(StreamRecord* record, SampleRequest* request, TimePoint now) REQUIRES(mu_);
  static uint64_t GenerationOf(const StreamRecord& record);
  bool IsStale(const SampleRun& run, TimePoint call_start) const REQUIRES(mu_);
  void DropStale(TimePoint call_start, Garbage* garbage) REQUIRES(mu_);
  // REQUIRES: n <= pool_steps_
  void TakeFromPool(int64_t n, std::vector<BufferedSample>* out) REQUIRES(mu_);
  bool HasNews() const REQUIRES(mu_);

  mutable Mutex mu_;
  Options options_ GUARDED_BY(mu_);
  CondVar changed_;  // for Next and Close
  bool in_next_ GUARDED_BY(mu_) = false;
  bool closed_ GUARDED_BY(mu_) = false;
  std::optional<std::string> ended_ GUARDED_BY(mu_);
  bool poked_ GUARDED_BY(mu_) = false;  // caller_pumps: there may be work

  int64_t delivered_ GUARDED_BY(mu_) = 0;
  int64_t held_ GUARDED_BY(mu_) = 0;
  int64_t outstanding_ GUARDED_BY(mu_) = 0;
  std::vector<BufferedSample> pool_ GUARDED_BY(mu_);  // from pool_begin_, as they came
  size_t pool_begin_ GUARDED_BY(mu_) = 0;
  int64_t pool_steps_ GUARDED_BY(mu_) = 0;  // of its samples; one each if steps aren't read
  int64_t most_steps_ GUARDED_BY(mu_) = 0;  // of a sample so far
  int assembling_ GUARDED_BY(mu_) = 0;      // workers between TakeWork and PushReady
  std::deque<ReadyPtr> ready_ GUARDED_BY(mu_);
  int64_t errors_ GUARDED_BY(mu_) = 0;  // in ready_; nothing is requested meanwhile
  std::vector<ReadyPtr> spares_ GUARDED_BY(mu_);
  std::deque<WorkerState> workers_ GUARDED_BY(mu_);
  Demand demand_ GUARDED_BY(mu_);
  std::optional<std::string> explanation_ GUARDED_BY(mu_);
  bool explanation_news_ GUARDED_BY(mu_) = false;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_SAMPLE_BUFFER_H_
