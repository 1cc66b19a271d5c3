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

// How many forks have led to this process.
int ForkCount();
[[noreturn]] void ThrowForked();
// To be called before threads are started: RuntimeError if a process that forked this one
// had some, since gRPC's do not survive that.
void CheckProcess();

// The C++ object behind a Python object. Destroying it may take a while (writers flush), so
// other Python threads go on. A forked child has none of its threads: there it is left as
// it is, and its use is a RuntimeError.
template <typename T>
class Owned {
 public:
  Owned() = default;
  Owned(std::unique_ptr<T> object)  // NOLINT: as a unique_ptr is given
      : object_(std::move(object)), forks_(ForkCount()) {}
  Owned(Owned&&) = default;
  Owned& operator=(Owned&&) = default;
  ~Owned() {
    if (!object_) return;
    if (!is_ours()) {
      (void)object_.release();
    } else if (PyGILState_Check()) {
      Unlocked([&] { return object_.reset(), 0; });
    }
  }

  // It was made by this process.
  bool is_ours() const { return forks_ == ForkCount(); }
  T& operator*() const {
    if (!is_ours()) ThrowForked();
    return *object_;
  }
  T* operator->() const { return &**this; }

 private:
  std::unique_ptr<T> object_;
  int forks_ = 0;
};

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
