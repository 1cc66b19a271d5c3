#include "cc/rpc/fuzz_inputs.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <random>
#include <vector>

#include "cc/base/varint.h"
#include "cc/compress/snappy.h"
#include "cc/rpc/codec_fuzz.h"
#include "cc/rpc/control_codec.h"
#include "cc/rpc/wire_mutator.h"

namespace reverb_tf {
namespace {

struct ColumnKind {
  DType dtype;
  Shape cell;
};

const ColumnKind kKinds[] = {
    {DType::kFloat32, {3}},   {DType::kInt64, {}},   {DType::kUint8, {2, 2}},
    {DType::kString, {}},     {DType::kInt32, {4}},  {DType::kBool, {0}},
    {DType::kFloat32, {700}}, {DType::kString, {2}}, {DType::kString, {0}},
};
constexpr int kNumKinds = static_cast<int>(std::size(kKinds));

// A chunk that items may name.
struct KnownChunk {
  uint64_t key;
  int kind;
  int32_t rows;
};

// Makes one input.
class InputMaker {
 public:
  InputMaker(uint64_t seed, uint64_t number) {
    std::seed_seq sequence{seed, seed >> 32, number, number >> 32};
    random_.seed(sequence);
  }
  std::string Make();

 private:
  uint64_t Below(uint64_t n) { return wire_.Below(n); }
  bool OneIn(uint64_t n) { return wire_.OneIn(n); }
  std::string Table() { return OneIn(40) ? "unknown" : kFuzzTables[Below(6)]; }
  double Priority() { return static_cast<double>(Below(8)) / 4; }

  // Appends the event, its message perhaps damaged.
  void Add(FuzzKind kind, int stream, const google::protobuf::MessageLite& message);
  void AddSome();

  pb::InsertStreamRequest InsertRequest(int stream);
  pb::SampleStreamRequest SampleRequest();
  pb::MutatePrioritiesRequest MutateRequest();
  pb::InsertStreamResponse InsertReply();
  pb::SampleStreamResponse SampleReply();
  pb::SampleStreamResponse ForeignSampleReply();
  pb::ServerInfoResponse ServerInfo();

  std::string Content(const ColumnKind& kind, int32_t rows);
  KnownChunk FillChunk(int kind, pb::ChunkData* out);
  void FillItem(const std::vector<KnownChunk>& chunks, pb::PrioritizedItem* out);
  void FillColumn(const std::vector<KnownChunk>& chunks, int kind,
                  pb::FlatTrajectory::Column* out);
  void AppendTrajectory(const std::vector<KnownChunk>& chunks,
                        pb::SampleStreamResponse* out);

  std::mt19937_64 random_;
  WireMutator wire_{&random_};
  std::array<std::vector<KnownChunk>, kNumFuzzStreams> known_;
  uint64_t next_key_ = 1;
  uint64_t sequence_number_ = 1;
  std::string input_;
};

void InputMaker::Add(FuzzKind kind, int stream,
                     const google::protobuf::MessageLite& message) {
  std::string bytes = message.SerializeAsString();
  if (OneIn(3)) {
    for (uint64_t n = 1 + Below(3); n > 0; --n) bytes = wire_.Mutate(bytes);
  }
  const int slicing = OneIn(2) ? 0 : static_cast<int>(Below(4));
  AppendFuzzEvent(kind, stream, slicing, bytes, &input_);
}

void InputMaker::AddSome() {
  const int stream = static_cast<int>(Below(kNumFuzzStreams));
  switch (Below(20)) {
    case 0:
      return Add(FuzzKind::kMutateRequest, stream, MutateRequest());
    case 1: {
      if (OneIn(4)) return Add(FuzzKind::kCloseStreams, stream, pb::ResetResponse());
      pb::ResetRequest reset;
      reset.set_table(Table());
      return Add(FuzzKind::kResetRequest, stream, reset);
    }
    case 2:
      return Add(FuzzKind::kInsertReply, stream, InsertReply());
    case 3:
    case 4:
      return Add(FuzzKind::kSampleReply, stream, SampleReply());
    case 5:
      return Add(FuzzKind::kForeignSampleReply, stream, ForeignSampleReply());
    case 6:
      return Add(FuzzKind::kServerInfo, stream, ServerInfo());
    case 7:
    case 8:
    case 9:
    case 10:
      Add(FuzzKind::kSampleRequest, stream, SampleRequest());
      return Add(FuzzKind::kTake, stream, pb::ResetResponse());
    default:
      Add(FuzzKind::kInsertRequest, stream, InsertRequest(stream));
      return Add(FuzzKind::kTake, stream, pb::ResetResponse());
  }
}

std::string InputMaker::Make() {
  for (uint64_t n = 1 + Below(12); n > 0; --n) AddSome();
  return OneIn(20) ? wire_.MutateBytes(std::move(input_)) : std::move(input_);
}

// ---- chunks and items ----

std::string InputMaker::Content(const ColumnKind& kind, int32_t rows) {
  const int64_t elements = NumElements(kind.cell) * rows;
  if (kind.dtype != DType::kString) {
    std::string bytes(static_cast<size_t>(elements) * ElementSize(kind.dtype), '\0');
    for (size_t i = 0; i < bytes.size(); i += 1 + Below(9)) {
      bytes[i] = static_cast<char>(random_());
    }
    return bytes;
  }
  std::vector<std::string> strings(static_cast<size_t>(elements));
  for (std::string& s : strings) s.assign(Below(OneIn(20) ? 3000 : 5), 'x');
  return MakeStringContent({strings.begin(), strings.end()});
}

KnownChunk InputMaker::FillChunk(int kind, pb::ChunkData* out) {
  const ColumnKind& column = kKinds[kind];
  const bool empty_rows = NumElements(column.cell) == 0;
  const int32_t rows =
      empty_rows && OneIn(4) ? INT32_MAX : static_cast<int32_t>(1 + Below(6));
  const KnownChunk chunk{next_key_++, kind, rows};
  out->set_chunk_key(chunk.key);
  out->mutable_sequence_range()->set_episode_id(Below(3));
  out->mutable_sequence_range()->set_end(rows);
  out->set_delta_encoded(OneIn(3));
  out->set_data_tensors_len(1);
  auto* tensor = out->mutable_data()->add_tensors();
  tensor->set_dtype(static_cast<int32_t>(column.dtype));
  tensor->mutable_tensor_shape()->add_dim()->set_size(rows);
  for (int64_t d : column.cell) tensor->mutable_tensor_shape()->add_dim()->set_size(d);
  const uint32_t encoding = static_cast<uint32_t>(Below(3));
  out->set_encoding(encoding);
  std::string content = Content(column, rows);
  const bool snappy = encoding == 2 || (encoding == 0 && column.dtype != DType::kString);
  tensor->set_tensor_content(snappy ? SnappyCompress(content) : content);
  if (OneIn(20)) *out->mutable_data()->add_tensors() = *tensor;
  return chunk;
}

void InputMaker::FillColumn(const std::vector<KnownChunk>& chunks, int kind,
                            pb::FlatTrajectory::Column* out) {
  for (const KnownChunk& chunk : chunks) {
    if (chunk.kind != kind || (out->chunk_slices_size() > 0 && OneIn(2))) continue;
    auto* slice = out->add_chunk_slices();
    slice->set_chunk_key(chunk.key);
    const auto offset = static_cast<int32_t>(Below(static_cast<uint64_t>(chunk.rows)));
    slice->set_offset(offset);
    slice->set_length(
        1 + static_cast<int32_t>(Below(static_cast<uint64_t>(chunk.rows - offset))));
  }
  const bool one_row = out->chunk_slices_size() == 1 && out->chunk_slices(0).length() == 1;
  out->set_squeeze(one_row && OneIn(2));
}

void InputMaker::FillItem(const std::vector<KnownChunk>& chunks, pb::PrioritizedItem* out) {
  out->set_key(1 + Below(30));
  out->set_table(Table());
  out->set_priority(Priority());
  out->set_writer_id(Below(3));
  out->set_sequence(sequence_number_++);
  out->set_written_as_steps(OneIn(3));
  auto* trajectory = out->mutable_flat_trajectory();
  if (out->table() == "signed") {
    FillColumn(chunks, 0, trajectory->add_columns());
    FillColumn(chunks, 1, trajectory->add_columns());
    return;
  }
  for (uint64_t n = 1 + Below(3); n > 0; --n) {
    FillColumn(chunks, chunks[Below(chunks.size())].kind, trajectory->add_columns());
  }
}

// ---- messages to a server ----

pb::InsertStreamRequest InputMaker::InsertRequest(int stream) {
  pb::InsertStreamRequest request;
  std::vector<KnownChunk>& known = known_[stream];
  if (OneIn(4)) {
    for (int kind : {0, 1}) known.push_back(FillChunk(kind, request.add_chunks()));
  }
  for (uint64_t n = Below(4); n > 0 || known.empty(); n -= n > 0) {
    const int kind = static_cast<int>(Below(kNumKinds));
    known.push_back(FillChunk(kind, request.add_chunks()));
  }
  for (uint64_t n = Below(4); n > 0; --n) FillItem(known, request.add_items());
  if (request.items_size() == 0) return request;
  const auto kept = std::remove_if(known.begin(), known.end(),
                                   [this](const KnownChunk&) { return OneIn(3); });
  known.erase(kept, known.end());
  for (const KnownChunk& chunk : known) request.add_keep_chunk_keys(chunk.key);
  return request;
}

pb::SampleStreamRequest InputMaker::SampleRequest() {
  pb::SampleStreamRequest request;
  request.set_table(Table());
  request.set_num_samples(static_cast<int64_t>(Below(OneIn(10) ? 1000 : 8)));
  if (OneIn(3)) request.mutable_rate_limiter_timeout()->set_milliseconds(1);
  if (OneIn(2)) request.set_timeout_ns(0);
  if (OneIn(3)) request.set_delivered(static_cast<int64_t>(Below(4)));
  if (OneIn(4)) request.add_returned(static_cast<int64_t>(Below(6)));
  if (OneIn(8)) request.set_partial(1);
  if (OneIn(4)) request.mutable_seed()->set_seed(Below(9));
  request.set_scope(OneIn(4) ? static_cast<uint32_t>(Below(3)) : 0);
  return request;
}

pb::MutatePrioritiesRequest InputMaker::MutateRequest() {
  pb::MutatePrioritiesRequest request;
  request.set_table(Table());
  for (uint64_t n = Below(4); n > 0; --n) {
    auto* update = request.add_updates();
    update->set_key(1 + Below(30));
    update->set_priority(Priority());
  }
  for (uint64_t n = Below(4); n > 0; --n) request.add_delete_keys(1 + Below(30));
  return request;
}

// ---- messages to a client ----

pb::InsertStreamResponse InputMaker::InsertReply() {
  pb::InsertStreamResponse reply;
  for (uint64_t n = Below(4); n > 0; --n) reply.add_keys(Below(30));
  auto* refused = reply.add_refused();
  refused->set_key(Below(30));
  refused->set_code(static_cast<int32_t>(Below(18)));
  refused->set_text("no");
  return reply;
}

void InputMaker::AppendTrajectory(const std::vector<KnownChunk>& chunks,
                                  pb::SampleStreamResponse* out) {
  const uint64_t columns = 1 + Below(3);
  out->add_trajectories(static_cast<uint32_t>(columns));
  for (uint64_t c = 0; c < columns; ++c) {
    const uint64_t index = Below(chunks.size());
    const auto rows = static_cast<uint64_t>(chunks[index].rows);
    const uint64_t offset = Below(rows);
    const uint64_t slices = 1 + Below(2);
    out->add_trajectories(static_cast<uint32_t>(slices << 1));
    for (uint64_t s = 0; s < slices; ++s) {
      out->add_trajectories(static_cast<uint32_t>(index));
      out->add_trajectories(static_cast<uint32_t>(offset));
      out->add_trajectories(static_cast<uint32_t>(1 + Below(rows - offset)));
    }
  }
}

pb::SampleStreamResponse InputMaker::SampleReply() {
  pb::SampleStreamResponse reply;
  std::vector<KnownChunk> chunks;
  for (uint64_t n = 1 + Below(3); n > 0; --n) {
    pb::ChunkData chunk;
    chunks.push_back(FillChunk(static_cast<int>(Below(kNumKinds)), &chunk));
    const ColumnKind& kind = kKinds[chunks.back().kind];
    auto* spec = reply.add_specs();
    spec->set_dtype(static_cast<int32_t>(kind.dtype));
    for (int64_t d : kind.cell) spec->add_dims(d);
    auto* rows = reply.add_rows();
    rows->set_spec(static_cast<uint32_t>(reply.specs_size() - 1));
    rows->set_num_rows(static_cast<uint32_t>(chunks.back().rows));
    const bool plain =
        chunk.encoding() == 1 || (chunk.encoding() == 0 && kind.dtype == DType::kString);
    rows->set_encoding(plain ? 1 : 2);
    rows->set_delta_encoded(chunk.delta_encoded());
    rows->set_chunk_key(chunk.chunk_key());
    rows->set_payload(chunk.data().tensors(0).tensor_content());
  }
  for (uint64_t n = Below(4); n > 0; --n) {
    reply.add_keys(Below(30));
    reply.add_probabilities(0.5);
    reply.add_table_sizes(3);
    reply.add_priorities(Priority());
    reply.add_times_sampled(1);
    reply.add_flags(static_cast<uint32_t>(Below(4)));
    AppendTrajectory(chunks, &reply);
  }
  reply.set_generation(1 + Below(3));
  if (OneIn(3)) reply.mutable_request_done()->set_code(static_cast<int32_t>(Below(6)));
  return reply;
}

pb::SampleStreamResponse InputMaker::ForeignSampleReply() {
  pb::SampleStreamResponse reply;
  for (uint64_t n = 1 + Below(3); n > 0; --n) {
    std::vector<KnownChunk> chunks;
    auto* entry = reply.add_entries();
    pb::SampleInfo* const info = entry->mutable_info();
    for (uint64_t i = 1 + Below(3); i > 0; --i) {
      const int kind = static_cast<int>(Below(kNumKinds));
      chunks.push_back(FillChunk(kind, entry->add_data()));
      if (i > 1 && OneIn(4)) entry = reply.add_entries();
    }
    FillItem(chunks, info->mutable_item());
    entry->set_end_of_sequence(true);
  }
  return reply;
}

pb::ServerInfoResponse InputMaker::ServerInfo() {
  pb::ServerInfoResponse response;
  auto* table = response.add_table_info();
  table->set_name("t");
  table->mutable_sampler_options()->set_uniform(true);
  table->mutable_rate_limiter_info()->set_min_diff(-1);
  // Lists and tuples in one another (StructuredValue's fields 51 and 52) around a spec
  // (33) of shape [3] and dtype float32.
  std::string value = "\x8a\x02\x08\x12\x04\x12\x02\x08\x03\x18\x01";
  for (uint64_t depth = Below(OneIn(4) ? 200 : 3); depth > 0; --depth) {
    std::string list("\x0a");
    AppendVarint(&list, value.size());
    list += value;
    value = OneIn(2) ? "\x9a\x03" : "\xa2\x03";
    AppendVarint(&value, list.size());
    value += list;
  }
  table->set_signature(value);
  return response;
}

}  // namespace

std::string MakeFuzzInput(uint64_t seed, uint64_t number) {
  return InputMaker(seed, number).Make();
}

}  // namespace reverb_tf
