#include "cc/rpc/pattern_codec.h"

#include <utility>
#include <vector>

#include "cc/core/signature.h"
#include "cc/rpc/patterns.pb.h"

namespace reverb_tf {
namespace {

Result<PatternCondition> DecodeCondition(const patterns::Condition& proto) {
  using Proto = patterns::Condition;
  using Left = PatternCondition::Left;
  PatternCondition condition;
  switch (proto.left_case()) {
    case Proto::kStepIndex:
      condition.left = Left::kStepIndex;
      break;
    case Proto::kStepsSinceApplied:
      condition.left = Left::kStepsSinceApplied;
      break;
    case Proto::kBufferLength:
      condition.left = Left::kBufferLength;
      break;
    case Proto::kIsEndEpisode:
      condition.left = Left::kIsEndEpisode;
      break;
    case Proto::kFlatSourceIndex:
      condition.left = Left::kData;
      condition.source = proto.flat_source_index();
      break;
    case Proto::LEFT_NOT_SET:
      return InvalidArgumentError("a condition must specify a value for `left`");
  }
  condition.inverse = proto.inverse();
  switch (proto.cmp_case()) {
    case Proto::kEq:
      condition.value = proto.eq();
      return condition;
    case Proto::kModEq:
      condition.mod = proto.mod_eq().mod();
      condition.value = proto.mod_eq().eq();
      return condition;
    case Proto::kGe:
      condition.value = proto.ge();
      break;
    case Proto::kModGe:
      condition.mod = proto.mod_ge().mod();
      condition.value = proto.mod_ge().ge();
      break;
    case Proto::CMP_NOT_SET:
      return InvalidArgumentError("a condition must specify a value for `cmp`");
  }
  condition.compare = PatternCondition::Compare::kAtLeast;
  return condition;
}

PatternPriority DecodePriority(const patterns::Priority& proto) {
  PatternPriority priority;
  if (proto.has_td_error()) {
    priority.value = proto.td_error().max_priority_weight();
    priority.td_source = proto.td_error().flat_source_index();
  } else if (proto.has_constant_fn()) {
    priority.value = proto.constant_fn().value();
  }
  return priority;
}

PatternNode DecodeNode(const patterns::PatternNode& proto, std::string path) {
  PatternNode node;
  node.path = std::move(path);
  node.source = proto.flat_source_index();
  if (proto.start_or_none_case() == patterns::PatternNode::kStart)
    node.start = proto.start();
  if (proto.stop_or_none_case() == patterns::PatternNode::kStop) node.stop = proto.stop();
  if (proto.step_or_none_case() == patterns::PatternNode::kStep) node.step = proto.step();
  return node;
}

Status DecodeNodes(const patterns::StructuredWriterConfig& proto,
                   StructuredConfig* config) {
  RTF_ASSIGN_OR_RETURN(std::vector<std::string> paths,
                       ParseStructurePaths(proto.pattern_structure()));
  if (paths.size() != static_cast<size_t>(proto.flat_size())) {
    return InvalidArgumentError("`pattern_structure` has " + std::to_string(paths.size()) +
                                " leaves and `flat` " + std::to_string(proto.flat_size()) +
                                " nodes, expected as many");
  }
  for (int i = 0; i < proto.flat_size(); ++i) {
    const patterns::PatternNode& node = proto.flat(i);
    config->nodes.push_back(DecodeNode(node, std::move(paths[static_cast<size_t>(i)])));
    if (node.source_paths().empty()) continue;
    std::vector<std::string> sources(node.source_paths().begin(),
                                     node.source_paths().end());
    if (!config->source_paths.empty() && sources != config->source_paths) {
      return InvalidArgumentError(
          "the pattern mixes nodes of different reference steps; "
          "make them all from one");
    }
    config->source_paths = std::move(sources);
  }
  return OkStatus();
}

}  // namespace

Result<StructuredConfig> DecodeStructuredConfig(const std::string& bytes) {
  patterns::StructuredWriterConfig proto;
  if (!proto.ParseFromString(bytes)) {
    return InvalidArgumentError("the bytes of a StructuredWriterConfig don't parse");
  }
  StructuredConfig config;
  config.table = proto.table();
  config.priority = DecodePriority(proto.priority());
  RTF_RETURN_IF_ERROR(DecodeNodes(proto, &config));
  for (const patterns::Condition& condition : proto.conditions()) {
    RTF_ASSIGN_OR_RETURN(PatternCondition decoded, DecodeCondition(condition));
    config.conditions.push_back(decoded);
  }
  return config;
}

}  // namespace reverb_tf
