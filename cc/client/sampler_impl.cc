#include "cc/client/sampler_impl.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "cc/base/logging.h"
#include "cc/base/mutex.h"
#include "cc/client/batch_assembler.h"
#include "cc/client/sample_buffer.h"
#include "cc/client/sampler_worker.h"

namespace reverb_tf {
namespace {

// How long a time-out's text may wait for the server's explanation, and a caller for the
// server's word that a request timed out.
constexpr Duration kServerGrace = std::chrono::seconds(1);
// How long closing may wait for the server to take back what wasn't delivered: Ctrl-C
// closes.
constexpr Duration kCloseGrace = std::chrono::milliseconds(500);
// Ahead of Waiter's first line, so that it has the explanation.
constexpr Duration kFirstExplanation = std::chrono::milliseconds(2500);
constexpr Duration kClockSlack = std::chrono::milliseconds(2);
constexpr Duration kAskAgain = std::chrono::milliseconds(20);

// The limiter lets a sample through.
bool IsOpen(const TableInfo& table) {
  const RateLimiter limiter(table.config.rate_limiter, table.insert_count,
                            table.sample_count, table.delete_count);
  return table.current_size > 0 && limiter.CanSample(1);
}

std::string Seconds(Duration d) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(d).count());
  return text;
}

// One call of Next that waits.
struct NextCall {
  TimePoint start;
  TimePoint limiter_deadline;
  TimePoint deadline;  // of the caller's own bound
  TimePoint explain_at;
  // When asked for the reason, the server couldn't be reached, or didn't answer.
  bool unreachable = false;
  bool unanswered = false;
  bool open = false;  // it told that the table gives samples
  WaitOptions wait;   // what `waiter` refers to
  std::optional<Waiter> waiter;

  TimePoint first_deadline() const { return std::min(limiter_deadline, deadline); }
};

class SamplerImpl : public Sampler {
 public:
  SamplerImpl(std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
              std::string address, const SamplerOptions& options)
      : transport_(std::move(transport)),
        cache_(std::move(cache)),
        address_(std::move(address)),
        options_(options) {}
  ~SamplerImpl() override { Close(); }

  Status Next(const WaitOptions& wait, SampleBatch* out) override;
  void Close() override;
  int64_t delivered() const override { return buffer_.delivered(); }
  void set_delivered(int64_t n) override { buffer_.set_delivered(n); }

 private:
  int64_t group() const { return options_.batch_size.value_or(1); }

  // The first Next learns about the table and starts the workers.
  Status Start(const WaitOptions& wait);
  Result<DeliveryPlan> MakePlan(const WaitOptions& wait, TableConfig* table);
  Result<std::shared_ptr<const TableInfo>> FindTable(const WaitOptions& wait);
  SampleBuffer::Options BufferOptions(const TableConfig& table) const;
  Status StartWorkers(const SampleBuffer::Options& options, SignatureScope scope);

  void BeginCall(const WaitOptions& wait, TimePoint start, NextCall* call);
  Status NextPrefetched(NextCall* call, SampleBatch* out);
  Status NextOnDemand(NextCall* call, SampleBatch* out);
  Status WaitForDemand(NextCall* call, bool* give_up);
  // Waits until there may be news; DEADLINE_EXCEEDED at the earlier deadline.
  Status Wait(NextCall* call);
  // A prefetched batch, or leaves `*got` false.
  Status TryPrefetched(TimePoint call_start, SampleBatch* out, bool* got);
  // Makes tensors of samples and hands them out, or gives them back.
  Status Deliver(const std::vector<BufferedSample>& samples, SampleBatch* out);
  // The call's time is over (the connection is there): the end of the sequence, perhaps
  // after a short batch, or DEADLINE_EXCEEDED.
  Status TimedOut(NextCall* call, const std::string& explanation, SampleBatch* out);
  Status EndSequence(SampleBatch* out);
  bool LimiterExpired(const NextCall& call) const;

  std::string What() const {
    return "a sample of table '" + options_.table + "' at " + address_;
  }
  // The limiter's text, or what is wrong with the connection.
  std::string Reason() const;
  void StartExplaining();
  // Until when a server that is connected may keep silent about a time-out of the limiter:
  // it tells of that itself, if late when it is busy.
  TimePoint AnswerDeadline(const NextCall& call) const;
  // Asks the server why there are no samples, when all requests are out; "" if it doesn't
  // say (call->unanswered), or can't be reached (call->unreachable).
  std::string Explain(NextCall* call);

  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<TableCache> cache_;
  const std::string address_;
  const SamplerOptions options_;
  SampleBuffer buffer_;

  // Set by the first Next.
  bool started_ = false;
  Status start_error_;  // no threads
  bool on_demand_ = false;
  bool caller_pumps_ = false;
  std::unique_ptr<BatchAssembler> assembler_;
  std::vector<std::unique_ptr<SamplerWorker>> workers_;

  // Of Next alone.
  ReadyPtr spare_;
  std::vector<BufferedSample> samples_;
  std::vector<const SampledItem*> batch_;
  std::vector<StepRun> steps_;
  PlainChunks plain_chunks_;
  std::unique_ptr<Call> explain_call_;
  // Read after SetExplanation.
  Status explain_error_;
  bool explained_open_ = false;

  Mutex close_mu_;  // one Close at a time
  bool closed_ GUARDED_BY(close_mu_) = false;
};

// ---- the start ----

Result<std::shared_ptr<const TableInfo>> SamplerImpl::FindTable(const WaitOptions& wait) {
  WaitOptions bounded = wait;
  // A single try needs time for an answer.
  bounded.timeout =
      std::min(wait.timeout, std::max(options_.reconnect_timeout, kServerGrace));
  auto table = cache_->Find(options_.table, bounded);
  if (!table.ok() && table.status().code() == StatusCode::kDeadlineExceeded &&
      bounded.timeout < wait.timeout) {
    return UnavailableError(table.status().message());
  }
  return table;
}

Result<DeliveryPlan> SamplerImpl::MakePlan(const WaitOptions& wait, TableConfig* table) {
  const bool cached = cache_->Known(options_.table) != nullptr;
  RTF_ASSIGN_OR_RETURN(const auto info, FindTable(wait));
  *table = info->config;
  Result<DeliveryPlan> plan = DeliveryPlan::Make(options_, *table);
  if (plan.ok() || !cached) return plan;
  // What was remembered may be out of date: a reset, another server.
  if (!cache_->Refresh(wait).ok()) return plan;
  RTF_ASSIGN_OR_RETURN(const auto fresh, FindTable(wait));
  *table = fresh->config;
  return DeliveryPlan::Make(options_, *table);
}

SampleBuffer::Options SamplerImpl::BufferOptions(const TableConfig& table) const {
  SampleBuffer::Options options;
  options.consuming = table.is_consuming();
  options.on_demand = options_.on_demand || options.consuming ||
                      options_.rate_limiter_timeout == Duration::zero();
  options.caller_pumps = options.on_demand && transport_->is_local();
  if (!options.on_demand && !table.sampler.is_deterministic()) {
    options.num_workers = options_.num_workers;
  }
  options.batch_size = options_.batch_size;
  options.steps = options_.emit_steps;
  options.round = options_.max_in_flight;
  if (!options_.emit_steps) options.round = std::max(options.round, group());
  if (options_.max_samples) {
    options.limit = *options_.max_samples;
    const int64_t rest = std::max<int64_t>(0, options.limit - buffer_.delivered());
    // A short last batch isn't even asked for, if it is known to be one.
    options.drop_remainder = options_.drop_remainder && options_.emit_steps;
    if (options_.drop_remainder && !options_.emit_steps) options.limit -= rest % group();
  }
  options.max_samples_per_stream = options_.max_samples_per_stream;
  options.max_age = options_.max_age;
  return options;
}

Status SamplerImpl::Start(const WaitOptions& wait) {
  TableConfig table;
  RTF_ASSIGN_OR_RETURN(DeliveryPlan plan, MakePlan(wait, &table));
  const SampleBuffer::Options options = BufferOptions(table);
  if (options_.num_workers > 1 && table.sampler.is_deterministic()) {
    Log(LogLevel::kInfo, "table '" + options_.table +
                             "' has a deterministic sampler: one worker reads it in its "
                             "order (num_workers_per_iterator " +
                             std::to_string(options_.num_workers) + ")");
  }
  on_demand_ = options.on_demand;
  caller_pumps_ = options.caller_pumps;
  const SignatureScope scope = plan.scope();
  assembler_ = std::make_unique<BatchAssembler>(std::move(plan), options_.pad_to_longest);
  buffer_.Configure(options);
  started_ = true;
  start_error_ = StartWorkers(options, scope);
  return OkStatus();
}

Status SamplerImpl::StartWorkers(const SampleBuffer::Options& options,
                                 SignatureScope scope) {
  WorkerOptions worker;
  worker.table = options_.table;
  worker.address = address_;
  worker.scope = scope;
  worker.seed = options_.seed;
  worker.seed_iterator = options_.seed_iterator;
  worker.seed_position = static_cast<uint64_t>(buffer_.delivered());
  worker.reconnect_timeout = options_.reconnect_timeout;
  worker.unbatched = !options_.batch_size;
  worker.consuming = options.consuming;
  for (worker.index = 0; worker.index < options.num_workers; ++worker.index) {
    workers_.push_back(std::make_unique<SamplerWorker>(worker, transport_.get(), &buffer_,
                                                       assembler_.get()));
  }
  if (caller_pumps_) return OkStatus();
  for (const auto& w : workers_) RTF_RETURN_IF_ERROR(w->StartThread());
  return OkStatus();
}

// ---- Next ----

Status SamplerImpl::Next(const WaitOptions& wait, SampleBatch* out) {
  const TimePoint start = Clock::System()->Now();
  RTF_RETURN_IF_ERROR(buffer_.BeginNext(start));
  WaitOptions interruptible = wait;
  interruptible.interrupted = [&] {
    if (buffer_.is_closed()) return CancelledError("the sampler was closed");
    return wait.interrupted ? wait.interrupted() : OkStatus();
  };
  Status status;
  const bool first = !started_;
  if (first) status = Start(interruptible);
  if (status.ok()) status = start_error_;
  if (status.ok()) {
    NextCall call;
    // The first call's limiter clock doesn't run while the table is asked for.
    BeginCall(interruptible, first ? Clock::System()->Now() : start, &call);
    call.deadline = DeadlineAfter(start, wait.timeout);
    status = on_demand_ ? NextOnDemand(&call, out) : NextPrefetched(&call, out);
  }
  explain_call_.reset();
  buffer_.EndNext();
  return status;
}

void SamplerImpl::BeginCall(const WaitOptions& wait, TimePoint start, NextCall* call) {
  call->start = start;
  call->limiter_deadline = DeadlineAfter(call->start, options_.rate_limiter_timeout);
  call->explain_at = call->start + kFirstExplanation;
  call->wait = wait;
}

Status SamplerImpl::TryPrefetched(TimePoint call_start, SampleBatch* out, bool* got) {
  if (options_.emit_steps) {
    RTF_RETURN_IF_ERROR(buffer_.Take(call_start, group(), &samples_));
    *got = !samples_.empty();
    return *got ? Deliver(samples_, out) : OkStatus();
  }
  ReadyPtr ready;
  RTF_RETURN_IF_ERROR(buffer_.Poll(call_start, std::move(spare_), &ready));
  *got = ready != nullptr;
  if (!ready) return OkStatus();
  if (!ready->status.ok()) return ready->status;
  std::swap(*out, ready->batch);
  // Its vectors are used again, the tensors are not kept.
  for (Tensor& tensor : ready->batch.columns) tensor.buffer = nullptr;
  spare_ = std::move(ready);
  return OkStatus();
}

Status SamplerImpl::NextPrefetched(NextCall* call, SampleBatch* out) {
  const TimePoint last_answer = AnswerDeadline(*call);
  std::optional<std::string> explanation;
  while (true) {
    bool got = false;
    RTF_RETURN_IF_ERROR(TryPrefetched(call->start, out, &got));
    if (got) return OkStatus();
    const Status waited = Wait(call);
    if (waited.ok()) continue;
    if (waited.code() != StatusCode::kDeadlineExceeded) return waited;
    if (!call->unreachable && buffer_.lost().empty()) {
      const TimePoint now = Clock::System()->Now();
      if (explanation && call->open && now < last_answer) {
        // What the table gives is on its way.
        call->waiter->set_deadline(std::min(now + kAskAgain, last_answer));
        explanation.reset();
        continue;
      }
      call->unanswered |= call->open;
      if (explanation) return TimedOut(call, *explanation, out);
      explanation = Explain(call);
      continue;
    }
    if (Clock::System()->Now() >= call->deadline) return TimedOut(call, "", out);
    // Not the limiter's fault; reconnect_timeout bounds that.
    explanation.reset();
    call->unreachable = false;
    call->limiter_deadline =
        DeadlineAfter(Clock::System()->Now(), options_.rate_limiter_timeout);
    call->waiter->set_deadline(call->first_deadline());
  }
}

Status SamplerImpl::NextOnDemand(NextCall* call, SampleBatch* out) {
  buffer_.SetDemand(group(), options_.consume_ahead, call->first_deadline());
  Status status;
  bool give_up = false;
  while (true) {
    if (caller_pumps_) workers_[0]->Pump();
    status = buffer_.Take(call->start, group(), &samples_);
    if (!status.ok()) break;
    if (!samples_.empty()) {
      status = Deliver(samples_, out);
      break;
    }
    if (const auto explanation = buffer_.demand_timeout()) {
      status = TimedOut(call, *explanation, out);
      break;
    }
    status = WaitForDemand(call, &give_up);
    if (!status.ok()) break;
  }
  if (!status.ok()) buffer_.SetDemand(0, 0, kNever);
  // A caller who gave up leaves no request behind, which would take what others want.
  if (give_up && buffer_.outstanding() > 0) buffer_.Abandon();
  if (caller_pumps_) workers_[0]->Pump();  // acknowledges, and asks for those ahead
  return status;
}

TimePoint SamplerImpl::AnswerDeadline(const NextCall& call) const {
  return std::max(DeadlineAfter(call.first_deadline(), kServerGrace),
                  std::min(call.deadline, DeadlineAfter(call.first_deadline(),
                                                        options_.reconnect_timeout)));
}

Status SamplerImpl::WaitForDemand(NextCall* call, bool* give_up) {
  const Status waited = Wait(call);
  if (waited.ok()) return waited;
  const bool lost = !buffer_.lost().empty();
  if (waited.code() == StatusCode::kDeadlineExceeded) {
    const TimePoint now = Clock::System()->Now();
    if (lost && now < call->deadline) {
      call->limiter_deadline = DeadlineAfter(now, options_.rate_limiter_timeout);
      if (options_.rate_limiter_timeout == Duration::zero()) {
        call->limiter_deadline = now + kServerGrace;
      }
      call->waiter->set_deadline(call->first_deadline());
      buffer_.SetDemand(group(), options_.consume_ahead, call->first_deadline());
      return OkStatus();
    }
    const TimePoint last = AnswerDeadline(*call);
    if (!lost && now < last) {
      call->waiter->set_deadline(last);
      return OkStatus();
    }
  }
  *give_up = true;
  if (waited.code() != StatusCode::kDeadlineExceeded) return waited;
  return DeadlineExceededError("timed out after " +
                               Seconds(Clock::System()->Now() - call->start) +
                               " waiting for " + What() + ": " + Reason());
}

Status SamplerImpl::Deliver(const std::vector<BufferedSample>& samples, SampleBatch* out) {
  Status status;
  if (options_.emit_steps) {
    steps_.clear();
    for (const BufferedSample& s : samples) {
      steps_.push_back({&s.sample, s.first_step, s.num_steps});
    }
    status = assembler_->AssembleSteps(steps_, options_.batch_size.has_value(),
                                       &plain_chunks_, out);
  } else if (options_.batch_size) {
    batch_.clear();
    for (const BufferedSample& sample : samples) batch_.push_back(&sample.sample);
    status = assembler_->AssembleBatch(batch_, out);
  } else {
    status = assembler_->AssembleOne(samples[0].sample, out);
  }
  buffer_.Settle(samples, /*delivered=*/status.ok());
  samples_.clear();  // drops the references to chunks
  return status;
}

bool SamplerImpl::LimiterExpired(const NextCall& call) const {
  return call.limiter_deadline != kNever &&
         Clock::System()->Now() + kClockSlack >= call.limiter_deadline;
}

Status SamplerImpl::TimedOut(NextCall* call, const std::string& explanation,
                             SampleBatch* out) {
  const bool reached = buffer_.lost().empty() && !call->unreachable && !call->unanswered;
  if (options_.end_on_timeout && reached && LimiterExpired(*call)) return EndSequence(out);
  const std::string reason = explanation.empty() ? Reason() : explanation;
  return DeadlineExceededError("timed out after " +
                               Seconds(Clock::System()->Now() - call->start) +
                               " waiting for " + What() + ": " + reason);
}

Status SamplerImpl::EndSequence(SampleBatch* out) {
  const std::string reason = "the sequence ended: no sample of table '" + options_.table +
                             "' within rate_limiter_timeout (" +
                             Seconds(options_.rate_limiter_timeout) + ")";
  Status status = OutOfRangeError(reason);
  if (options_.batch_size && !options_.drop_remainder) {
    buffer_.TakeRest(group(), &samples_);
    if (!samples_.empty()) {
      status = Deliver(samples_, out);
      if (!status.ok()) return status;
    }
  }
  buffer_.End(reason);
  buffer_.Abandon();  // the rest goes back
  return status;
}

// ---- waiting ----

Status SamplerImpl::Wait(NextCall* call) {
  const TimePoint now = Clock::System()->Now();
  if (!call->waiter) {
    call->waiter.emplace(call->wait, [this] { return What() + ": " + Reason(); });
    call->waiter->set_deadline(call->first_deadline());
  }
  if (now >= call->explain_at) {
    // Waiter's lines come after 3 s, 30 s, and then every 5 min.
    const Duration waited = now - call->start;
    call->explain_at = call->start + (waited < std::chrono::seconds(28)
                                          ? std::chrono::milliseconds(29'500)
                                          : waited + std::chrono::minutes(1));
    StartExplaining();
  }
  return buffer_.Wait(&*call->waiter, call->explain_at);
}

std::string SamplerImpl::Reason() const {
  const std::string lost = buffer_.lost();
  return lost.empty() ? buffer_.explanation().value_or("no answer yet") : lost;
}

void SamplerImpl::StartExplaining() {
  explain_call_.reset();
  buffer_.ClearExplanation();
  explain_call_ = transport_->GetServerInfo([this](Result<ServerInfo> info) {
    explain_error_ = info.status();
    explained_open_ = false;
    if (!info.ok()) {
      buffer_.SetExplanation(info.status().message());
      return;
    }
    for (TableInfo& table : info->tables) {
      if (table.config.name == options_.table) {
        explained_open_ = IsOpen(table);
        buffer_.SetExplanation(std::move(table.explain));
      }
    }
  });
}

std::string SamplerImpl::Explain(NextCall* call) {
  const TimePoint last = AnswerDeadline(*call);
  WaitOptions options;
  options.timeout = last == kNever ? kForever : last - Clock::System()->Now();
  options.interrupted = call->wait.interrupted;
  Waiter waiter(options, [this] { return What() + ": " + Reason(); });
  call->unanswered = true;
  call->open = false;
  // Requests go out before the question, and their answers come before its.
  if (!buffer_.WaitForRest(&waiter).ok()) return "";
  StartExplaining();
  if (!buffer_.WaitForExplanation(&waiter).ok()) return "";
  call->unanswered = false;
  call->unreachable = !explain_error_.ok();
  call->open = explained_open_;
  return buffer_.explanation().value_or("");
}

// ---- the end ----

void SamplerImpl::Close() {
  buffer_.Close();
  MutexLock lock(&close_mu_);
  if (std::exchange(closed_, true)) return;
  for (const auto& worker : workers_) worker->BeginClose();
  const TimePoint deadline = Clock::System()->Now() + kCloseGrace;
  for (const auto& worker : workers_) worker->FinishClose(deadline);
  buffer_.Clear();
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
