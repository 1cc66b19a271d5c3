#include "cc/client/sample_buffer.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace reverb_tf {
namespace {

// An acknowledgement waits so long for a request to go with.
constexpr Duration kAckDelay = std::chrono::milliseconds(80);
// A time-out that the server tells so much before our own clock does is one.
constexpr Duration kClockSlack = std::chrono::milliseconds(2);
// Single samples that a worker assembles between two holds of the lock.
constexpr int64_t kSinglesPerTurn = 16;
constexpr size_t kMaxSpares = 512;

// REQUIRES: the item can be split into steps.
int32_t NumSteps(const Item& item) { return static_cast<int32_t>(item.column(0).length()); }

}  // namespace

void AddToRuns(const BufferedSample& sample, std::vector<SampleRun>* runs) {
  if (!runs->empty()) {
    SampleRun& last = runs->back();
    if (last.stream == sample.stream && last.first + last.count == sample.position) {
      ++last.count;
      last.oldest = std::min(last.oldest, sample.arrived);
      last.generation = std::min(last.generation, sample.sample.generation);
      return;
    }
  }
  runs->push_back(
      {sample.stream, sample.position, 1, sample.arrived, sample.sample.generation});
}

// ---- the caller's side ----

void SampleBuffer::Configure(const Options& options) {
  MutexLock lock(&mu_);
  options_ = options;
  most_steps_ = options.steps ? 0 : 1;
  workers_.resize(static_cast<size_t>(options.num_workers));
}

Status SampleBuffer::BeginNext(TimePoint now) {
  Garbage garbage;
  MutexLock lock(&mu_);
  if (closed_) return CancelledError("the sampler was closed");
  in_next_ = true;
  if (ready_.empty()) {
    for (size_t i = 0; i < workers_.size(); ++i) {
      if (std::exchange(workers_[i].failed, false)) PokeLocked(static_cast<int>(i));
    }
  }
  if (options_.max_age) DropStale(now, &garbage);
  return OkStatus();
}

void SampleBuffer::EndNext() {
  MutexLock lock(&mu_);
  in_next_ = false;
  SetDemandLocked(0, 0, kNever);
  if (closed_) changed_.SignalAll();
}

bool SampleBuffer::is_closed() const {
  MutexLock lock(&mu_);
  return closed_;
}

void SampleBuffer::Close() {
  Garbage garbage;
  MutexLock lock(&mu_);
  closed_ = true;
  for (WorkerState& worker : workers_) worker.wake.SignalAll();
  changed_.SignalAll();
  while (in_next_) changed_.Wait(&mu_);
  if (has_open()) DropOpen(&garbage);
}

void SampleBuffer::Clear() {
  std::vector<BufferedSample> pool;
  std::deque<ReadyPtr> ready;
  std::vector<ReadyPtr> spares;
  MutexLock lock(&mu_);
  pool.swap(pool_);
  pool_begin_ = 0;
  pool_steps_ = 0;
  ready.swap(ready_);
  spares.swap(spares_);
}

int64_t SampleBuffer::delivered() const {
  MutexLock lock(&mu_);
  return delivered_;
}

void SampleBuffer::set_delivered(int64_t n) {
  MutexLock lock(&mu_);
  delivered_ = n;
}

Status SampleBuffer::CheckEnd() const {
  if (closed_) return CancelledError("the sampler was closed");
  if (ended_) return OutOfRangeError(*ended_);
  if (ready_.empty() && delivered_ >= options_.limit && !has_open()) {
    return OutOfRangeError("all of max_samples were delivered");
  }
  return OkStatus();
}

Status SampleBuffer::Poll(TimePoint call_start, ReadyPtr spare, ReadyPtr* ready) {
  ready->reset();
  ReadyPtr surplus;  // freed without the lock
  std::vector<ReadyPtr> stale;
  MutexLock lock(&mu_);
  if (spare && spares_.size() < kMaxSpares) {
    spares_.push_back(std::move(spare));
  } else {
    surplus = std::move(spare);
  }
  RTF_RETURN_IF_ERROR(CheckEnd());
  while (!ready_.empty() && !*ready) {
    ReadyPtr front = PopReady();
    const bool keep = std::none_of(front->runs.begin(), front->runs.end(),
                                   [&](const SampleRun& run)
                                       REQUIRES(mu_) { return IsStale(run, call_start); });
    for (const SampleRun& run : front->runs) {
      SettleRun(run.stream, run.first, run.count, keep);
    }
    (keep ? *ready : stale.emplace_back()) = std::move(front);
  }
  return OkStatus();
}

Status SampleBuffer::Take(TimePoint call_start, int64_t n,
                          std::vector<BufferedSample>* samples) {
  samples->clear();
  Garbage garbage;
  ReadyPtr error;
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(CheckEnd());
  DropStale(call_start, &garbage);
  if (!ready_.empty()) {
    SetDemandLocked(0, 0, kNever);
    error = PopReady();
    return error->status;
  }
  if (!HasGroup()) {
    for (size_t i = 0; !options_.on_demand && i < workers_.size(); ++i) {
      PokeIfWanted(static_cast<int>(i));
    }
    return OkStatus();
  }
  if (options_.drop_remainder && pool_steps_ < n) {
    EndLocked("all whole batches of max_samples were delivered", &garbage);
    return CheckEnd();
  }
  n = std::min(n, pool_steps_);
  // At once, lest the worker ask for others in their stead.
  demand_.target -= n;
  TakeFromPool(n, samples);
  if (options_.steps && options_.consuming) GiveBackSurplus(&garbage);
  return OkStatus();
}

void SampleBuffer::GiveBackSurplus(Garbage* garbage) {
  while (unopened() > demand_.ahead) {
    Drop(&pool_.back(), garbage);
    pool_.pop_back();
  }
  PokeIfWanted(0);
}

ReadyPtr SampleBuffer::PopReady() {
  ReadyPtr front = std::move(ready_.front());
  ready_.pop_front();
  if (!front->status.ok() && --errors_ == 0) {
    for (size_t i = 0; i < workers_.size(); ++i) PokeIfWanted(static_cast<int>(i));
  }
  return front;
}

void SampleBuffer::PushError(Status status) {
  changed_.SignalAll();
  for (const ReadyPtr& ready : ready_) {
    if (ready->status == status) return;
  }
  ready_.push_back(std::make_unique<ReadyBatch>());
  ready_.back()->status = std::move(status);
  ++errors_;
}

void SampleBuffer::TakeRest(int64_t n, std::vector<BufferedSample>* samples) {
  samples->clear();
  Garbage garbage;
  MutexLock lock(&mu_);
  DropStale(TimePoint::min(), &garbage);
  TakeFromPool(std::min(n, pool_steps_), samples);
}

void SampleBuffer::TakeFromPool(int64_t n, std::vector<BufferedSample>* out) {
  out->clear();
  out->reserve(static_cast<size_t>(std::min(n, pool_size())));
  pool_steps_ -= n;
  while (n > 0) {
    BufferedSample& front = pool_[pool_begin_];
    if (front.num_steps <= n) {
      n -= front.num_steps;
      out->push_back(std::move(front));
      ++pool_begin_;
    } else {
      out->push_back(front);
      out->back().num_steps = static_cast<int32_t>(n);
      front.first_step += static_cast<int32_t>(n);
      front.num_steps -= static_cast<int32_t>(n);
      n = 0;
    }
  }
  if (pool_begin_ == pool_.size()) {
    pool_.clear();
    pool_begin_ = 0;
  }
}

void SampleBuffer::Settle(const std::vector<BufferedSample>& samples, bool delivered) {
  Garbage garbage;
  MutexLock lock(&mu_);
  if (options_.steps) {
    for (const BufferedSample& steps : samples) SettleSteps(steps, delivered);
    if (delivered || !has_open()) return;
    // The rest of the last one; its steps in `samples` have told how it ends.
    BufferedSample& rest = pool_[pool_begin_++];
    pool_steps_ -= rest.num_steps;
    garbage.push_back(std::move(rest.sample.item));
    return;
  }
  for (size_t i = 0; i < samples.size();) {
    const BufferedSample& first = samples[i];
    int64_t count = 0;
    while (i < samples.size() && samples[i].stream == first.stream &&
           samples[i].position == first.position + count) {
      ++count;
      ++i;
    }
    SettleRun(first.stream, first.position, count, delivered);
  }
}

void SampleBuffer::SettleRun(StreamRecord* record, int64_t first, int64_t count,
                             bool delivered) {
  if (delivered) {
    record->ledger.Deliver(first, count);
    delivered_ += count;
  } else {
    record->ledger.Return(first, count);
  }
  held_ -= count;
  workers_[static_cast<size_t>(record->worker)].undelivered -= count;
  NoteSettled(record);
}

void SampleBuffer::SettleSteps(const BufferedSample& steps, bool delivered) {
  StreamRecord* const record = steps.stream;
  const bool opens = steps.first_step == 0;
  const bool ends = steps.first_step + steps.num_steps == NumSteps(*steps.sample.item);
  if (opens) {
    if (delivered && !ends) ++record->open;
    SettleRun(record, steps.position, 1, delivered);
  } else if (ends || !delivered) {
    --record->open;
    if (!delivered) ++record->partial;
    NoteSettled(record);
  }
}

void SampleBuffer::Drop(BufferedSample* sample, Garbage* garbage) {
  garbage->push_back(std::move(sample->sample.item));
  pool_steps_ -= sample->num_steps;
  if (sample->first_step == 0) {
    SettleRun(sample->stream, sample->position, 1, /*delivered=*/false);
    return;
  }
  --sample->stream->open;
  ++sample->stream->partial;
  NoteSettled(sample->stream);
}

void SampleBuffer::DropOpen(Garbage* garbage) {
  Drop(&pool_[pool_begin_], garbage);
  ++pool_begin_;
}

void SampleBuffer::NoteSettled(StreamRecord* record) {
  WorkerState& worker = workers_[static_cast<size_t>(record->worker)];
  const bool closing = record->retired && !record->is_pending();
  if (worker.ack_at == kNever && record->acknowledges) {
    const TimePoint now = Clock::System()->Now();
    worker.ack_at = options_.caller_pumps ? now : now + kAckDelay;
    PokeLocked(record->worker);
  } else if (closing) {
    PokeLocked(record->worker);
  } else if (!options_.on_demand) {
    PokeIfWanted(record->worker);
  }
}

void SampleBuffer::SetDemand(int64_t target, int64_t ahead, TimePoint deadline) {
  MutexLock lock(&mu_);
  SetDemandLocked(target, ahead, deadline);
  if (!options_.caller_pumps) PokeIfWanted(0);
}

void SampleBuffer::SetDemandLocked(int64_t target, int64_t ahead, TimePoint deadline) {
  demand_.target = target;
  demand_.ahead = ahead;
  demand_.deadline = deadline;
  demand_.timed_out = false;
}

std::optional<std::string> SampleBuffer::demand_timeout() const {
  MutexLock lock(&mu_);
  if (!demand_.timed_out) return std::nullopt;
  return demand_.reason;
}

bool SampleBuffer::HasNews() const {
  if (closed_ || ended_ || !ready_.empty() || explanation_news_) return true;
  if (!caller_takes()) return delivered_ >= options_.limit;
  return poked_ || demand_.timed_out || HasGroup();
}

Status SampleBuffer::Wait(Waiter* waiter, TimePoint explain_at) {
  MutexLock lock(&mu_);
  const Status status = waiter->Until(&mu_, &changed_, [&]() REQUIRES(mu_) {
    return HasNews() || Clock::System()->Now() >= explain_at;
  });
  explanation_news_ = false;
  poked_ = false;  // the caller works the stream next
  return status;
}

Status SampleBuffer::WaitForRest(Waiter* waiter) {
  MutexLock lock(&mu_);
  return waiter->Until(&mu_, &changed_, [&]() REQUIRES(mu_) {
    return HasNews() || std::all_of(workers_.begin(), workers_.end(),
                                    [](const auto& w) { return w.resting && !w.poked; });
  });
}

int64_t SampleBuffer::outstanding() const {
  MutexLock lock(&mu_);
  return outstanding_;
}

void SampleBuffer::End(const std::string& reason) {
  Garbage garbage;
  MutexLock lock(&mu_);
  EndLocked(reason, &garbage);
}

void SampleBuffer::EndLocked(const std::string& reason, Garbage* garbage) {
  ended_ = reason;
  for (size_t i = pool_begin_; i < pool_.size(); ++i) Drop(&pool_[i], garbage);
  pool_.clear();
  pool_begin_ = 0;
}

void SampleBuffer::Abandon() {
  MutexLock lock(&mu_);
  for (size_t i = 0; i < workers_.size(); ++i) {
    workers_[i].abandon = true;
    PokeLocked(static_cast<int>(i));
  }
}

std::string SampleBuffer::lost() const {
  MutexLock lock(&mu_);
  for (const WorkerState& worker : workers_) {
    if (worker.lost.empty()) return "";
  }
  return workers_.empty() ? "" : workers_[0].lost;
}

void SampleBuffer::ClearExplanation() {
  MutexLock lock(&mu_);
  explanation_.reset();
}

void SampleBuffer::SetExplanation(std::string text) {
  MutexLock lock(&mu_);
  explanation_ = std::move(text);
  explanation_news_ = true;
  changed_.SignalAll();
}

std::optional<std::string> SampleBuffer::explanation() const {
  MutexLock lock(&mu_);
  return explanation_;
}

Status SampleBuffer::WaitForExplanation(Waiter* waiter) {
  MutexLock lock(&mu_);
  return waiter->Until(&mu_, &changed_,
                       [&]() REQUIRES(mu_) { return explanation_ || closed_ || ended_; });
}

// ---- freshness ----

uint64_t SampleBuffer::GenerationOf(const StreamRecord& record) {
  return record.stream ? record.stream->generation() : record.generation;
}

bool SampleBuffer::IsStale(const SampleRun& run, TimePoint call_start) const {
  if (run.generation < GenerationOf(*run.stream)) return true;
  return options_.max_age && run.oldest < call_start - *options_.max_age;
}

void SampleBuffer::DropStale(TimePoint call_start, Garbage* garbage) {
  const StreamRecord* stream = nullptr;
  uint64_t generation = 0;
  TimePoint oldest = TimePoint::min();
  if (options_.max_age && call_start - TimePoint() > *options_.max_age) {
    oldest = call_start - *options_.max_age;
  }
  size_t kept = pool_begin_;
  for (size_t i = pool_begin_; i < pool_.size(); ++i) {
    BufferedSample& s = pool_[i];
    if (s.stream != stream) {
      stream = s.stream;
      generation = GenerationOf(*stream);
    }
    const bool is_open = s.first_step > 0;
    if (s.sample.generation < generation || (s.arrived < oldest && !is_open)) {
      Drop(&s, garbage);
    } else {
      if (kept != i) pool_[kept] = std::move(s);
      ++kept;
    }
  }
  pool_.resize(kept);
}

// ---- a worker's side ----

bool SampleBuffer::WaitForWork(int worker, TimePoint until) {
  MutexLock lock(&mu_);
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  state.resting = true;
  if (in_next_) changed_.SignalAll();
  while (!closed_ && !state.poked) {
    const TimePoint wake = std::min(until, state.ack_at);
    if (wake != kNever && Clock::System()->Now() >= wake) break;
    state.wake.WaitUntil(&mu_, wake);
  }
  state.resting = false;
  state.poked = false;
  return !closed_;
}

void SampleBuffer::WaitForPoke(int worker, TimePoint until) {
  MutexLock lock(&mu_);
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  while (!state.poked && state.wake.WaitUntil(&mu_, until)) {
  }
  state.poked = false;
}

void SampleBuffer::Poke(int worker) {
  MutexLock lock(&mu_);
  PokeLocked(worker);
}

void SampleBuffer::PokeLocked(int worker) {
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  if (!std::exchange(state.poked, true)) state.wake.SignalAll();
  if (options_.caller_pumps) {
    poked_ = true;
    changed_.SignalAll();
  }
}

void SampleBuffer::PokeIfWanted(int worker) {
  if (!workers_[static_cast<size_t>(worker)].poked && Wanted(worker) > 0) {
    PokeLocked(worker);
  }
}

int64_t SampleBuffer::ItemsFor(int64_t steps) const {
  return most_steps_ == 0 ? 1 : (steps + most_steps_ - 1) / most_steps_;
}

int64_t SampleBuffer::Demanded() const {
  if (demand_.timed_out) return 0;
  const int64_t missing = demand_.target - pool_steps_;
  if (missing > 0) return ItemsFor(missing) + demand_.ahead - outstanding_;
  const int64_t surplus = options_.steps ? unopened() : -missing;
  return demand_.ahead - surplus - outstanding_;
}

int64_t SampleBuffer::Wanted(int worker) const {
  const WorkerState& state = workers_[static_cast<size_t>(worker)];
  if (closed_ || ended_ || state.failed || errors_ > 0) return 0;
  int64_t n = 0;
  if (options_.on_demand) {
    n = Demanded();
  } else if (state.undelivered <= options_.round / 2) {
    n = options_.round;
  } else if (options_.steps) {
    // Rounds that have too few steps for a batch.
    if (outstanding_ == 0 && pool_steps_ < group()) n = ItemsFor(group() - pool_steps_);
  } else if (held_ < group()) {
    n = group() - held_;  // rounds that don't divide into batches
  }
  return std::max<int64_t>(0, std::min(n, options_.limit - delivered_ - held_));
}

SampleBuffer::Turn SampleBuffer::BeginTurn(int worker) {
  MutexLock lock(&mu_);
  WorkerState& state = workers_[static_cast<size_t>(worker)];
  Turn turn;
  if (state.ack_at != kNever && state.ack_at <= Clock::System()->Now()) {
    state.ack_at = kNever;
    turn.ack_due = true;
  }
  turn.abandon = std::exchange(state.abandon, false);
  turn.reached = std::exchange(state.reached, false);
  return turn;
}

bool SampleBuffer::WantsStream(int worker) const {
  MutexLock lock(&mu_);
  return Wanted(worker) > 0;
}

void SampleBuffer::Report(StreamRecord* record, SampleRequest* request, TimePoint now) {
  if (!record->acknowledges) return;
  record->ledger.Report(request);
  request->partial = std::exchange(record->partial, 0);
  // Looked at again then, so that a busy caller need not wake the worker.
  workers_[static_cast<size_t>(record->worker)].ack_at =
      options_.caller_pumps ? kNever : now + kAckDelay;
}

SampleBuffer::Planned SampleBuffer::PlanRequest(StreamRecord* record, bool ack_due,
                                                SampleRequest* request) {
  MutexLock lock(&mu_);
  const int64_t room = options_.max_samples_per_stream - record->requested;
  if (room <= 0 && record->outstanding == 0) return Planned::kStreamIsFull;
  const int64_t n = std::min(Wanted(record->worker), room);
  const bool acknowledge = ack_due && record->acknowledges && record->has_news();
  if (n <= 0 && !acknowledge) return Planned::kNothing;
  const TimePoint now = Clock::System()->Now();
  Report(record, request, now);
  if (n <= 0) return Planned::kRequest;
  request->num_samples = n;
  if (options_.on_demand && demand_.deadline != kNever) {
    request->timeout = std::max(demand_.deadline - now, Duration::zero());
  }
  record->requested += n;
  record->outstanding += n;
  workers_[static_cast<size_t>(record->worker)].undelivered += n;
  outstanding_ += n;
  held_ += n;
  return Planned::kRequest;
}

bool SampleBuffer::PlanAck(StreamRecord* record, SampleRequest* request) {
  MutexLock lock(&mu_);
  if (!record->acknowledges || !record->has_news()) return false;
  Report(record, request, Clock::System()->Now());
  return true;
}

void SampleBuffer::Arrived(StreamRecord* record, uint64_t generation,
                           std::vector<SampledItem> items,
                           const std::vector<Refusal>& refused) {
  const TimePoint now = Clock::System()->Now();
  const auto count = static_cast<int64_t>(items.size());
  Garbage garbage;
  MutexLock lock(&mu_);
  const int64_t first = record->ledger.Add(count);
  record->outstanding -= count;
  outstanding_ -= count;
  if (pool_begin_ * 2 > pool_.size()) {
    pool_.erase(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(pool_begin_));
    pool_begin_ = 0;
  }
  size_t next_refused = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    const int64_t position = first + static_cast<int64_t>(i);
    const bool is_refused =
        next_refused < refused.size() && refused[next_refused].index == i;
    if (is_refused) PushError(refused[next_refused++].status);
    if (is_refused || items[i].generation < generation) {
      garbage.push_back(std::move(items[i].item));
      SettleRun(record, position, 1, /*delivered=*/false);
    } else {
      const int32_t steps = options_.steps ? NumSteps(*items[i].item) : 1;
      pool_.push_back({std::move(items[i]), record, position, now, 0, steps});
      pool_steps_ += steps;
      most_steps_ = std::max<int64_t>(most_steps_, steps);
    }
  }
  if (caller_takes()) changed_.SignalAll();
}

void SampleBuffer::GiveUp(StreamRecord* record, int64_t missing,
                          const std::optional<std::string>& timeout) {
  MutexLock lock(&mu_);
  record->outstanding -= missing;
  outstanding_ -= missing;
  held_ -= missing;
  workers_[static_cast<size_t>(record->worker)].undelivered -= missing;
  if (timeout && demand_.target > 0 && demand_.deadline != kNever &&
      Clock::System()->Now() + kClockSlack >= demand_.deadline) {
    demand_.timed_out = true;
    demand_.reason = *timeout;
    changed_.SignalAll();
  }
}

void SampleBuffer::DropSamples(StreamRecord* record) {
  Garbage garbage;
  MutexLock lock(&mu_);
  size_t kept = pool_begin_;
  for (size_t i = pool_begin_; i < pool_.size(); ++i) {
    // An open item was delivered, whatever becomes of its stream.
    if (pool_[i].stream == record && pool_[i].first_step == 0) {
      Drop(&pool_[i], &garbage);
    } else {
      if (kept != i) pool_[kept] = std::move(pool_[i]);
      ++kept;
    }
  }
  pool_.resize(kept);
}

void SampleBuffer::EndStream(StreamRecord* record) {
  std::unique_ptr<SampleStream> ended;  // destroyed without the lock
  MutexLock lock(&mu_);
  record->retired = true;
  if (record->stream) record->generation = record->stream->generation();
  ended = std::move(record->stream);
}

bool SampleBuffer::is_pending(const StreamRecord& record) const {
  MutexLock lock(&mu_);
  return record.is_pending();
}

void SampleBuffer::Retire(StreamRecord* record) {
  MutexLock lock(&mu_);
  record->retired = true;
}

void SampleBuffer::TakeWork(Work* work) {
  MutexLock lock(&mu_);
  if (caller_takes()) return;
  int64_t n = pool_size();
  if (!options_.batch_size) {
    n = std::min(n, kSinglesPerTurn);
  } else if (n >= *options_.batch_size) {
    n = *options_.batch_size;
  } else if (outstanding_ > 0 || assembling_ > 0 || delivered_ + held_ < options_.limit) {
    return;  // more are to come, or whole batches, which the short one follows
  }
  if (n == 0) return;
  ++assembling_;
  TakeFromPool(n, &work->samples);
  const int64_t batches = options_.batch_size ? 1 : n;
  for (int64_t i = 0; i < batches; ++i) {
    if (spares_.empty()) {
      work->out.push_back(std::make_unique<ReadyBatch>());
    } else {
      work->out.push_back(std::move(spares_.back()));
      spares_.pop_back();
    }
  }
}

void SampleBuffer::PushReady(Work* work) {
  MutexLock lock(&mu_);
  --assembling_;
  for (ReadyPtr& ready : work->out) {
    if (ready->status.ok()) {
      ready_.push_back(std::move(ready));
      continue;
    }
    PushError(std::move(ready->status));
    for (const SampleRun& run : ready->runs) {
      SettleRun(run.stream, run.first, run.count, /*delivered=*/false);
    }
  }
  changed_.SignalAll();
}

void SampleBuffer::NoteReached(int worker) {
  MutexLock lock(&mu_);
  workers_[static_cast<size_t>(worker)].reached = true;
  PokeLocked(worker);
}

void SampleBuffer::SetLost(int worker, std::string error) {
  MutexLock lock(&mu_);
  workers_[static_cast<size_t>(worker)].lost = std::move(error);
}

void SampleBuffer::Fail(int worker, Status status) {
  MutexLock lock(&mu_);
  workers_[static_cast<size_t>(worker)].failed = true;
  PushError(std::move(status));
}

}  // namespace reverb_tf
