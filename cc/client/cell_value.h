// Scalar cells as numbers.
#ifndef REVERB_TF_CC_CLIENT_CELL_VALUE_H_
#define REVERB_TF_CC_CLIENT_CELL_VALUE_H_

#include <cstdint>

#include "cc/base/tensor.h"

namespace reverb_tf {

// The element at `data`, a bool or integer. False for other dtypes and for what int64
// doesn't hold.
bool ReadInteger(DType dtype, const void* data, int64_t* value);
// An integer or floating-point number; false for other dtypes, bool included.
bool ReadNumber(DType dtype, const void* data, double* value);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_CELL_VALUE_H_
