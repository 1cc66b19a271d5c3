// One worker of a sampler: asks for samples over streams that it opens anew as they end.
#ifndef REVERB_TF_CC_CLIENT_SAMPLER_WORKER_H_
#define REVERB_TF_CC_CLIENT_SAMPLER_WORKER_H_

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cc/client/batch_assembler.h"
#include "cc/client/sample_buffer.h"
#include "cc/client/transport.h"

namespace reverb_tf {

struct WorkerOptions {
  int index = 0;
  std::string table;
  std::string address;  // for texts
  SignatureScope scope = SignatureScope::kUndecided;
  std::optional<uint64_t> seed;
  uint64_t seed_iterator = 0;
  uint64_t seed_position = 0;  // samples drawn before, by a restored iterator's past
  Duration reconnect_timeout = kForever;
  bool unbatched = false;
  bool consuming = false;  // samples that the server takes back must not be delivered
};

// Works the streams of one index of a SampleBuffer: sends planned requests and
// acknowledgements, takes replies, in prefetch mode assembles them, opens the next stream
// when one has served its number or was lost (with back-off 10 ms … 5 s).
//
// Call order: (StartThread | Pump*) Close. Pump is called by one thread at a time and not
// if there is a thread.
class SamplerWorker {
 public:
  // All outlive the worker.
  SamplerWorker(WorkerOptions options, Transport* transport, SampleBuffer* buffer,
                const BatchAssembler* assembler);
  ~SamplerWorker();

  // RESOURCE_EXHAUSTED if there is no thread to be had.
  Status StartThread();
  // Does what can be done now; never blocks.
  void Pump();

  // REQUIRES: the buffer is closed. Ends the thread, then sends the last acknowledgements.
  void BeginClose();
  // Waits until they are sent and all streams are gone, at most until `deadline`.
  void FinishClose(TimePoint deadline);

 private:
  // A stream that gets no more requests. It stays while its samples are undelivered, then
  // until the server has heard the last acknowledgement.
  struct Retired {
    std::unique_ptr<StreamRecord> record;
    bool withdraw = false;  // ends now, what is undelivered goes back
    bool said_last = false;
  };

  void Run();
  TimePoint NextTry() const { return awaits_retry_ ? retry_at_ : kNever; }
  // One round with the current stream; true if there may be more to do.
  bool Work();
  bool OpenIfWanted();
  void Retire(bool withdraw);
  void WorkRetired();
  bool WorkRetired(Retired* retired);  // true when it is gone
  bool TakeReply();
  void TakeIn(SampleReply reply);
  bool CheckFinished();
  void Send(SampleRequest request);
  void NoteConnected();
  void ProbeServer();
  // The current stream is over with `status`.
  void OnEnded(const Status& status);
  void OnLost(const std::string& error);
  void DropCurrent();
  void AssembleAll();
  void Assemble(SampleBuffer::Work* work);
  void AssembleSingles(SampleBuffer::Work* work);
  SampleSeed Seed() const;

  const WorkerOptions options_;
  Transport* const transport_;
  SampleBuffer* const buffer_;
  const BatchAssembler* const assembler_;

  std::unique_ptr<StreamRecord> current_;
  std::deque<int64_t> requests_;  // of the current stream: samples still to come
  std::vector<Retired> retired_;
  bool sent_ = false;  // something on the current stream
  bool ack_due_ = false;
  bool closing_ = false;
  uint64_t received_ = 0;  // on all streams

  std::optional<TimePoint> lost_since_;
  std::unique_ptr<Call> probe_;  // asks whether the server is there again
  Duration backoff_;
  TimePoint retry_at_;
  bool awaits_retry_ = false;

  std::vector<const SampledItem*> batch_;  // scratch
  std::thread thread_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_SAMPLER_WORKER_H_
