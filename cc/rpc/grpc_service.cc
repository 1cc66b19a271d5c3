#include "cc/rpc/grpc_service.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "cc/rpc/control_codec.h"
#include "cc/rpc/insert_codec.h"
#include "cc/rpc/sample_codec.h"
#include "cc/rpc/status_codec.h"
#include "cc/rpc/stream_reactor.h"

namespace reverb_tf {
namespace {

using RpcContext = grpc::CallbackServerContext;

Peer PeerOf(RpcContext* context) {
  context->AddInitialMetadata(kPeerKey, kPeerRevision);
  return context->client_metadata().count(kPeerKey) ? Peer::kOwn : Peer::kForeign;
}

// A writer's stream.
class InsertReactor : public StreamReactor {
 public:
  static InsertReactor* Start(Service* service, Peer peer) {
    auto reactor = std::shared_ptr<InsertReactor>(new InsertReactor);
    std::weak_ptr<StreamReactor> weak = reactor;
    reactor->session_ = service->OpenInsert(peer, [weak] {
      if (auto r = weak.lock()) r->Poke();
    });
    reactor->StreamReactor::Start();
    return reactor.get();
  }

 private:
  Status OnMessage(grpc::ByteBuffer* message) override {
    RTF_ASSIGN_OR_RETURN(InsertRequest request, DecodeInsertRequest(message));
    return session_->Handle(std::move(request));
  }

  Result<std::optional<grpc::ByteBuffer>> NextWrite() override {
    InsertReply reply;
    RTF_ASSIGN_OR_RETURN(const bool any, session_->Take(&reply));
    if (!any) return std::optional<grpc::ByteBuffer>();
    pb::InsertStreamResponse response;
    ToProto(reply, &response);
    return std::optional<grpc::ByteBuffer>(Serialize(response));
  }

  bool IsDrained() override { return session_->pending() == 0; }
  bool ShouldPause() override { return session_->is_full(); }
  void OnGone() override { session_->Close(); }

  std::shared_ptr<InsertSession> session_;
};

// A sampler's stream.
class SampleReactor : public StreamReactor {
 public:
  static SampleReactor* Start(Service* service, Peer peer) {
    auto reactor = std::shared_ptr<SampleReactor>(new SampleReactor(peer));
    std::weak_ptr<StreamReactor> weak = reactor;
    reactor->session_ = service->OpenSample(peer, [weak] {
      if (auto r = weak.lock()) r->Poke();
    });
    reactor->StreamReactor::Start();
    return reactor.get();
  }

 private:
  // Of one message to a peer of this project.
  static constexpr int64_t kMaxItems = 1024;
  static constexpr int64_t kMaxBytes = 4 << 20;
  static constexpr int64_t kForeignBytes = 2 << 20;

  explicit SampleReactor(Peer peer) : peer_(peer) {}

  Status OnMessage(grpc::ByteBuffer* message) override {
    pb::SampleStreamRequest request;
    if (!Parse(message, &request)) {
      return InvalidArgumentError("malformed SampleStreamRequest");
    }
    const SampleRequest parsed = FromProto(request);
    owed_ += std::max<int64_t>(parsed.num_samples, 0);
    return session_->Handle(parsed);
  }

  Result<std::optional<grpc::ByteBuffer>> NextWrite() override {
    if (!foreign_.empty()) return PopForeign();
    SampleReply reply;
    RTF_ASSIGN_OR_RETURN(
        const bool any,
        session_->Take(kMaxItems, peer_ == Peer::kOwn ? kMaxBytes : kForeignBytes, &reply));
    if (!any) return std::optional<grpc::ByteBuffer>();
    if (peer_ == Peer::kOwn)
      return std::optional<grpc::ByteBuffer>(EncodeSampleReply(reply));
    owed_ -= static_cast<int64_t>(reply.items.size());
    RTF_ASSIGN_OR_RETURN(std::vector<grpc::ByteBuffer> messages,
                         EncodeForeignSamples(reply.items));
    for (grpc::ByteBuffer& m : messages) foreign_.push_back(std::move(m));
    return PopForeign();
  }

  std::optional<grpc::ByteBuffer> PopForeign() {
    if (foreign_.empty()) return std::nullopt;
    grpc::ByteBuffer next = std::move(foreign_.front());
    foreign_.pop_front();
    return next;
  }

  // A peer of this project half-closes when it wants no more: what it has not
  // acknowledged goes back.
  bool IsDrained() override {
    return peer_ == Peer::kOwn || (owed_ <= 0 && foreign_.empty());
  }
  void OnGone() override { session_->Close(); }

  const Peer peer_;
  std::shared_ptr<SampleSession> session_;
  std::deque<grpc::ByteBuffer> foreign_;  // encoded and not yet written
  std::atomic<int64_t> owed_{0};          // to a foreign peer: asked for, not yet taken
};

// A client of another implementation asks whether it shares our process: never.
class InitializeConnectionReactor
    : public grpc::ServerBidiReactor<pb::InitializeConnectionRequest,
                                     pb::InitializeConnectionResponse> {
 public:
  InitializeConnectionReactor() { StartRead(&request_); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_.set_address(0);
    StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }
  void OnDone() override { delete this; }

  pb::InitializeConnectionRequest request_;
  pb::InitializeConnectionResponse response_;
};

using Rpcs = pb::ReverbService;
using GeneratedService =
    Rpcs::WithCallbackMethod_Checkpoint<Rpcs::WithRawCallbackMethod_InsertStream<
        Rpcs::WithCallbackMethod_MutatePriorities<Rpcs::WithCallbackMethod_Reset<
            Rpcs::WithRawCallbackMethod_SampleStream<Rpcs::WithCallbackMethod_ServerInfo<
                Rpcs::WithCallbackMethod_InitializeConnection<Rpcs::Service>>>>>>>;

class GrpcService : public GeneratedService {
 public:
  explicit GrpcService(std::shared_ptr<reverb_tf::Service> service)
      : service_(std::move(service)) {}

  grpc::ServerUnaryReactor* Checkpoint(RpcContext* context, const pb::CheckpointRequest*,
                                       pb::CheckpointResponse*) override {
    return Answer(context, UnimplementedError("this server has no checkpointer"));
  }

  grpc::ServerUnaryReactor* MutatePriorities(
      RpcContext* context, const pb::MutatePrioritiesRequest* request,
      pb::MutatePrioritiesResponse* response) override {
    const Result<MutateCounts> counts = service_->Mutate(FromProto(*request));
    if (!counts.ok()) return Answer(context, counts.status());
    response->set_has_counts(true);
    response->set_updated(counts->updated);
    response->set_deleted(counts->deleted);
    response->set_not_found(counts->not_found);
    return Answer(context, OkStatus());
  }

  grpc::ServerUnaryReactor* Reset(RpcContext* context, const pb::ResetRequest* request,
                                  pb::ResetResponse*) override {
    return Answer(context, service_->Reset(request->table()));
  }

  grpc::ServerUnaryReactor* ServerInfo(RpcContext* context, const pb::ServerInfoRequest*,
                                       pb::ServerInfoResponse* response) override {
    ToProto(service_->Info(), response);
    return Answer(context, OkStatus());
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* InsertStream(
      RpcContext* context) override {
    return InsertReactor::Start(service_.get(), PeerOf(context));
  }

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* SampleStream(
      RpcContext* context) override {
    return SampleReactor::Start(service_.get(), PeerOf(context));
  }

  grpc::ServerBidiReactor<pb::InitializeConnectionRequest,
                          pb::InitializeConnectionResponse>*
  InitializeConnection(RpcContext*) override {
    return new InitializeConnectionReactor;
  }

 private:
  static grpc::ServerUnaryReactor* Answer(RpcContext* context, const Status& status) {
    PeerOf(context);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(status));
    return reactor;
  }

  const std::shared_ptr<reverb_tf::Service> service_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeGrpcService(std::shared_ptr<Service> service) {
  return std::make_unique<GrpcService>(std::move(service));
}

}  // namespace reverb_tf
