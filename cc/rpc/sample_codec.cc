#include "cc/rpc/sample_codec.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "cc/core/key_map.h"
#include "cc/rpc/wire_reader.h"
#include "cc/rpc/wire_writer.h"

namespace reverb_tf {
namespace {

constexpr uint32_t kKeys = 1001;
constexpr uint32_t kProbabilities = 1002;
constexpr uint32_t kTableSizes = 1003;
constexpr uint32_t kPriorities = 1004;
constexpr uint32_t kTimesSampled = 1005;
constexpr uint32_t kFlags = 1006;
constexpr uint32_t kSpecs = 1007;
constexpr uint32_t kRows = 1008;
constexpr uint32_t kTrajectories = 1009;
constexpr uint32_t kGeneration = 1010;
constexpr uint32_t kRequestDone = 1011;

constexpr uint32_t kFlagRateLimited = 1;
constexpr uint32_t kFlagWrittenAsSteps = 2;

constexpr size_t kSpecsSearched = 64;

constexpr uint64_t kPlainRows = 1;
constexpr uint64_t kSnappyRows = 2;

void AppendFixed64(std::string* out, const void* value) {
  out->append(static_cast<const char*>(value), 8);
}

// The chunks of a message, each once, with the range of rows that is used.
class RowsTable {
 public:
  struct Entry {
    ChunkPtr chunk;
    int32_t begin;
    int32_t end;
    uint32_t spec;
  };

  uint32_t Add(const ChunkSlice& slice) {
    const int32_t end = slice.offset + slice.length;
    uint32_t& place =
        index_.FindOrAdd(reinterpret_cast<uintptr_t>(slice.chunk.get()))->place;
    if (place == 0) {
      entries_.push_back({slice.chunk, slice.offset, end, SpecOf(*slice.chunk)});
      place = static_cast<uint32_t>(entries_.size());
    } else {
      Entry& e = entries_[place - 1];
      e.begin = std::min(e.begin, slice.offset);
      e.end = std::max(e.end, end);
    }
    return place - 1;
  }

  // Rows can be cut out of plain numeric chunks only.
  static bool CanTrim(const Chunk& chunk) {
    return chunk.is_plain() && chunk.cell().dtype != DType::kString;
  }
  int32_t first_row(uint32_t index) const {
    const Entry& e = entries_[index];
    return CanTrim(*e.chunk) ? e.begin : 0;
  }
  const std::vector<Entry>& entries() const { return entries_; }
  const std::vector<const TensorSpec*>& specs() const { return specs_; }

 private:
  uint32_t SpecOf(const Chunk& chunk) {
    const TensorSpec* spec = &chunk.cell();
    // Among the latest alone: an item can have as many kinds of cells as chunks.
    const size_t first = specs_.size() - std::min(specs_.size(), kSpecsSearched);
    for (size_t i = specs_.size(); i-- > first;) {
      if (specs_[i] == spec ||
          (specs_[i]->dtype == spec->dtype && specs_[i]->shape == spec->shape)) {
        return static_cast<uint32_t>(i);
      }
    }
    specs_.push_back(spec);
    return static_cast<uint32_t>(specs_.size() - 1);
  }

  struct Place {
    uint32_t place = 0;  // its index and one
    static bool IsEmpty(const Place& p) { return p.place == 0; }
  };

  KeyMap<Place> index_;  // by the chunk's address
  std::vector<Entry> entries_;
  std::vector<const TensorSpec*> specs_;
};

void WriteSpecs(const RowsTable& rows, WireWriter* out) {
  for (const TensorSpec* spec : rows.specs()) {
    std::string dims;
    for (int64_t d : spec->shape) AppendVarint(&dims, static_cast<uint64_t>(d));
    const auto dtype = static_cast<uint64_t>(spec->dtype);
    out->BytesHeader(kSpecs, VarintFieldSize(1, dtype) + BytesFieldSize(2, dims.size()));
    out->VarintField(1, dtype);
    out->BytesField(2, dims);
  }
}

void WriteRows(const RowsTable::Entry& e, WireWriter* out) {
  const Chunk& chunk = *e.chunk;
  std::string_view payload = chunk.payload();
  uint64_t num_rows = static_cast<uint64_t>(chunk.num_rows());
  if (RowsTable::CanTrim(chunk)) {
    num_rows = static_cast<uint64_t>(e.end - e.begin);
    payload = payload.substr(static_cast<size_t>(e.begin) * chunk.row_bytes(),
                             num_rows * chunk.row_bytes());
  }
  const uint64_t encoding =
      chunk.options().encoding == Encoding::kRaw ? kPlainRows : kSnappyRows;
  const bool delta = chunk.options().delta_encoded;
  const size_t size = VarintFieldSize(1, e.spec) + VarintFieldSize(2, num_rows) +
                      VarintFieldSize(3, encoding) + (delta ? VarintFieldSize(4, 1) : 0) +
                      VarintFieldSize(5, chunk.key()) + BytesFieldSize(6, payload.size());
  out->BytesHeader(kRows, size);
  out->VarintField(1, e.spec);
  out->VarintField(2, num_rows);
  out->VarintField(3, encoding);
  if (delta) out->VarintField(4, 1);
  out->VarintField(5, chunk.key());
  out->BytesHeader(6, payload.size());
  out->Payload(payload, e.chunk);
}

// Two passes: rows are trimmed to what all items use before offsets are known.
std::string EncodeTrajectories(const SampleReply& reply, RowsTable* rows) {
  std::vector<uint32_t> indices;
  for (const SampledItem& s : reply.items) {
    const ChunkSlice* slices = s.item->slices();
    for (int i = 0; i < s.item->num_slices(); ++i) indices.push_back(rows->Add(slices[i]));
  }
  std::string out;
  size_t next = 0;
  for (const SampledItem& s : reply.items) {
    AppendVarint(&out, static_cast<uint64_t>(s.item->num_columns()));
    for (int c = 0; c < s.item->num_columns(); ++c) {
      const ColumnView column = s.item->column(c);
      AppendVarint(&out, static_cast<uint64_t>(column.num_slices) << 1 | column.squeeze);
      for (const ChunkSlice& slice : column) {
        const uint32_t index = indices[next++];
        AppendVarint(&out, index);
        AppendVarint(&out, static_cast<uint64_t>(slice.offset - rows->first_row(index)));
        AppendVarint(&out, static_cast<uint64_t>(slice.length));
      }
    }
  }
  return out;
}

void WriteInfo(const SampleReply& reply, WireWriter* out) {
  std::string keys, probabilities, sizes, priorities, times, flags;
  for (const SampledItem& s : reply.items) {
    const uint64_t key = s.item->key();
    AppendFixed64(&keys, &key);
    AppendFixed64(&probabilities, &s.probability);
    AppendVarint(&sizes, static_cast<uint64_t>(s.table_size));
    AppendFixed64(&priorities, &s.priority);
    AppendVarint(&times, static_cast<uint64_t>(s.times_sampled));
    AppendVarint(&flags, (s.rate_limited ? kFlagRateLimited : 0) |
                             (s.item->written_as_steps() ? kFlagWrittenAsSteps : 0));
  }
  out->BytesField(kKeys, keys);
  out->BytesField(kProbabilities, probabilities);
  out->BytesField(kTableSizes, sizes);
  out->BytesField(kPriorities, priorities);
  out->BytesField(kTimesSampled, times);
  out->BytesField(kFlags, flags);
}

}  // namespace

grpc::ByteBuffer EncodeSampleReply(const SampleReply& reply) {
  WireWriter out;
  if (!reply.items.empty()) {
    RowsTable rows;
    const std::string trajectories = EncodeTrajectories(reply, &rows);
    WriteInfo(reply, &out);
    WriteSpecs(rows, &out);
    out.BytesField(kTrajectories, trajectories);
    for (const RowsTable::Entry& e : rows.entries()) WriteRows(e, &out);
  }
  out.VarintField(kGeneration, reply.generation);
  if (reply.request_done) {
    const auto code = static_cast<uint64_t>(reply.request_done->code());
    const std::string& text = reply.request_done->message();
    out.BytesHeader(kRequestDone,
                    VarintFieldSize(1, code) + BytesFieldSize(2, text.size()));
    out.VarintField(1, code);
    out.BytesField(2, text);
  }
  return out.Finish();
}

namespace {

Status Malformed(const std::string& what) {
  return InvalidArgumentError("malformed SampleStreamResponse: " + what);
}

// The message as it was read, before items are made of it.
struct Received {
  std::vector<uint64_t> keys;
  std::vector<double> probabilities;
  std::vector<int64_t> table_sizes;
  std::vector<double> priorities;
  std::vector<int32_t> times_sampled;
  std::vector<uint32_t> flags;
  std::vector<CellSpecPtr> specs;
  std::vector<ChunkPtr> chunks;
  std::string trajectories_scratch;
  std::string_view trajectories;
};

void ReadPackedFixed64(WireReader* in, std::vector<uint64_t>* out) {
  const size_t outer = in->Enter();
  out->reserve(in->remaining() / 8);
  while (in->ok() && in->remaining() > 0) out->push_back(in->ReadFixed64());
  in->Leave(outer);
}

void ReadPackedDouble(WireReader* in, std::vector<double>* out) {
  const size_t outer = in->Enter();
  out->reserve(in->remaining() / 8);
  while (in->ok() && in->remaining() > 0) out->push_back(in->ReadDouble());
  in->Leave(outer);
}

template <typename T>
void ReadPackedVarint(WireReader* in, std::vector<T>* out) {
  const size_t outer = in->Enter();
  while (in->ok() && in->remaining() > 0) out->push_back(static_cast<T>(in->ReadVarint()));
  in->Leave(outer);
}

void ReadSpec(WireReader* in, Received* r) {
  auto spec = std::make_shared<TensorSpec>();
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (field == 1 && type == WireType::kVarint) {
      spec->dtype = static_cast<DType>(static_cast<int32_t>(in->ReadVarint()));
    } else if (field == 2 && type == WireType::kBytes) {
      ReadPackedVarint(in, &spec->shape);
    } else {
      in->Skip(type);
    }
  }
  in->Leave(outer);
  r->specs.push_back(std::move(spec));
}

Status ReadRows(WireReader* in, Received* r) {
  ChunkOptions options;
  uint64_t spec = 0, rows = 0, encoding = 0;
  std::string scratch;
  std::string_view small;
  BufferPtr large;
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (field == 6 && type == WireType::kBytes) {
      const size_t n = in->ReadLength();
      if (n < WireReader::kShareBytes) {
        small = in->ReadView(n, &scratch);
      } else {
        large = in->ReadBuffer(n, /*exact=*/false);
      }
    } else if (type == WireType::kVarint) {
      const uint64_t value = in->ReadVarint();
      if (field == 1) spec = value;
      if (field == 2) rows = value;
      if (field == 3) encoding = value;
      if (field == 4) options.delta_encoded = value != 0;
      if (field == 5) options.key = value;
    } else {
      in->Skip(type);
    }
  }
  in->Leave(outer);
  if (!in->ok() || spec >= r->specs.size() || rows < 1 || rows > INT32_MAX ||
      encoding < kPlainRows || encoding > kSnappyRows) {
    return Malformed("bad rows");
  }
  options.cell = r->specs[spec];
  options.num_rows = static_cast<int32_t>(rows);
  options.encoding = encoding == kPlainRows ? Encoding::kRaw : Encoding::kSnappy;
  Result<ChunkPtr> chunk =
      large ? Chunk::Wrap(options, std::move(large)) : Chunk::Copy(options, small);
  if (!chunk.ok()) return chunk.status();
  r->chunks.push_back(std::move(chunk).value());
  return OkStatus();
}

Status ReadRequestDone(WireReader* in, SampleReply* reply) {
  int32_t code = 0;
  std::string text;
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (field == 1 && type == WireType::kVarint) {
      code = static_cast<int32_t>(in->ReadVarint());
    } else if (field == 2 && type == WireType::kBytes) {
      in->ReadString(&text);
    } else {
      in->Skip(type);
    }
  }
  in->Leave(outer);
  if (!in->ok() || code < 0 || code > 16) return Malformed("bad request_done");
  reply->request_done =
      code == 0 ? OkStatus() : Status(static_cast<StatusCode>(code), std::move(text));
  return OkStatus();
}

// Reads the packed trajectories and makes the items.
class ItemBuilder {
 public:
  explicit ItemBuilder(const Received& r)
      : received_(r),
        p_(reinterpret_cast<const uint8_t*>(r.trajectories.data())),
        end_(p_ + r.trajectories.size()) {}

  Result<ItemPtr> Next(uint64_t key, bool written_as_steps) {
    const uint64_t num_columns = Read();
    if (!ok_ || num_columns > static_cast<uint64_t>(end_ - p_))
      return Malformed("trajectory");
    columns_.clear();
    slices_.clear();
    for (uint64_t c = 0; c < num_columns; ++c) RTF_RETURN_IF_ERROR(ReadColumn());
    const ChunkSlice* next = slices_.data();
    for (ColumnView& column : columns_) {
      column.slices = next;
      next += column.num_slices;
    }
    return Item::Create(key, written_as_steps, columns_);
  }
  bool at_end() const { return p_ == end_; }

 private:
  uint64_t Read() {
    uint64_t value = 0;
    const uint8_t* p = ok_ ? GetVarint(p_, end_, &value) : nullptr;
    if (p == nullptr) {
      ok_ = false;
      return 0;
    }
    p_ = p;
    return value;
  }

  Status ReadColumn() {
    const uint64_t head = Read();
    const uint64_t num_slices = head >> 1;
    if (!ok_ || num_slices > static_cast<uint64_t>(end_ - p_)) return Malformed("column");
    for (uint64_t i = 0; i < num_slices; ++i) {
      const uint64_t index = Read(), offset = Read(), length = Read();
      if (!ok_ || index >= received_.chunks.size() || offset > INT32_MAX ||
          length > INT32_MAX) {
        return Malformed("slice");
      }
      slices_.push_back({received_.chunks[index], static_cast<int32_t>(offset),
                         static_cast<int32_t>(length)});
    }
    columns_.push_back({nullptr, static_cast<int32_t>(num_slices), (head & 1) != 0});
    return OkStatus();
  }

  const Received& received_;
  const uint8_t* p_;
  const uint8_t* const end_;
  bool ok_ = true;
  std::vector<ColumnView> columns_;
  std::vector<ChunkSlice> slices_;
};

Status MakeItems(const Received& r, SampleReply* reply) {
  const size_t n = r.keys.size();
  if (r.probabilities.size() != n || r.table_sizes.size() != n ||
      r.priorities.size() != n || r.times_sampled.size() != n || r.flags.size() != n) {
    return Malformed("info vectors of unequal length");
  }
  ItemBuilder builder(r);
  reply->items.reserve(n);
  for (size_t i = 0; i < n; ++i) {
    SampledItem s;
    RTF_ASSIGN_OR_RETURN(s.item,
                         builder.Next(r.keys[i], (r.flags[i] & kFlagWrittenAsSteps) != 0));
    s.priority = r.priorities[i];
    s.probability = r.probabilities[i];
    s.table_size = r.table_sizes[i];
    s.times_sampled = r.times_sampled[i];
    s.rate_limited = (r.flags[i] & kFlagRateLimited) != 0;
    s.generation = reply->generation;
    reply->items.push_back(std::move(s));
  }
  if (!builder.at_end()) return Malformed("trailing trajectories");
  return OkStatus();
}

}  // namespace

Result<SampleReply> DecodeSampleReply(grpc::ByteBuffer* message) {
  WireReader in(message);
  Received r;
  SampleReply reply;
  uint32_t field = 0;
  WireType type;
  while (in.NextField(&field, &type)) {
    if (type == WireType::kVarint && field == kGeneration) {
      reply.generation = in.ReadVarint();
    } else if (type != WireType::kBytes) {
      in.Skip(type);
    } else if (field == kKeys) {
      ReadPackedFixed64(&in, &r.keys);
    } else if (field == kProbabilities) {
      ReadPackedDouble(&in, &r.probabilities);
    } else if (field == kTableSizes) {
      ReadPackedVarint(&in, &r.table_sizes);
    } else if (field == kPriorities) {
      ReadPackedDouble(&in, &r.priorities);
    } else if (field == kTimesSampled) {
      ReadPackedVarint(&in, &r.times_sampled);
    } else if (field == kFlags) {
      ReadPackedVarint(&in, &r.flags);
    } else if (field == kSpecs) {
      ReadSpec(&in, &r);
    } else if (field == kRows) {
      RTF_RETURN_IF_ERROR(ReadRows(&in, &r));
    } else if (field == kTrajectories) {
      r.trajectories = in.ReadBytes(&r.trajectories_scratch);
    } else if (field == kRequestDone) {
      RTF_RETURN_IF_ERROR(ReadRequestDone(&in, &reply));
    } else {
      in.Skip(type);
    }
  }
  if (!in.ok()) return Malformed("a field is cut off");
  RTF_RETURN_IF_ERROR(MakeItems(r, &reply));
  return reply;
}

}  // namespace reverb_tf
