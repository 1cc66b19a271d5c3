// Between Python and the C++ API: waiting, errors, values.
#ifndef REVERB_TF_REVERB_TF_NATIVE_INTEROP_H_
#define REVERB_TF_REVERB_TF_NATIVE_INTEROP_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "cc/api/entry.h"
#include "cc/base/status.h"
#include "cc/base/tensor.h"
#include "cc/base/wait.h"

namespace reverb_tf {

namespace nb = nanobind;

// The API of libreverb.so; an ImportError if it can't be loaded.
const ReverbApi& Api();

// Raises the Python exception of `status` (or the one that Python already has set,
// such as KeyboardInterrupt). REQUIRES: the GIL.
[[noreturn]] void Raise(const Status& status);
inline void RaiseIfError(const Status& status) {
  if (!status.ok()) Raise(status);
}
template <typename T>
T ValueOrRaise(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}
// errors.py hands over the function (code, message) -> exception.
void SetErrorFactory(nb::object factory);

// Waits at most `seconds` (infinity: for ever), and stops when Python has a signal
// to handle.
WaitOptions Wait(double seconds);

// Without the GIL, or with it, while the object lives. Where a thread would take it after
// the interpreter has ended, the thread stops for good: Python unwinds such threads, which
// frames of C++ don't survive.
class GilRelease {
 public:
  GilRelease() : state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease();

 private:
  PyThreadState* const state_;
};

class GilAcquire {
 public:
  GilAcquire();
  GilAcquire(const GilAcquire&) = delete;
  GilAcquire& operator=(const GilAcquire&) = delete;
  ~GilAcquire() { PyGILState_Release(state_); }

 private:
  PyGILState_STATE state_;
};

// Runs `call` without the GIL.
template <typename F>
auto Unlocked(F&& call) {
  GilRelease release;
  return call();
}

// A numpy array over the tensor's buffer (no copy; read-only unless writable). What
// numpy has no dtype for comes as (dtype number, array of same-sized integers);
// strings as (dtype number, list of bytes, shape).
nb::object TensorToPython(const Tensor& tensor);

// One leaf as contiguous bytes. Common values are read in place; everything else
// goes through the Python function set by SetLeafConverter.
struct Leaf {
  DType dtype = DType::kInvalid;
  Shape shape;
  const void* data = nullptr;
  size_t bytes = 0;
};

// Keeps what the leaves of one call refer to.
class LeafReader {
 public:
  LeafReader() = default;
  LeafReader(const LeafReader&) = delete;
  LeafReader& operator=(const LeafReader&) = delete;
  ~LeafReader();

  // Raises TypeError or ValueError with `path` for what can't be stored.
  Leaf Read(PyObject* value, const std::string& path);

 private:
  bool ReadScalar(PyObject* value, Leaf* leaf);
  bool ReadBuffer(PyObject* value, Leaf* leaf);
  Leaf Convert(PyObject* value, const std::string& path);

  std::vector<Py_buffer> buffers_;
  // Scalars' bytes; reserved, so that pointers into it stay valid.
  std::vector<std::unique_ptr<char[]>> scalars_;
};

// (object, path) -> (dtype number, shape, bytes-like, contiguous).
void SetLeafConverter(nb::object converter);

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_INTEROP_H_
