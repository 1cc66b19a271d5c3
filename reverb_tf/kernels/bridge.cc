#include "reverb_tf/kernels/bridge.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/api/loader.h"
#include "tensorflow/core/framework/allocation_description.pb.h"
#include "tensorflow/core/framework/tensor_types.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/refcount.h"
#include "tensorflow/core/platform/tstring.h"

namespace reverb_tf {
namespace {

#define RTF_SAME_DTYPE(ours, theirs)                                                   \
  static_assert(static_cast<int>(DType::ours) == static_cast<int>(tensorflow::theirs), \
                "the dtypes' numbers are TensorFlow's")
RTF_SAME_DTYPE(kFloat32, DT_FLOAT);
RTF_SAME_DTYPE(kFloat64, DT_DOUBLE);
RTF_SAME_DTYPE(kInt32, DT_INT32);
RTF_SAME_DTYPE(kUint8, DT_UINT8);
RTF_SAME_DTYPE(kInt16, DT_INT16);
RTF_SAME_DTYPE(kInt8, DT_INT8);
RTF_SAME_DTYPE(kString, DT_STRING);
RTF_SAME_DTYPE(kComplex64, DT_COMPLEX64);
RTF_SAME_DTYPE(kInt64, DT_INT64);
RTF_SAME_DTYPE(kBool, DT_BOOL);
RTF_SAME_DTYPE(kBfloat16, DT_BFLOAT16);
RTF_SAME_DTYPE(kUint16, DT_UINT16);
RTF_SAME_DTYPE(kComplex128, DT_COMPLEX128);
RTF_SAME_DTYPE(kFloat16, DT_HALF);
RTF_SAME_DTYPE(kUint32, DT_UINT32);
RTF_SAME_DTYPE(kUint64, DT_UINT64);
RTF_SAME_DTYPE(kFloat8E5m2, DT_FLOAT8_E5M2);
RTF_SAME_DTYPE(kFloat8E4m3fn, DT_FLOAT8_E4M3FN);
#undef RTF_SAME_DTYPE

static_assert(static_cast<int>(StatusCode::kUnauthenticated) ==
                  static_cast<int>(absl::StatusCode::kUnauthenticated),
              "the codes' numbers are absl's");

// A Buffer as TensorFlow holds memory. Tensors on a buffer that others share say that
// they don't own it, so that no kernel reuses it for its output.
class SharedTensorBuffer : public tensorflow::TensorBuffer {
 public:
  SharedTensorBuffer(BufferPtr buffer, bool writable)
      : TensorBuffer(const_cast<uint8_t*>(buffer->data())),
        buffer_(std::move(buffer)),
        writable_(writable) {}

  size_t size() const override { return buffer_->size(); }
  TensorBuffer* root_buffer() override { return this; }
  bool OwnsMemory() const override { return writable_; }
  void FillAllocationDescription(tensorflow::AllocationDescription* proto) const override {
    proto->set_requested_bytes(static_cast<int64_t>(size()));
    proto->set_allocator_name("reverb_tf");
  }

 private:
  const BufferPtr buffer_;
  const bool writable_;
};

bool IsAligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % Buffer::kAlignment == 0;
}

absl::Status FillStrings(std::string_view content, tensorflow::Tensor* out) {
  auto flat = out->flat<tensorflow::tstring>();
  Result<StringContent> parsed = ParseStringContent(content, flat.size());
  if (!parsed.ok()) return ToTfStatus(parsed.status());
  size_t at = 0;
  for (int64_t i = 0; i < flat.size(); ++i) {
    const size_t length = parsed->lengths[i];
    flat(i).assign(parsed->bytes.data() + at, length);
    at += length;
  }
  return absl::OkStatus();
}

std::atomic<const std::atomic<bool>*> interrupt_flag{nullptr};

}  // namespace

absl::Status ToTfStatus(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

absl::Status GetReverbApi(const ReverbApi** api) {
  std::string error;
  *api = LoadReverbApi(&error);
  if (*api == nullptr) return absl::InternalError(error);
  return absl::OkStatus();
}

absl::Status MakeClient(const std::string& address, bool in_process,
                        std::unique_ptr<ReverbClient>* client) {
  const ReverbApi* api = nullptr;
  TF_RETURN_IF_ERROR(GetReverbApi(&api));
  ClientOptions options;
  options.address = address;
  const char* allowed = std::getenv("REVERB_TF_INPROCESS");
  options.in_process =
      in_process && (allowed == nullptr || std::string_view(allowed) != "0");
  Result<std::unique_ptr<ReverbClient>> made = api->MakeClient(options);
  if (!made.ok()) return ToTfStatus(made.status());
  *client = std::move(made).value();
  return absl::OkStatus();
}

TensorSpec ToTensorSpec(const std::string& path, tensorflow::DataType dtype,
                        const tensorflow::PartialTensorShape& shape) {
  TensorSpec spec;
  spec.path = path;
  spec.dtype = static_cast<DType>(dtype);
  spec.unknown_rank = shape.unknown_rank();
  for (int i = 0; i < shape.dims(); ++i) spec.shape.push_back(shape.dim_size(i));
  return spec;
}

absl::Status ToTfTensor(Tensor tensor, tensorflow::Tensor* out) {
  const auto dtype = static_cast<tensorflow::DataType>(tensor.dtype);
  tensorflow::TensorShape shape;
  TF_RETURN_IF_ERROR(tensorflow::TensorShape::BuildTensorShape(tensor.shape, &shape));
  const std::string_view bytes = tensor.buffer ? tensor.buffer->view() : std::string_view();
  if (dtype == tensorflow::DT_STRING) {
    *out = tensorflow::Tensor(dtype, shape);
    return FillStrings(bytes, out);
  }
  const size_t size = shape.num_elements() * ElementSize(tensor.dtype);
  if (bytes.size() < size || ElementSize(tensor.dtype) == 0) {
    return absl::InternalError(absl::StrCat("a ", DTypeName(tensor.dtype),
                                            " sample of shape ", shape.DebugString(),
                                            " came with ", bytes.size(), " bytes"));
  }
  if (size > 0 && IsAligned(bytes.data())) {
    const bool writable = tensor.writable;
    tensorflow::core::RefCountPtr<tensorflow::TensorBuffer> shared(
        new SharedTensorBuffer(std::move(tensor.buffer), writable));
    *out = tensorflow::Tensor(dtype, std::move(shape), std::move(shared));
    return absl::OkStatus();
  }
  *out = tensorflow::Tensor(dtype, shape);
  if (size > 0) std::memcpy(out->data(), bytes.data(), size);
  return absl::OkStatus();
}

bool IsInterrupted() {
  const std::atomic<bool>* const flag = interrupt_flag;
  return flag != nullptr && *flag;
}

}  // namespace reverb_tf

void reverb_tf_set_interrupt_flag(const void* flag) {
  reverb_tf::interrupt_flag = static_cast<const std::atomic<bool>*>(flag);
}
