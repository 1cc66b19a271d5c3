#include "cc/rpc/insert_codec.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>

#include "cc/compress/snappy.h"
#include "cc/core/key_map.h"

namespace reverb_tf {
namespace {

using KeySet = std::unordered_set<uint64_t, KeyHash>;

// ChunkData.encoding.
constexpr uint64_t kWireDefault = 0;  // snappy, strings plain
constexpr uint64_t kWirePlain = 1;
constexpr uint64_t kWireSnappy = 2;

std::string EncodeShape(int32_t rows, const Shape& cell) {
  std::string out;
  const auto dim = [&out](int64_t size) {
    std::string d;
    if (size != 0) {
      AppendVarint(&d, Tag(1, WireType::kVarint));
      AppendVarint(&d, static_cast<uint64_t>(size));
    }
    AppendVarint(&out, Tag(2, WireType::kBytes));
    AppendVarint(&out, d.size());
    out += d;
  };
  dim(rows);
  for (int64_t d : cell) dim(d);
  return out;
}

std::string EncodeRange(const ChunkOptions& o) {
  std::string out;
  const auto field = [&out](uint32_t number, uint64_t value) {
    if (value == 0) return;
    AppendVarint(&out, Tag(number, WireType::kVarint));
    AppendVarint(&out, value);
  };
  field(1, o.episode_id);
  field(2, static_cast<uint64_t>(static_cast<int64_t>(o.start)));
  field(3, static_cast<uint64_t>(static_cast<int64_t>(o.end)));
  field(4, o.sparse);
  return out;
}

// How a chunk's payload is stated to `peer`; `recoded` is set if it had to be made.
struct WirePayload {
  std::string_view bytes;
  std::string recoded;
  bool has_recoded = false;
  uint64_t encoding = kWireDefault;
};

Status PreparePayload(const Chunk& chunk, Peer peer, WirePayload* out) {
  const bool is_string = chunk.cell().dtype == DType::kString;
  const bool snappy = chunk.options().encoding == Encoding::kSnappy;
  out->bytes = chunk.payload();
  if (peer == Peer::kOwn) {
    out->encoding = !snappy ? kWirePlain : is_string ? kWireSnappy : kWireDefault;
    return OkStatus();
  }
  if (snappy != is_string) return OkStatus();  // as a foreign peer has it
  out->has_recoded = true;
  if (!is_string) {
    out->recoded = SnappyCompress(chunk.payload());
    return OkStatus();
  }
  RTF_ASSIGN_OR_RETURN(const BufferPtr plain, chunk.Decode());
  out->recoded = std::string(plain->view());
  return OkStatus();
}

}  // namespace

Status WriteChunkData(uint32_t field, const ChunkPtr& chunk, Peer peer, WireWriter* out) {
  WirePayload payload;
  RTF_RETURN_IF_ERROR(PreparePayload(*chunk, peer, &payload));
  const size_t bytes = payload.has_recoded ? payload.recoded.size() : payload.bytes.size();
  const ChunkOptions& o = chunk->options();
  const std::string shape = EncodeShape(o.num_rows, o.cell->shape);
  const std::string range = EncodeRange(o);
  const auto dtype = static_cast<uint64_t>(o.cell->dtype);
  const size_t tensor = VarintFieldSize(1, dtype) + BytesFieldSize(2, shape.size()) +
                        BytesFieldSize(4, bytes);
  const size_t data = BytesFieldSize(1, tensor);
  size_t total = VarintFieldSize(1, o.key) + BytesFieldSize(2, range.size()) +
                 VarintFieldSize(6, 1) + VarintFieldSize(7, chunk->uncompressed_bytes()) +
                 BytesFieldSize(5, data);
  if (o.delta_encoded) total += VarintFieldSize(4, 1);
  if (payload.encoding != 0) total += VarintFieldSize(1001, payload.encoding);

  out->BytesHeader(field, total);
  out->VarintField(1, o.key);
  out->BytesField(2, range);
  if (o.delta_encoded) out->VarintField(4, 1);
  out->VarintField(6, 1);
  out->VarintField(7, chunk->uncompressed_bytes());
  out->NonZeroField(1001, payload.encoding);
  out->BytesHeader(5, data);
  out->BytesHeader(1, tensor);
  out->VarintField(1, dtype);
  out->BytesField(2, shape);
  out->BytesHeader(4, bytes);
  if (payload.has_recoded) {
    out->Payload(std::move(payload.recoded));
  } else {
    out->Payload(payload.bytes, chunk);
  }
  return OkStatus();
}

namespace {

void EncodeItem(const InsertItem& item, Peer peer, WireWriter* out) {
  std::string trajectory;
  size_t next = 0;
  const auto field = [](std::string* to, uint32_t number, uint64_t value) {
    if (value == 0) return;
    AppendVarint(to, Tag(number, WireType::kVarint));
    AppendVarint(to, value);
  };
  const auto nested = [](std::string* to, uint32_t number, const std::string& bytes) {
    AppendVarint(to, Tag(number, WireType::kBytes));
    AppendVarint(to, bytes.size());
    *to += bytes;
  };
  std::string column_bytes, slice_bytes;
  for (const ColumnRef& column : item.columns) {
    column_bytes.clear();
    for (int32_t i = 0; i < column.num_slices; ++i) {
      const SliceRef& slice = item.slices[next++];
      slice_bytes.clear();
      field(&slice_bytes, 1, slice.chunk ? slice.chunk->key() : slice.chunk_key);
      field(&slice_bytes, 2, static_cast<uint64_t>(slice.offset));
      field(&slice_bytes, 3, static_cast<uint64_t>(slice.length));
      nested(&column_bytes, 1, slice_bytes);
    }
    field(&column_bytes, 2, column.squeeze);
    nested(&trajectory, 1, column_bytes);
  }
  size_t size = VarintFieldSize(1, item.key) + BytesFieldSize(2, item.table.size()) + 9 +
                BytesFieldSize(8, trajectory.size());
  const bool own = peer == Peer::kOwn;
  if (own && item.writer_id != 0) {
    size += 10 + VarintFieldSize(1002, item.sequence);
  }
  if (own && item.written_as_steps) size += VarintFieldSize(1003, 1);
  out->BytesHeader(2, size);
  out->VarintField(1, item.key);
  out->BytesField(2, item.table);
  out->DoubleField(5, item.priority);
  out->BytesField(8, trajectory);
  if (own && item.writer_id != 0) {
    out->Fixed64Field(1001, item.writer_id);
    out->VarintField(1002, item.sequence);
  }
  if (own && item.written_as_steps) out->VarintField(1003, 1);
}

// One tensor of a ChunkData as it was read.
struct WireTensor {
  DType dtype = DType::kInvalid;
  std::vector<int64_t> dims;
  bool bad_shape = false;
  std::string small;  // payload below kShareBytes
  BufferPtr large;
};

Status Malformed(const std::string& what) {
  return InvalidArgumentError("malformed InsertStreamRequest: " + what);
}

// Dimensions a tensor may have; TensorFlow's limit.
constexpr size_t kMaxRank = 254;

void ReadShape(WireReader* in, WireTensor* tensor) {
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (field == 2 && type == WireType::kBytes) {
      const size_t shape_end = in->Enter();
      int64_t size = 0;
      while (in->NextField(&field, &type)) {
        if (field == 1 && type == WireType::kVarint) {
          size = static_cast<int64_t>(in->ReadVarint());
        } else {
          in->Skip(type);
        }
      }
      in->Leave(shape_end);
      if (tensor->dims.size() > kMaxRank) {
        in->Fail();
        return;
      }
      tensor->dims.push_back(size);
    } else if (field == 3 && type == WireType::kVarint) {
      tensor->bad_shape |= in->ReadVarint() != 0;
    } else {
      in->Skip(type);
    }
  }
  in->Leave(outer);
}

void ReadTensor(WireReader* in, WireTensor* tensor) {
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (field == 1 && type == WireType::kVarint) {
      tensor->dtype = static_cast<DType>(static_cast<int32_t>(in->ReadVarint()));
    } else if (field == 2 && type == WireType::kBytes) {
      ReadShape(in, tensor);
    } else if (field == 4 && type == WireType::kBytes) {
      const size_t n = in->ReadLength();
      if (n < WireReader::kShareBytes) {
        std::string scratch;
        tensor->small = in->ReadView(n, &scratch);
        tensor->large = nullptr;
      } else {
        // A copy: the message's other bytes must not live as long as this chunk.
        tensor->large = in->ReadBuffer(n, /*exact=*/true);
      }
    } else {
      in->Skip(type);
    }
  }
  in->Leave(outer);
}

void ReadRange(WireReader* in, ChunkOptions* options) {
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (type != WireType::kVarint) {
      in->Skip(type);
      continue;
    }
    const uint64_t value = in->ReadVarint();
    if (field == 1) options->episode_id = value;
    if (field == 2) options->start = static_cast<int32_t>(value);
    if (field == 3) options->end = static_cast<int32_t>(value);
    if (field == 4) options->sparse = value != 0;
  }
  in->Leave(outer);
}

// Remembers the last cell spec, so that the chunks of a column share one.
class CellSpecs {
 public:
  CellSpecPtr Get(DType dtype, const Shape& shape) {
    if (!last_ || last_->dtype != dtype || last_->shape != shape) {
      auto spec = std::make_shared<TensorSpec>();
      spec->dtype = dtype;
      spec->shape = shape;
      last_ = std::move(spec);
    }
    return last_;
  }

 private:
  CellSpecPtr last_;
};

Result<ChunkPtr> MakeChunk(WireTensor tensor, ChunkOptions options, uint64_t encoding,
                           CellSpecs* specs) {
  if (tensor.bad_shape || tensor.dims.empty()) {
    return Malformed("a chunk's tensor has no leading dimension");
  }
  if (tensor.dims[0] < 1 || tensor.dims[0] > INT32_MAX) {
    return Malformed("a chunk has " + std::to_string(tensor.dims[0]) + " rows");
  }
  if (!IsSupported(tensor.dtype)) {
    return Malformed("a chunk has the unsupported dtype " +
                     std::to_string(static_cast<int>(tensor.dtype)));
  }
  options.num_rows = static_cast<int32_t>(tensor.dims[0]);
  options.cell = specs->Get(tensor.dtype, {tensor.dims.begin() + 1, tensor.dims.end()});
  const bool snappy = encoding == kWireSnappy ||
                      (encoding == kWireDefault && tensor.dtype != DType::kString);
  if (encoding > kWireSnappy) {
    return Malformed("unknown chunk encoding " + std::to_string(encoding));
  }
  options.encoding = snappy ? Encoding::kSnappy : Encoding::kRaw;
  if (tensor.large) return Chunk::Wrap(options, std::move(tensor.large));
  return Chunk::Copy(options, tensor.small);
}

Status ReadChunk(WireReader* in, CellSpecs* specs, std::vector<ChunkPtr>* chunks,
                 KeySet* row_chunks) {
  ChunkOptions options;
  uint64_t encoding = kWireDefault;
  std::vector<WireTensor> tensors;
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (field == 1 && type == WireType::kVarint) {
      options.key = in->ReadVarint();
    } else if (field == 2 && type == WireType::kBytes) {
      ReadRange(in, &options);
    } else if (field == 4 && type == WireType::kVarint) {
      options.delta_encoded = in->ReadVarint() != 0;
    } else if (field == 5 && type == WireType::kBytes) {
      const size_t data_end = in->Enter();
      while (in->NextField(&field, &type)) {
        if (field == 1 && type == WireType::kBytes) {
          tensors.emplace_back();
          ReadTensor(in, &tensors.back());
        } else {
          in->Skip(type);
        }
      }
      in->Leave(data_end);
    } else if (field == 1001 && type == WireType::kVarint) {
      encoding = in->ReadVarint();
    } else {
      in->Skip(type);
    }
  }
  in->Leave(outer);
  if (!in->ok()) return Malformed("a chunk is cut off");
  if (tensors.empty()) return Malformed("a chunk without tensors");
  if (tensors.size() > 1) row_chunks->insert(options.key);
  const uint64_t key = options.key;
  for (size_t i = 0; i < tensors.size(); ++i) {
    options.key = MixKey(key, static_cast<uint32_t>(i));
    RTF_ASSIGN_OR_RETURN(ChunkPtr chunk,
                         MakeChunk(std::move(tensors[i]), options, encoding, specs));
    chunks->push_back(std::move(chunk));
  }
  return OkStatus();
}

void ReadSlice(WireReader* in, InsertItem* item) {
  SliceRef slice;
  uint32_t index = 0;
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (type != WireType::kVarint) {
      in->Skip(type);
      continue;
    }
    const uint64_t value = in->ReadVarint();
    if (field == 1) slice.chunk_key = value;
    if (field == 2) slice.offset = static_cast<int32_t>(value);
    if (field == 3) slice.length = static_cast<int32_t>(value);
    if (field == 4) index = static_cast<uint32_t>(value);
  }
  in->Leave(outer);
  if (index > 0) item->written_as_steps = true;
  slice.chunk_key = MixKey(slice.chunk_key, index);
  item->slices.push_back(std::move(slice));
}

void ReadTrajectory(WireReader* in, InsertItem* item) {
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (field != 1 || type != WireType::kBytes) {
      in->Skip(type);
      continue;
    }
    ColumnRef column;
    const size_t column_end = in->Enter();
    while (in->NextField(&field, &type)) {
      if (field == 1 && type == WireType::kBytes) {
        ReadSlice(in, item);
        ++column.num_slices;
      } else if (field == 2 && type == WireType::kVarint) {
        column.squeeze = in->ReadVarint() != 0;
      } else {
        in->Skip(type);
      }
    }
    in->Leave(column_end);
    item->columns.push_back(column);
  }
  in->Leave(outer);
}

void ReadItem(WireReader* in, InsertItem* item) {
  uint32_t field = 0;
  WireType type;
  const size_t outer = in->Enter();
  while (in->NextField(&field, &type)) {
    if (field == 1 && type == WireType::kVarint) {
      item->key = in->ReadVarint();
    } else if (field == 2 && type == WireType::kBytes) {
      in->ReadString(&item->table);
    } else if (field == 5 && type == WireType::kFixed64) {
      item->priority = in->ReadDouble();
    } else if (field == 8 && type == WireType::kBytes) {
      ReadTrajectory(in, item);
    } else if (field == 1001 && type == WireType::kFixed64) {
      item->writer_id = in->ReadFixed64();
    } else if (field == 1002 && type == WireType::kVarint) {
      item->sequence = in->ReadVarint();
    } else if (field == 1003 && type == WireType::kVarint) {
      item->written_as_steps |= in->ReadVarint() != 0;
    } else {
      in->Skip(type);
    }
  }
  in->Leave(outer);
}

}  // namespace

Result<grpc::ByteBuffer> EncodeInsertRequest(const InsertRequest& request, Peer peer) {
  WireWriter out;
  for (const ChunkPtr& chunk : request.chunks) {
    RTF_RETURN_IF_ERROR(WriteChunkData(1, chunk, peer, &out));
  }
  for (const InsertItem& item : request.items) EncodeItem(item, peer, &out);
  if (!request.keep_chunk_keys.empty()) {
    std::string keys;
    for (uint64_t key : request.keep_chunk_keys) AppendVarint(&keys, key);
    out.BytesField(3, keys);
  }
  return out.Finish();
}

Result<InsertRequest> DecodeInsertRequest(grpc::ByteBuffer* message) {
  WireReader in(message);
  InsertRequest request;
  CellSpecs specs;
  KeySet row_chunks;
  uint32_t field = 0;
  WireType type;
  while (in.NextField(&field, &type)) {
    if (field == 1 && type == WireType::kBytes) {
      RTF_RETURN_IF_ERROR(ReadChunk(&in, &specs, &request.chunks, &row_chunks));
    } else if (field == 2 && type == WireType::kBytes) {
      request.items.emplace_back();
      ReadItem(&in, &request.items.back());
    } else if (field == 3 && type == WireType::kVarint) {
      request.keep_chunk_keys.push_back(in.ReadVarint());
    } else if (field == 3 && type == WireType::kBytes) {
      const size_t outer = in.Enter();
      while (in.ok() && in.remaining() > 0)
        request.keep_chunk_keys.push_back(in.ReadVarint());
      in.Leave(outer);
    } else {
      in.Skip(type);
    }
  }
  if (!in.ok()) return Malformed("a field is cut off");
  if (row_chunks.empty()) return request;
  for (InsertItem& item : request.items) {
    for (const SliceRef& slice : item.slices) {
      if (row_chunks.count(slice.chunk_key)) item.written_as_steps = true;
    }
  }
  return request;
}

}  // namespace reverb_tf
