// TableInfo for Python.
#ifndef REVERB_TF_REVERB_TF_NATIVE_TABLE_INFO_H_
#define REVERB_TF_REVERB_TF_NATIVE_TABLE_INFO_H_

#include <nanobind/nanobind.h>

#include "cc/core/table_info.h"

namespace reverb_tf {

// A dict with the names of reverb_types.TableInfo; selectors as (kind, exponent,
// seed), the signature as bytes or None. REQUIRES: the GIL.
nanobind::object TableInfoToPython(const TableInfo& info);

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_TABLE_INFO_H_
