// What the two client streams have in common: a bidirectional gRPC call of raw
// messages, one write and one read in flight.
#ifndef REVERB_TF_CC_RPC_CLIENT_STREAM_H_
#define REVERB_TF_CC_RPC_CLIENT_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/rpc/completion_thread.h"
#include "cc/rpc/open_calls.h"
#include "cc/rpc/status_codec.h"

namespace reverb_tf {

// Owns itself until gRPC is done with it; the stream object that the client holds has a
// shared_ptr. Its reactions run on the queue's thread, one at a time.
class ClientStream : public std::enable_shared_from_this<ClientStream> {
 public:
  // `on_peer` is told, once known, whether the server is of this project.
  ClientStream(OpenCalls::Token open, std::function<void()> on_ready,
               std::function<void(bool)> on_peer)
      : open_(std::move(open)),
        on_ready_(std::move(on_ready)),
        on_peer_(std::move(on_peer)) {
    context_.AddMetadata(kPeerKey, kPeerRevision);
  }

  void Start(grpc::GenericStub* stub, const std::string& method,
             grpc::CompletionQueue* queue) {
    MutexLock lock(&mu_);
    self_ = shared_from_this();
    call_ = stub->PrepareCall(&context_, method, queue);
    call_->StartCall(on_started_.tag());
  }

  bool can_send() const {
    MutexLock lock(&mu_);
    return !outgoing_ && !half_closed_ && !status_;
  }
  void Send(grpc::ByteBuffer message) {
    MutexLock lock(&mu_);
    if (reads_over_ || half_closed_ || status_) return;
    outgoing_ = std::move(message);
    WriteOn();
  }
  void HalfClose() {
    MutexLock lock(&mu_);
    half_closed_ = true;
    WriteOn();
  }
  void Cancel() { context_.TryCancel(); }

  // The next message; reads on.
  bool Take(grpc::ByteBuffer* message) {
    MutexLock lock(&mu_);
    if (received_.empty()) return false;
    *message = std::move(received_.front());
    received_.pop_front();
    ReadOn();
    return true;
  }
  std::optional<Status> finished() const {
    MutexLock lock(&mu_);
    return received_.empty() ? status_ : std::nullopt;
  }

  // The owner's goodbye: cancels; no callback runs after it returned.
  void Release() {
    {
      MutexLock lock(&callback_mu_);
      on_ready_ = nullptr;
      on_peer_ = nullptr;
    }
    context_.TryCancel();
    MutexLock lock(&mu_);
    released_ = true;
    ReadOn();  // which fails
  }

 private:
  // Received messages that wait for the client; reading pauses above it, and gRPC's
  // flow control then slows the server.
  static constexpr size_t kMaxReceived = 2;

  void ReadOn() REQUIRES(mu_) {
    if (!has_metadata_ || reading_ || reads_over_) return;
    if (received_.size() >= kMaxReceived && !released_) return;
    reading_ = true;
    call_->Read(&incoming_, on_read_.tag());
  }

  // Starts the write that is due, one at a time.
  void WriteOn() REQUIRES(mu_) {
    if (!started_ || writing_ || reads_over_) return;
    if (outgoing_) {
      writing_ = true;
      call_->Write(*outgoing_, on_written_.tag());
    } else if (half_closed_ && !said_done_) {
      writing_ = said_done_ = true;
      call_->WritesDone(on_written_.tag());
    }
  }

  // No more can be read, and so nothing more be started but the end.
  void EndReads() REQUIRES(mu_) {
    reads_over_ = true;
    if (!writing_) call_->Finish(&grpc_status_, on_finished_.tag());
  }

  void OnStarted(bool ok) {
    MutexLock lock(&mu_);
    started_ = true;
    if (!ok) return EndReads();
    call_->ReadInitialMetadata(on_metadata_.tag());
    WriteOn();
  }

  void OnMetadata(bool ok) {
    if (ok) {
      const bool own = context_.GetServerInitialMetadata().count(kPeerKey) > 0;
      MutexLock lock(&callback_mu_);
      if (on_peer_) on_peer_(own);
    }
    MutexLock lock(&mu_);
    has_metadata_ = true;
    ReadOn();
  }

  void OnRead(bool ok) {
    {
      MutexLock lock(&mu_);
      reading_ = false;
      if (ok) {
        received_.push_back(std::move(incoming_));
        incoming_ = grpc::ByteBuffer();
        ReadOn();
      } else {
        EndReads();
      }
    }
    NotifyReady();
  }

  void OnWritten(bool) {
    {
      MutexLock lock(&mu_);
      writing_ = false;
      outgoing_.reset();
      if (reads_over_) return EndReads();
      WriteOn();
    }
    NotifyReady();
  }

  void OnFinished(bool) {
    {
      MutexLock lock(&mu_);
      status_ = FromGrpc(grpc_status_);
    }
    NotifyReady();
    const std::shared_ptr<ClientStream> last = std::move(self_);
  }

  void NotifyReady() {
    MutexLock lock(&callback_mu_);
    if (on_ready_) on_ready_();
  }

  using Reaction = MemberCompletion<ClientStream>;
  Reaction on_started_{this, &ClientStream::OnStarted};
  Reaction on_metadata_{this, &ClientStream::OnMetadata};
  Reaction on_read_{this, &ClientStream::OnRead};
  Reaction on_written_{this, &ClientStream::OnWritten};
  Reaction on_finished_{this, &ClientStream::OnFinished};

  const OpenCalls::Token open_;  // outlives context_
  grpc::ClientContext context_;
  Mutex callback_mu_;
  std::function<void()> on_ready_ GUARDED_BY(callback_mu_);
  std::function<void(bool)> on_peer_ GUARDED_BY(callback_mu_);

  mutable Mutex mu_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_ GUARDED_BY(mu_);
  bool started_ GUARDED_BY(mu_) = false;
  bool has_metadata_ GUARDED_BY(mu_) = false;
  bool reading_ GUARDED_BY(mu_) = false;
  bool writing_ GUARDED_BY(mu_) = false;
  bool half_closed_ GUARDED_BY(mu_) = false;  // the client wants no more to be sent
  bool said_done_ GUARDED_BY(mu_) = false;    // the server was told
  bool reads_over_ GUARDED_BY(mu_) = false;
  bool released_ GUARDED_BY(mu_) = false;
  std::optional<Status> status_ GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> received_ GUARDED_BY(mu_);
  grpc::ByteBuffer incoming_;
  std::optional<grpc::ByteBuffer> outgoing_ GUARDED_BY(mu_);
  grpc::Status grpc_status_;
  std::shared_ptr<ClientStream> self_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_CLIENT_STREAM_H_
