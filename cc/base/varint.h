// Protobuf's base-128 varints, the only integer coding of wire and strings.
#ifndef REVERB_TF_CC_BASE_VARINT_H_
#define REVERB_TF_CC_BASE_VARINT_H_

#include <cstdint>
#include <string>

namespace reverb_tf {

inline constexpr int kMaxVarintBytes = 10;

// Writes `value` at `p` (kMaxVarintBytes of room) and returns the end.
inline uint8_t* PutVarint(uint8_t* p, uint64_t value) {
  while (value >= 0x80) {
    *p++ = static_cast<uint8_t>(value) | 0x80;
    value >>= 7;
  }
  *p++ = static_cast<uint8_t>(value);
  return p;
}

inline void AppendVarint(std::string* out, uint64_t value) {
  uint8_t bytes[kMaxVarintBytes];
  out->append(reinterpret_cast<char*>(bytes),
              static_cast<size_t>(PutVarint(bytes, value) - bytes));
}

inline int VarintSize(uint64_t value) {
  int n = 1;
  while (value >= 0x80) {
    value >>= 7;
    ++n;
  }
  return n;
}

// Reads a varint of [p, end); nullptr when it is cut off or longer than 10 bytes.
inline const uint8_t* GetVarint(const uint8_t* p, const uint8_t* end, uint64_t* value) {
  uint64_t result = 0;
  for (int shift = 0; shift < 70 && p < end; shift += 7) {
    const uint8_t byte = *p++;
    result |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) {
      *value = result;
      return p;
    }
  }
  return nullptr;
}

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_VARINT_H_
