#include "cc/client/sample_source.h"

#include <algorithm>
#include <utility>

#include "cc/base/clock.h"
#include "cc/base/mutex.h"

namespace reverb_tf {
namespace {

constexpr int64_t kTakeItems = 4096;
constexpr Duration kCloseWait = std::chrono::seconds(1);

// How a server of another implementation says that a request timed out.
bool IsForeignTimeout(const Status& status) {
  return status.code() == StatusCode::kDeadlineExceeded;
}

}  // namespace

SampleSource::SampleSource(std::shared_ptr<Transport> transport, SourceOptions options,
                           std::function<void()> on_ready)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      on_ready_(std::move(on_ready)) {}

SampleSource::~SampleSource() { Close(); }

void SampleSource::Open() {
  std::shared_ptr<SampleStream> stream = transport_->OpenSample(on_ready_);
  MutexLock lock(&mu_);
  stream_ = std::move(stream);
  ++epoch_;
  requested_ = outstanding_ = received_ = delivered_ = 0;
  returned_.clear();
  acks_pending_ = false;
}

void SampleSource::DropStream() {
  std::shared_ptr<SampleStream> gone;
  {
    MutexLock lock(&mu_);
    gone.swap(stream_);
  }
  outstanding_ = 0;
}

SampleRequest SampleSource::MakeRequest(int64_t n, Duration timeout) {
  SampleRequest request;
  request.table = options_.table;
  request.num_samples = n;
  request.timeout = timeout;
  request.delivered = delivered_;
  request.returned = std::move(returned_);
  returned_.clear();
  acks_pending_ = false;
  request.seed = options_.seed;
  request.scope = options_.scope;
  return request;
}

void SampleSource::Request(int64_t n, Duration timeout) {
  if (!stream_) Open();
  requested_ += n;
  outstanding_ += n;
  stream_->Send(MakeRequest(n, timeout));
}

Status SampleSource::Pump(size_t limit, std::deque<StreamSample>* out) {
  if (!stream_) return OkStatus();
  SampleReply reply;
  while (out->size() < limit) {
    const auto room = static_cast<int64_t>(limit - out->size());
    if (!stream_->Take(std::min(kTakeItems, room), &reply)) break;
    const TimePoint now = Clock::System()->Now();
    for (SampledItem& item : reply.items) {
      out->push_back({std::move(item), received_++, epoch_, now});
    }
    outstanding_ -= static_cast<int64_t>(reply.items.size());
    if (reply.request_done && !reply.request_done->ok()) {
      timeout_ = std::move(reply.request_done);
      outstanding_ = 0;
    }
    reply = SampleReply();
  }
  const std::optional<Status> finished = stream_->finished();
  if (finished) {
    const bool timed_out = IsForeignTimeout(*finished);
    if (timed_out) timeout_ = *finished;
    DropStream();
    if (timed_out || finished->ok()) return OkStatus();
    return *finished;
  }
  // It has served its number and everything was taken: the next request opens another.
  if (outstanding_ == 0 && requested_ >= options_.max_samples_per_stream &&
      delivered_ >= received_) {
    Close();
  }
  return OkStatus();
}

std::optional<Status> SampleSource::TakeTimeout() { return std::exchange(timeout_, {}); }

void SampleSource::Done(const StreamSample& sample, bool returned) {
  if (!stream_ || sample.epoch != epoch_) return;
  if (returned) returned_.push_back(sample.position);
  delivered_ = std::max(delivered_, sample.position + 1);
  acks_pending_ = true;
}

void SampleSource::Acknowledge() {
  if (!stream_ || !acks_pending_ || !transport_->is_own_peer() || !stream_->can_send())
    return;
  stream_->Send(MakeRequest(0, kForever));
}

void SampleSource::Close() {
  if (!stream_) return;
  if (!transport_->is_local() && transport_->is_own_peer()) {
    // The last word must get out and be heard before the stream is torn down.
    const TimePoint deadline = DeadlineAfter(Clock::System()->Now(), kCloseWait);
    Mutex mu;
    CondVar poll;
    MutexLock lock(&mu);
    bool half_closed = false;
    while (!stream_->finished() && Clock::System()->Now() < deadline) {
      if (!half_closed && stream_->can_send()) {
        Acknowledge();
        stream_->HalfClose();
        half_closed = true;
      }
      SampleReply ignored;
      while (stream_->Take(kTakeItems, &ignored)) ignored = SampleReply();
      poll.WaitUntil(&mu, Clock::System()->Now() + std::chrono::milliseconds(1));
    }
  } else {
    Acknowledge();
  }
  DropStream();
}

uint64_t SampleSource::generation() const {
  std::shared_ptr<SampleStream> stream;
  {
    MutexLock lock(&mu_);
    stream = stream_;
  }
  return stream ? stream->generation() : 0;
}

}  // namespace reverb_tf
