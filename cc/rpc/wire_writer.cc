#include "cc/rpc/wire_writer.h"

#include <cstring>
#include <utility>

namespace reverb_tf {
namespace {

void DropChunk(void* chunk) { static_cast<const Chunk*>(chunk)->Unref(); }

void DropString(void* s) { delete static_cast<std::string*>(s); }

// A slice that owns the string.
grpc::Slice SliceOf(std::string bytes) {
  auto* owned = new std::string(std::move(bytes));
  return grpc::Slice(owned->data(), owned->size(), DropString, owned);
}

}  // namespace

void WireWriter::DoubleField(uint32_t field, double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  Fixed64Field(field, bits);
}

void WireWriter::CloseSlab() {
  if (slab_.empty()) return;
  done_bytes_ += slab_.size();
  slices_.push_back(SliceOf(std::move(slab_)));
  slab_.clear();
}

void WireWriter::Payload(std::string_view payload, const ChunkPtr& owner) {
  if (payload.size() < kReferenceBytes) {
    slab_.append(payload);
    return;
  }
  CloseSlab();
  ChunkPtr reference = owner;
  done_bytes_ += payload.size();
  slices_.emplace_back(const_cast<char*>(payload.data()), payload.size(), DropChunk,
                       const_cast<Chunk*>(reference.release()));
}

void WireWriter::Payload(std::string bytes) {
  if (bytes.size() < kReferenceBytes) {
    slab_.append(bytes);
    return;
  }
  CloseSlab();
  done_bytes_ += bytes.size();
  slices_.push_back(SliceOf(std::move(bytes)));
}

grpc::ByteBuffer WireWriter::Finish() {
  CloseSlab();
  return grpc::ByteBuffer(slices_.data(), slices_.size());
}

}  // namespace reverb_tf
