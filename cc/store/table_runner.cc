#include "cc/store/table_runner.h"

#include <algorithm>
#include <utility>

namespace reverb_tf {
namespace {

constexpr Duration kForgetInterval = std::chrono::minutes(1);

int64_t Milliseconds(Duration d) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}

// The listeners touched in a section; nearly always one, which costs no allocation.
template <typename Listener>
class Touched {
 public:
  template <typename Stream>
  void Add(Stream* stream) {
    if (std::exchange(stream->touched, true)) return;
    flags_.Add(&stream->touched);
    listeners_.Add(stream->listener);
  }
  void ClearFlags() {
    flags_.ForEach([](bool* flag) { *flag = false; });
  }
  void NotifyAll() {
    listeners_.ForEach([](const std::shared_ptr<Listener>& l) { l->Notify(); });
  }

 private:
  template <typename T>
  class List {
   public:
    void Add(T value) {
      if (first_) {
        rest_.push_back(std::move(value));
      } else {
        first_ = std::move(value);
      }
    }
    template <typename F>
    void ForEach(F f) {
      if (!first_) return;
      f(first_);
      for (T& value : rest_) f(value);
    }

   private:
    T first_{};
    std::vector<T> rest_;
  };

  List<bool*> flags_;
  List<std::shared_ptr<Listener>> listeners_;
};

}  // namespace

// Holds mu_ from its construction to its end. What must not happen under the lock
// (freeing items, scheduling, notifying) happens after it was released.
class TableRunner::Section {
 public:
  enum Kind { kInsert, kSample, kOther };

  Section(TableRunner* runner, Kind kind) ACQUIRE(runner->mu_)
      : runner_(runner), kind_(kind) {
    runner_->mu_.Lock();
    now_ = runner_->clock_->Now();
  }

  ~Section() RELEASE(runner_->mu_) {
    writers_.ClearFlags();
    samplers_.ClearFlags();
    MeterWork();
    runner_->mu_.Unlock();
    if (!garbage_.empty()) runner_->FreeGarbage(&garbage_);
    if (deadline_ != kNever) runner_->ScheduleAt(deadline_);
    writers_.NotifyAll();
    samplers_.NotifyAll();
  }

  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

  TimePoint now() const { return now_; }
  Garbage* garbage() { return &garbage_; }
  void Touch(Writer* writer) { writers_.Add(writer); }
  void Touch(Sampler* sampler) { samplers_.Add(sampler); }
  void WakeAt(TimePoint deadline) { deadline_ = deadline; }

 private:
  void MeterWork() REQUIRES(runner_->mu_) {
    if (kind_ == kOther) return;
    Duration& sum = kind_ == kInsert ? runner_->inserting_ : runner_->sampling_;
    sum += runner_->clock_->Now() - now_;
  }

  TableRunner* const runner_;
  const Kind kind_;
  TimePoint now_;
  TimePoint deadline_ = kNever;
  Garbage garbage_;
  Touched<InsertListener> writers_;
  Touched<SampleListener> samplers_;
};

TableRunner::TableRunner(TableConfig config, const Clock* clock)
    : name_(config.name),
      config_(std::move(config)),
      clock_(clock),
      start_(clock->Now()),
      table_(config_),
      next_forget_(start_ + kForgetInterval) {}

TableRunner::~TableRunner() = default;

Status TableRunner::StartServing(const std::string& address, DeadlineScheduler* scheduler) {
  {
    MutexLock lock(&mu_);
    if (!address_.empty()) {
      return FailedPreconditionError("table '" + name_ + "' is already served at " +
                                     address_ + "; use replace() to make a new one");
    }
    address_ = address.empty() ? "?" : address;
  }
  MutexLock lock(&scheduler_mu_);
  scheduler_ = scheduler;
  return OkStatus();
}

void TableRunner::SetAddress(const std::string& address) {
  MutexLock lock(&mu_);
  address_ = address;
}

void TableRunner::AbortServing() {
  {
    MutexLock lock(&scheduler_mu_);
    scheduler_ = nullptr;
  }
  MutexLock lock(&mu_);
  address_.clear();
}

void TableRunner::StopServing(const Status& reason) {
  {
    MutexLock lock(&scheduler_mu_);
    scheduler_ = nullptr;
  }
  Section section(this, Section::kOther);
  if (stopped_) return;
  stopped_ = reason;
  for (InsertWaiter& w : insert_waiters_) {
    w.writer->listener->OnInserted(w.insert.cookie, reason);
    section.Touch(w.writer);
    section.garbage()->push_back(std::move(w.insert.item.item));
  }
  insert_waiters_.clear();
  for (auto& [key, sampler] : samplers_) Finish(&sampler, reason, &section);
  sample_waiters_.clear();
  MeterWaits(section.now());
}

void TableRunner::AddWriter(const std::shared_ptr<InsertListener>& writer) {
  MutexLock lock(&mu_);
  writers_[writer.get()].listener = writer;
}

void TableRunner::RemoveWriter(const InsertListener* writer) {
  std::shared_ptr<InsertListener> last_reference;  // freed after the section
  Section section(this, Section::kOther);
  const auto it = writers_.find(writer);
  if (it == writers_.end()) return;
  const auto end =
      std::remove_if(insert_waiters_.begin(), insert_waiters_.end(), [&](InsertWaiter& w) {
        if (w.writer != &it->second) return false;
        section.garbage()->push_back(std::move(w.insert.item.item));
        return true;
      });
  insert_waiters_.erase(end, insert_waiters_.end());
  last_reference = std::move(it->second.listener);
  writers_.erase(it);
  Pump(&section);
}

void TableRunner::AddSampler(const std::shared_ptr<SampleListener>& sampler) {
  MutexLock lock(&mu_);
  samplers_[sampler.get()].listener = sampler;
}

void TableRunner::RemoveSampler(const SampleListener* sampler,
                                const std::vector<Grant>& undelivered) {
  std::shared_ptr<SampleListener> last_reference;  // freed after the section
  Section section(this, Section::kOther);
  table_.GiveBack(undelivered, section.garbage());
  const auto it = samplers_.find(sampler);
  if (it != samplers_.end()) {
    const auto end =
        std::remove_if(sample_waiters_.begin(), sample_waiters_.end(),
                       [&](const SampleWaiter& w) { return w.sampler == &it->second; });
    sample_waiters_.erase(end, sample_waiters_.end());
    last_reference = std::move(it->second.listener);
    samplers_.erase(it);
  }
  Pump(&section);
}

Status TableRunner::CheckInserts(const std::vector<PendingInsert>& inserts) const {
  MutexLock lock(&mu_);
  for (const PendingInsert& insert : inserts) {
    RTF_RETURN_IF_ERROR(table_.CheckInsert(*insert.item.item, insert.item.priority));
  }
  return OkStatus();
}

void TableRunner::Insert(const std::shared_ptr<InsertListener>& writer,
                         std::vector<PendingInsert> inserts) {
  Section section(this, Section::kInsert);
  const auto it = writers_.find(writer.get());
  if (it == writers_.end()) return;
  Writer* const stream = &it->second;
  for (PendingInsert& insert : inserts) {
    if (stopped_) {
      writer->OnInserted(insert.cookie, *stopped_);
      section.Touch(stream);
    } else if (insert_waiters_.empty() ? !TryInsert(stream, &insert, &section)
                                       : !Settle(stream, insert, &section)) {
      insert_waiters_.push_back({stream, std::move(insert), section.now()});
    }
  }
  Pump(&section);
}

void TableRunner::Sample(const std::shared_ptr<SampleListener>& sampler, SampleCall call) {
  Section section(this, Section::kSample);
  const auto it = samplers_.find(sampler.get());
  if (it == samplers_.end()) return;
  SampleWaiter waiter{&it->second, std::move(call), section.now()};
  if (stopped_) return Finish(waiter.sampler, *stopped_, &section);
  if (sample_waiters_.empty() && Serve(&waiter, &section)) return Pump(&section);
  sample_waiters_.push_back(std::move(waiter));
  Pump(&section);  // what was granted may let inserts in, and those more samples
  if (sample_waiters_.empty()) return;
  SampleWaiter& last = sample_waiters_.back();
  last.waited = true;
  if (last.call.deadline <= section.now()) {
    Expire(section.now(), &section);
  } else if (last.call.deadline < next_deadline_) {
    next_deadline_ = last.call.deadline;
    section.WakeAt(next_deadline_);
  }
}

bool TableRunner::Settle(Writer* writer, const PendingInsert& insert, Section* section) {
  Status status = table_.CheckInsert(*insert.item.item, insert.item.priority);
  if (!status.ok()) {
    table_.CountRefusedInsert();
  } else if (!table_.IsRepeat(insert.item)) {
    return false;
  }
  writer->listener->OnInserted(insert.cookie, std::move(status));
  section->Touch(writer);
  return true;
}

bool TableRunner::TryInsert(Writer* writer, PendingInsert* insert, Section* section) {
  if (Settle(writer, *insert, section)) return true;
  if (!table_.CanInsert()) return false;
  table_.Insert(std::move(insert->item), section->now(), section->garbage());
  writer->listener->OnInserted(insert->cookie, OkStatus());
  section->Touch(writer);
  return true;
}

bool TableRunner::Serve(SampleWaiter* waiter, Section* section) {
  SampleCall& call = waiter->call;
  std::vector<SampledItem> items;
  const int64_t granted =
      call.num_samples > 0
          ? table_.Sample(call.num_samples, call.random.get(), &items, section->garbage())
          : 0;
  call.num_samples -= granted;
  if (granted > 0) {
    for (SampledItem& item : items) item.rate_limited = waiter->waited;
    waiter->sampler->listener->OnGranted(std::move(items));
    section->Touch(waiter->sampler);
    if (call.renewal > Duration(0)) {
      call.deadline = DeadlineAfter(section->now(), call.renewal);
    }
  }
  if (call.num_samples > 0) return false;
  Finish(waiter->sampler, OkStatus(), section);
  return true;
}

void TableRunner::Finish(Sampler* sampler, Status status, Section* section) {
  sampler->listener->OnRequestDone(std::move(status));
  section->Touch(sampler);
}

void TableRunner::Pump(Section* section) {
  for (bool moved = true; moved;) {
    moved = false;
    while (!insert_waiters_.empty()) {
      InsertWaiter& head = insert_waiters_.front();
      if (!TryInsert(head.writer, &head.insert, section)) break;
      if (head.insert.item.item) {
        section->garbage()->push_back(std::move(head.insert.item.item));
      }
      insert_waiters_.pop_front();
      moved = true;
    }
    while (!sample_waiters_.empty()) {
      SampleWaiter& head = sample_waiters_.front();
      const int64_t before = head.call.num_samples;
      const bool done = Serve(&head, section);
      moved |= head.call.num_samples != before;
      if (!done) break;
      sample_waiters_.pop_front();
    }
  }
  MeterWaits(section->now());
}

TimePoint TableRunner::Expire(TimePoint now, Section* section) {
  TimePoint next = kNever;
  bool any = false;
  for (const SampleWaiter& w : sample_waiters_) {
    if (w.call.deadline <= now) {
      any = true;
    } else {
      next = std::min(next, w.call.deadline);
    }
  }
  if (!any) return next;
  const Status status = DeadlineExceededError(InfoAt(now).explain);
  const auto end = std::remove_if(sample_waiters_.begin(), sample_waiters_.end(),
                                  [&](const SampleWaiter& w) {
                                    if (w.call.deadline > now) return false;
                                    table_.CountTimedOutSample();
                                    Finish(w.sampler, status, section);
                                    return true;
                                  });
  sample_waiters_.erase(end, sample_waiters_.end());
  MeterWaits(now);
  return next;
}

TimePoint TableRunner::ExpireWaiters(TimePoint now) {
  Section section(this, Section::kOther);
  next_deadline_ = Expire(now, &section);
  if (now >= next_forget_) {
    table_.ForgetIdleWriters(now);
    next_forget_ = now + kForgetInterval;
  }
  return next_deadline_;
}

void TableRunner::Delivered(const std::vector<Grant>& grants, int64_t num_partial) {
  Section section(this, Section::kSample);
  table_.Delivered(grants, section.garbage());
  table_.CountPartial(num_partial);
}

void TableRunner::GiveBack(const std::vector<Grant>& grants) {
  Section section(this, Section::kSample);
  table_.GiveBack(grants, section.garbage());
  Pump(&section);
}

Result<MutateCounts> TableRunner::Mutate(const std::vector<PriorityUpdate>& updates,
                                         const std::vector<uint64_t>& deletes) {
  Section section(this, Section::kOther);
  if (stopped_) return *stopped_;
  Result<MutateCounts> counts = table_.Mutate(updates, deletes, section.garbage());
  Pump(&section);
  return counts;
}

Status TableRunner::Reset() {
  Section section(this, Section::kOther);
  if (stopped_) return *stopped_;
  table_.Reset(section.garbage());
  for (auto& [key, sampler] : samplers_) {
    sampler.listener->OnReset(table_.generation());
    section.Touch(&sampler);
  }
  Pump(&section);
  return OkStatus();
}

Status TableRunner::DecideScope(SignatureScope scope) {
  Section section(this, Section::kOther);
  if (stopped_) return *stopped_;
  Status status = table_.DecideScope(scope);
  Pump(&section);  // the first in line may be one that is refused from now on
  return status;
}

void TableRunner::MeterWaits(TimePoint now) {
  insert_waits_.Set(static_cast<int64_t>(insert_waiters_.size()), now);
  sample_waits_.Set(static_cast<int64_t>(sample_waiters_.size()), now);
}

TableInfo TableRunner::InfoAt(TimePoint now) const {
  TableInfo info = table_.info();
  info.num_waiting_inserts = static_cast<int64_t>(insert_waiters_.size());
  info.num_waiting_samples = static_cast<int64_t>(sample_waiters_.size());
  TimePoint oldest = now;
  if (!insert_waiters_.empty()) oldest = std::min(oldest, insert_waiters_.front().since);
  if (!sample_waiters_.empty()) oldest = std::min(oldest, sample_waiters_.front().since);
  info.oldest_wait_s = std::chrono::duration<double>(now - oldest).count();
  info.num_writers = static_cast<int64_t>(writers_.size());
  info.num_samplers = static_cast<int64_t>(samplers_.size());
  WaitMeter inserts = insert_waits_;
  WaitMeter samples = sample_waits_;
  inserts.Set(inserts.count(), now);
  samples.Set(samples.count(), now);
  info.insert_stats.blocked_ms = inserts.total_ms();
  info.sample_stats.blocked_ms = samples.total_ms();
  // A waiting insert waits for samples and the other way round; a table that
  // neither works nor has anyone waiting sleeps.
  WorkerTime& time = info.worker_time;
  time.inserting_ms = Milliseconds(inserting_);
  time.sampling_ms = Milliseconds(sampling_);
  time.running_ms = time.inserting_ms + time.sampling_ms;
  time.waiting_for_sampling_ms = inserts.any_ms();
  time.waiting_for_inserts_ms = samples.any_ms();
  time.sleeping_ms = std::max<int64_t>(
      0, Milliseconds(now - start_) - time.running_ms -
             std::max(time.waiting_for_sampling_ms, time.waiting_for_inserts_ms));
  info.explain = ExplainTable(info);
  return info;
}

TableInfo TableRunner::Info() const {
  MutexLock lock(&mu_);
  return InfoAt(clock_->Now());
}

std::string TableRunner::Explain() const { return Info().explain; }

bool TableRunner::CanInsert(int64_t n) const {
  MutexLock lock(&mu_);
  return table_.LimiterAllowsInsert(n);
}

bool TableRunner::CanSample(int64_t n) const {
  MutexLock lock(&mu_);
  return table_.LimiterAllowsSample(n);
}

int64_t TableRunner::size() const {
  MutexLock lock(&mu_);
  return table_.size();
}

int64_t TableRunner::TakeFreedBytes() { return freed_bytes_.exchange(0); }

void TableRunner::ScheduleAt(TimePoint when) {
  MutexLock lock(&scheduler_mu_);
  if (scheduler_ != nullptr) scheduler_->ScheduleAt(when);
}

void TableRunner::FreeGarbage(Garbage* garbage) {
  int64_t bytes = 0;
  for (ItemPtr& item : *garbage) {
    const ChunkSlice* const slices = item->slices();
    for (int i = 0; i < item->num_slices(); ++i) {
      const Chunk& chunk = *slices[i].chunk;
      if (chunk.unique()) bytes += static_cast<int64_t>(chunk.stored_bytes());
    }
    item = nullptr;
  }
  freed_bytes_ += bytes;
}

}  // namespace reverb_tf
