// How a client reaches a server: the seam between the client and what carries
// its messages (in-process calls, gRPC, a test's script).
#ifndef REVERB_TF_CC_CLIENT_TRANSPORT_H_
#define REVERB_TF_CC_CLIENT_TRANSPORT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cc/base/status.h"
#include "cc/service/messages.h"

namespace reverb_tf {

// A stream to a server. Thread-safe. Destroying it cancels it; no callback runs
// once the destructor has returned.
//
// `on_ready` (given when it is opened) is called, from any thread and without
// locks, whenever can_send(), Take() or finished() may have changed; it must not
// block and must not destroy the stream. It may run inside Send().
class Stream {
 public:
  virtual ~Stream() = default;
  // True when Send may be called: the last message has gone out.
  virtual bool can_send() const = 0;
  // Ends the client's side. Items that were sent are still answered; a sample stream
  // wants no more: it ends, and what is not acknowledged goes back.
  virtual void HalfClose() = 0;
  virtual void Cancel() = 0;
  // Set once the stream is over and every reply was taken; a dead connection is
  // UNAVAILABLE with the transport's reason.
  virtual std::optional<Status> finished() const = 0;
};

class InsertStream : public Stream {
 public:
  // REQUIRES: can_send().
  virtual void Send(InsertRequest request) = 0;
  virtual bool Take(InsertReply* reply) = 0;
};

class SampleStream : public Stream {
 public:
  // Requests may be sent before earlier ones are answered. REQUIRES: can_send().
  virtual void Send(SampleRequest request) = 0;
  // The next reply of at most `max_items` samples (remote: as the server cut it).
  virtual bool Take(int64_t max_items, SampleReply* reply) = 0;
  // The table's generation as last heard.
  virtual uint64_t generation() const = 0;
};

// A unary call under way. Destroying it cancels it.
class Call {
 public:
  virtual ~Call() = default;
};

template <typename T>
using Done = std::function<void(Result<T>)>;

// Thread-safe. Unary calls fail fast: an unreachable server answers UNAVAILABLE
// with the transport's reason, and the client decides about another try. Their
// `done` is called once, from any thread, perhaps inside the call itself, and not
// after the Call was destroyed.
class Transport {
 public:
  // REQUIRES: its calls and streams were destroyed before.
  virtual ~Transport() = default;

  virtual std::unique_ptr<Call> GetServerInfo(Done<ServerInfo> done) = 0;
  virtual std::unique_ptr<Call> Mutate(MutateRequest request, Done<MutateCounts> done) = 0;
  // The value has no meaning.
  virtual std::unique_ptr<Call> Reset(std::string table, Done<bool> done) = 0;
  // The checkpoint's path.
  virtual std::unique_ptr<Call> Checkpoint(Done<std::string> done) = 0;

  virtual std::unique_ptr<InsertStream> OpenInsert(std::function<void()> on_ready) = 0;
  virtual std::unique_ptr<SampleStream> OpenSample(std::function<void()> on_ready) = 0;

  // Messages reach the server within the call (in-process).
  virtual bool is_local() const = 0;
  // The peer is known to be of this project. Known after the first reply of
  // anything; until then true.
  virtual bool is_own_peer() const = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_TRANSPORT_H_
