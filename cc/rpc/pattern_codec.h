// Patterns of the structured writer from their serialised form (patterns.proto).
#ifndef REVERB_TF_CC_RPC_PATTERN_CODEC_H_
#define REVERB_TF_CC_RPC_PATTERN_CODEC_H_

#include <string>

#include "cc/api/structured_writer.h"
#include "cc/base/status.h"

namespace reverb_tf {

// A StructuredWriterConfig. INVALID_ARGUMENT: the bytes don't parse, the structure and
// the nodes don't fit together, a condition lacks a side, or the nodes were made from
// different reference steps. Ranges are not checked (see CheckPattern).
Result<StructuredConfig> DecodeStructuredConfig(const std::string& bytes);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_PATTERN_CODEC_H_
