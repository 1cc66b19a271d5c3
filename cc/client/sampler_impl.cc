#include "cc/client/sampler_impl.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/client/batch_assembler.h"
#include "cc/client/sample_source.h"

namespace reverb_tf {

Status SamplerOptions::Validate() const {
  const auto at_least_one = [](const char* name, int64_t value) {
    return value >= 1 ? OkStatus()
                      : InvalidArgumentError(std::string(name) + " must be >= 1, got " +
                                             std::to_string(value));
  };
  if (table.empty()) return InvalidArgumentError("table must not be empty");
  RTF_RETURN_IF_ERROR(at_least_one("max_in_flight", max_in_flight));
  RTF_RETURN_IF_ERROR(at_least_one("num_workers", num_workers));
  RTF_RETURN_IF_ERROR(at_least_one("max_samples_per_stream", max_samples_per_stream));
  if (max_samples) RTF_RETURN_IF_ERROR(at_least_one("max_samples", *max_samples));
  if (batch_size) RTF_RETURN_IF_ERROR(at_least_one("batch_size", *batch_size));
  if (pad_to_longest && !batch_size) {
    return InvalidArgumentError("pad_to_longest needs batch_size");
  }
  if (consume_ahead < 0) return InvalidArgumentError("consume_ahead must be >= 0");
  return OkStatus();
}

namespace {

constexpr Duration kAckDelay = std::chrono::milliseconds(50);
constexpr Duration kFirstBackoff = std::chrono::milliseconds(10);
constexpr Duration kLastBackoff = std::chrono::seconds(5);
constexpr Duration kExplainWait = std::chrono::seconds(1);
constexpr Duration kDrainWait = std::chrono::seconds(1);

// What is to be handed to a caller: a sample, a batch, or an error in its place.
struct Ready {
  Status status;
  SampleBatch batch;
  std::vector<StreamSample> samples;  // what it is made of, without the items' data
  uint64_t generation = 0;
  TimePoint oldest;
};

// The steps of a table that the first Next learns.
struct Plan {
  bool on_demand = false;  // take only what a caller waits for
  int num_workers = 1;
  SourceOptions source;
  ColumnLayout layout;
};

// [None] + shape.
TensorSpec WithTime(TensorSpec spec) {
  if (!spec.unknown_rank) spec.shape.insert(spec.shape.begin(), -1);
  return spec;
}

bool Compatible(const TensorSpec& a, const TensorSpec& b) {
  if (a.dtype != b.dtype) return false;
  if (a.unknown_rank || b.unknown_rank) return true;
  if (a.shape.size() != b.shape.size()) return false;
  for (size_t i = 0; i < a.shape.size(); ++i) {
    if (a.shape[i] >= 0 && b.shape[i] >= 0 && a.shape[i] != b.shape[i]) return false;
  }
  return true;
}

// Empty if `declared` (in its order) fits the signature's leaves seen as `scope`.
std::string SpecDifferences(const std::vector<TensorSpec>& declared,
                            const Signature& signature, const std::vector<int>& leaf_of,
                            SignatureScope scope) {
  std::string out;
  for (size_t i = 0; i < declared.size(); ++i) {
    TensorSpec leaf = signature.leaves[static_cast<size_t>(leaf_of[i])];
    if (scope == SignatureScope::kStep) leaf = WithTime(leaf);
    if (Compatible(declared[i], leaf)) continue;
    out += (out.empty() ? "differs: '" : ", '") + declared[i].path + "' declared " +
           declared[i].ToString() + " table has " + leaf.ToString();
  }
  return out;
}

// Fills the plan's column order and scope from the declared specs.
Status PlanSpecs(const SamplerOptions& options, const TableInfo& table, Plan* plan) {
  const auto& signature = table.config.signature;
  const SignatureScope scope = table.config.signature_scope;
  if (!options.specs) {
    if (signature && scope != SignatureScope::kStep) plan->layout.specs = signature->leaves;
    return OkStatus();
  }
  plan->layout.specs = *options.specs;
  if (!signature) {
    plan->layout.check_specs = true;
    return OkStatus();
  }
  const std::string where =
      "dtypes and shapes of the reader don't fit the signature of table '" + options.table +
      "'; ";
  std::vector<std::string> columns;
  for (const TensorSpec& leaf : signature->leaves) columns.push_back(leaf.path);
  Result<std::vector<int>> match = MatchPaths(*options.specs, columns);
  if (!match.ok()) return InvalidArgumentError(where + match.status().message());
  plan->layout.order = *match;
  const std::string as_trajectory =
      SpecDifferences(*options.specs, *signature, *match, SignatureScope::kTrajectory);
  const std::string as_steps =
      SpecDifferences(*options.specs, *signature, *match, SignatureScope::kStep);
  const bool fits_trajectory = as_trajectory.empty() && scope != SignatureScope::kStep;
  const bool fits_steps = as_steps.empty() && scope != SignatureScope::kTrajectory;
  if (!fits_trajectory && !fits_steps) {
    return InvalidArgumentError(
        where + (scope == SignatureScope::kStep ? as_steps : as_trajectory));
  }
  if (fits_trajectory != fits_steps && scope == SignatureScope::kUndecided) {
    plan->source.scope = fits_steps ? SignatureScope::kStep : SignatureScope::kTrajectory;
  }
  return OkStatus();
}

Result<Plan> MakePlan(const SamplerOptions& options, const TableInfo& table) {
  Plan plan;
  plan.on_demand =
      table.config.is_consuming() || options.rate_limiter_timeout == Duration::zero();
  plan.num_workers = options.num_workers;
  // One reader keeps the table's order, and meets max_samples with whole batches.
  if (plan.on_demand || table.config.sampler.is_deterministic() ||
      (options.max_samples && options.batch_size)) {
    plan.num_workers = 1;
  }
  plan.source.table = options.table;
  plan.source.max_samples_per_stream = options.max_samples_per_stream;
  plan.layout.require_steps = options.require_steps;
  plan.layout.pad_to_longest = options.pad_to_longest;
  RTF_RETURN_IF_ERROR(PlanSpecs(options, table, &plan));
  return plan;
}

// A thread that keeps a stream's samples coming and assembles them ahead of the caller.
// All fields are guarded by the sampler's mutex but for the source, which is the thread's.
struct Worker {
  std::unique_ptr<SampleSource> source;
  std::deque<StreamSample> buffer;      // the thread's
  std::vector<StreamSample> to_report;  // handed over (or given back) by callers
  std::vector<bool> report_returned;
  int64_t ready_samples = 0;  // of this worker in the ready queue
  bool drained = false;       // it has pushed its last, short batch
  std::thread thread;
};

class SamplerImpl : public Sampler {
 public:
  SamplerImpl(std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
              std::string address, SamplerOptions options)
      : transport_(std::move(transport)),
        cache_(std::move(cache)),
        address_(std::move(address)),
        options_(std::move(options)) {}
  ~SamplerImpl() override { Close(); }

  Status Next(const WaitOptions& wait, SampleBatch* out) override;
  void Close() override;
  int64_t delivered() const override {
    MutexLock lock(&mu_);
    return delivered_;
  }
  void set_delivered(int64_t n) override {
    MutexLock lock(&mu_);
    delivered_ = claimed_ = n;
  }

 private:
  size_t group() const { return static_cast<size_t>(options_.batch_size.value_or(1)); }

  // The first Next: asks about the table, and starts what it takes.
  Status Start(const WaitOptions& wait);
  std::unique_ptr<SampleSource> MakeSource(int worker);
  void OnReady();

  Status NextOnDemand(const WaitOptions& wait, SampleBatch* out);
  Status NextPrefetched(const WaitOptions& wait, SampleBatch* out);
  // A status for a limiter time-out; may ask the server why.
  Status TimedOut(const std::string& explain);
  std::string Describe() const;
  std::string Explain() const;

  // Samples that may still be asked for, at most `n` (max_samples).
  int64_t Claim(int64_t n) REQUIRES(mu_);
  Ready Assemble(std::vector<StreamSample> samples) const;
  bool IsVoid(const Ready& ready, uint64_t generation) const;

  // On demand.
  Status PumpOnDemand(Duration timeout);
  Status FinishOnDemand(size_t n, SampleBatch* out);
  void DropOnDemand();

  // Prefetching.
  void Run(Worker* worker);
  bool Turn(Worker* worker, Duration* backoff, TimePoint* lost_since);
  void Report(Worker* worker);
  void RequestMore(Worker* worker);
  void PushReady(Worker* worker, bool short_too);
  Status Recover(Worker* worker, const Status& error, Duration* backoff,
                 TimePoint* lost_since);
  bool AllDrained() const REQUIRES(mu_);
  bool AtEnd() const REQUIRES(mu_);
  void DrainWorkers() REQUIRES(mu_);
  // Waits for something to hand out; OUT_OF_RANGE at the end of the sequence.
  Status WaitReady(const WaitOptions& wait, Waiter* waiter) REQUIRES(mu_);
  void Settle(Worker* worker, std::vector<StreamSample> samples, bool delivered)
      REQUIRES(mu_);

  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<TableCache> cache_;
  const std::string address_;
  const SamplerOptions options_;

  // Set by the first Next, before workers start; constant then.
  bool started_ = false;
  Plan plan_;
  std::unique_ptr<BatchAssembler> assembler_;

  // On demand; the caller's.
  std::unique_ptr<SampleSource> source_;
  std::deque<StreamSample> gathered_;

  mutable Mutex mu_;
  CondVar cv_;
  std::vector<std::unique_ptr<Worker>> workers_;  // constant while threads run
  struct QueueEntry {
    Worker* worker;
    Ready ready;
  };
  std::deque<QueueEntry> ready_ GUARDED_BY(mu_);
  uint64_t pokes_ GUARDED_BY(mu_) = 0;  // on_ready calls
  int64_t delivered_ GUARDED_BY(mu_) = 0;
  int64_t claimed_ GUARDED_BY(mu_) = 0;  // asked for, less those given back
  bool ending_ GUARDED_BY(mu_) = false;  // a time-out ended the sequence
  bool closed_ GUARDED_BY(mu_) = false;
  bool stopped_ GUARDED_BY(mu_) = false;  // closing is done
  std::string last_error_ GUARDED_BY(mu_);
};

// ---- Common --------------------------------------------------------------------

void SamplerImpl::OnReady() {
  MutexLock lock(&mu_);
  ++pokes_;
  cv_.SignalAll();
}

std::unique_ptr<SampleSource> SamplerImpl::MakeSource(int worker) {
  SourceOptions options = plan_.source;
  if (options_.seed) {
    options.seed = SampleSeed{*options_.seed,
                              options_.seed_iterator << 16 | static_cast<uint64_t>(worker)};
  }
  return std::make_unique<SampleSource>(transport_, std::move(options),
                                        [this] { OnReady(); });
}

Status SamplerImpl::Start(const WaitOptions& wait) {
  if (started_) return OkStatus();
  WaitOptions interruptible = wait;
  interruptible.interrupted = [this, &wait] {
    {
      MutexLock lock(&mu_);
      if (closed_) return CancelledError("the sampler was closed");
    }
    return wait.interrupted ? wait.interrupted() : OkStatus();
  };
  if (options_.reconnect_timeout < interruptible.timeout) {
    interruptible.timeout = options_.reconnect_timeout;
  }
  const Result<std::shared_ptr<const TableInfo>> table =
      cache_->Find(options_.table, interruptible);
  if (!table.ok()) {
    if (table.status().code() == StatusCode::kDeadlineExceeded &&
        options_.reconnect_timeout < wait.timeout) {
      return UnavailableError(table.status().message());
    }
    return table.status();
  }
  RTF_ASSIGN_OR_RETURN(plan_, MakePlan(options_, **table));
  assembler_ = std::make_unique<BatchAssembler>(plan_.layout);
  MutexLock lock(&mu_);
  if (closed_) return CancelledError("the sampler was closed");
  started_ = true;
  if (plan_.on_demand) {
    source_ = MakeSource(0);
    return OkStatus();
  }
  for (int i = 0; i < plan_.num_workers; ++i) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->source = MakeSource(i);
  }
  for (const auto& worker : workers_) {
    worker->thread = std::thread([this, w = worker.get()] { Run(w); });
  }
  return OkStatus();
}

Status SamplerImpl::Next(const WaitOptions& wait, SampleBatch* out) {
  RTF_RETURN_IF_ERROR(Start(wait));
  return plan_.on_demand ? NextOnDemand(wait, out) : NextPrefetched(wait, out);
}

int64_t SamplerImpl::Claim(int64_t n) {
  if (options_.max_samples) n = std::min(n, *options_.max_samples - claimed_);
  n = std::max<int64_t>(n, 0);
  claimed_ += n;
  return n;
}

std::string SamplerImpl::Explain() const {
  WaitOptions wait;
  wait.timeout = kExplainWait;
  const Result<ServerInfo> info = cache_->Refresh(wait);
  if (!info.ok()) return info.status().message();
  for (const TableInfo& table : info->tables) {
    if (table.config.name == options_.table) return table.explain;
  }
  return "table '" + options_.table + "' is gone";
}

std::string SamplerImpl::Describe() const {
  std::string error;
  {
    MutexLock lock(&mu_);
    error = last_error_;
  }
  return "sampling table '" + options_.table + "' of " + address_ + ": " +
         (error.empty() ? Explain() : error);
}

Status SamplerImpl::TimedOut(const std::string& explain) {
  if (options_.end_on_timeout) {
    MutexLock lock(&mu_);
    ending_ = true;
    return OutOfRangeError("rate limiter timeout: " + explain);
  }
  return DeadlineExceededError("rate limiter timeout: " + explain);
}

Ready SamplerImpl::Assemble(std::vector<StreamSample> samples) const {
  Ready ready;
  ready.oldest = samples.front().arrived;
  std::vector<SampledItem> items;
  items.reserve(samples.size());
  for (StreamSample& s : samples) {
    ready.oldest = std::min(ready.oldest, s.arrived);
    ready.generation = std::max(ready.generation, s.sample.generation);
    if (ready.status.ok()) ready.status = assembler_->Check(s.sample);
    items.push_back(std::move(s.sample));
    s.sample = SampledItem();
  }
  ready.samples = std::move(samples);
  if (ready.status.ok()) {
    ready.status = options_.batch_size ? assembler_->AssembleBatch(items, &ready.batch)
                                       : assembler_->AssembleOne(items[0], &ready.batch);
  }
  return ready;
}

bool SamplerImpl::IsVoid(const Ready& ready, uint64_t generation) const {
  if (generation > ready.generation && ready.generation != 0) return true;
  return options_.max_age && Clock::System()->Now() - ready.oldest > *options_.max_age;
}

void SamplerImpl::Close() {
  {
    MutexLock lock(&mu_);
    closed_ = true;
    cv_.SignalAll();
    if (std::exchange(stopped_, true)) return;
  }
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  MutexLock lock(&mu_);
  ready_.clear();
}

// ---- On demand -----------------------------------------------------------------

Status SamplerImpl::PumpOnDemand(Duration timeout) {
  size_t want = group() + static_cast<size_t>(options_.consume_ahead);
  RTF_RETURN_IF_ERROR(source_->Pump(want, &gathered_));
  const auto have = static_cast<int64_t>(gathered_.size());
  if (source_->outstanding() > 0 || have >= static_cast<int64_t>(group()) ||
      !source_->can_request()) {
    return OkStatus();
  }
  int64_t more;
  {
    MutexLock lock(&mu_);
    more = Claim(static_cast<int64_t>(want) - have);
  }
  if (more == 0) return OkStatus();
  source_->Request(more, timeout);
  return source_->Pump(want, &gathered_);
}

// Back to the table; the next Next begins with a new stream.
void SamplerImpl::DropOnDemand() {
  const auto unused = static_cast<int64_t>(gathered_.size()) + source_->outstanding();
  gathered_.clear();
  source_->Close();
  MutexLock lock(&mu_);
  claimed_ -= unused;
}

Status SamplerImpl::FinishOnDemand(size_t n, SampleBatch* out) {
  std::vector<StreamSample> samples;
  for (size_t i = 0; i < n; ++i) {
    samples.push_back(std::move(gathered_.front()));
    gathered_.pop_front();
  }
  Ready ready = Assemble(std::move(samples));
  const bool ok = ready.status.ok();
  for (const StreamSample& s : ready.samples) source_->Done(s, /*returned=*/!ok);
  source_->Acknowledge();
  MutexLock lock(&mu_);
  if (ok) {
    delivered_ += static_cast<int64_t>(n);
    *out = std::move(ready.batch);
  } else {
    claimed_ -= static_cast<int64_t>(n);
  }
  return ready.status;
}

Status SamplerImpl::NextOnDemand(const WaitOptions& wait, SampleBatch* out) {
  {
    MutexLock lock(&mu_);
    if (closed_) return CancelledError("the sampler was closed");
    if (ending_ || (options_.max_samples && delivered_ >= *options_.max_samples)) {
      return OutOfRangeError("end of the sequence");
    }
  }
  const TimePoint limiter_deadline =
      DeadlineAfter(Clock::System()->Now(), options_.rate_limiter_timeout);
  const TimePoint start = Clock::System()->Now();
  Duration backoff = kFirstBackoff;
  Waiter waiter(wait, [this] { return Describe(); });
  while (true) {
    uint64_t seen;
    {
      MutexLock lock(&mu_);
      seen = pokes_;
      if (closed_) return CancelledError("the sampler was closed");
    }
    const Duration left =
        limiter_deadline == kNever
            ? kForever
            : std::max(limiter_deadline - Clock::System()->Now(), Duration::zero());
    const int64_t outstanding = source_->outstanding();
    const Status pumped = PumpOnDemand(left);
    while (!gathered_.empty() &&
           source_->generation() > gathered_.front().sample.generation &&
           gathered_.front().sample.generation != 0) {
      gathered_.pop_front();  // granted before a reset
      MutexLock lock(&mu_);
      --claimed_;
    }
    if (gathered_.size() >= group()) return FinishOnDemand(group(), out);
    const std::optional<Status> timed_out = source_->TakeTimeout();
    if (timed_out) {
      {
        MutexLock lock(&mu_);
        claimed_ = delivered_ + static_cast<int64_t>(gathered_.size());
      }
      if (options_.end_on_timeout && !gathered_.empty() && !options_.drop_remainder) {
        MutexLock lock(&mu_);
        ending_ = true;
      } else {
        if (options_.end_on_timeout) DropOnDemand();
        return TimedOut(timed_out->message());
      }
      return FinishOnDemand(gathered_.size(), out);
    }
    bool exhausted;
    {
      MutexLock lock(&mu_);
      exhausted = options_.max_samples && claimed_ >= *options_.max_samples;
    }
    if (exhausted && source_->outstanding() == 0 && pumped.ok()) {
      const size_t rest = gathered_.size();
      if (rest == 0 || options_.drop_remainder) {
        DropOnDemand();
        MutexLock lock(&mu_);
        ending_ = true;
        return OutOfRangeError("end of the sequence");
      }
      return FinishOnDemand(rest, out);
    }
    WaitOptions pause = wait;
    if (!pumped.ok()) {
      {
        MutexLock lock(&mu_);
        claimed_ -= outstanding + static_cast<int64_t>(gathered_.size());
        last_error_ = pumped.message();
      }
      gathered_.clear();  // of a stream that is gone: they went back to the table
      const bool retry = pumped.code() == StatusCode::kUnavailable &&
                         !transport_->is_local() &&
                         Clock::System()->Now() - start < options_.reconnect_timeout;
      if (!retry) return pumped;
    }
    MutexLock lock(&mu_);
    Status waited;
    if (pumped.ok()) {
      waited = waiter.Until(&mu_, &cv_, [&] { return pokes_ != seen || closed_; });
      last_error_.clear();
    } else {
      // Not even pokes shorten a back-off.
      const TimePoint wake = DeadlineAfter(Clock::System()->Now(), backoff);
      backoff = std::min(backoff * 2, kLastBackoff);
      WaitOptions until = wait;
      until.timeout = std::min(wait.timeout, wake - Clock::System()->Now());
      Waiter back_off(until, [this] { return Describe(); });
      waited = back_off.Until(&mu_, &cv_, [&] { return closed_; });
      if (waited.code() == StatusCode::kDeadlineExceeded &&
          Clock::System()->Now() < waiter.deadline()) {
        waited = OkStatus();
      }
    }
    if (!waited.ok()) {
      mu_.Unlock();
      DropOnDemand();
      mu_.Lock();
      return waited;
    }
  }
}

// ---- Prefetching ---------------------------------------------------------------

void SamplerImpl::Report(Worker* worker) {
  std::vector<StreamSample> samples;
  std::vector<bool> returned;
  {
    MutexLock lock(&mu_);
    samples.swap(worker->to_report);
    returned.swap(worker->report_returned);
  }
  for (size_t i = 0; i < samples.size(); ++i) worker->source->Done(samples[i], returned[i]);
}

void SamplerImpl::RequestMore(Worker* worker) {
  const int64_t round = std::max(options_.max_in_flight, static_cast<int64_t>(group()));
  int64_t n;
  {
    MutexLock lock(&mu_);
    const int64_t undelivered = worker->ready_samples +
                                static_cast<int64_t>(worker->buffer.size()) +
                                worker->source->outstanding();
    if (ending_ || closed_ || undelivered > round / 2 || !worker->source->can_request())
      return;
    n = Claim(round);
  }
  if (n > 0) worker->source->Request(n, kForever);
}

void SamplerImpl::PushReady(Worker* worker, bool short_too) {
  std::vector<Ready> made;
  int64_t samples = 0;
  while (worker->buffer.size() >= group() || (short_too && !worker->buffer.empty())) {
    std::vector<StreamSample> taken;
    while (taken.size() < group() && !worker->buffer.empty()) {
      taken.push_back(std::move(worker->buffer.front()));
      worker->buffer.pop_front();
    }
    samples += static_cast<int64_t>(taken.size());
    made.push_back(Assemble(std::move(taken)));
  }
  if (made.empty()) return;
  MutexLock lock(&mu_);
  worker->ready_samples += samples;
  for (Ready& ready : made) ready_.push_back({worker, std::move(ready)});
  cv_.SignalAll();
}

Status SamplerImpl::Recover(Worker* worker, const Status& error, Duration* backoff,
                            TimePoint* lost_since) {
  const TimePoint now = Clock::System()->Now();
  if (*lost_since == TimePoint()) *lost_since = now;
  const bool retry = error.code() == StatusCode::kUnavailable && !transport_->is_local() &&
                     now - *lost_since < options_.reconnect_timeout;
  MutexLock lock(&mu_);
  claimed_ = delivered_;
  for (const auto& w : workers_) claimed_ += w->ready_samples;
  last_error_ = error.message();
  if (!retry) return error;
  const TimePoint wake = DeadlineAfter(now, *backoff);
  *backoff = std::min(*backoff * 2, kLastBackoff);
  while (!closed_ && Clock::System()->Now() < wake) cv_.WaitUntil(&mu_, wake);
  return OkStatus();
}

// One round of a worker's life; false ends it.
bool SamplerImpl::Turn(Worker* worker, Duration* backoff, TimePoint* lost_since) {
  uint64_t seen;
  bool ending;
  {
    MutexLock lock(&mu_);
    if (closed_) return false;
    seen = pokes_;
    ending = ending_;
  }
  Report(worker);
  RequestMore(worker);
  const size_t limit = static_cast<size_t>(options_.max_in_flight) * 2 + group();
  const Status pumped = worker->source->Pump(limit, &worker->buffer);
  if (!pumped.ok()) {
    worker->buffer.clear();  // of a stream that is gone
    const Status fatal = Recover(worker, pumped, backoff, lost_since);
    if (fatal.ok()) return true;
    MutexLock lock(&mu_);
    Ready error;
    error.status = fatal;
    ready_.push_back({nullptr, std::move(error)});
    cv_.SignalAll();
    return false;
  }
  if (!worker->buffer.empty()) {
    *backoff = kFirstBackoff;
    *lost_since = TimePoint();
  }
  bool exhausted;
  {
    MutexLock lock(&mu_);
    exhausted = options_.max_samples && claimed_ >= *options_.max_samples &&
                worker->source->outstanding() == 0;
  }
  PushReady(worker, (exhausted || ending) && !options_.drop_remainder);
  bool acks;
  {
    MutexLock lock(&mu_);
    if (ending || exhausted) {
      worker->drained = true;
      cv_.SignalAll();
    }
    if (!worker->buffer.empty()) last_error_.clear();
    acks = worker->source->has_unsent_acks() || !worker->to_report.empty();
    const TimePoint wake = acks ? DeadlineAfter(Clock::System()->Now(), kAckDelay) : kNever;
    while (!closed_ && pokes_ == seen && ending_ == ending) {
      if (!acks && !worker->to_report.empty()) break;
      if (!cv_.WaitUntil(&mu_, wake)) break;
    }
  }
  if (acks) {
    Report(worker);
    worker->source->Acknowledge();
  }
  return true;
}

void SamplerImpl::Run(Worker* worker) {
  Duration backoff = kFirstBackoff;
  TimePoint lost_since;
  while (Turn(worker, &backoff, &lost_since)) {
  }
  Report(worker);
  worker->source->Close();
}

bool SamplerImpl::AllDrained() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->drained; });
}

bool SamplerImpl::AtEnd() const {
  if (options_.max_samples && delivered_ >= *options_.max_samples) return true;
  const bool no_more = ending_ || (options_.max_samples && options_.drop_remainder);
  return no_more && ready_.empty() && AllDrained();
}

// The limiter's time-out ends the sequence: the workers push what they have gathered.
void SamplerImpl::DrainWorkers() {
  ending_ = true;
  cv_.SignalAll();
  const TimePoint deadline = DeadlineAfter(Clock::System()->Now(), kDrainWait);
  while (!closed_ && ready_.empty() && !AllDrained() && cv_.WaitUntil(&mu_, deadline)) {
  }
}

Status SamplerImpl::WaitReady(const WaitOptions& wait, Waiter* waiter) {
  const Status waited = waiter->Until(
      &mu_, &cv_, [this]() REQUIRES(mu_) { return !ready_.empty() || closed_ || AtEnd(); });
  if (!waited.ok()) {
    const bool limiter_timeout = waited.code() == StatusCode::kDeadlineExceeded &&
                                 options_.rate_limiter_timeout <= wait.timeout;
    if (!limiter_timeout || !options_.end_on_timeout) return waited;
    DrainWorkers();
  }
  if (closed_) return CancelledError("the sampler was closed");
  return ready_.empty() ? OutOfRangeError("end of the sequence") : OkStatus();
}

// Tells the worker what became of its samples; it is woken when there is something to
// acknowledge or its next round is due.
void SamplerImpl::Settle(Worker* worker, std::vector<StreamSample> samples,
                         bool delivered) {
  const auto n = static_cast<int64_t>(samples.size());
  worker->ready_samples -= n;
  (delivered ? delivered_ : claimed_) += delivered ? n : -n;
  const bool first = worker->to_report.empty();
  for (StreamSample& s : samples) {
    worker->to_report.push_back(std::move(s));
    worker->report_returned.push_back(!delivered);
  }
  if (first || worker->ready_samples <= options_.max_in_flight / 2) {
    ++pokes_;
    cv_.SignalAll();
  }
}

Status SamplerImpl::NextPrefetched(const WaitOptions& wait, SampleBatch* out) {
  WaitOptions bounded = wait;
  bounded.timeout = std::min(wait.timeout, options_.rate_limiter_timeout);
  Waiter waiter(bounded, [this] { return Describe(); });
  while (true) {
    QueueEntry entry;
    {
      MutexLock lock(&mu_);
      RTF_RETURN_IF_ERROR(WaitReady(wait, &waiter));
      // A worker's end stays in the queue: every later call gets it too.
      if (ready_.front().worker == nullptr) return ready_.front().ready.status;
      entry = std::move(ready_.front());
      ready_.pop_front();
    }
    Ready& ready = entry.ready;
    const bool is_void =
        ready.status.ok() && IsVoid(ready, entry.worker->source->generation());
    const bool delivered = ready.status.ok() && !is_void;
    MutexLock lock(&mu_);
    Settle(entry.worker, std::move(ready.samples), delivered);
    if (is_void) continue;
    if (delivered) *out = std::move(ready.batch);
    return ready.status;
  }
}

}  // namespace

Result<std::unique_ptr<Sampler>> MakeSampler(std::shared_ptr<Transport> transport,
                                             std::shared_ptr<TableCache> cache,
                                             std::string address,
                                             const SamplerOptions& options) {
  RTF_RETURN_IF_ERROR(options.Validate());
  return std::unique_ptr<Sampler>(std::make_unique<SamplerImpl>(
      std::move(transport), std::move(cache), std::move(address), options));
}

}  // namespace reverb_tf
