#include "cc/rpc/grpc_transport.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/rpc/client_stream.h"
#include "cc/rpc/completion_thread.h"
#include "cc/rpc/control_codec.h"
#include "cc/rpc/insert_codec.h"
#include "cc/rpc/open_calls.h"
#include "cc/rpc/reverb.grpc.pb.h"
#include "cc/rpc/sample_codec.h"
#include "cc/rpc/status_codec.h"

namespace reverb_tf {
namespace {

// What is known of the server's kind.
enum class PeerKind : int { kUnknown, kOwn, kForeign };
using PeerState = std::shared_ptr<std::atomic<PeerKind>>;

void SetPeer(const PeerState& state, bool own) {
  state->store(own ? PeerKind::kOwn : PeerKind::kForeign);
}

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);
  args.SetMaxSendMessageSize(-1);
  // Own connections: streams of other clients in this process cannot starve ours.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 10);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Streams and calls are repeated by their clients; gRPC need not keep messages for that.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // A proxy of the environment is never meant for replay traffic.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
}

// A unary call: the reply goes to `done` unless the Call was destroyed before.
template <typename Request, typename Response>
class UnaryCall : public Call {
 public:
  // Owns itself until the reply is there.
  struct State final : Completion {
    OpenCalls::Token open;  // outlives the context
    grpc::ClientContext context;
    Response response;
    grpc::Status status;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
    std::recursive_mutex mu;  // held while `done` runs
    std::function<void(const grpc::Status&, State*)> done;
    std::shared_ptr<State> self;

    void Run(bool) override {
      const std::shared_ptr<State> last = std::move(self);
      std::lock_guard<std::recursive_mutex> lock(mu);
      if (done) done(status, this);
    }
  };

  explicit UnaryCall(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~UnaryCall() override {
    {
      std::lock_guard<std::recursive_mutex> lock(state_->mu);
      state_->done = nullptr;
    }
    state_->context.TryCancel();
  }

 private:
  const std::shared_ptr<State> state_;
};

class GrpcInsertStream : public InsertStream {
 public:
  GrpcInsertStream(std::shared_ptr<ClientStream> stream, PeerState peer,
                   std::unique_ptr<Call> probe)
      : stream_(std::move(stream)), peer_(std::move(peer)), probe_(std::move(probe)) {}
  ~GrpcInsertStream() override { stream_->Release(); }

  // Whether plain payloads may be sent is known from the server's first word.
  bool can_send() const override {
    return peer_->load() != PeerKind::kUnknown && stream_->can_send();
  }
  void HalfClose() override { stream_->HalfClose(); }
  void Cancel() override { stream_->Cancel(); }
  std::optional<Status> finished() const override {
    MutexLock lock(&mu_);
    if (error_) return error_;
    return stream_->finished();
  }

  void Send(InsertRequest request) override {
    const Peer peer = peer_->load() == PeerKind::kOwn ? Peer::kOwn : Peer::kForeign;
    Result<grpc::ByteBuffer> message = EncodeInsertRequest(request, peer);
    if (!message.ok()) return Fail(message.status());
    stream_->Send(std::move(message).value());
  }

  bool Take(InsertReply* reply) override {
    grpc::ByteBuffer message;
    if (!stream_->Take(&message)) return false;
    pb::InsertStreamResponse response;
    if (!Parse(&message, &response)) {
      Fail(InternalError("malformed InsertStreamResponse"));
      return false;
    }
    *reply = FromProto(response);
    return true;
  }

 private:
  void Fail(const Status& status) {
    {
      MutexLock lock(&mu_);
      error_ = status;
    }
    stream_->Cancel();
  }

  const std::shared_ptr<ClientStream> stream_;
  const PeerState peer_;
  const std::unique_ptr<Call> probe_;  // asks an unknown server what it is
  mutable Mutex mu_;
  std::optional<Status> error_ GUARDED_BY(mu_);
};

class GrpcSampleStream : public SampleStream {
 public:
  explicit GrpcSampleStream(std::shared_ptr<ClientStream> stream)
      : stream_(std::move(stream)) {}
  ~GrpcSampleStream() override { stream_->Release(); }

  bool can_send() const override { return stream_->can_send(); }
  void HalfClose() override { stream_->HalfClose(); }
  void Cancel() override { stream_->Cancel(); }
  std::optional<Status> finished() const override {
    MutexLock lock(&mu_);
    if (error_) return error_;
    return stream_->finished();
  }

  void Send(SampleRequest request) override {
    pb::SampleStreamRequest message;
    ToProto(request, &message);
    stream_->Send(Serialize(message));
  }

  bool Take(int64_t max_items, SampleReply* reply) override {
    grpc::ByteBuffer message;
    if (!stream_->Take(&message)) return false;
    const Status status = Decode(&message, reply);
    if (status.ok()) return true;
    {
      MutexLock lock(&mu_);
      error_ = status;
    }
    stream_->Cancel();
    return false;
  }

  uint64_t generation() const override { return generation_.load(); }

 private:
  Status Decode(grpc::ByteBuffer* message, SampleReply* reply) {
    grpc::ByteBuffer copy = *message;  // shares the slices
    RTF_ASSIGN_OR_RETURN(*reply, DecodeSampleReply(message));
    if (reply->generation == 0) {
      pb::SampleStreamResponse response;
      if (!Parse(&copy, &response)) return InternalError("malformed SampleStreamResponse");
      return foreign_.Read(response, &reply->items);
    }
    generation_ = reply->generation;
    return OkStatus();
  }

  const std::shared_ptr<ClientStream> stream_;
  ForeignSampleReader foreign_;
  std::atomic<uint64_t> generation_{0};
  mutable Mutex mu_;
  std::optional<Status> error_ GUARDED_BY(mu_);
};

class GrpcTransport : public Transport {
 public:
  explicit GrpcTransport(const std::string& address)
      : channel_(MakeChannel(address)),
        stub_(pb::ReverbService::NewStub(channel_)),
        generic_(channel_) {}
  ~GrpcTransport() override { open_calls_.AwaitNone(); }

  std::unique_ptr<Call> GetServerInfo(Done<ServerInfo> done) override {
    return Start<pb::ServerInfoRequest, pb::ServerInfoResponse>(
        &pb::ReverbService::Stub::AsyncServerInfo, {},
        [done](const Status& status, const pb::ServerInfoResponse& response) {
          done(status.ok() ? FromProto(response) : Result<ServerInfo>(status));
        });
  }

  std::unique_ptr<Call> Mutate(MutateRequest request, Done<MutateCounts> done) override {
    pb::MutatePrioritiesRequest message;
    ToProto(request, &message);
    return Start<pb::MutatePrioritiesRequest, pb::MutatePrioritiesResponse>(
        &pb::ReverbService::Stub::AsyncMutatePriorities, message,
        [done](const Status& status, const pb::MutatePrioritiesResponse& r) {
          if (!status.ok()) return done(status);
          if (!r.has_counts()) return done(MutateCounts{-1, -1, -1});
          done(MutateCounts{r.updated(), r.deleted(), r.not_found()});
        });
  }

  std::unique_ptr<Call> Reset(std::string table, Done<bool> done) override {
    pb::ResetRequest message;
    message.set_table(std::move(table));
    return Start<pb::ResetRequest, pb::ResetResponse>(
        &pb::ReverbService::Stub::AsyncReset, message,
        [done](const Status& status, const pb::ResetResponse&) {
          done(status.ok() ? Result<bool>(true) : Result<bool>(status));
        });
  }

  std::unique_ptr<Call> Checkpoint(Done<std::string> done) override {
    return Start<pb::CheckpointRequest, pb::CheckpointResponse>(
        &pb::ReverbService::Stub::AsyncCheckpoint, {},
        [done](const Status& status, const pb::CheckpointResponse& response) {
          done(status.ok() ? Result<std::string>(response.checkpoint_path())
                           : Result<std::string>(status));
        });
  }

  std::unique_ptr<InsertStream> OpenInsert(std::function<void()> on_ready) override {
    // The initial metadata wakes a client that waits for can_send().
    auto stream = std::make_shared<ClientStream>(open_calls_.Enter(), on_ready,
                                                 [peer = peer_, on_ready](bool own) {
                                                   SetPeer(peer, own);
                                                   on_ready();
                                                 });
    stream->Start(&generic_, "/deepmind.reverb.ReverbService/InsertStream",
                  thread_->queue());
    // Servers of other implementations keep silent until the first item is in.
    std::unique_ptr<Call> probe;
    if (peer_->load() == PeerKind::kUnknown) {
      probe = GetServerInfo([on_ready](const Result<ServerInfo>&) { on_ready(); });
    }
    return std::make_unique<GrpcInsertStream>(std::move(stream), peer_, std::move(probe));
  }

  std::unique_ptr<SampleStream> OpenSample(std::function<void()> on_ready) override {
    auto stream =
        std::make_shared<ClientStream>(open_calls_.Enter(), std::move(on_ready),
                                       [peer = peer_](bool own) { SetPeer(peer, own); });
    stream->Start(&generic_, "/deepmind.reverb.ReverbService/SampleStream",
                  thread_->queue());
    return std::make_unique<GrpcSampleStream>(std::move(stream));
  }

  bool is_local() const override { return false; }
  bool is_own_peer() const override { return peer_->load() != PeerKind::kForeign; }

 private:
  template <typename Request, typename Response>
  using Method = std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> (
      pb::ReverbService::Stub::*)(grpc::ClientContext*, const Request&,
                                  grpc::CompletionQueue*);

  template <typename Request, typename Response, typename Handler>
  std::unique_ptr<Call> Start(Method<Request, Response> method, const Request& request,
                              Handler handler) {
    using Unary = UnaryCall<Request, Response>;
    auto state = std::make_shared<typename Unary::State>();
    std::lock_guard<std::recursive_mutex> lock(state->mu);
    state->open = open_calls_.Enter();
    state->context.AddMetadata(kPeerKey, kPeerRevision);
    state->done = [handler, peer = peer_](const grpc::Status& status,
                                          typename Unary::State* s) {
      if (status.ok()) {
        SetPeer(peer, s->context.GetServerInitialMetadata().count(kPeerKey) > 0);
      }
      handler(FromGrpc(status), s->response);
    };
    state->self = state;
    state->reader = (stub_.get()->*method)(&state->context, request, thread_->queue());
    state->reader->Finish(&state->response, &state->status, state->tag());
    return std::make_unique<Unary>(state);
  }

  const std::shared_ptr<CompletionThread> thread_ = CompletionThread::Get();
  OpenCalls open_calls_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<pb::ReverbService::Stub> stub_;
  grpc::GenericStub generic_;
  const PeerState peer_ = std::make_shared<std::atomic<PeerKind>>(PeerKind::kUnknown);
};

}  // namespace

std::shared_ptr<Transport> MakeGrpcTransport(const std::string& address) {
  return std::make_shared<GrpcTransport>(address);
}

}  // namespace reverb_tf
