// Reads a protobuf message in place from the slices of a received gRPC message.
#ifndef REVERB_TF_CC_RPC_WIRE_READER_H_
#define REVERB_TF_CC_RPC_WIRE_READER_H_

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/buffer.h"
#include "cc/base/status.h"
#include "cc/rpc/wire_writer.h"

namespace reverb_tf {

// Trusts nothing: a field that isn't there in full makes every later read fail,
// and no read allocates more than the bytes that are present. Usage:
//
//   while (reader.NextField(&field, &type)) {
//     if (field == 1 && type == WireType::kVarint) reader.ReadVarint(&x);
//     else reader.Skip(type);
//   }
//   if (!reader.ok()) return malformed;
//
// Nested messages are read between Enter and Leave. Thread-compatible.
class WireReader {
 public:
  // Payloads from this size on are worth sharing with the message, not copying.
  static constexpr size_t kShareBytes = 2048;

  explicit WireReader(grpc::ByteBuffer* message);

  bool ok() const { return ok_; }
  // False at the end of the current message, or when not ok.
  bool NextField(uint32_t* field, WireType* type);
  void Skip(WireType type);

  uint64_t ReadVarint();
  uint64_t ReadFixed64();
  double ReadDouble();
  // Length-delimited contents.
  void ReadString(std::string* out);
  // A view into the message, or into `scratch` when the bytes span slices.
  std::string_view ReadBytes(std::string* scratch);
  // The two halves of it: the length (0 when there is not so much), then that many.
  size_t ReadLength();
  std::string_view ReadView(size_t n, std::string* scratch);
  // `n` bytes as a buffer that keeps the message's slice alive if they lie in one,
  // else as a copy. `exact`: always a copy, of just that size.
  BufferPtr ReadBuffer(size_t n, bool exact);
  // Enters the length-delimited field as a message; gives what Leave wants.
  size_t Enter();
  void Leave(size_t outer_end);

  // Bytes left in the current message.
  size_t remaining() const { return end_ - position_; }
  void Fail() { ok_ = false; }

 private:
  void Advance(size_t n);
  void NextSlice();
  void Copy(uint8_t* dest, size_t n);
  uint64_t ReadVarintSlow();

  std::vector<grpc::Slice> slices_;
  size_t next_slice_ = 0;
  const uint8_t* at_ = nullptr;
  const uint8_t* slice_end_ = nullptr;
  size_t position_ = 0;
  size_t end_ = 0;  // of the current message
  bool ok_ = true;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_WIRE_READER_H_
