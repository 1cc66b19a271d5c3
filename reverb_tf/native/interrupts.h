// Ctrl-C while TensorFlow waits.
#ifndef REVERB_TF_REVERB_TF_NATIVE_INTERRUPTS_H_
#define REVERB_TF_REVERB_TF_NATIVE_INTERRUPTS_H_

#include <nanobind/nanobind.h>

namespace reverb_tf {

// Binds
//
// * watch_interrupts() -> address of an atomic bool that is true from each SIGINT on until
//   Python raises its KeyboardInterrupt. Python itself learns of the signal as before. Does
//   nothing where SIGINT is ignored or ends the process; may be called again, for the case
//   that Python has put its own C handler back.
// * raise_interrupt(number, frame), the Python handler that belongs to it: raises
//   KeyboardInterrupt, but not yet where TensorFlow's C++ makes an exception of a status.
//   Such Python code is the first to run after a wait that SIGINT ended, and C++ takes
//   another exception raised there for a fault. Nor where C++ reads the attributes of an op
//   before it runs it: it would drop the exception, and wait. Being no Python code itself,
//   it can ask to be called again at Python's next chance, until that code has returned.
void BindInterrupts(nanobind::module_& m);

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_INTERRUPTS_H_
