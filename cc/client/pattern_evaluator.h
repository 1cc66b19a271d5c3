// Makes the PatternEvaluator of cc/api.
#ifndef REVERB_TF_CC_CLIENT_PATTERN_EVALUATOR_H_
#define REVERB_TF_CC_CLIENT_PATTERN_EVALUATOR_H_

#include <memory>
#include <vector>

#include "cc/api/structured_writer.h"
#include "cc/base/status.h"

namespace reverb_tf {

// Compiles the configs. INVALID_ARGUMENT as CheckConfigs.
Result<std::unique_ptr<PatternEvaluator>> MakePatternEvaluator(
    std::vector<StructuredConfig> configs);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_PATTERN_EVALUATOR_H_
