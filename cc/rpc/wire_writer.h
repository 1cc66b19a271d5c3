// Builds a protobuf message as a list of gRPC slices: small fields are copied into
// blocks, large payloads are referenced where they lie.
#ifndef REVERB_TF_CC_RPC_WIRE_WRITER_H_
#define REVERB_TF_CC_RPC_WIRE_WRITER_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/varint.h"
#include "cc/core/chunk.h"

namespace reverb_tf {

// Wire types of protobuf.
enum class WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr uint64_t Tag(uint32_t field, WireType type) {
  return static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type);
}

// Bytes of a varint field, and of a length-delimited one with its tag and length.
inline size_t VarintFieldSize(uint32_t field, uint64_t value) {
  return static_cast<size_t>(VarintSize(Tag(field, WireType::kVarint)) + VarintSize(value));
}
inline size_t BytesFieldSize(uint32_t field, size_t bytes) {
  return static_cast<size_t>(VarintSize(Tag(field, WireType::kBytes)) + VarintSize(bytes)) +
         bytes;
}

// Thread-compatible. One message a writer.
class WireWriter {
 public:
  // Payloads from this size on are referenced, not copied: smaller ones cost less to copy
  // than to count, to list and to hand to the kernel one by one.
  static constexpr size_t kReferenceBytes = 8192;

  WireWriter() = default;
  WireWriter(const WireWriter&) = delete;
  WireWriter& operator=(const WireWriter&) = delete;

  void Varint(uint64_t value) {
    if (end_ - at_ < kMaxVarintBytes) NewBlock(kMaxVarintBytes);
    at_ = PutVarint(at_, value);
  }
  void VarintField(uint32_t field, uint64_t value) {
    Varint(Tag(field, WireType::kVarint));
    Varint(value);
  }
  // Proto3 leaves defaults out.
  void NonZeroField(uint32_t field, uint64_t value) {
    if (value != 0) VarintField(field, value);
  }
  void Fixed64Field(uint32_t field, uint64_t bits) {
    Varint(Tag(field, WireType::kFixed64));
    Raw({reinterpret_cast<const char*>(&bits), 8});
  }
  void DoubleField(uint32_t field, double value);
  // Tag and length of a field whose `bytes` bytes follow.
  void BytesHeader(uint32_t field, size_t bytes) {
    Varint(Tag(field, WireType::kBytes));
    Varint(bytes);
  }
  void BytesField(uint32_t field, std::string_view bytes) {
    BytesHeader(field, bytes.size());
    Raw(bytes);
  }
  void Raw(std::string_view bytes);
  // The bytes of a chunk's payload, kept alive by a reference if large.
  void Payload(std::string_view payload, const ChunkPtr& owner);
  // The same for bytes that nobody else owns.
  void Payload(std::string bytes);

  size_t size() const { return done_bytes_ + static_cast<size_t>(at_ - begin_); }
  grpc::ByteBuffer Finish();

 private:
  // The next block of memory, of at least `least` bytes; the rest of the last is lost.
  void NewBlock(size_t least);
  // What was written to the block since the last slice becomes a slice, which shares it.
  void ClosePart();

  grpc::Slice block_;
  uint8_t* begin_ = nullptr;  // of the part that is no slice yet
  uint8_t* at_ = nullptr;
  uint8_t* end_ = nullptr;
  size_t block_bytes_ = 256;  // of the next
  std::vector<grpc::Slice> slices_;
  size_t done_bytes_ = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_WIRE_WRITER_H_
