#include "cc/client/cell_value.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace reverb_tf {
namespace {

// The value of an element that `T`s are stored at `data` as.
template <typename T>
T Load(const void* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

// A number of `exponent_bits` and `fraction_bits` below a sign bit.
double SmallFloat(uint32_t bits, int exponent_bits, int fraction_bits) {
  const uint32_t exponent = bits >> fraction_bits & ((1u << exponent_bits) - 1);
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value;
  if (exponent == (1u << exponent_bits) - 1) {
    value = fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                          : std::numeric_limits<double>::infinity();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - bias - fraction_bits);
  } else {
    value = std::ldexp((1u << fraction_bits) | fraction,
                       static_cast<int>(exponent) - bias - fraction_bits);
  }
  return bits >> (exponent_bits + fraction_bits) != 0 ? -value : value;
}

}  // namespace

bool ReadInteger(DType dtype, const void* data, int64_t* value) {
  switch (dtype) {
    case DType::kBool:
      *value = Load<uint8_t>(data) != 0;
      return true;
    case DType::kInt8:
      *value = Load<int8_t>(data);
      return true;
    case DType::kUint8:
      *value = Load<uint8_t>(data);
      return true;
    case DType::kInt16:
      *value = Load<int16_t>(data);
      return true;
    case DType::kUint16:
      *value = Load<uint16_t>(data);
      return true;
    case DType::kInt32:
      *value = Load<int32_t>(data);
      return true;
    case DType::kUint32:
      *value = Load<uint32_t>(data);
      return true;
    case DType::kInt64:
      *value = Load<int64_t>(data);
      return true;
    case DType::kUint64:
      *value = Load<int64_t>(data);
      return *value >= 0;
    default:
      return false;
  }
}

bool ReadNumber(DType dtype, const void* data, double* value) {
  int64_t integer = 0;
  switch (dtype) {
    case DType::kFloat32:
      *value = Load<float>(data);
      return true;
    case DType::kFloat64:
      *value = Load<double>(data);
      return true;
    case DType::kFloat16:
      *value = SmallFloat(Load<uint16_t>(data), 5, 10);
      return true;
    case DType::kBfloat16:
      *value = SmallFloat(Load<uint16_t>(data), 8, 7);
      return true;
    case DType::kUint64:
      *value = static_cast<double>(Load<uint64_t>(data));
      return true;
    case DType::kBool:
      return false;
    default:
      if (!ReadInteger(dtype, data, &integer)) return false;
      *value = static_cast<double>(integer);
      return true;
  }
}

}  // namespace reverb_tf
