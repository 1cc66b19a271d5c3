#include "cc/service/sample_session.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

namespace reverb_tf {
namespace {

// The text by which foreign peers tell it from a transport's deadline.
constexpr char kForeignTimeout[] =
    "Rate Limiter: Timeout exceeded before the right to insert was acquired.";

int64_t StoredBytes(const SampledItem& sample) {
  int64_t bytes = 0;
  const Chunk* last = nullptr;
  const ChunkSlice* const slices = sample.item->slices();
  for (int i = 0; i < sample.item->num_slices(); ++i) {
    const Chunk* const chunk = slices[i].chunk.get();
    if (chunk != last) bytes += static_cast<int64_t>(chunk->payload().size());
    last = chunk;
  }
  return bytes;
}

Grant GrantOf(const SampledItem& sample) { return {sample.item->key(), sample.generation}; }

Status BadAcknowledgement(const char* what, int64_t got, int64_t from, int64_t to) {
  return InvalidArgumentError(std::string("acknowledgement: ") + what + ": got " +
                              std::to_string(got) + ", expected a number from " +
                              std::to_string(from) + " to " + std::to_string(to));
}

}  // namespace

std::shared_ptr<SampleSession> SampleSession::Open(Store* store, Peer peer,
                                                   std::function<void()> on_ready) {
  return std::shared_ptr<SampleSession>(
      new SampleSession(store, peer, std::move(on_ready)));
}

SampleSession::SampleSession(Store* store, Peer peer, std::function<void()> on_ready)
    : store_(store), peer_(peer), on_ready_(std::move(on_ready)) {}

SampleSession::~SampleSession() = default;

Status SampleSession::Handle(const SampleRequest& request) {
  RTF_RETURN_IF_ERROR(Join(request));
  Acknowledgement acknowledged;
  std::shared_ptr<TableRunner> runner;
  {
    MutexLock lock(&mu_);
    RTF_RETURN_IF_ERROR(CheckRequest(request));
    runner = runner_;
    if (peer_ == Peer::kOwn) acknowledged = Acknowledge(request);
    if (request.num_samples > 0) {
      requests_.push_back({next_id_++, request.num_samples, request.timeout, {}});
    }
  }
  if (!acknowledged.delivered.empty() || request.partial > 0) {
    runner->Delivered(acknowledged.delivered, request.partial);
  }
  if (!acknowledged.returned.empty()) runner->GiveBack(acknowledged.returned);
  AskMore();
  return OkStatus();
}

Status SampleSession::CheckRequest(const SampleRequest& request) {
  if (closed_) return CancelledError("the sample stream was closed");
  if (!error_.ok()) return error_;
  const int64_t least = peer_ == Peer::kForeign ? 1 : 0;
  if (request.num_samples < least) {
    return InvalidArgumentError("num_samples: got " + std::to_string(request.num_samples) +
                                ", expected at least " + std::to_string(least));
  }
  if (runner_ && !request.table.empty() && request.table != runner_->name()) {
    return InvalidArgumentError("table: got '" + request.table + "' on a stream of '" +
                                runner_->name() + "'; open a stream for each table");
  }
  if (request.num_samples > 0 && requests_.size() >= kMaxRequests) {
    return ResourceExhaustedError("more than " + std::to_string(kMaxRequests) +
                                  " requests are waiting on the sample stream");
  }
  if (peer_ == Peer::kForeign) return OkStatus();
  return CheckAcknowledgement(request);
}

Status SampleSession::CheckAcknowledgement(const SampleRequest& request) {
  const int64_t begin = first_unacknowledged_;
  const int64_t end = num_taken();
  if (request.delivered < 0 || request.delivered > end) {
    return BadAcknowledgement("delivered", request.delivered, 0, end);
  }
  if (request.partial < 0 || request.partial > end) {
    return BadAcknowledgement("partial", request.partial, 0, end);
  }
  std::vector<int64_t> returned = request.returned;
  std::sort(returned.begin(), returned.end());
  for (size_t i = 0; i < returned.size(); ++i) {
    const int64_t position = returned[i];
    if (position < begin || position >= end) {
      return BadAcknowledgement("returned", position, begin, end - 1);
    }
    if ((i > 0 && returned[i - 1] == position) || UnacknowledgedAt(position)->returned) {
      return InvalidArgumentError("acknowledgement: sample " + std::to_string(position) +
                                  " was returned twice");
    }
  }
  const int64_t left = end - std::max(begin, request.delivered);
  if (request.num_samples > 0 && left > static_cast<int64_t>(kMaxUnacknowledged)) {
    return ResourceExhaustedError(std::to_string(left) +
                                  " samples of the stream are not acknowledged");
  }
  return OkStatus();
}

Status SampleSession::Join(const SampleRequest& request) {
  std::shared_ptr<TableRunner> runner;
  bool decide_scope = request.scope != SignatureScope::kUndecided;
  {
    MutexLock lock(&mu_);
    runner = runner_;
    decide_scope = decide_scope && !scope_decided_;
    if (runner && !decide_scope) return OkStatus();
    RTF_RETURN_IF_ERROR(CheckRequest(request));
  }
  const bool first = runner == nullptr;
  if (first) {
    RTF_ASSIGN_OR_RETURN(runner, store_->Find(request.table));
  }
  if (decide_scope) RTF_RETURN_IF_ERROR(runner->DecideScope(request.scope));
  {
    MutexLock lock(&mu_);
    if (closed_) return CancelledError("the sample stream was closed");
    runner_ = runner;
    scope_decided_ |= decide_scope;
    if (!first) return OkStatus();
    if (request.seed) {
      random_ = std::make_shared<Random>(request.seed->seed, request.seed->stream);
    }
  }
  runner->AddSampler(shared_from_this());
  {
    MutexLock lock(&mu_);
    if (!closed_) return OkStatus();
  }
  runner->RemoveSampler(this, {});  // Close may have come before AddSampler
  return CancelledError("the sample stream was closed");
}

SampleSession::Acknowledgement SampleSession::Acknowledge(const SampleRequest& request) {
  Acknowledgement out;
  out.returned.reserve(request.returned.size());
  for (const int64_t position : request.returned) {
    Unacknowledged* const sample = UnacknowledgedAt(position);
    sample->returned = true;
    out.returned.push_back(sample->grant);
  }
  if (request.delivered > first_unacknowledged_) {
    out.delivered.reserve(static_cast<size_t>(request.delivered - first_unacknowledged_));
  }
  for (; first_unacknowledged_ < request.delivered; ++first_unacknowledged_) {
    const Unacknowledged& sample = unacknowledged_[unacknowledged_begin_++];
    if (!sample.returned) out.delivered.push_back(sample.grant);
  }
  return out;
}

void SampleSession::AwaitAcknowledgement(const std::vector<SampledItem>& items) {
  if (unacknowledged_begin_ * 2 >= unacknowledged_.size()) {
    unacknowledged_.erase(
        unacknowledged_.begin(),
        unacknowledged_.begin() + static_cast<std::ptrdiff_t>(unacknowledged_begin_));
    unacknowledged_begin_ = 0;
  }
  for (const SampledItem& item : items) unacknowledged_.push_back({GrantOf(item)});
}

void SampleSession::AskMore() {
  Garbage garbage;
  mu_.Lock();
  if (!in_ask_more_) {
    in_ask_more_ = true;
    // Whoever finds this thread at it relies on it to look again after each call.
    while (std::optional<SampleCall> call = NextCall(&garbage)) {
      const std::shared_ptr<TableRunner> runner = runner_;
      mu_.Unlock();
      runner->Sample(shared_from_this(), std::move(*call));
      mu_.Lock();
    }
    in_ask_more_ = false;
  }
  mu_.Unlock();
}

std::optional<SampleCall> SampleSession::NextCall(Garbage* garbage) {
  if (closed_ || asking_ || !error_.ok()) return std::nullopt;
  DropVoid(garbage);
  const int64_t room = kMaxGranted - num_granted();
  if (room < kMaxGranted / 2) return std::nullopt;
  int64_t have = num_granted();
  for (Request& request : requests_) {
    if (request.ended) request.untaken = std::min(request.untaken, have);
    if (request.untaken > have) {
      return CallFor(request, std::min(request.untaken - have, room));
    }
    have -= request.untaken;
  }
  return std::nullopt;
}

SampleCall SampleSession::CallFor(const Request& request, int64_t num_samples) {
  asking_ = true;
  asking_id_ = request.id;
  SampleCall call{num_samples, kNever, random_};
  if (request.timeout != kForever) {
    call.deadline = DeadlineAfter(runner_->clock()->Now(), request.timeout);
    if (peer_ == Peer::kForeign) call.renewal = request.timeout;
  }
  return call;
}

void SampleSession::DropVoid(Garbage* garbage) {
  int64_t dropped = 0;
  while (num_granted() > 0 && granted_[granted_begin_].generation < generation_) {
    garbage->push_back(std::move(granted_[granted_begin_++].item));
    ++dropped;
  }
  // A request that still waits asks for them again; one that timed out does not.
  for (Request& request : requests_) {
    if (dropped == 0) break;
    const int64_t own = std::min(dropped, request.untaken);
    if (request.ended) request.untaken -= own;
    dropped -= own;
  }
}

void SampleSession::OnGranted(std::vector<SampledItem> items) {
  MutexLock lock(&mu_);
  if (items.empty()) return;
  generation_ = std::max(generation_, items.back().generation);
  if (num_granted() == 0) {
    granted_.clear();
    granted_begin_ = 0;
    granted_.swap(items);
    return;
  }
  if (granted_begin_ * 2 > granted_.size()) {
    granted_.erase(granted_.begin(),
                   granted_.begin() + static_cast<std::ptrdiff_t>(granted_begin_));
    granted_begin_ = 0;
  }
  std::move(items.begin(), items.end(), std::back_inserter(granted_));
}

void SampleSession::OnRequestDone(Status status) {
  MutexLock lock(&mu_);
  asking_ = false;
  if (status.ok()) return;
  if (status.code() != StatusCode::kDeadlineExceeded) {
    error_ = std::move(status);
    return;
  }
  int64_t have = num_granted();
  for (Request& request : requests_) {
    const int64_t own = std::min(have, request.untaken);
    if (request.id == asking_id_) {
      request.untaken = own;
      request.ended = std::move(status);
      return;
    }
    have -= own;
  }
}

void SampleSession::OnReset(uint64_t generation) {
  MutexLock lock(&mu_);
  generation_ = std::max(generation_, generation);
  reset_unreported_ = true;
}

void SampleSession::Notify() {
  AskMore();
  if (on_ready_) on_ready_();
}

Result<bool> SampleSession::Take(int64_t max_items, int64_t max_bytes, SampleReply* reply) {
  reply->items.clear();
  reply->request_done.reset();
  Garbage garbage;
  std::vector<Grant> delivered;
  std::shared_ptr<TableRunner> runner;
  bool any = false, more = false;
  {
    MutexLock lock(&mu_);
    if (closed_) return false;
    if (!error_.ok()) return error_;
    DropVoid(&garbage);
    any = FillReply(max_items, max_bytes, reply);
    if (!error_.ok()) return error_;
    runner = runner_;
    more = !requests_.empty();
    if (peer_ == Peer::kOwn) {
      AwaitAcknowledgement(reply->items);
    } else {
      for (const SampledItem& item : reply->items) delivered.push_back(GrantOf(item));
    }
  }
  if (!delivered.empty()) runner->Delivered(delivered, /*num_partial=*/0);
  if (more) AskMore();
  return any;
}

bool SampleSession::FillReply(int64_t max_items, int64_t max_bytes, SampleReply* reply) {
  reply->generation = generation_;
  const bool notice = reset_unreported_ && peer_ == Peer::kOwn;
  reset_unreported_ = false;
  if (requests_.empty()) return notice;
  Request& request = requests_.front();
  const int64_t most = std::min({max_items, request.untaken, num_granted()});
  TakeGranted(NumThatFit(most, max_bytes), &reply->items);
  request.untaken -= static_cast<int64_t>(reply->items.size());
  if (request.untaken > 0) return notice || !reply->items.empty();
  if (request.ended && peer_ == Peer::kForeign) {
    if (!reply->items.empty()) return true;  // the error comes after them
    error_ = DeadlineExceededError(std::string(kForeignTimeout) + " " +
                                   request.ended->message());
    return false;
  }
  reply->request_done = request.ended.value_or(OkStatus());
  requests_.pop_front();
  return true;
}

int64_t SampleSession::NumThatFit(int64_t max_items, int64_t max_bytes) const {
  if (max_bytes == std::numeric_limits<int64_t>::max()) return max_items;
  int64_t n = 0;
  for (int64_t bytes = 0; n < max_items; ++n) {
    bytes += StoredBytes(granted_[granted_begin_ + static_cast<size_t>(n)]);
    if (bytes > max_bytes && n > 0) break;
  }
  return n;
}

void SampleSession::TakeGranted(int64_t num_items, std::vector<SampledItem>* out) {
  if (num_items <= 0) return;
  if (granted_begin_ == 0 && num_items == num_granted()) {
    out->swap(granted_);
    return;
  }
  const auto begin = granted_.begin() + static_cast<std::ptrdiff_t>(granted_begin_);
  out->assign(std::make_move_iterator(begin), std::make_move_iterator(begin + num_items));
  granted_begin_ += static_cast<size_t>(num_items);
}

Status SampleSession::error() const {
  MutexLock lock(&mu_);
  return error_;
}

uint64_t SampleSession::generation() const {
  MutexLock lock(&mu_);
  return generation_;
}

std::vector<Grant> SampleSession::RemoveUndelivered(Garbage* garbage) {
  std::vector<Grant> grants;
  for (; unacknowledged_begin_ < unacknowledged_.size(); ++unacknowledged_begin_) {
    const Unacknowledged& sample = unacknowledged_[unacknowledged_begin_];
    if (!sample.returned) grants.push_back(sample.grant);
  }
  for (; granted_begin_ < granted_.size(); ++granted_begin_) {
    grants.push_back(GrantOf(granted_[granted_begin_]));
    garbage->push_back(std::move(granted_[granted_begin_].item));
  }
  granted_.clear();
  granted_begin_ = 0;
  requests_.clear();
  return grants;
}

void SampleSession::Close() {
  Garbage garbage;
  std::shared_ptr<TableRunner> runner;
  std::vector<Grant> undelivered;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    runner = runner_;
    undelivered = RemoveUndelivered(&garbage);
  }
  if (!runner) return;
  runner->RemoveSampler(this, undelivered);
  {
    MutexLock lock(&mu_);
    undelivered = RemoveUndelivered(&garbage);  // granted while it closed
  }
  if (!undelivered.empty()) runner->GiveBack(undelivered);
}

}  // namespace reverb_tf
