#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "cc/base/varint.h"
#include "cc/core/signature.h"

namespace reverb_tf {
namespace {

// Deeper nests, or longer paths altogether, are refused: nobody writes them, and
// bytes from a peer must not exhaust the stack or the memory.
constexpr int kMaxDepth = 64;
constexpr size_t kMaxPathBytes = 16 << 20;
constexpr size_t kMaxRank = 254;

// Field numbers of tensorflow.StructuredValue and the messages in it.
enum StructuredValueField : uint32_t {
  kNone = 1,
  kTensorSpec = 33,
  kBoundedTensorSpec = 35,
  kList = 51,
  kTuple = 52,
  kDict = 53,
  kNamedTuple = 54,
};

struct Field {
  uint32_t number = 0;
  uint32_t wire_type = 0;
  uint64_t value = 0;      // of varints
  std::string_view bytes;  // of length-delimited fields
};

constexpr uint32_t kVarint = 0;
constexpr uint32_t kFixed64 = 1;
constexpr uint32_t kLengthDelimited = 2;
constexpr uint32_t kFixed32 = 5;

// The fields of one message, in the order of their bytes.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message)
      : p_(reinterpret_cast<const uint8_t*>(message.data())), end_(p_ + message.size()) {}

  bool at_end() const { return p_ == end_; }
  // False if the bytes don't parse.
  bool Next(Field* field) {
    uint64_t tag = 0;
    p_ = GetVarint(p_, end_, &tag);
    if (p_ == nullptr || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return Fail();
    field->number = static_cast<uint32_t>(tag >> 3);
    field->wire_type = tag & 7;
    switch (field->wire_type) {
      case kVarint:
        p_ = GetVarint(p_, end_, &field->value);
        return p_ != nullptr || Fail();
      case kFixed64:
        return Take(8, field);
      case kFixed32:
        return Take(4, field);
      case kLengthDelimited: {
        uint64_t length = 0;
        p_ = GetVarint(p_, end_, &length);
        return p_ == nullptr ? Fail() : Take(length, field);
      }
      default:
        return Fail();
    }
  }

 private:
  bool Take(uint64_t length, Field* field) {
    if (length > static_cast<uint64_t>(end_ - p_)) return Fail();
    field->bytes = {reinterpret_cast<const char*>(p_), static_cast<size_t>(length)};
    p_ += length;
    return true;
  }
  bool Fail() {
    p_ = end_;
    return false;
  }

  const uint8_t* p_;
  const uint8_t* end_;
};

Status Malformed(const char* message) {
  return InvalidArgumentError(std::string("signature: the bytes of a ") + message +
                              " don't parse");
}

Status BadLeaf(const std::string& path, const std::string& problem) {
  return InvalidArgumentError("signature: leaf '" + path + "' " + problem);
}

// Reads a nest depth first and appends its leaves: all of them specs, or all none_value.
class Parser {
 public:
  enum class Leaves { kSpecs, kNone };
  Parser(Leaves expected, std::vector<TensorSpec>* leaves)
      : expected_(expected), leaves_(leaves) {}

  Status ParseValue(std::string_view value, const std::string& path, int depth);

 private:
  Status ParseList(std::string_view list, const std::string& path, int depth);
  Status ParseDict(std::string_view dict, const std::string& path, int depth);
  Status ParseNamedTuple(std::string_view tuple, const std::string& path, int depth);
  Status AddLeaf(TensorSpec spec);
  Status ParseSpec(std::string_view spec, const std::string& path);
  Status ParseShape(std::string_view shape, TensorSpec* spec);
  Status ParseDim(std::string_view dim, TensorSpec* spec);
  Status ParsePair(std::string_view pair, std::string* key, std::string_view* value);

  const Leaves expected_;
  std::vector<TensorSpec>* const leaves_;
  size_t path_bytes_ = 0;
};

std::string Child(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "/" + name;
}

Status Parser::ParseValue(std::string_view value, const std::string& path, int depth) {
  if (depth > kMaxDepth) {
    return InvalidArgumentError("signature: nested deeper than " +
                                std::to_string(kMaxDepth) + " levels");
  }
  // A oneof: its last field counts.
  Field kind;
  FieldReader reader(value);
  while (!reader.at_end()) {
    Field field;
    if (!reader.Next(&field)) return Malformed("StructuredValue");
    kind = field;
  }
  if (kind.wire_type == kLengthDelimited) {
    switch (kind.number) {
      case kNone:
        if (expected_ != Leaves::kNone) break;
        return AddLeaf({path, DType::kInvalid, {}, /*unknown_rank=*/false});
      case kTensorSpec:
      case kBoundedTensorSpec:
        if (expected_ != Leaves::kSpecs) break;
        return ParseSpec(kind.bytes, path);
      case kList:
      case kTuple:
        return ParseList(kind.bytes, path, depth);
      case kDict:
        return ParseDict(kind.bytes, path, depth);
      case kNamedTuple:
        return ParseNamedTuple(kind.bytes, path, depth);
      default:
        break;
    }
  }
  const bool specs = expected_ == Leaves::kSpecs;
  return BadLeaf(path, std::string("is not a ") + (specs ? "TensorSpec" : "none_value") +
                           " (StructuredValue field " + std::to_string(kind.number) +
                           "); expected dicts, lists, tuples and named tuples of " +
                           (specs ? "tf.TensorSpec" : "none_value"));
}

Status Parser::ParseList(std::string_view list, const std::string& path, int depth) {
  FieldReader reader(list);
  for (int index = 0; !reader.at_end();) {
    Field field;
    if (!reader.Next(&field)) return Malformed("ListValue");
    if (field.number != 1 || field.wire_type != kLengthDelimited) continue;
    const std::string child = path + "[" + std::to_string(index++) + "]";
    RTF_RETURN_IF_ERROR(ParseValue(field.bytes, child, depth + 1));
  }
  return OkStatus();
}

Status Parser::ParsePair(std::string_view pair, std::string* key, std::string_view* value) {
  FieldReader reader(pair);
  while (!reader.at_end()) {
    Field field;
    if (!reader.Next(&field)) return Malformed("pair");
    if (field.wire_type != kLengthDelimited) continue;
    if (field.number == 1) *key = field.bytes;
    if (field.number == 2) *value = field.bytes;
  }
  return OkStatus();
}

Status Parser::ParseDict(std::string_view dict, const std::string& path, int depth) {
  // Sorted by key, as nests are flattened; of equal keys the last counts.
  std::map<std::string, std::string_view> fields;
  FieldReader reader(dict);
  while (!reader.at_end()) {
    Field field;
    if (!reader.Next(&field)) return Malformed("DictValue");
    if (field.number != 1 || field.wire_type != kLengthDelimited) continue;
    std::string key;
    std::string_view value;
    RTF_RETURN_IF_ERROR(ParsePair(field.bytes, &key, &value));
    fields[std::move(key)] = value;
  }
  for (const auto& [key, value] : fields) {
    RTF_RETURN_IF_ERROR(ParseValue(value, Child(path, key), depth + 1));
  }
  return OkStatus();
}

Status Parser::ParseNamedTuple(std::string_view tuple, const std::string& path, int depth) {
  FieldReader reader(tuple);
  while (!reader.at_end()) {
    Field field;
    if (!reader.Next(&field)) return Malformed("NamedTupleValue");
    if (field.number != 2 || field.wire_type != kLengthDelimited) continue;
    std::string key;
    std::string_view value;
    RTF_RETURN_IF_ERROR(ParsePair(field.bytes, &key, &value));
    RTF_RETURN_IF_ERROR(ParseValue(value, Child(path, key), depth + 1));
  }
  return OkStatus();
}

Status Parser::AddLeaf(TensorSpec spec) {
  path_bytes_ += spec.path.size();
  if (path_bytes_ > kMaxPathBytes) {
    return InvalidArgumentError("signature: its paths are too long");
  }
  leaves_->push_back(std::move(spec));
  return OkStatus();
}

Status Parser::ParseSpec(std::string_view bytes, const std::string& path) {
  TensorSpec spec;
  spec.path = path;
  uint64_t dtype = 0;
  FieldReader reader(bytes);
  while (!reader.at_end()) {
    Field field;
    if (!reader.Next(&field)) return Malformed("TensorSpecProto");
    if (field.number == 2 && field.wire_type == kLengthDelimited) {
      RTF_RETURN_IF_ERROR(ParseShape(field.bytes, &spec));
    } else if (field.number == 3 && field.wire_type == kVarint) {
      dtype = field.value;
    }
  }
  spec.dtype = dtype <= INT32_MAX ? static_cast<DType>(dtype) : DType::kInvalid;
  if (!IsSupported(spec.dtype)) {
    return BadLeaf(path, "has dtype " + std::to_string(dtype) +
                             " (tensorflow.DataType), which can't be stored");
  }
  return AddLeaf(std::move(spec));
}

Status Parser::ParseShape(std::string_view shape, TensorSpec* spec) {
  FieldReader reader(shape);
  while (!reader.at_end()) {
    Field field;
    if (!reader.Next(&field)) return Malformed("TensorShapeProto");
    if (field.number == 2 && field.wire_type == kLengthDelimited) {
      RTF_RETURN_IF_ERROR(ParseDim(field.bytes, spec));
    } else if (field.number == 3 && field.wire_type == kVarint) {
      spec->unknown_rank = field.value != 0;
    }
  }
  if (spec->unknown_rank) spec->shape.clear();
  return OkStatus();
}

Status Parser::ParseDim(std::string_view dim, TensorSpec* spec) {
  int64_t size = 0;
  FieldReader reader(dim);
  while (!reader.at_end()) {
    Field field;
    if (!reader.Next(&field)) return Malformed("TensorShapeProto");
    if (field.number == 1 && field.wire_type == kVarint) {
      size = static_cast<int64_t>(field.value);
    }
  }
  if (size < -1) {
    return BadLeaf(spec->path, "has a dimension of size " + std::to_string(size));
  }
  if (spec->shape.size() == kMaxRank) {
    return BadLeaf(spec->path, "has more than 254 dimensions");
  }
  spec->shape.push_back(size);
  return OkStatus();
}

}  // namespace

Result<Signature> Signature::Parse(std::string structured_value) {
  Signature signature;
  RTF_RETURN_IF_ERROR(Parser(Parser::Leaves::kSpecs, &signature.leaves)
                          .ParseValue(structured_value, "", /*depth=*/0));
  if (signature.leaves.empty()) {
    return InvalidArgumentError("signature: has no leaves; expected at least one");
  }
  signature.structured_value = std::move(structured_value);
  return signature;
}

Result<std::vector<std::string>> ParseStructurePaths(std::string_view structured_value) {
  std::vector<TensorSpec> leaves;
  RTF_RETURN_IF_ERROR(
      Parser(Parser::Leaves::kNone, &leaves).ParseValue(structured_value, "", /*depth=*/0));
  std::vector<std::string> paths;
  for (TensorSpec& leaf : leaves) paths.push_back(std::move(leaf.path));
  return paths;
}

}  // namespace reverb_tf
