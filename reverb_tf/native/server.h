// Table and Server for Python.
#ifndef REVERB_TF_REVERB_TF_NATIVE_SERVER_H_
#define REVERB_TF_REVERB_TF_NATIVE_SERVER_H_

#include <nanobind/nanobind.h>

namespace reverb_tf {

void BindServer(nanobind::module_& m);

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_SERVER_H_
