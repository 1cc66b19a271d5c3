// One worker's stream of samples, reopened as it ends.
#ifndef REVERB_TF_CC_CLIENT_SAMPLE_SOURCE_H_
#define REVERB_TF_CC_CLIENT_SAMPLE_SOURCE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/client/transport.h"

namespace reverb_tf {

// A sample and its place in its stream, by which it is acknowledged.
struct StreamSample {
  SampledItem sample;
  int64_t position = 0;
  int64_t epoch = 0;  // which stream of the source
  TimePoint arrived;
};

struct SourceOptions {
  std::string table;
  int64_t max_samples_per_stream = 10'000;
  std::optional<SampleSeed> seed;
  SignatureScope scope = SignatureScope::kUndecided;
};

// Requests go out, samples come in, deliveries are acknowledged. Used by one thread at a
// time, but for generation(). `on_ready` is called as a stream's (see transport.h).
class SampleSource {
 public:
  SampleSource(std::shared_ptr<Transport> transport, SourceOptions options,
               std::function<void()> on_ready);
  ~SampleSource();

  // Asks for `n` more samples; opens a stream if there is none. REQUIRES: can_request()
  void Request(int64_t n, Duration timeout);
  bool can_request() const { return !stream_ || stream_->can_send(); }
  // Samples asked for, not yet here.
  int64_t outstanding() const { return outstanding_; }

  // Takes in what has arrived, as far as `out` may grow to `limit`. Not OK when the stream
  // is over for another reason than that it has served its number: the stream is then
  // dropped, outstanding() is zero, and a new Request opens another.
  Status Pump(size_t limit, std::deque<StreamSample>* out);
  // Why the last request ended short (a time-out's explain line), once.
  std::optional<Status> TakeTimeout();

  // The caller has got (or, `returned`, will not get) the sample. Told to the server by
  // the next Request or Acknowledge. Samples of earlier streams are ignored.
  void Done(const StreamSample& sample, bool returned);
  bool has_unsent_acks() const { return acks_pending_; }
  // Sends what Done noted, if the stream can send.
  void Acknowledge();

  // Acknowledges, ends the stream and waits (at most 1 s) until the server has heard; what
  // is not acknowledged goes back to the table.
  void Close();

  // The table's generation as last heard, 0 if unknown. Any thread.
  uint64_t generation() const;

 private:
  void Open();
  SampleRequest MakeRequest(int64_t n, Duration timeout);
  void DropStream();

  const std::shared_ptr<Transport> transport_;
  const SourceOptions options_;
  const std::function<void()> on_ready_;

  mutable Mutex mu_;  // guards the pointer for generation()
  std::shared_ptr<SampleStream> stream_;
  int64_t epoch_ = 0;
  int64_t requested_ = 0;  // in this stream
  int64_t outstanding_ = 0;
  int64_t received_ = 0;   // positions given out in this stream
  int64_t delivered_ = 0;  // all below were delivered, but for returned
  std::vector<int64_t> returned_;
  bool acks_pending_ = false;
  std::optional<Status> timeout_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_SAMPLE_SOURCE_H_
