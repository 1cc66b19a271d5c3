// Dtypes, shapes and tensors, as the wire and TensorFlow number them.
#ifndef REVERB_TF_CC_BASE_TENSOR_H_
#define REVERB_TF_CC_BASE_TENSOR_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/buffer.h"
#include "cc/base/status.h"

namespace reverb_tf {

// The numbers are TensorFlow's DataType enum.
enum class DType : int32_t {
  kInvalid = 0,
  kFloat32 = 1,
  kFloat64 = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kString = 7,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kComplex128 = 18,
  kFloat16 = 19,
  kUint32 = 22,
  kUint64 = 23,
  kFloat8E5m2 = 24,
  kFloat8E4m3fn = 25,
};

// Known and storable; kString included.
bool IsSupported(DType dtype);
// Bytes an element; 0 for kString and unsupported dtypes.
size_t ElementSize(DType dtype);
// numpy's name ("float32", "string", …).
const char* DTypeName(DType dtype);
// Integral dtypes: those that delta coding applies to.
bool IsInteger(DType dtype);

// Dimensions; -1 is unknown (in specs only).
using Shape = std::vector<int64_t>;
// "[2,?,3]".
std::string ShapeString(const Shape& shape);
// The product; -1 when it is not known, a dimension is negative or it does not
// fit int64.
int64_t NumElements(const Shape& shape);

// What a leaf of a signature or a column of a writer holds.
struct TensorSpec {
  std::string path;  // "" for a bare leaf; see core/signature.h
  DType dtype = DType::kInvalid;
  Shape shape;
  bool unknown_rank = false;

  bool operator==(const TensorSpec& o) const {
    return path == o.path && dtype == o.dtype && shape == o.shape &&
           unknown_rank == o.unknown_rank;
  }
  // "float32[2,?]".
  std::string ToString() const;
};

// True if `shape` (fully known) is an instance of `spec`'s shape.
bool ShapeIsCompatible(const TensorSpec& spec, const Shape& shape);

// A dtype, a fully known shape and the row-major little-endian bytes.
//
// A kString tensor's bytes are TensorFlow's content form: a varint length for
// every element, then all elements' bytes one after another.
struct Tensor {
  DType dtype = DType::kInvalid;
  Shape shape;
  BufferPtr buffer;
  // True if only this tensor uses the buffer, so that its receiver may write.
  bool writable = false;
};

// The element lengths and the start of the bytes of a string tensor's content;
// INVALID_ARGUMENT unless it holds exactly `count` elements.
struct StringContent {
  std::vector<uint64_t> lengths;
  std::string_view bytes;
};
Result<StringContent> ParseStringContent(std::string_view content, int64_t count);
// The content form of `elements`.
std::string MakeStringContent(const std::vector<std::string_view>& elements);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_TENSOR_H_
