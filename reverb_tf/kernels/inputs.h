// What kernels of several files read alike.
#ifndef REVERB_TF_REVERB_TF_KERNELS_INPUTS_H_
#define REVERB_TF_REVERB_TF_KERNELS_INPUTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/base/tensor.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tstring.h"

namespace reverb_tf {

// INVALID_ARGUMENT naming the input if it isn't of this rank.
inline absl::Status GetInput(tensorflow::OpKernelContext* ctx, const char* name, int rank,
                             const tensorflow::Tensor** tensor) {
  TF_RETURN_IF_ERROR(ctx->input(name, tensor));
  if ((*tensor)->dims() == rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      name, " must be of rank ", rank, ", got shape ", (*tensor)->shape().DebugString()));
}

// A scalar input.
template <typename T>
absl::Status GetScalar(tensorflow::OpKernelContext* ctx, const char* name, T* value) {
  const tensorflow::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(GetInput(ctx, name, 0, &tensor));
  *value = tensor->scalar<T>()();
  return absl::OkStatus();
}

inline absl::Status GetString(tensorflow::OpKernelContext* ctx, const char* name,
                              std::string* value) {
  const tensorflow::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(GetInput(ctx, name, 0, &tensor));
  *value = tensor->scalar<tensorflow::tstring>()();
  return absl::OkStatus();
}

// INVALID_ARGUMENT naming the attr if a table can't hold one of its dtypes.
inline absl::Status CheckTypes(const char* name, const tensorflow::DataTypeVector& types) {
  for (const tensorflow::DataType type : types) {
    if (IsSupported(static_cast<DType>(type))) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, ": no table can hold ", tensorflow::DataTypeString(type), "; cast it"));
  }
  return absl::OkStatus();
}

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_INPUTS_H_
