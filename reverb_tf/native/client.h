// Client and Sampler for Python.
#ifndef REVERB_TF_REVERB_TF_NATIVE_CLIENT_H_
#define REVERB_TF_REVERB_TF_NATIVE_CLIENT_H_

#include <nanobind/nanobind.h>

namespace reverb_tf {

void BindClient(nanobind::module_& m);

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_CLIENT_H_
