#include "cc/rpc/wire_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace reverb_tf {
namespace {

constexpr size_t kLargestBlock = 64 << 10;

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

void WireWriter::NewBlock(size_t least) {
  ClosePart();
  block_bytes_ = std::max(least, block_bytes_);
  block_ = grpc::Slice(block_bytes_);
  begin_ = at_ = const_cast<uint8_t*>(block_.begin());
  end_ = at_ + block_bytes_;
  block_bytes_ = std::min(4 * block_bytes_, kLargestBlock);
}

void WireWriter::ClosePart() {
  if (at_ == begin_) return;
  const auto size = static_cast<size_t>(at_ - begin_);
  slices_.push_back(block_.sub(static_cast<size_t>(begin_ - block_.begin()),
                               static_cast<size_t>(at_ - block_.begin())));
  done_bytes_ += size;
  begin_ = at_;
}

void WireWriter::Raw(std::string_view bytes) {
  while (!bytes.empty()) {
    if (at_ == end_) NewBlock(1);
    const size_t n = std::min(bytes.size(), static_cast<size_t>(end_ - at_));
    std::memcpy(at_, bytes.data(), n);
    at_ += n;
    bytes.remove_prefix(n);
  }
}

void WireWriter::Payload(std::string_view payload, const ChunkPtr& owner) {
  if (payload.size() < kReferenceBytes) return Raw(payload);
  ClosePart();
  ChunkPtr reference = owner;
  done_bytes_ += payload.size();
  slices_.emplace_back(const_cast<char*>(payload.data()), payload.size(), DropChunk,
                       const_cast<Chunk*>(reference.release()));
}

void WireWriter::Payload(std::string bytes) {
  if (bytes.size() < kReferenceBytes) return Raw(bytes);
  ClosePart();
  done_bytes_ += bytes.size();
  slices_.push_back(SliceOf(std::move(bytes)));
}

grpc::ByteBuffer WireWriter::Finish() {
  ClosePart();
  return grpc::ByteBuffer(slices_.data(), slices_.size());
}

}  // namespace reverb_tf
