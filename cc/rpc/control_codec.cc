#include "cc/rpc/control_codec.h"

#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "cc/core/key_map.h"
#include "cc/rpc/insert_codec.h"

namespace reverb_tf {
namespace {

void SelectorToProto(const SelectorConfig& config, pb::KeyDistributionOptions* out) {
  switch (config.kind) {
    case SelectorKind::kFifo:
      out->set_fifo(true);
      break;
    case SelectorKind::kLifo:
      out->set_lifo(true);
      break;
    case SelectorKind::kUniform:
      out->set_uniform(true);
      break;
    case SelectorKind::kPrioritized:
      out->mutable_prioritized()->set_priority_exponent(config.priority_exponent);
      break;
    case SelectorKind::kMinHeap:
    case SelectorKind::kMaxHeap:
      out->mutable_heap()->set_min_heap(config.kind == SelectorKind::kMinHeap);
      break;
  }
  out->set_is_deterministic(config.is_deterministic());
  if (config.seed) out->set_seed(*config.seed);
}

SelectorConfig SelectorFromProto(const pb::KeyDistributionOptions& in) {
  SelectorConfig config;
  switch (in.distribution_case()) {
    case pb::KeyDistributionOptions::kFifo:
      config.kind = SelectorKind::kFifo;
      break;
    case pb::KeyDistributionOptions::kLifo:
      config.kind = SelectorKind::kLifo;
      break;
    case pb::KeyDistributionOptions::kPrioritized:
      config.kind = SelectorKind::kPrioritized;
      config.priority_exponent = in.prioritized().priority_exponent();
      break;
    case pb::KeyDistributionOptions::kHeap:
      config.kind = in.heap().min_heap() ? SelectorKind::kMinHeap : SelectorKind::kMaxHeap;
      break;
    case pb::KeyDistributionOptions::kUniform:
    case pb::KeyDistributionOptions::DISTRIBUTION_NOT_SET:
      break;
  }
  if (in.has_seed()) config.seed = in.seed();
  return config;
}

void StatsToProto(const CallStats& stats, pb::RateLimiterCallStats* out) {
  out->set_completed(stats.completed);
  out->set_refused(stats.refused);
  out->set_delivered(stats.delivered);
  out->set_returned(stats.returned);
  out->set_partial(stats.partial);
  out->set_in_flight(stats.in_flight);
  out->set_timed_out(stats.timed_out);
  out->set_blocked_ms(stats.blocked_ms);
}

CallStats StatsFromProto(const pb::RateLimiterCallStats& in) {
  return {in.completed(), in.refused(),   in.delivered(), in.returned(),
          in.partial(),   in.in_flight(), in.timed_out(), in.blocked_ms()};
}

void LimiterToProto(const TableInfo& info, pb::RateLimiterInfo* out) {
  const RateLimiterConfig& c = info.config.rate_limiter;
  out->set_samples_per_insert(c.samples_per_insert);
  out->set_min_size_to_sample(c.min_size_to_sample);
  out->set_min_diff(c.min_diff);
  out->set_max_diff(c.max_diff);
  StatsToProto(info.insert_stats, out->mutable_insert_stats());
  StatsToProto(info.sample_stats, out->mutable_sample_stats());
}

void WorkerTimeToProto(const WorkerTime& t, pb::TableWorkerTime* out) {
  out->set_running_ms(t.running_ms);
  out->set_sampling_ms(t.sampling_ms);
  out->set_inserting_ms(t.inserting_ms);
  out->set_sleeping_ms(t.sleeping_ms);
  out->set_waiting_for_sampling_ms(t.waiting_for_sampling_ms);
  out->set_waiting_for_inserts_ms(t.waiting_for_inserts_ms);
}

void TableToProto(const TableInfo& info, pb::TableInfo* out) {
  SelectorToProto(info.config.sampler, out->mutable_sampler_options());
  SelectorToProto(info.config.remover, out->mutable_remover_options());
  out->set_max_size(info.config.max_size);
  out->set_max_times_sampled(info.config.max_times_sampled);
  LimiterToProto(info, out->mutable_rate_limiter_info());
  if (info.config.signature) out->set_signature(info.config.signature->structured_value);
  out->set_current_size(info.current_size);
  out->set_name(info.config.name);
  out->set_num_episodes(info.num_episodes);
  out->set_num_deleted_episodes(info.num_deleted_episodes);
  out->set_num_unique_samples(info.num_unique_samples);
  WorkerTimeToProto(info.worker_time, out->mutable_table_worker_time());
  out->set_max_bytes(info.config.max_bytes);
  out->set_bytes_stored(info.bytes_stored);
  out->set_bytes_uncompressed(info.bytes_uncompressed);
  out->set_num_chunks(info.num_chunks);
  for (const auto& [path, bytes] : info.bytes_by_column) {
    auto* column = out->add_bytes_by_column();
    column->set_path(path);
    column->set_bytes(bytes);
  }
  out->set_signature_scope(static_cast<uint32_t>(info.config.signature_scope));
  out->set_generation(info.generation);
  out->set_insert_count(info.insert_count);
  out->set_sample_count(info.sample_count);
  out->set_delete_count(info.delete_count);
  out->set_num_evicted(info.num_evicted);
  out->set_num_expired(info.num_expired);
  out->set_num_waiting_inserts(info.num_waiting_inserts);
  out->set_num_waiting_samples(info.num_waiting_samples);
  out->set_oldest_wait_s(info.oldest_wait_s);
  out->set_num_writers(info.num_writers);
  out->set_num_samplers(info.num_samplers);
  out->set_sampler_mass(info.sampler_mass);
  out->set_explain(info.explain);
}

Result<TableInfo> TableFromProto(const pb::TableInfo& in) {
  TableInfo info;
  info.config.name = in.name();
  info.config.sampler = SelectorFromProto(in.sampler_options());
  info.config.remover = SelectorFromProto(in.remover_options());
  info.config.max_size = in.max_size();
  info.config.max_times_sampled = in.max_times_sampled();
  const pb::RateLimiterInfo& limiter = in.rate_limiter_info();
  info.config.rate_limiter = {limiter.samples_per_insert(), limiter.min_size_to_sample(),
                              limiter.min_diff(), limiter.max_diff()};
  if (in.has_signature()) {
    RTF_ASSIGN_OR_RETURN(info.config.signature, Signature::Parse(in.signature()));
  }
  info.config.max_bytes = in.max_bytes();
  info.config.signature_scope =
      static_cast<SignatureScope>(std::min<uint32_t>(in.signature_scope(), 2));
  info.current_size = in.current_size();
  info.num_episodes = in.num_episodes();
  info.num_deleted_episodes = in.num_deleted_episodes();
  info.num_unique_samples = in.num_unique_samples();
  const pb::TableWorkerTime& t = in.table_worker_time();
  info.worker_time = {t.running_ms(),
                      t.sampling_ms(),
                      t.inserting_ms(),
                      t.sleeping_ms(),
                      t.waiting_for_sampling_ms(),
                      t.waiting_for_inserts_ms()};
  info.insert_stats = StatsFromProto(limiter.insert_stats());
  info.sample_stats = StatsFromProto(limiter.sample_stats());
  info.bytes_stored = in.bytes_stored();
  info.bytes_uncompressed = in.bytes_uncompressed();
  info.num_chunks = in.num_chunks();
  for (const auto& column : in.bytes_by_column()) {
    info.bytes_by_column.emplace_back(column.path(), column.bytes());
  }
  info.generation = in.generation();
  info.insert_count = in.insert_count();
  info.sample_count = in.sample_count();
  info.delete_count = in.delete_count();
  info.num_evicted = in.num_evicted();
  info.num_expired = in.num_expired();
  info.num_waiting_inserts = in.num_waiting_inserts();
  info.num_waiting_samples = in.num_waiting_samples();
  info.oldest_wait_s = in.oldest_wait_s();
  info.num_writers = in.num_writers();
  info.num_samplers = in.num_samplers();
  info.sampler_mass = in.sampler_mass();
  info.explain = in.explain();
  return info;
}

}  // namespace

void ToProto(const ServerInfo& info, pb::ServerInfoResponse* out) {
  out->mutable_tables_state_id()->set_high(info.state_id.first);
  out->mutable_tables_state_id()->set_low(info.state_id.second);
  for (const TableInfo& table : info.tables) TableToProto(table, out->add_table_info());
}

Result<ServerInfo> FromProto(const pb::ServerInfoResponse& in) {
  ServerInfo info;
  info.state_id = {in.tables_state_id().high(), in.tables_state_id().low()};
  for (const pb::TableInfo& table : in.table_info()) {
    RTF_ASSIGN_OR_RETURN(TableInfo t, TableFromProto(table));
    info.tables.push_back(std::move(t));
  }
  return info;
}

void ToProto(const MutateRequest& request, pb::MutatePrioritiesRequest* out) {
  out->set_table(request.table);
  for (const PriorityUpdate& update : request.updates) {
    auto* u = out->add_updates();
    u->set_key(update.key);
    u->set_priority(update.priority);
  }
  for (uint64_t key : request.deletes) out->add_delete_keys(key);
}

MutateRequest FromProto(const pb::MutatePrioritiesRequest& in) {
  MutateRequest request;
  request.table = in.table();
  for (const auto& update : in.updates()) {
    request.updates.push_back({update.key(), update.priority()});
  }
  request.deletes.assign(in.delete_keys().begin(), in.delete_keys().end());
  return request;
}

void ToProto(const SampleRequest& request, pb::SampleStreamRequest* out) {
  out->set_table(request.table);
  out->set_num_samples(request.num_samples);
  if (request.timeout != kForever) {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(request.timeout);
    out->mutable_rate_limiter_timeout()->set_milliseconds(std::max<int64_t>(ms.count(), 1));
    out->set_timeout_ns(request.timeout.count());
  }
  out->set_delivered(request.delivered);
  for (int64_t position : request.returned) out->add_returned(position);
  out->set_partial(request.partial);
  if (request.seed) {
    out->mutable_seed()->set_seed(request.seed->seed);
    out->mutable_seed()->set_stream(request.seed->stream);
  }
  out->set_scope(static_cast<uint32_t>(request.scope));
}

SampleRequest FromProto(const pb::SampleStreamRequest& in) {
  SampleRequest request;
  request.table = in.table();
  request.num_samples = in.num_samples();
  if (in.has_timeout_ns()) {
    request.timeout = Duration(std::max<int64_t>(in.timeout_ns(), 0));
  } else if (in.has_rate_limiter_timeout() &&
             in.rate_limiter_timeout().milliseconds() > 0) {
    const int64_t ms = in.rate_limiter_timeout().milliseconds();
    if (ms < kForever.count() / 1'000'000) request.timeout = std::chrono::milliseconds(ms);
  }
  request.delivered = in.delivered();
  request.returned.assign(in.returned().begin(), in.returned().end());
  request.partial = in.partial();
  if (in.has_seed()) request.seed = SampleSeed{in.seed().seed(), in.seed().stream()};
  request.scope = static_cast<SignatureScope>(std::min<uint32_t>(in.scope(), 2));
  return request;
}

void ToProto(const InsertReply& reply, pb::InsertStreamResponse* out) {
  out->mutable_keys()->Add(reply.confirmed.begin(), reply.confirmed.end());
  for (const RefusedItem& item : reply.refused) {
    auto* refused = out->add_refused();
    refused->set_key(item.key);
    refused->set_code(static_cast<int>(item.status.code()));
    refused->set_text(item.status.message());
  }
}

InsertReply FromProto(const pb::InsertStreamResponse& in) {
  InsertReply reply;
  reply.confirmed.assign(in.keys().begin(), in.keys().end());
  for (const auto& refused : in.refused()) {
    const int code = refused.code();
    reply.refused.push_back(
        {refused.key(), Status(code > 0 && code <= 16 ? static_cast<StatusCode>(code)
                                                      : StatusCode::kUnknown,
                               refused.text())});
  }
  return reply;
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

bool Parse(grpc::ByteBuffer* bytes, google::protobuf::MessageLite* message) {
  std::vector<grpc::Slice> slices;
  if (!bytes->Dump(&slices).ok()) return false;
  std::string flat;
  for (const grpc::Slice& s : slices) {
    flat.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return message->ParseFromString(flat);
}

namespace {

constexpr size_t kForeignReplyBytes = 2 << 20;

void InfoToProto(const SampledItem& sample, pb::SampleInfo* out) {
  pb::PrioritizedItem* item = out->mutable_item();
  item->set_key(sample.item->key());
  item->set_priority(sample.priority);
  item->set_times_sampled(sample.times_sampled);
  for (int c = 0; c < sample.item->num_columns(); ++c) {
    const ColumnView view = sample.item->column(c);
    auto* column = item->mutable_flat_trajectory()->add_columns();
    column->set_squeeze(view.squeeze);
    for (const ChunkSlice& s : view) {
      auto* slice = column->add_chunk_slices();
      slice->set_chunk_key(s.chunk->key());
      slice->set_offset(s.offset);
      slice->set_length(s.length);
    }
  }
  out->set_probability(sample.probability);
  out->set_table_size(sample.table_size);
  out->set_rate_limited(sample.rate_limited);
}

}  // namespace

Result<std::vector<grpc::ByteBuffer>> EncodeForeignSamples(
    const std::vector<SampledItem>& items) {
  std::vector<grpc::ByteBuffer> messages;
  pb::SampleStreamResponse message;
  size_t bytes = 0;
  const auto flush = [&] {
    messages.push_back(Serialize(message));
    message.Clear();
    bytes = 0;
  };
  for (const SampledItem& sample : items) {
    auto* entry = message.add_entries();
    InfoToProto(sample, entry->mutable_info());
    std::unordered_set<const Chunk*> sent;
    for (int i = 0; i < sample.item->num_slices(); ++i) {
      const ChunkPtr& chunk = sample.item->slices()[i].chunk;
      if (!sent.insert(chunk.get()).second) continue;
      if (bytes > kForeignReplyBytes) {
        flush();
        entry = message.add_entries();
      }
      // The field that holds it in SampleEntry, reused for its encoding alone.
      WireWriter writer;
      RTF_RETURN_IF_ERROR(WriteChunkData(2, chunk, Peer::kForeign, &writer));
      grpc::ByteBuffer encoded = writer.Finish();
      pb::SampleStreamResponse::SampleEntry parsed;
      if (!Parse(&encoded, &parsed)) return InternalError("chunk encoding");
      entry->mutable_data()->Add(std::move(*parsed.mutable_data(0)));
      bytes += encoded.Length();
    }
    entry->set_end_of_sequence(true);
    if (bytes > kForeignReplyBytes) flush();
  }
  if (message.entries_size() > 0) flush();
  return messages;
}

namespace {

Result<SampledItem> BuildSample(const pb::SampleInfo& info,
                                const std::vector<ChunkPtr>& chunks) {
  std::unordered_map<uint64_t, ChunkPtr, KeyHash> by_key;
  for (const ChunkPtr& chunk : chunks) by_key[chunk->key()] = chunk;
  std::vector<ChunkSlice> slices;
  std::vector<ColumnView> columns;
  bool row_chunks = false;
  for (const auto& column : info.item().flat_trajectory().columns()) {
    for (const auto& s : column.chunk_slices()) {
      row_chunks |= s.index() > 0;
      const auto it = by_key.find(MixKey(s.chunk_key(), static_cast<uint32_t>(s.index())));
      if (it == by_key.end()) {
        return InvalidArgumentError("sample " + std::to_string(info.item().key()) +
                                    " refers to a chunk that was not sent");
      }
      slices.push_back({it->second, s.offset(), s.length()});
    }
    columns.push_back({nullptr, column.chunk_slices_size(), column.squeeze()});
  }
  const ChunkSlice* next = slices.data();
  for (ColumnView& column : columns) {
    column.slices = next;
    next += column.num_slices;
  }
  SampledItem sample;
  RTF_ASSIGN_OR_RETURN(sample.item, Item::Create(info.item().key(), row_chunks, columns));
  sample.priority = info.item().priority();
  sample.probability = info.probability();
  sample.table_size = info.table_size();
  sample.times_sampled = info.item().times_sampled();
  sample.rate_limited = info.rate_limited();
  return sample;
}

}  // namespace

Status ForeignSampleReader::Read(const pb::SampleStreamResponse& message,
                                 std::vector<SampledItem>* out) {
  for (const auto& entry : message.entries()) {
    if (!in_sample_) {
      if (!entry.has_info()) return InvalidArgumentError("a sample began without info");
      info_ = entry.info();
      chunks_.clear();
      in_sample_ = true;
    }
    for (const pb::ChunkData& chunk : entry.data()) {
      pb::InsertStreamRequest wrapper;
      *wrapper.add_chunks() = chunk;
      grpc::ByteBuffer bytes = Serialize(wrapper);
      RTF_ASSIGN_OR_RETURN(InsertRequest decoded, DecodeInsertRequest(&bytes));
      for (ChunkPtr& c : decoded.chunks) chunks_.push_back(std::move(c));
    }
    if (!entry.end_of_sequence()) continue;
    in_sample_ = false;
    RTF_ASSIGN_OR_RETURN(SampledItem sample, BuildSample(info_, chunks_));
    out->push_back(std::move(sample));
    chunks_.clear();
  }
  return OkStatus();
}

}  // namespace reverb_tf
