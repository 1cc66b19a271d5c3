#include "reverb_tf/native/interrupts.h"

#include <nanobind/stl/string.h>

#include <atomic>
#include <csignal>
#include <string>
#include <string_view>

namespace reverb_tf {
namespace {

namespace nb = nanobind;

std::atomic<bool> pending{false};
struct sigaction previous_action;

// Runs in the signal handler: only what is safe there.
void OnSignal(int number, siginfo_t* info, void* context) {
  pending.store(true);
  if (previous_action.sa_flags & SA_SIGINFO) {
    previous_action.sa_sigaction(number, info, context);
  } else {
    previous_action.sa_handler(number);
  }
}

uintptr_t WatchInterrupts() {
  const auto address = reinterpret_cast<uintptr_t>(&pending);
  struct sigaction current;
  if (sigaction(SIGINT, nullptr, &current) != 0) return address;
  if (current.sa_flags & SA_SIGINFO) {
    if (current.sa_sigaction == &OnSignal) return address;
  } else if (current.sa_handler == SIG_DFL || current.sa_handler == SIG_IGN) {
    return address;
  }
  previous_action = current;
  pending = false;
  struct sigaction ours = current;
  ours.sa_flags |= SA_SIGINFO;
  ours.sa_sigaction = &OnSignal;
  sigaction(SIGINT, &ours, nullptr);
  return address;
}

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

std::string FileOf(const nb::object& frame) {
  return nb::cast<std::string>(frame.attr("f_code").attr("co_filename"));
}

// Whether TensorFlow looks at the types and shapes of an op that it is to run.
bool IsReadingAttributes(const nb::object& frame) {
  if (frame.is_none()) return false;
  const std::string file = FileOf(frame);
  return EndsWith(file, "tensorflow/python/framework/dtypes.py") ||
         EndsWith(file, "tensorflow/python/framework/tensor_shape.py");
}

// Whether TensorFlow makes an exception of a status, at or above this frame.
bool IsMakingException(nb::object frame) {
  for (; !frame.is_none(); frame = frame.attr("f_back")) {
    const nb::object code = frame.attr("f_code");
    if (nb::cast<std::string>(code.attr("co_name")) != "__init__") continue;
    const std::string file = FileOf(frame);
    if (EndsWith(file, "tensorflow/python/framework/errors_impl.py") ||
        EndsWith(file, "tensorflow/python/eager/core.py")) {
      return true;
    }
  }
  return false;
}

void RaiseInterrupt(int number, nb::object frame) {
  if (IsReadingAttributes(frame) || IsMakingException(frame)) {
    PyErr_SetInterrupt();  // again at the next chance
    return;
  }
  pending = false;
  PyErr_SetNone(PyExc_KeyboardInterrupt);
  throw nb::python_error();
}

}  // namespace

void BindInterrupts(nb::module_& m) {
  m.def("watch_interrupts", &WatchInterrupts);
  m.def("raise_interrupt", &RaiseInterrupt, nb::arg(), nb::arg().none());
}

}  // namespace reverb_tf
