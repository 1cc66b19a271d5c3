// Opens libreverb.so for the shared library that this is linked into.
#ifndef REVERB_TF_CC_API_LOADER_H_
#define REVERB_TF_CC_API_LOADER_H_

#include <string>

#include "cc/api/entry.h"

namespace reverb_tf {

// The API of the libreverb.so that lies beside the calling shared library.
// Null when it can't be opened or is of another version: `*error` then says
// which file and why. Opened once and never closed; later calls give the same
// answer, and all shared libraries of one folder share one libreverb.so.
// Thread-safe.
const ReverbApi* LoadReverbApi(std::string* error);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_API_LOADER_H_
