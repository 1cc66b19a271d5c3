#include "cc/rpc/wire_mutator.h"

#include <algorithm>
#include <vector>

#include "cc/rpc/wire_writer.h"

namespace reverb_tf {
namespace {

// Messages don't grow beyond it.
constexpr size_t kMaxBytes = 64 << 10;

const uint8_t* Bytes(std::string_view s) {
  return reinterpret_cast<const uint8_t*>(s.data());
}

std::string Varint(uint64_t value) {
  std::string out;
  AppendVarint(&out, value);
  return out;
}

struct Field {
  uint64_t tag;
  size_t begin;  // of the tag
  size_t value;  // of the value, behind a length
  size_t end;
};

WireType TypeOf(uint64_t tag) { return static_cast<WireType>(tag & 7); }

// The fields of `message`; empty if it isn't one.
std::vector<Field> FieldsOf(std::string_view message) {
  std::vector<Field> fields;
  const uint8_t* const begin = Bytes(message);
  const uint8_t* const end = begin + message.size();
  for (const uint8_t* p = begin; p < end;) {
    Field field{0, static_cast<size_t>(p - begin), 0, 0};
    uint64_t size = 0;
    p = GetVarint(p, end, &field.tag);
    if (p == nullptr || field.tag >> 3 == 0 || field.tag >> 3 > 0x1fffffff) return {};
    const WireType type = TypeOf(field.tag);
    const uint8_t* value = p;
    if (type == WireType::kVarint) {
      p = GetVarint(p, end, &size);
      size = 0;
    } else if (type == WireType::kBytes) {
      value = p = GetVarint(p, end, &size);
    } else if (type == WireType::kFixed64 || type == WireType::kFixed32) {
      size = type == WireType::kFixed64 ? 8 : 4;
    } else {
      return {};
    }
    if (p == nullptr || size > static_cast<uint64_t>(end - p)) return {};
    p += size;
    field.value = static_cast<size_t>(value - begin);
    field.end = static_cast<size_t>(p - begin);
    fields.push_back(field);
  }
  return fields;
}

}  // namespace

uint64_t WireMutator::WildNumber() {
  switch (Below(5)) {
    case 0:
      return Below(20);
    case 1:  // around a power of two
      return (uint64_t{1} << Below(64)) + Below(3) - 1;
    case 2:  // a small negative one
      return ~Below(3);
    case 3:
      return (*random_)() >> Below(64);
    default:
      return OneIn(2) ? uint64_t{INT32_MAX} : uint64_t{INT64_MAX};
  }
}

std::string WireMutator::MutateBytes(std::string bytes) {
  const size_t at = Below(bytes.size() + 1);
  switch (Below(6)) {
    case 0:
      return bytes.substr(0, at);
    case 1:
      return bytes.erase(at, 1 + Below(8));
    case 2:
      return bytes.insert(at, Varint(WildNumber()));
    case 3:  // another number in front: sizes that payloads announce
      return bytes.replace(0, std::min<size_t>(bytes.size(), 1 + Below(3)),
                           Varint(WildNumber()));
    default:
      for (uint64_t n = Below(8); n < 8 && !bytes.empty(); ++n) {
        bytes[Below(bytes.size())] = static_cast<char>((*random_)());
      }
      return bytes;
  }
}

std::string WireMutator::ChangeValue(uint64_t tag, std::string_view value) {
  if (OneIn(16)) return Varint((tag & ~uint64_t{7}) | Below(8)) + std::string(value);
  const std::string head = Varint(tag);
  switch (TypeOf(tag)) {
    case WireType::kVarint:
      return head + Varint(WildNumber());
    case WireType::kBytes: {
      if (OneIn(8)) return head + Varint(WildNumber()) + std::string(value);
      const std::string changed = Mutate(value);
      return head + Varint(changed.size()) + changed;
    }
    default: {
      // As a double: random bits, or infinities, NaNs, zeros and numbers near them.
      std::string bits;
      const uint64_t number = OneIn(2) ? (*random_)() : (Below(4) << 62) + (Below(3) << 51);
      for (size_t i = 0; i < value.size(); ++i) {
        bits += static_cast<char>(number >> (i * 8));
      }
      return head + bits;
    }
  }
}

std::string WireMutator::Mutate(std::string_view message) {
  const std::vector<Field> fields = FieldsOf(message);
  if (fields.empty() || OneIn(16)) return MutateBytes(std::string(message));
  const Field& field = fields[Below(fields.size())];
  const std::string_view whole = message.substr(field.begin, field.end - field.begin);
  const std::string before(message.substr(0, field.begin));
  const std::string after(message.substr(field.end));
  switch (Below(TypeOf(field.tag) == WireType::kBytes ? 16 : 8)) {
    case 0:
      return before + after;
    case 1: {
      std::string repeated(whole);
      for (uint64_t n = Below(10); n > 0 && repeated.size() < kMaxBytes / 2; --n) {
        repeated += repeated;
      }
      return before + repeated + after;
    }
    case 2: {  // moved to the place of another, or put there too
      const Field& other = fields[Below(fields.size())];
      std::string moved(message);
      if (OneIn(2)) moved.erase(field.begin, field.end - field.begin);
      return moved.insert(std::min(other.begin, moved.size()), whole);
    }
    default:
      return before +
             ChangeValue(field.tag, message.substr(field.value, field.end - field.value)) +
             after;
  }
}

}  // namespace reverb_tf
