#include "cc/client/sampler_worker.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace reverb_tf {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(10);
constexpr Duration kLongestBackoff = std::chrono::seconds(5);
constexpr int64_t kTakeItems = 1024;

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

// A server of another project ends the stream when its limiter's wait times out.
bool IsForeignTimeout(const StreamRecord& record, const Status& status) {
  return !record.acknowledges && status.code() == StatusCode::kDeadlineExceeded &&
         Contains(status.message(), "Rate Limiter: Timeout exceeded");
}

bool IsConnectionLoss(const Status& status) {
  return status.code() == StatusCode::kUnavailable ||
         (status.code() == StatusCode::kUnknown &&
          Contains(status.message(), "Stream removed"));
}

// A 64-bit finalizer: every bit of the input moves every bit of the output.
uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}

}  // namespace

SamplerWorker::SamplerWorker(WorkerOptions options, Transport* transport,
                             SampleBuffer* buffer, const BatchAssembler* assembler)
    : options_(std::move(options)),
      transport_(transport),
      buffer_(buffer),
      assembler_(assembler),
      backoff_(kFirstBackoff) {}

SamplerWorker::~SamplerWorker() {
  if (thread_.joinable()) thread_.join();
}

Status SamplerWorker::StartThread() {
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& e) {
    return ResourceExhaustedError(std::string("can't start a sampler's thread: ") +
                                  e.what());
  }
  return OkStatus();
}

void SamplerWorker::Run() {
  while (buffer_->WaitForWork(options_.index, NextTry())) Pump();
}

void SamplerWorker::Pump() {
  const SampleBuffer::Turn turn = buffer_->BeginTurn(options_.index);
  ack_due_ |= turn.ack_due;
  if (turn.reached) NoteConnected();
  if (turn.abandon && current_) Retire(/*withdraw=*/true);
  if (!retired_.empty()) WorkRetired();
  while ((current_ || OpenIfWanted()) && Work()) {
  }
  ack_due_ = ack_due_ && current_;
}

bool SamplerWorker::Work() {
  const bool took = TakeReply();
  if (!current_) return true;  // it broke the protocol
  if (CheckFinished()) return true;
  if (!current_->stream->can_send()) return took;
  SampleRequest request;
  switch (buffer_->PlanRequest(current_.get(), ack_due_, &request)) {
    case SampleBuffer::Planned::kNothing:
      ack_due_ = false;
      return took;
    case SampleBuffer::Planned::kStreamIsFull:
      Retire(/*withdraw=*/false);
      WorkRetired();
      return true;
    case SampleBuffer::Planned::kRequest:
      break;
  }
  ack_due_ = false;
  const bool wants_reply = request.num_samples > 0;
  Send(std::move(request));
  return took || wants_reply;
}

// ---- streams ----

bool SamplerWorker::OpenIfWanted() {
  awaits_retry_ = false;
  if (!buffer_->WantsStream(options_.index)) return false;
  awaits_retry_ = lost_since_ && Clock::System()->Now() < retry_at_;
  if (awaits_retry_) return false;
  auto record = std::make_unique<StreamRecord>();
  record->worker = options_.index;
  record->acknowledges = transport_->is_own_peer();
  record->local = transport_->is_local();
  record->stream = transport_->OpenSample(
      [buffer = buffer_, index = options_.index] { buffer->Poke(index); });
  current_ = std::move(record);
  requests_.clear();
  sent_ = false;
  return true;
}

void SamplerWorker::Retire(bool withdraw) {
  if (withdraw) {
    // All that is not acknowledged goes back when the stream ends.
    buffer_->GiveUp(current_.get(), current_->outstanding, std::nullopt);
    buffer_->DropSamples(current_.get());
  }
  buffer_->Retire(current_.get());
  retired_.push_back({std::move(current_), withdraw, false});
  current_.reset();
}

void SamplerWorker::WorkRetired() {
  size_t kept = 0;
  for (size_t i = 0; i < retired_.size(); ++i) {
    if (WorkRetired(&retired_[i])) continue;
    if (kept != i) retired_[kept] = std::move(retired_[i]);
    ++kept;
  }
  retired_.resize(kept);
}

bool SamplerWorker::WorkRetired(Retired* retired) {
  StreamRecord* const record = retired->record.get();
  SampleStream* const stream = record->stream.get();
  const bool pending = !closing_ && buffer_->is_pending(*record);
  if (stream == nullptr) return !pending;
  SampleReply reply;
  while (stream->Take(kTakeItems, &reply)) {  // nothing, or void
  }
  if (stream->finished()) {
    buffer_->EndStream(record);
    return !pending;
  }
  const bool last = !pending || retired->withdraw;
  if (!retired->said_last && (last || ack_due_)) {
    if (!stream->can_send()) return false;
    SampleRequest request;
    request.table = options_.table;
    if (buffer_->PlanAck(record, &request)) stream->Send(std::move(request));
    if (!last) return false;
    retired->said_last = true;
    // Our server ends the stream then, and what it owes is withdrawn.
    if (!record->local) stream->HalfClose();
  }
  const bool gone = record->local || (retired->withdraw && !record->acknowledges);
  if (!retired->said_last || !gone) return false;
  buffer_->EndStream(record);  // the rest goes back
  return !pending;
}

void SamplerWorker::NoteConnected() {
  if (!lost_since_) return;
  lost_since_.reset();
  backoff_ = kFirstBackoff;
  probe_.reset();
  buffer_->SetLost(options_.index, "");
}

void SamplerWorker::ProbeServer() {
  // The stream itself may have nothing to say for long.
  probe_.reset();
  probe_ = transport_->GetServerInfo(
      [buffer = buffer_, index = options_.index](const Result<ServerInfo>& info) {
        if (info.ok()) buffer->NoteReached(index);
      });
}

void SamplerWorker::DropCurrent() {
  // What our server didn't hear to be delivered it has given back, to others perhaps.
  // Foreign ones count all as delivered, and samples that aren't used up do no harm.
  if (options_.consuming && current_->acknowledges) buffer_->DropSamples(current_.get());
  buffer_->EndStream(current_.get());
  if (buffer_->is_pending(*current_)) {
    retired_.push_back({std::move(current_), false, true});
  }
  current_.reset();
}

bool SamplerWorker::CheckFinished() {
  const std::optional<Status> finished = current_->stream->finished();
  if (!finished) return false;
  OnEnded(*finished);
  return true;
}

void SamplerWorker::OnEnded(const Status& status) {
  const int64_t missing = current_->outstanding;
  const bool timed_out = IsForeignTimeout(*current_, status);
  probe_.reset();
  buffer_->GiveUp(current_.get(), missing,
                  timed_out ? std::optional<std::string>(status.message()) : std::nullopt);
  DropCurrent();
  if (timed_out || (status.ok() && missing == 0 && sent_)) return;
  if (status.ok()) {
    OnLost("the server ended the stream");
  } else if (IsConnectionLoss(status)) {
    OnLost(status.message());
  } else {
    buffer_->Fail(options_.index, status);
  }
}

void SamplerWorker::OnLost(const std::string& error) {
  const TimePoint now = Clock::System()->Now();
  if (!lost_since_) lost_since_ = now;
  const TimePoint last_try = DeadlineAfter(*lost_since_, options_.reconnect_timeout);
  const bool local = transport_->is_local();
  if (now >= last_try || local) {
    lost_since_.reset();
    backoff_ = kFirstBackoff;
    buffer_->SetLost(options_.index, "");
    buffer_->Fail(
        options_.index,
        UnavailableError("sampling table '" + options_.table + "' of " + options_.address +
                         ": " + error + (local ? "" : " (reconnect_timeout is over)")));
    return;
  }
  retry_at_ = std::min(now + backoff_, last_try);
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
  buffer_->SetLost(options_.index, error);
}

// ---- messages ----

SampleSeed SamplerWorker::Seed() const {
  const uint64_t worker =
      Mix(options_.seed_iterator + 1) + static_cast<uint64_t>(options_.index);
  return {*options_.seed, Mix(Mix(worker) + options_.seed_position + received_)};
}

void SamplerWorker::Send(SampleRequest request) {
  request.table = options_.table;
  if (!sent_) {
    request.scope = options_.scope;
    if (options_.seed) request.seed = Seed();
  }
  if (!current_->acknowledges && request.timeout < std::chrono::milliseconds(1)) {
    request.timeout = std::chrono::milliseconds(1);  // to others zero is for ever
  }
  if (request.num_samples > 0) requests_.push_back(request.num_samples);
  sent_ = true;
  current_->stream->Send(std::move(request));
  if (lost_since_ && !probe_) ProbeServer();
}

bool SamplerWorker::TakeReply() {
  // In process nothing comes unasked but notices of resets, which are heard otherwise.
  if (current_->local && requests_.empty()) return false;
  SampleReply reply;
  if (!current_->stream->Take(kTakeItems, &reply)) return false;
  NoteConnected();
  TakeIn(std::move(reply));
  AssembleAll();
  return true;
}

void SamplerWorker::TakeIn(SampleReply reply) {
  const auto count = static_cast<int64_t>(reply.items.size());
  if (count > (requests_.empty() ? 0 : requests_.front())) {
    OnEnded(InternalError("the server at " + options_.address +
                          " sent more samples than were asked for"));
    return;
  }
  received_ += static_cast<uint64_t>(count);
  std::vector<SampleBuffer::Refusal> refused;
  for (size_t i = 0; i < reply.items.size(); ++i) {
    Status status = assembler_->plan().Check(*reply.items[i].item);
    if (!status.ok()) refused.push_back({i, std::move(status)});
  }
  if (count > 0) {
    requests_.front() -= count;
    buffer_->Arrived(current_.get(), reply.generation, std::move(reply.items), refused);
  }
  if (requests_.empty()) return;
  const bool done =
      current_->acknowledges ? reply.request_done.has_value() : requests_.front() == 0;
  if (!done) return;
  const int64_t missing = requests_.front();
  requests_.pop_front();
  const bool timed_out = reply.request_done && !reply.request_done->ok();
  if (missing > 0 || timed_out) {
    buffer_->GiveUp(current_.get(), missing,
                    timed_out ? std::optional<std::string>(reply.request_done->message())
                              : std::nullopt);
  }
}

// ---- assembling ----

void SamplerWorker::AssembleAll() {
  while (true) {
    SampleBuffer::Work work;
    buffer_->TakeWork(&work);
    if (work.samples.empty()) return;
    if (options_.unbatched) {
      AssembleSingles(&work);
    } else {
      Assemble(&work);
    }
    buffer_->PushReady(&work);
  }
}

void SamplerWorker::Assemble(SampleBuffer::Work* work) {
  ReadyBatch* const ready = work->out[0].get();
  ready->runs.clear();
  batch_.clear();
  for (const BufferedSample& sample : work->samples) {
    AddToRuns(sample, &ready->runs);
    batch_.push_back(&sample.sample);
  }
  ready->status = assembler_->AssembleBatch(batch_, &ready->batch);
}

void SamplerWorker::AssembleSingles(SampleBuffer::Work* work) {
  for (size_t i = 0; i < work->samples.size(); ++i) {
    ReadyBatch* const ready = work->out[i].get();
    ready->runs.clear();
    AddToRuns(work->samples[i], &ready->runs);
    ready->status = assembler_->AssembleOne(work->samples[i].sample, &ready->batch);
  }
}

// ---- the end ----

void SamplerWorker::BeginClose() {
  if (thread_.joinable()) thread_.join();
  closing_ = true;
  probe_.reset();
  if (current_) Retire(/*withdraw=*/current_->outstanding > 0);
  WorkRetired();
}

void SamplerWorker::FinishClose(TimePoint deadline) {
  while (!retired_.empty() && Clock::System()->Now() < deadline) {
    buffer_->WaitForPoke(options_.index, deadline);
    WorkRetired();
  }
  for (Retired& retired : retired_) buffer_->EndStream(retired.record.get());
  retired_.clear();
}

}  // namespace reverb_tf
