// Whether configs of a structured writer are what they may be, tables aside.
#ifndef REVERB_TF_CC_CLIENT_PATTERN_CHECK_H_
#define REVERB_TF_CC_CLIENT_PATTERN_CHECK_H_

#include <vector>

#include "cc/api/structured_writer.h"
#include "cc/base/status.h"

namespace reverb_tf {

// Leaves of a step: nobody has more, and bytes from elsewhere must not exhaust memory.
inline constexpr int kMaxSources = 1 << 16;

// Checks the table's name, the nodes and the priority of one config; INVALID_ARGUMENT
// naming the field, what was got and what is expected.
Status CheckPattern(const StructuredConfig& config);

// INVALID_ARGUMENT naming the position: no config, CheckPattern, a condition out of its
// range, a td_error source that isn't in the pattern exactly once, or configs of
// different reference steps.
Status CheckConfigs(const std::vector<StructuredConfig>& configs);

// `status` of the config at position `index`.
Status AtPosition(size_t index, const Status& status);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_PATTERN_CHECK_H_
