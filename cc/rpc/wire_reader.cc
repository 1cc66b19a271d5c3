#include "cc/rpc/wire_reader.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace reverb_tf {
namespace {

// Bytes of a slice of a received message.
class SliceBuffer : public Buffer {
 public:
  SliceBuffer(grpc::Slice slice, const uint8_t* data, size_t size)
      : Buffer(const_cast<uint8_t*>(data), size), slice_(std::move(slice)) {}

 private:
  const grpc::Slice slice_;
};

}  // namespace

WireReader::WireReader(grpc::ByteBuffer* message) {
  ok_ = message->Dump(&slices_).ok();
  for (const grpc::Slice& s : slices_) end_ += s.size();
  NextSlice();
}

void WireReader::NextSlice() {
  while (at_ == slice_end_ && next_slice_ < slices_.size()) {
    const grpc::Slice& s = slices_[next_slice_++];
    at_ = s.begin();
    slice_end_ = s.end();
  }
}

void WireReader::Advance(size_t n) {
  if (!ok_ || n > remaining()) {
    ok_ = false;
    return;
  }
  position_ += n;
  while (n > 0) {
    const size_t step = std::min(n, static_cast<size_t>(slice_end_ - at_));
    at_ += step;
    n -= step;
    NextSlice();
  }
}

void WireReader::Copy(uint8_t* dest, size_t n) {
  if (!ok_ || n > remaining()) {
    ok_ = false;
    return;
  }
  while (n > 0) {
    const size_t step = std::min(n, static_cast<size_t>(slice_end_ - at_));
    std::memcpy(dest, at_, step);
    dest += step;
    n -= step;
    Advance(step);
  }
}

uint64_t WireReader::ReadVarint() {
  if (ok_ && remaining() >= kMaxVarintBytes && slice_end_ - at_ >= kMaxVarintBytes) {
    uint64_t value = 0;
    const uint8_t* p = GetVarint(at_, slice_end_, &value);
    if (p != nullptr) {
      Advance(static_cast<size_t>(p - at_));
      return value;
    }
    ok_ = false;
    return 0;
  }
  return ReadVarintSlow();
}

uint64_t WireReader::ReadVarintSlow() {
  uint8_t bytes[kMaxVarintBytes];
  for (int i = 0; i < kMaxVarintBytes; ++i) {
    Copy(bytes + i, 1);
    if (!ok_) return 0;
    if (bytes[i] < 0x80) {
      uint64_t value = 0;
      GetVarint(bytes, bytes + i + 1, &value);
      return value;
    }
  }
  ok_ = false;
  return 0;
}

uint64_t WireReader::ReadFixed64() {
  uint64_t value = 0;
  Copy(reinterpret_cast<uint8_t*>(&value), 8);
  return value;
}

double WireReader::ReadDouble() {
  const uint64_t bits = ReadFixed64();
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

bool WireReader::NextField(uint32_t* field, WireType* type) {
  if (!ok_ || remaining() == 0) return false;
  const uint64_t tag = ReadVarint();
  const uint64_t number = tag >> 3;
  const uint32_t wire = static_cast<uint32_t>(tag & 7);
  if (number == 0 || number > 0x1fffffff || (wire > 2 && wire != 5)) ok_ = false;
  *field = static_cast<uint32_t>(number);
  *type = static_cast<WireType>(wire);
  return ok_;
}

void WireReader::Skip(WireType type) {
  switch (type) {
    case WireType::kVarint:
      ReadVarint();
      return;
    case WireType::kFixed64:
      return Advance(8);
    case WireType::kFixed32:
      return Advance(4);
    case WireType::kBytes:
      return Advance(ReadVarint());
  }
}

size_t WireReader::ReadLength() {
  const uint64_t n = ReadVarint();
  if (!ok_ || n > remaining()) {
    ok_ = false;
    return 0;
  }
  return n;
}

std::string_view WireReader::ReadView(size_t n, std::string* scratch) {
  if (!ok_ || n > remaining()) {
    ok_ = false;
    return {};
  }
  if (n <= static_cast<size_t>(slice_end_ - at_)) {
    const std::string_view view(reinterpret_cast<const char*>(at_), n);
    Advance(n);
    return view;
  }
  scratch->resize(n);
  Copy(reinterpret_cast<uint8_t*>(scratch->data()), n);
  return *scratch;
}

std::string_view WireReader::ReadBytes(std::string* scratch) {
  return ReadView(ReadLength(), scratch);
}

void WireReader::ReadString(std::string* out) {
  out->resize(ReadLength());
  Copy(reinterpret_cast<uint8_t*>(out->data()), out->size());
}

BufferPtr WireReader::ReadBuffer(size_t n, bool exact) {
  if (!ok_ || n > remaining()) {
    ok_ = false;
    return nullptr;
  }
  if (!exact && n <= static_cast<size_t>(slice_end_ - at_)) {
    BufferPtr buffer = BufferPtr::Adopt(new SliceBuffer(slices_[next_slice_ - 1], at_, n));
    Advance(n);
    return buffer;
  }
  BufferPtr buffer = Buffer::Allocate(n);
  Copy(buffer->mutable_data(), n);
  return buffer;
}

size_t WireReader::Enter() {
  const uint64_t n = ReadVarint();
  const size_t outer_end = end_;
  if (!ok_ || n > remaining()) {
    ok_ = false;
    return outer_end;
  }
  end_ = position_ + n;
  return outer_end;
}

void WireReader::Leave(size_t outer_end) {
  if (position_ < end_) Advance(end_ - position_);
  end_ = outer_end;
}

}  // namespace reverb_tf
