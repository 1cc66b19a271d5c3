// Between the project's vocabulary and TensorFlow's: statuses, dtypes, shapes, tensors,
// and Ctrl-C.
#ifndef REVERB_TF_REVERB_TF_KERNELS_BRIDGE_H_
#define REVERB_TF_REVERB_TF_KERNELS_BRIDGE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cc/api/entry.h"
#include "cc/base/status.h"
#include "cc/base/tensor.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"
#include "tensorflow/core/framework/types.h"

namespace reverb_tf {

// The same code and message. Thread-safe, as all functions here.
absl::Status ToTfStatus(const Status& status);

// The API of libreverb; INTERNAL with the reason when it can't be loaded.
absl::Status GetReverbApi(const ReverbApi** api);

// A client of `address`. With `in_process` it uses a server of this process directly,
// unless the environment has REVERB_TF_INPROCESS=0.
absl::Status MakeClient(const std::string& address, bool in_process,
                        std::unique_ptr<ReverbClient>* client);

TensorSpec ToTensorSpec(const std::string& path, tensorflow::DataType dtype,
                        const tensorflow::PartialTensorShape& shape);

// The tensor's content as TensorFlow's. Aliases the buffer when it is aligned as
// TensorFlow wants (no copy); strings become tstrings. INTERNAL if dtype, shape and
// number of bytes contradict each other.
absl::Status ToTfTensor(Tensor tensor, tensorflow::Tensor* out);

// A scalar of `values` (which holds one), or with `batched` their vector.
template <typename To, typename From>
tensorflow::Tensor ToTfNumbers(const std::vector<From>& values, bool batched) {
  tensorflow::TensorShape shape;
  if (batched) shape.AddDim(static_cast<int64_t>(values.size()));
  tensorflow::Tensor out(tensorflow::DataTypeToEnum<To>::value, shape);
  auto flat = out.flat<To>();
  for (int64_t i = 0; i < flat.size(); ++i) flat(i) = static_cast<To>(values[i]);
  return out;
}

// Whether Python has a KeyboardInterrupt to raise. TensorFlow doesn't return to Python
// while it waits, so our waits end then. False until the function below was called.
bool IsInterrupted();

}  // namespace reverb_tf

// `flag` points to an atomic bool that lives as long as the process.
extern "C" void reverb_tf_set_interrupt_flag(const void* flag);

#endif  // REVERB_TF_REVERB_TF_KERNELS_BRIDGE_H_
