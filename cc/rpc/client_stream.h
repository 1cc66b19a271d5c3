// What the two client streams have in common: a bidirectional gRPC call of raw
// messages, one write and one read in flight.
#ifndef REVERB_TF_CC_RPC_CLIENT_STREAM_H_
#define REVERB_TF_CC_RPC_CLIENT_STREAM_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "cc/base/status.h"
#include "cc/rpc/open_calls.h"
#include "cc/rpc/status_codec.h"

namespace reverb_tf {

// Owns itself until gRPC is done with it; the stream object that the client holds
// has a shared_ptr. A hold keeps the call open until Release, so that operations
// may be started from any thread before.
//
// The mutex is recursive since gRPC may run a reaction inside Start*.
class ClientStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                     public std::enable_shared_from_this<ClientStream> {
 public:
  // `on_peer` is told, once known, whether the server is of this project.
  ClientStream(OpenCalls::Token open, std::function<void()> on_ready,
               std::function<void(bool)> on_peer)
      : open_(std::move(open)),
        on_ready_(std::move(on_ready)),
        on_peer_(std::move(on_peer)) {
    context_.AddMetadata(kPeerKey, kPeerRevision);
  }

  void Start(grpc::GenericStub* stub, const std::string& method) {
    self_ = shared_from_this();
    stub->PrepareBidiStreamingCall(&context_, method, grpc::StubOptions(), this);
    AddHold();
    StartRead(&incoming_);
    StartCall();
  }

  bool can_send() const {
    std::lock_guard<std::recursive_mutex> lock(mu_);
    return !writing_ && !half_closed_ && !status_;
  }
  void Send(grpc::ByteBuffer message) {
    std::lock_guard<std::recursive_mutex> lock(mu_);
    if (released_ || half_closed_ || status_) return;
    outgoing_ = std::move(message);
    writing_ = true;
    StartWrite(&outgoing_);
  }
  void HalfClose() {
    std::lock_guard<std::recursive_mutex> lock(mu_);
    if (std::exchange(half_closed_, true) || released_) return;
    if (!writing_) StartWritesDone();
  }
  void Cancel() { context_.TryCancel(); }

  // The next message; reads on.
  bool Take(grpc::ByteBuffer* message) {
    std::lock_guard<std::recursive_mutex> lock(mu_);
    if (received_.empty()) return false;
    *message = std::move(received_.front());
    received_.pop_front();
    MaybeRead();
    return true;
  }
  std::optional<Status> finished() const {
    std::lock_guard<std::recursive_mutex> lock(mu_);
    return received_.empty() ? status_ : std::nullopt;
  }

  // The owner's goodbye: cancels; no callback runs after it returned.
  void Release() {
    {
      std::lock_guard<std::recursive_mutex> lock(callback_mu_);
      on_ready_ = nullptr;
      on_peer_ = nullptr;
    }
    context_.TryCancel();
    {
      std::lock_guard<std::recursive_mutex> lock(mu_);
      if (std::exchange(released_, true)) return;
    }
    RemoveHold();
  }

 private:
  // Received messages that wait for the client; reading pauses above it, and gRPC's
  // flow control then slows the server.
  static constexpr size_t kMaxReceived = 2;

  void MaybeRead() {
    if (reading_ || reads_over_ || released_ || received_.size() >= kMaxReceived) return;
    reading_ = true;
    StartRead(&incoming_);
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return;
    const bool own = context_.GetServerInitialMetadata().count(kPeerKey) > 0;
    std::lock_guard<std::recursive_mutex> lock(callback_mu_);
    if (on_peer_) on_peer_(own);
  }

  void OnReadDone(bool ok) override {
    {
      std::lock_guard<std::recursive_mutex> lock(mu_);
      reading_ = false;
      if (ok) {
        received_.push_back(std::move(incoming_));
        incoming_ = grpc::ByteBuffer();
        MaybeRead();
      } else {
        reads_over_ = true;
        // The server ended the stream: nothing more can be started.
        ReleaseHoldOnce();
      }
    }
    NotifyReady();
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard<std::recursive_mutex> lock(mu_);
      writing_ = false;
      outgoing_.Clear();
      if (half_closed_ && ok && !released_) StartWritesDone();
    }
    NotifyReady();
  }

  void OnDone(const grpc::Status& status) override {
    {
      std::lock_guard<std::recursive_mutex> lock(mu_);
      status_ = FromGrpc(status);
    }
    NotifyReady();
    self_.reset();
  }

  void ReleaseHoldOnce() {
    if (std::exchange(released_, true)) return;
    RemoveHold();
  }

  void NotifyReady() {
    std::lock_guard<std::recursive_mutex> lock(callback_mu_);
    if (on_ready_) on_ready_();
  }

  const OpenCalls::Token open_;  // outlives context_
  grpc::ClientContext context_;
  std::recursive_mutex callback_mu_;
  std::function<void()> on_ready_;
  std::function<void(bool)> on_peer_;

  mutable std::recursive_mutex mu_;
  bool writing_ = false;
  bool reading_ = true;
  bool half_closed_ = false;
  bool reads_over_ = false;
  bool released_ = false;  // the hold is gone: nothing may be started
  std::optional<Status> status_;
  std::deque<grpc::ByteBuffer> received_;
  grpc::ByteBuffer incoming_;
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<ClientStream> self_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_CLIENT_STREAM_H_
