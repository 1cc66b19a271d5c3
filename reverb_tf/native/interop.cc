#include "reverb_tf/native/interop.h"

#include <cxxabi.h>
#include <nanobind/ndarray.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "cc/api/loader.h"

namespace reverb_tf {
namespace {

// Set once by the Python modules; never destroyed (the interpreter may be gone).
PyObject* error_factory = nullptr;
PyObject* leaf_converter = nullptr;

std::atomic<int> fork_count{0};
[[maybe_unused]] const int watches_forks =
    pthread_atfork(nullptr, nullptr, [] { ++fork_count; });

// See GilRelease.
template <typename F>
void StopIfUnwound(F&& take_gil) {
  try {
    take_gil();
  } catch (const abi::__forced_unwind&) {
    while (true) pause();
  }
}

struct NumpyType {
  nb::dlpack::dtype_code code;
  uint8_t bits;
  bool exact;  // numpy has this dtype itself
};

NumpyType NumpyTypeOf(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto bits = static_cast<uint8_t>(8 * ElementSize(dtype));
  switch (dtype) {
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
      return {Code::Float, bits, true};
    case DType::kInt8:
    case DType::kInt16:
    case DType::kInt32:
    case DType::kInt64:
      return {Code::Int, bits, true};
    case DType::kUint8:
    case DType::kUint16:
    case DType::kUint32:
    case DType::kUint64:
      return {Code::UInt, bits, true};
    case DType::kComplex64:
    case DType::kComplex128:
      return {Code::Complex, bits, true};
    case DType::kBool:
      return {Code::Bool, bits, true};
    default:
      return {Code::UInt, bits, false};
  }
}

nb::object StringsToPython(const Tensor& tensor) {
  const int64_t count = NumElements(tensor.shape);
  const StringContent content =
      ValueOrRaise(ParseStringContent(tensor.buffer->view(), count));
  nb::list elements;
  const char* p = content.bytes.data();
  for (uint64_t n : content.lengths) {
    elements.append(nb::bytes(p, n));
    p += n;
  }
  nb::list shape;
  for (int64_t d : tensor.shape) shape.append(d);
  return nb::make_tuple(static_cast<int>(DType::kString), elements, nb::tuple(shape));
}

// numpy's buffer format of native-order types; kInvalid for others.
DType DTypeOfFormat(const char* format, Py_ssize_t itemsize) {
  if (format == nullptr) return DType::kUint8;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == 'Z') {
    if (format[1] == 'f') return DType::kComplex64;
    if (format[1] == 'd') return DType::kComplex128;
    return DType::kInvalid;
  }
  if (format[0] == 0 || format[1] != 0) return DType::kInvalid;
  switch (format[0]) {
    case '?':
      return DType::kBool;
    case 'e':
      return DType::kFloat16;
    case 'f':
      return DType::kFloat32;
    case 'd':
      return DType::kFloat64;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return itemsize == 1   ? DType::kInt8
             : itemsize == 2 ? DType::kInt16
             : itemsize == 4 ? DType::kInt32
                             : DType::kInt64;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return itemsize == 1   ? DType::kUint8
             : itemsize == 2 ? DType::kUint16
             : itemsize == 4 ? DType::kUint32
                             : DType::kUint64;
    default:
      return DType::kInvalid;
  }
}

}  // namespace

const ReverbApi& Api() {
  static const ReverbApi* api = [] {
    std::string error;
    const ReverbApi* loaded = LoadReverbApi(&error);
    if (loaded == nullptr) throw nb::import_error(error.c_str());
    return loaded;
  }();
  return *api;
}

void SetErrorFactory(nb::object factory) { error_factory = factory.release().ptr(); }
void SetLeafConverter(nb::object converter) { leaf_converter = converter.release().ptr(); }

void Raise(const Status& status) {
  if (PyErr_Occurred()) throw nb::python_error();
  nb::object error = nb::steal(PyObject_CallFunction(
      error_factory, "is", static_cast<int>(status.code()), status.message().c_str()));
  if (error.is_valid()) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  }
  throw nb::python_error();
}

int ForkCount() { return fork_count.load(std::memory_order_relaxed); }

void ThrowForked() {
  throw std::runtime_error(
      "created before fork; create it in the child or use the 'spawn' start method (in a "
      "child "
      "only if its parent had not begun to use reverb_tf)");
}

void CheckProcess() {
  static std::atomic<int> first_use{-1};
  int process = -1;
  if (!first_use.compare_exchange_strong(process, ForkCount()) && process != ForkCount()) {
    ThrowForked();
  }
}

GilRelease::~GilRelease() {
  StopIfUnwound([this] { PyEval_RestoreThread(state_); });
}

GilAcquire::GilAcquire() {
  StopIfUnwound([this] { state_ = PyGILState_Ensure(); });
}

WaitOptions Wait(double seconds) {
  WaitOptions options;
  if (std::isfinite(seconds) && seconds < 1e9) {
    options.timeout = std::chrono::duration_cast<Duration>(
        std::chrono::duration<double>(std::max(seconds, 0.0)));
  }
  options.interrupted = [] {
    GilAcquire acquire;
    // What a signal's handler raised stays set until the call returns: once interrupted,
    // all waits of the call are.
    return PyErr_Occurred() == nullptr && PyErr_CheckSignals() == 0
               ? OkStatus()
               : CancelledError("interrupted by a signal");
  };
  return options;
}

nb::object TensorToPython(const Tensor& tensor) {
  if (tensor.dtype == DType::kString) return StringsToPython(tensor);
  const NumpyType type = NumpyTypeOf(tensor.dtype);
  const nb::dlpack::dtype dtype{static_cast<uint8_t>(type.code), type.bits, 1};
  auto* reference = new BufferPtr(tensor.buffer);
  nb::capsule owner(reference, [](void* p) noexcept { delete static_cast<BufferPtr*>(p); });
  const std::vector<size_t> shape(tensor.shape.begin(), tensor.shape.end());
  void* data = const_cast<uint8_t*>(tensor.buffer->data());
  nb::object array = tensor.writable
                         ? nb::cast(nb::ndarray<nb::numpy>(data, shape.size(), shape.data(),
                                                           owner, nullptr, dtype))
                         : nb::cast(nb::ndarray<nb::numpy, nb::ro>(
                               data, shape.size(), shape.data(), owner, nullptr, dtype));
  if (type.exact) return array;
  return nb::make_tuple(static_cast<int>(tensor.dtype), array);
}

LeafReader::~LeafReader() {
  for (Py_buffer& buffer : buffers_) PyBuffer_Release(&buffer);
}

bool LeafReader::ReadScalar(PyObject* value, Leaf* leaf) {
  char bytes[8];
  size_t size = 8;
  if (PyFloat_CheckExact(value)) {
    leaf->dtype = DType::kFloat64;
    const double v = PyFloat_AS_DOUBLE(value);
    std::memcpy(bytes, &v, 8);
  } else if (PyBool_Check(value)) {
    leaf->dtype = DType::kBool;
    bytes[0] = value == Py_True;
    size = 1;
  } else if (PyLong_CheckExact(value)) {
    int overflow = 0;
    const int64_t v = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0) return false;
    leaf->dtype = DType::kInt64;
    std::memcpy(bytes, &v, 8);
  } else {
    return false;
  }
  scalars_.push_back(std::make_unique<char[]>(8));
  std::memcpy(scalars_.back().get(), bytes, size);
  leaf->data = scalars_.back().get();
  leaf->bytes = size;
  return true;
}

bool LeafReader::ReadBuffer(PyObject* value, Leaf* leaf) {
  // numpy's dates lend their bytes without saying what they are.
  const std::string_view type = Py_TYPE(value)->tp_name;
  if (type == "numpy.datetime64" || type == "numpy.timedelta64" || type == "numpy.void") {
    return false;
  }
  if (!PyObject_CheckBuffer(value) || PyBytes_Check(value) || PyByteArray_Check(value) ||
      PyMemoryView_Check(value)) {
    return false;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(value, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  leaf->dtype = DTypeOfFormat(view.format, view.itemsize);
  if (leaf->dtype == DType::kInvalid ||
      ElementSize(leaf->dtype) != static_cast<size_t>(view.itemsize)) {
    PyBuffer_Release(&view);
    return false;
  }
  leaf->shape.assign(view.shape, view.shape + view.ndim);
  leaf->data = view.buf;
  leaf->bytes = static_cast<size_t>(view.len);
  buffers_.push_back(view);
  return true;
}

Leaf LeafReader::Convert(PyObject* value, const std::string& path) {
  nb::object result =
      nb::steal(PyObject_CallFunction(leaf_converter, "Os", value, path.c_str()));
  if (!result.is_valid()) throw nb::python_error();
  Leaf leaf;
  leaf.dtype = static_cast<DType>(nb::cast<int>(result[0]));
  for (nb::handle d : nb::object(result[1])) leaf.shape.push_back(nb::cast<int64_t>(d));
  nb::object data = result[2];
  Py_buffer view;
  if (PyObject_GetBuffer(data.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  leaf.data = view.buf;
  leaf.bytes = static_cast<size_t>(view.len);
  buffers_.push_back(view);
  return leaf;
}

Leaf LeafReader::Read(PyObject* value, const std::string& path) {
  Leaf leaf;
  if (ReadScalar(value, &leaf) || ReadBuffer(value, &leaf)) return leaf;
  return Convert(value, path);
}

}  // namespace reverb_tf
