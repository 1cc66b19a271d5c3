#include "cc/base/tensor.h"

#include "cc/base/varint.h"

namespace reverb_tf {
namespace {

struct DTypeInfo {
  size_t size;
  const char* name;
  bool integer;
};

// Size 0 and a null name: not a supported dtype.
DTypeInfo InfoOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {4, "float32", false};
    case DType::kFloat64:
      return {8, "float64", false};
    case DType::kInt32:
      return {4, "int32", true};
    case DType::kUint8:
      return {1, "uint8", true};
    case DType::kInt16:
      return {2, "int16", true};
    case DType::kInt8:
      return {1, "int8", true};
    case DType::kString:
      return {0, "string", false};
    case DType::kComplex64:
      return {8, "complex64", false};
    case DType::kInt64:
      return {8, "int64", true};
    case DType::kBool:
      return {1, "bool", false};
    case DType::kBfloat16:
      return {2, "bfloat16", false};
    case DType::kUint16:
      return {2, "uint16", true};
    case DType::kComplex128:
      return {16, "complex128", false};
    case DType::kFloat16:
      return {2, "float16", false};
    case DType::kUint32:
      return {4, "uint32", true};
    case DType::kUint64:
      return {8, "uint64", true};
    case DType::kFloat8E5m2:
      return {1, "float8_e5m2", false};
    case DType::kFloat8E4m3fn:
      return {1, "float8_e4m3fn", false};
    case DType::kInvalid:
      break;
  }
  return {0, nullptr, false};
}

}  // namespace

bool IsSupported(DType dtype) { return InfoOf(dtype).name != nullptr; }
size_t ElementSize(DType dtype) { return InfoOf(dtype).size; }
bool IsInteger(DType dtype) { return InfoOf(dtype).integer; }
const char* DTypeName(DType dtype) {
  const char* name = InfoOf(dtype).name;
  return name ? name : "invalid";
}

std::string ShapeString(const Shape& shape) {
  std::string s = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i) s += ",";
    s += shape[i] < 0 ? "?" : std::to_string(shape[i]);
  }
  return s + "]";
}

int64_t NumElements(const Shape& shape) {
  int64_t n = 1;
  bool empty = false;
  for (int64_t d : shape) {
    if (d < 0) return -1;
    if (d == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(n, d, &n)) {
      return -1;
    }
  }
  return empty ? 0 : n;
}

std::string TensorSpec::ToString() const {
  return std::string(DTypeName(dtype)) + (unknown_rank ? "[...]" : ShapeString(shape));
}

bool ShapeIsCompatible(const TensorSpec& spec, const Shape& shape) {
  if (spec.unknown_rank) return true;
  if (spec.shape.size() != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (spec.shape[i] >= 0 && spec.shape[i] != shape[i]) return false;
  }
  return true;
}

Result<StringContent> ParseStringContent(std::string_view content, int64_t count) {
  const auto* p = reinterpret_cast<const uint8_t*>(content.data());
  const uint8_t* const end = p + content.size();
  if (count < 0 || static_cast<uint64_t>(count) > content.size()) {
    return InvalidArgumentError("string tensor of " + std::to_string(count) +
                                " elements has only " + std::to_string(content.size()) +
                                " bytes of content");
  }
  StringContent parsed;
  parsed.lengths.reserve(static_cast<size_t>(count));
  uint64_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t length = 0;
    p = GetVarint(p, end, &length);
    if (p == nullptr || length > content.size() - total) {
      return InvalidArgumentError("string tensor content is cut off at element " +
                                  std::to_string(i) + " of " + std::to_string(count));
    }
    total += length;
    parsed.lengths.push_back(length);
  }
  if (static_cast<uint64_t>(end - p) != total) {
    return InvalidArgumentError("string tensor content has " + std::to_string(end - p) +
                                " bytes of elements, their lengths add up to " +
                                std::to_string(total));
  }
  parsed.bytes = {reinterpret_cast<const char*>(p), static_cast<size_t>(total)};
  return parsed;
}

std::string MakeStringContent(const std::vector<std::string_view>& elements) {
  std::string out;
  for (std::string_view e : elements) AppendVarint(&out, e.size());
  for (std::string_view e : elements) out.append(e);
  return out;
}

}  // namespace reverb_tf
