#include "cc/rpc/codec_fuzz.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "cc/base/check.h"
#include "cc/base/varint.h"
#include "cc/client/batch_assembler.h"
#include "cc/rpc/control_codec.h"
#include "cc/rpc/insert_codec.h"
#include "cc/rpc/sample_codec.h"
#include "cc/service/service.h"
#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

// Bytes of samples that one input may have read; small chunks can be named very often.
constexpr int64_t kReadBudget = 16 << 20;

FuzzCounts counts;

// ---- the store ----

std::string IntField(uint32_t number, int64_t value) {
  std::string out;
  AppendVarint(&out, Tag(number, WireType::kVarint));
  AppendVarint(&out, static_cast<uint64_t>(value));
  return out;
}

std::string BytesField(uint32_t number, const std::string& bytes) {
  std::string out;
  AppendVarint(&out, Tag(number, WireType::kBytes));
  AppendVarint(&out, bytes.size());
  return out + bytes;
}

// A field of a dict in a tensorflow.StructuredValue: a tensor of `dims`.
std::string SpecField(const std::string& name, DType dtype,
                      const std::vector<int64_t>& dims) {
  std::string shape;
  for (int64_t size : dims) shape += BytesField(2, IntField(1, size));
  const std::string spec = BytesField(2, shape) + IntField(3, static_cast<int64_t>(dtype));
  return BytesField(1, BytesField(1, name) + BytesField(2, BytesField(33, spec)));
}

TableConfig Config(const std::string& name) {
  TableConfig config = name == "queue" ? QueueConfig(5, name) : ReplayConfig(name);
  if (name == "uniform") config.sampler.kind = SelectorKind::kUniform;
  if (name == "prioritized") {
    config.sampler.kind = SelectorKind::kPrioritized;
    config.remover.kind = SelectorKind::kUniform;
    config.max_size = 7;
    config.rate_limiter = {/*samples_per_insert=*/3, /*min_size_to_sample=*/2, -20, 20};
  }
  if (name == "signed") {
    config.signature =
        Signature::Parse(BytesField(53, SpecField("a", DType::kFloat32, {-1, 3}) +
                                            SpecField("b", DType::kInt64, {-1})))
            .value();
  }
  if (name == "bytes") config.max_bytes = 4000;
  if (name == "heap") {
    config.sampler.kind = SelectorKind::kMaxHeap;
    config.remover.kind = SelectorKind::kMinHeap;
    config.max_size = 4;
    config.max_times_sampled = 2;
  }
  return config;
}

std::unique_ptr<Service> MakeService() {
  TableRunners tables;
  for (const char* name : kFuzzTables) {
    tables.push_back(std::make_shared<TableRunner>(Config(name)));
  }
  return std::make_unique<Service>(Store::Create(std::move(tables), "fuzz").value());
}

void CheckTable(const TableInfo& info) {
  const TableConfig& config = info.config;
  const auto fail = [&info] { return "table " + info.config.name + ": " + info.explain; };
  // Nothing is evicted for a sample that is given back to a table that uses them up.
  const int64_t most =
      config.max_size + (config.is_consuming() ? info.sample_stats.returned : 0);
  RTF_CHECK(info.current_size >= 0 && info.current_size <= most) << fail();
  RTF_CHECK(info.insert_count - info.delete_count == info.current_size) << fail();
  RTF_CHECK(config.max_bytes == 0 || info.bytes_stored <= config.max_bytes) << fail();
  int64_t bytes = 0;
  for (const auto& [path, column_bytes] : info.bytes_by_column) bytes += column_bytes;
  RTF_CHECK(bytes == info.bytes_stored && info.bytes_uncompressed >= 0) << fail();
  RTF_CHECK((info.num_chunks == 0) == (info.current_size == 0)) << fail();
  const CallStats& s = info.sample_stats;
  RTF_CHECK(s.in_flight >= 0) << fail();
  RTF_CHECK(s.in_flight == s.completed - s.delivered - s.returned) << fail();
}

// After all streams are closed.
void CheckIdle(const TableInfo& info) {
  RTF_CHECK(info.num_writers == 0 && info.num_samplers == 0) << info.explain;
  RTF_CHECK(info.num_waiting_inserts == 0 && info.num_waiting_samples == 0) << info.explain;
  RTF_CHECK(info.sample_stats.in_flight == 0) << info.explain;
}

void CheckEmpty(const TableInfo& info) {
  RTF_CHECK(info.current_size == 0 && info.num_chunks == 0) << info.explain;
  RTF_CHECK(info.bytes_stored == 0 && info.bytes_uncompressed == 0) << info.explain;
}

// ---- one input ----

// A server, its streams, and a client that listens to somebody else.
class World {
 public:
  void Run(std::string_view input);
  // Closes the streams and stops the server; nothing may be left. The last call.
  void End();

 private:
  void OnEvent(FuzzKind kind, int stream, grpc::ByteBuffer* message);
  void OnInsertRequest(int stream, grpc::ByteBuffer* message);
  void OnSampleRequest(int stream, grpc::ByteBuffer* message);
  void OnMutateRequest(grpc::ByteBuffer* message);
  void OnResetRequest(grpc::ByteBuffer* message);
  void OnSampleReply(grpc::ByteBuffer* message);
  void OnForeignSampleReply(grpc::ByteBuffer* message);

  void Take(int stream);
  void TakeInserted(int stream);
  void TakeSamples(int stream);
  // What a client makes of a server's reply, which is not malformed.
  std::vector<SampledItem> Transfer(int stream, const SampleReply& reply);
  void CloseStreams(int stream);
  void CheckInfo();

  // One by one, then as a batch.
  void ReadSamples(const std::vector<SampledItem>& items);

  std::unique_ptr<Service> service_ = MakeService();
  std::vector<ChunkPtr> chunks_;  // all that the server was sent
  std::array<std::shared_ptr<InsertSession>, kNumFuzzStreams> inserts_;
  std::array<std::shared_ptr<SampleSession>, kNumFuzzStreams> samples_;
  std::array<ForeignSampleReader, kNumFuzzStreams> transfers_;
  ForeignSampleReader reader_;
  const BatchAssembler assembler_{
      DeliveryPlan::Make(SamplerOptions(), TableConfig()).value(),
      /*pad_to_longest=*/true};
  int64_t read_budget_ = kReadBudget;
};

Peer PeerOf(int stream) { return IsForeignStream(stream) ? Peer::kForeign : Peer::kOwn; }

// The next event's parts; false at the end.
bool NextEvent(std::string_view* input, uint8_t* head, std::string_view* message) {
  if (input->empty()) return false;
  *head = static_cast<uint8_t>(input->front());
  const auto* const begin = reinterpret_cast<const uint8_t*>(input->data());
  uint64_t length = 0;
  const uint8_t* p = GetVarint(begin + 1, begin + input->size(), &length);
  if (p == nullptr) p = begin + 1;
  input->remove_prefix(static_cast<size_t>(p - begin));
  *message = input->substr(0, std::min<uint64_t>(length, input->size()));
  input->remove_prefix(message->size());
  return true;
}

grpc::ByteBuffer Sliced(std::string_view message, int slicing) {
  constexpr size_t kSteps[] = {SIZE_MAX, 4096, 50, 3};
  const size_t step = kSteps[slicing];
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < message.size(); at += std::min(step, message.size() - at)) {
    const std::string_view part = message.substr(at, step);
    slices.emplace_back(part.data(), part.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

void World::Run(std::string_view input) {
  uint8_t head = 0;
  std::string_view message;
  while (NextEvent(&input, &head, &message)) {
    grpc::ByteBuffer bytes = Sliced(message, head >> 6);
    OnEvent(static_cast<FuzzKind>(head & 15), (head >> 4) & 3, &bytes);
  }
}

void World::OnEvent(FuzzKind kind, int stream, grpc::ByteBuffer* message) {
  switch (kind) {
    case FuzzKind::kInsertRequest:
      return OnInsertRequest(stream, message);
    case FuzzKind::kSampleRequest:
      return OnSampleRequest(stream, message);
    case FuzzKind::kMutateRequest:
      return OnMutateRequest(message);
    case FuzzKind::kResetRequest:
      return OnResetRequest(message);
    case FuzzKind::kTake:
      return Take(stream);
    case FuzzKind::kCloseStreams:
      return CloseStreams(stream);
    case FuzzKind::kInsertReply: {
      pb::InsertStreamResponse response;
      if (Parse(message, &response)) FromProto(response);
      return;
    }
    case FuzzKind::kSampleReply:
      return OnSampleReply(message);
    case FuzzKind::kForeignSampleReply:
      return OnForeignSampleReply(message);
    case FuzzKind::kServerInfo: {
      pb::ServerInfoResponse response;
      if (Parse(message, &response)) (void)FromProto(response);
      return;
    }
    case FuzzKind::kCount:
      return;
  }
}

void World::OnInsertRequest(int stream, grpc::ByteBuffer* message) {
  std::shared_ptr<InsertSession>& session = inserts_[stream];
  if (!session) session = service_->OpenInsert(PeerOf(stream), [] {});
  if (session->is_full()) return;
  Result<InsertRequest> request = DecodeInsertRequest(message);
  RTF_CHECK(request.ok() || request.status().code() == StatusCode::kInvalidArgument);
  if (request.ok()) {
    chunks_.insert(chunks_.end(), request->chunks.begin(), request->chunks.end());
    if (session->Handle(std::move(*request)).ok()) return;
  }
  ++counts.ended;
  session->Close();
  session = nullptr;
}

void World::OnSampleRequest(int stream, grpc::ByteBuffer* message) {
  std::shared_ptr<SampleSession>& session = samples_[stream];
  if (!session) session = service_->OpenSample(PeerOf(stream), [] {});
  pb::SampleStreamRequest request;
  if (Parse(message, &request) && session->Handle(FromProto(request)).ok()) return;
  ++counts.ended;
  session->Close();
  session = nullptr;
}

void World::OnMutateRequest(grpc::ByteBuffer* message) {
  pb::MutatePrioritiesRequest request;
  if (Parse(message, &request)) (void)service_->Mutate(FromProto(request));
}

void World::OnResetRequest(grpc::ByteBuffer* message) {
  pb::ResetRequest request;
  if (Parse(message, &request)) (void)service_->Reset(request.table());
}

void World::OnSampleReply(grpc::ByteBuffer* message) {
  const Result<SampleReply> reply = DecodeSampleReply(message);
  if (!reply.ok()) {
    RTF_CHECK(reply.status().code() == StatusCode::kInvalidArgument);
    return;
  }
  counts.received += static_cast<int64_t>(reply->items.size());
  ReadSamples(reply->items);
}

void World::OnForeignSampleReply(grpc::ByteBuffer* message) {
  pb::SampleStreamResponse response;
  std::vector<SampledItem> items;
  if (!Parse(message, &response)) return;
  if (!reader_.Read(response, &items).ok()) reader_ = ForeignSampleReader();
  counts.received += static_cast<int64_t>(items.size());
  ReadSamples(items);
}

// ---- what the server writes ----

void World::Take(int stream) {
  TakeInserted(stream);
  TakeSamples(stream);
}

void World::TakeInserted(int stream) {
  std::shared_ptr<InsertSession>& session = inserts_[stream];
  if (!session) return;
  InsertReply reply;
  const Result<bool> any = session->Take(&reply);
  RTF_CHECK(session->pending() >= 0);
  if (any.ok()) {
    counts.inserted += static_cast<int64_t>(reply.confirmed.size());
    counts.refused += static_cast<int64_t>(reply.refused.size());
    pb::InsertStreamResponse response;
    ToProto(reply, &response);
    return;
  }
  ++counts.ended;
  session->Close();
  session = nullptr;
}

void World::TakeSamples(int stream) {
  constexpr int kMaxReplies = 4;
  constexpr int64_t kMaxItems = 32;
  std::shared_ptr<SampleSession>& session = samples_[stream];
  for (int i = 0; session && i < kMaxReplies; ++i) {
    SampleReply reply;
    const Result<bool> any = session->Take(kMaxItems, /*max_bytes=*/1 << 20, &reply);
    if (any.ok() && !*any) return;
    if (any.ok()) {
      const std::vector<SampledItem> items = Transfer(stream, reply);
      RTF_CHECK(items.size() == reply.items.size());
      for (size_t j = 0; j < items.size(); ++j) {
        RTF_CHECK(items[j].item->key() == reply.items[j].item->key());
      }
      counts.sampled += static_cast<int64_t>(items.size());
      ReadSamples(items);
      continue;
    }
    ++counts.ended;
    session->Close();
    session = nullptr;
  }
}

std::vector<SampledItem> World::Transfer(int stream, const SampleReply& reply) {
  if (!IsForeignStream(stream)) {
    grpc::ByteBuffer bytes = EncodeSampleReply(reply);
    return DecodeSampleReply(&bytes).value().items;
  }
  std::vector<SampledItem> items;
  std::vector<grpc::ByteBuffer> messages = EncodeForeignSamples(reply.items).value();
  for (grpc::ByteBuffer& bytes : messages) {
    pb::SampleStreamResponse message;
    RTF_CHECK(Parse(&bytes, &message));
    const Status status = transfers_[stream].Read(message, &items);
    RTF_CHECK(status.ok()) << status.ToString();
  }
  return items;
}

// ---- what a client does with samples ----

// Bytes that are touched when it is assembled, and more.
int64_t WorkOf(const SampledItem& sample) {
  int64_t bytes = 0;
  for (int i = 0; i < sample.item->num_slices(); ++i) {
    const ChunkSlice& slice = sample.item->slices()[i];
    bytes += static_cast<int64_t>(slice.chunk->uncompressed_bytes()) + 1 +
             slice.length * static_cast<int64_t>(slice.chunk->row_bytes());
  }
  return bytes;
}

// The tensors are what they say.
void CheckBatch(const SampleBatch& batch) {
  for (const Tensor& tensor : batch.columns) {
    const int64_t elements = NumElements(tensor.shape);
    RTF_CHECK(elements >= 0) << ShapeString(tensor.shape);
    if (tensor.dtype == DType::kString) {
      RTF_CHECK(ParseStringContent(tensor.buffer->view(), elements).ok());
    } else {
      RTF_CHECK(tensor.buffer->size() ==
                static_cast<size_t>(elements) * ElementSize(tensor.dtype));
    }
  }
}

void World::ReadSamples(const std::vector<SampledItem>& items) {
  std::vector<const SampledItem*> batch;
  int64_t most = 0;
  for (const SampledItem& sample : items) {
    const int64_t work = WorkOf(sample);
    read_budget_ -= work;
    if (read_budget_ < 0) return;
    SampleBatch out;
    const Status status = assembler_.AssembleOne(sample, &out);
    RTF_CHECK(status.ok()) << status.ToString();
    CheckBatch(out);
    batch.push_back(&sample);
    most = std::max(most, work);
  }
  read_budget_ -= most * static_cast<int64_t>(items.size());
  if (read_budget_ < 0 || batch.empty()) return;
  SampleBatch out;
  // Not OK if the items differ in their columns.
  if (assembler_.AssembleBatch(batch, &out).ok()) CheckBatch(out);
}

// ---- the end ----

void World::CloseStreams(int stream) {
  if (inserts_[stream]) std::exchange(inserts_[stream], nullptr)->Close();
  if (samples_[stream]) std::exchange(samples_[stream], nullptr)->Close();
}

void World::CheckInfo() {
  const ServerInfo info = service_->Info();
  for (const TableInfo& table : info.tables) CheckTable(table);
  pb::ServerInfoResponse response;
  ToProto(info, &response);
  RTF_CHECK(FromProto(response).ok());
}

void World::End() {
  CheckInfo();
  for (int stream = 0; stream < kNumFuzzStreams; ++stream) CloseStreams(stream);
  for (const TableInfo& table : service_->Info().tables) {
    CheckTable(table);
    CheckIdle(table);
  }
  for (const char* table : kFuzzTables) RTF_CHECK(service_->Reset(table).ok());
  for (const TableInfo& table : service_->Info().tables) CheckEmpty(table);
  // Joins the thread that may be the last to hold what it withdrew.
  service_ = nullptr;
  for (const ChunkPtr& chunk : chunks_) RTF_CHECK(chunk->unique()) << chunk->key();
}

}  // namespace

void AppendFuzzEvent(FuzzKind kind, int stream, int slicing, std::string_view message,
                     std::string* input) {
  *input += static_cast<char>(static_cast<int>(kind) | stream << 4 | slicing << 6);
  AppendVarint(input, message.size());
  input->append(message);
}

const FuzzCounts& GetFuzzCounts() { return counts; }

}  // namespace reverb_tf

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // It tells of every message that doesn't parse.
  google::protobuf::SetLogHandler(nullptr);
  reverb_tf::World world;
  world.Run({reinterpret_cast<const char*>(data), size});
  world.End();
  return 0;
}
