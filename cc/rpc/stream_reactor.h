// What the two server streams have in common: reactor lifetime, one read and one
// write in flight, a single Finish.
#ifndef REVERB_TF_CC_RPC_STREAM_REACTOR_H_
#define REVERB_TF_CC_RPC_STREAM_REACTOR_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cc/base/status.h"
#include "cc/rpc/status_codec.h"

namespace reverb_tf {

// A reactor owns itself until OnDone; whoever is called from elsewhere (a session's
// on_ready) holds a weak_ptr. Subclasses say what a message does (OnMessage), what is
// to be written next (NextWrite) and when a half-closed stream is over (IsDrained).
//
// The mutex is recursive since gRPC may run a reaction inside Start*. It is not
// held while subclasses' hooks run, except for IsDrained and ShouldPause.
class StreamReactor : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                      public std::enable_shared_from_this<StreamReactor> {
 public:
  // Call once, right after construction.
  void Start() {
    self_ = shared_from_this();
    StartSendInitialMetadata();
    std::lock_guard<std::recursive_mutex> lock(mu_);
    reading_ = true;
    StartRead(&incoming_);
  }

  // Something may have become writable, readable or over. Any thread.
  void Poke() {
    std::unique_lock<std::recursive_mutex> lock(mu_);
    again_ = true;
    if (producing_) return;
    producing_ = true;
    while (again_) {
      again_ = false;
      if (!writing_ && !finishing_ && !cancelled_) {
        lock.unlock();
        Result<std::optional<grpc::ByteBuffer>> next = NextWrite();
        lock.lock();
        if (!next.ok()) {
          SetFinish(next.status());
        } else if (next->has_value() && !cancelled_) {
          outgoing_ = std::move(**next);
          writing_ = true;
          StartWrite(&outgoing_);
          again_ = true;
        }
      }
      Advance();
    }
    producing_ = false;
  }

 protected:
  // Work of one message; not OK ends the stream.
  virtual Status OnMessage(grpc::ByteBuffer* message) = 0;
  // The next message to write; nothing when there is none now; an error ends the
  // stream.
  virtual Result<std::optional<grpc::ByteBuffer>> NextWrite() = 0;
  // After the client half-closed: nothing more will be written.
  virtual bool IsDrained() = 0;
  // Do not read on for now (back-pressure).
  virtual bool ShouldPause() { return false; }
  // The stream is gone; called once.
  virtual void OnGone() = 0;

 private:
  void OnReadDone(bool ok) final {
    Status status;
    if (ok) {
      status = OnMessage(&incoming_);
      incoming_.Clear();
    }
    {
      std::lock_guard<std::recursive_mutex> lock(mu_);
      reading_ = false;
      half_closed_ |= !ok;
      if (!status.ok()) SetFinish(status);
    }
    Poke();
  }

  void OnWriteDone(bool ok) final {
    {
      std::lock_guard<std::recursive_mutex> lock(mu_);
      writing_ = false;
      outgoing_.Clear();
      if (!ok) cancelled_ = true;
    }
    Poke();
  }

  void OnCancel() final {
    {
      std::lock_guard<std::recursive_mutex> lock(mu_);
      cancelled_ = true;
    }
    Gone();
    Poke();
  }

  void OnDone() final {
    Gone();
    self_.reset();
  }

  void Gone() {
    {
      std::lock_guard<std::recursive_mutex> lock(mu_);
      if (std::exchange(gone_, true)) return;
    }
    OnGone();
  }

  void SetFinish(const Status& status) {
    if (!finishing_) finishing_ = status;
  }

  // Starts the read or the Finish that is due. REQUIRES: mu_ held.
  void Advance() {
    if (finished_) return;
    if (cancelled_ && !finishing_) finishing_ = CancelledError("stream was cancelled");
    if (!finishing_ && half_closed_ && !writing_ && IsDrained()) finishing_ = OkStatus();
    if (finishing_) {
      if (writing_) return;
      finished_ = true;
      Finish(ToGrpc(*finishing_));
      return;
    }
    if (!reading_ && !half_closed_ && !ShouldPause()) {
      reading_ = true;
      StartRead(&incoming_);
    }
  }

  std::recursive_mutex mu_;
  bool reading_ = false;
  bool writing_ = false;
  bool producing_ = false;
  bool again_ = false;
  bool half_closed_ = false;
  bool cancelled_ = false;
  bool gone_ = false;
  bool finished_ = false;
  std::optional<Status> finishing_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<StreamReactor> self_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_STREAM_REACTOR_H_
