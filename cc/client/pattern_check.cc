#include "cc/client/pattern_check.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace reverb_tf {
namespace {

Status Bad(const std::string& what, int64_t got, const std::string& expected) {
  return InvalidArgumentError("`" + what + "` must be " + expected + " but got " +
                              std::to_string(got));
}

Status CheckSource(int32_t source, const StructuredConfig& config) {
  const auto known = static_cast<int>(config.source_paths.size());
  const int limit = known > 0 ? known : kMaxSources;
  if (source >= 0 && source < limit) return OkStatus();
  return Bad("flat_source_index", source,
             "in [0, " + std::to_string(limit) + "), a leaf of the reference step,");
}

Status CheckNode(const PatternNode& node) {
  if (!node.start && !node.stop) {
    return InvalidArgumentError("at least one of `start` and `stop` must be set");
  }
  if (node.start && *node.start >= 0) return Bad("start", *node.start, "< 0");
  if (node.step && *node.step <= 0) return Bad("step", *node.step, "> 0");
  if (!node.start) {
    if (*node.stop >= 0) return Bad("stop", *node.stop, "< 0 when `start` isn't set");
    if (!node.step) return OkStatus();
    return InvalidArgumentError("`step` needs a `start`");
  }
  if (!node.stop) return OkStatus();
  if (*node.stop > 0) return Bad("stop", *node.stop, "<= 0");
  if (*node.stop > *node.start) return OkStatus();
  return Bad("stop", *node.stop, "> `start` (" + std::to_string(*node.start) + ")");
}

Status CheckPriority(const StructuredConfig& config) {
  const PatternPriority& priority = config.priority;
  if (std::isnan(priority.value)) {
    return InvalidArgumentError("the priority must not be NaN");
  }
  if (!priority.td_source) return OkStatus();
  if (priority.value < 0 || priority.value > 1) {
    return InvalidArgumentError("`max_priority_weight` must be in [0, 1] but got " +
                                std::to_string(priority.value));
  }
  return CheckSource(*priority.td_source, config);
}

Status CheckCondition(const PatternCondition& condition, const StructuredConfig& config) {
  using Left = PatternCondition::Left;
  const bool is_equal = condition.compare == PatternCondition::Compare::kEqual;
  if (condition.left == Left::kIsEndEpisode) {
    if (is_equal && condition.value == 1 && !condition.mod && !condition.inverse) {
      return OkStatus();
    }
    return InvalidArgumentError("a condition on `is_end_episode` must use `eq=1`");
  }
  if (condition.left == Left::kData) {
    RTF_RETURN_IF_ERROR(CheckSource(condition.source, config));
  }
  if (!condition.mod) return OkStatus();
  if (*condition.mod <= 0) {
    return Bad(is_equal ? "mod_eq.mod" : "mod_ge.mod", *condition.mod, "> 0");
  }
  if (!is_equal || (condition.value >= 0 && condition.value < *condition.mod)) {
    return OkStatus();
  }
  return Bad(
      "mod_eq.eq", condition.value,
      condition.value < 0 ? ">= 0" : "< `mod` (" + std::to_string(*condition.mod) + ")");
}

Status CheckConfig(const StructuredConfig& config) {
  RTF_RETURN_IF_ERROR(CheckPattern(config));
  for (const PatternCondition& condition : config.conditions) {
    RTF_RETURN_IF_ERROR(CheckCondition(condition, config));
  }
  if (!config.priority.td_source) return OkStatus();
  const auto occurs = std::count_if(
      config.nodes.begin(), config.nodes.end(),
      [&](const PatternNode& node) { return node.source == *config.priority.td_source; });
  if (occurs == 1) return OkStatus();
  return InvalidArgumentError(
      "the field of `td_error` must occur exactly once in the "
      "pattern, but it occurs " +
      std::to_string(occurs) + " times");
}

}  // namespace

Status CheckPattern(const StructuredConfig& config) {
  if (config.table.empty()) return InvalidArgumentError("`table` must not be empty");
  if (config.nodes.empty()) {
    return InvalidArgumentError("`flat` must not be empty: the pattern has no column");
  }
  for (const PatternNode& node : config.nodes) {
    Status status = CheckSource(node.source, config);
    if (status.ok()) status = CheckNode(node);
    if (status.ok()) continue;
    const std::string where = node.path.empty() ? "" : "'" + node.path + "': ";
    return Status(status.code(), where + status.message());
  }
  return CheckPriority(config);
}

Status AtPosition(size_t index, const Status& status) {
  return Status(status.code(), "Invalid configuration at position " +
                                   std::to_string(index) + ": " + status.message());
}

Status CheckConfigs(const std::vector<StructuredConfig>& configs) {
  if (configs.empty()) {
    return InvalidArgumentError("at least one config must be provided, got none");
  }
  const std::vector<std::string>* sources = nullptr;
  for (size_t i = 0; i < configs.size(); ++i) {
    const Status status = CheckConfig(configs[i]);
    if (!status.ok()) return AtPosition(i, status);
    if (configs[i].source_paths.empty()) continue;
    if (sources != nullptr && configs[i].source_paths != *sources) {
      return AtPosition(i, InvalidArgumentError(
                               "it was made from another reference step than those before; "
                               "make all patterns from one"));
    }
    sources = &configs[i].source_paths;
  }
  return OkStatus();
}

}  // namespace reverb_tf
