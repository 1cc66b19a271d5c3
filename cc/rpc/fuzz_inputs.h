// Makes inputs of codec_fuzz.h: conversations that are mostly valid, with parts of their
// messages changed.
#ifndef REVERB_TF_CC_RPC_FUZZ_INPUTS_H_
#define REVERB_TF_CC_RPC_FUZZ_INPUTS_H_

#include <cstdint>
#include <string>

namespace reverb_tf {

// The same for the same `seed` and `number`.
std::string MakeFuzzInput(uint64_t seed, uint64_t number);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_FUZZ_INPUTS_H_
