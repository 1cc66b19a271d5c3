#include "cc/rpc/pattern_codec.h"

#include <gtest/gtest.h>

#include <random>

#include "cc/client/pattern_evaluator.h"
#include "cc/rpc/patterns.pb.h"

namespace reverb_tf {
namespace {

// StructuredValue {"x": none, "y": none}.
std::string TwoLeaves() {
  const std::string none("\x0a\x00", 2);
  const auto pair = [&](const std::string& key) {
    return std::string("\x0a\x07\x0a\x01", 4) + key + std::string("\x12\x02", 2) + none;
  };
  const std::string pairs = pair("y") + pair("x");  // sorted by whoever reads
  return std::string("\xaa\x03", 2) + static_cast<char>(pairs.size()) + pairs;
}

patterns::StructuredWriterConfig TwoColumns() {
  patterns::StructuredWriterConfig proto;
  proto.set_table("t");
  proto.set_pattern_structure(TwoLeaves());
  patterns::PatternNode* x = proto.add_flat();
  x->set_flat_source_index(1);
  x->set_start(-3);
  x->set_step(2);
  proto.add_flat()->set_stop(-1);
  return proto;
}

Result<StructuredConfig> Decode(const patterns::StructuredWriterConfig& proto) {
  return DecodeStructuredConfig(proto.SerializeAsString());
}

TEST(PatternCodecTest, ReadsNodesWithThePathsOfTheStructure) {
  const StructuredConfig config = Decode(TwoColumns()).value();
  EXPECT_EQ(config.table, "t");
  ASSERT_EQ(config.nodes.size(), 2u);
  EXPECT_EQ(config.nodes[0].path, "x");
  EXPECT_EQ(config.nodes[0].source, 1);
  EXPECT_EQ(config.nodes[0].start, -3);
  EXPECT_FALSE(config.nodes[0].stop);
  EXPECT_EQ(config.nodes[0].step, 2);
  EXPECT_EQ(config.nodes[1].path, "y");
  EXPECT_FALSE(config.nodes[1].start);
  EXPECT_EQ(config.nodes[1].stop, -1);
}

TEST(PatternCodecTest, ReadsConditions) {
  patterns::StructuredWriterConfig proto = TwoColumns();
  patterns::Condition* condition = proto.add_conditions();
  condition->set_steps_since_applied(true);
  condition->set_ge(4);
  condition->set_inverse(true);
  condition = proto.add_conditions();
  condition->set_flat_source_index(1);
  condition->mutable_mod_eq()->set_mod(3);
  condition->mutable_mod_eq()->set_eq(2);
  condition = proto.add_conditions();
  condition->set_step_index(true);
  condition->mutable_mod_ge()->set_mod(5);
  condition->mutable_mod_ge()->set_ge(1);
  const StructuredConfig config = Decode(proto).value();
  ASSERT_EQ(config.conditions.size(), 3u);
  EXPECT_EQ(config.conditions[0].left, PatternCondition::Left::kStepsSinceApplied);
  EXPECT_EQ(config.conditions[0].compare, PatternCondition::Compare::kAtLeast);
  EXPECT_EQ(config.conditions[0].value, 4);
  EXPECT_TRUE(config.conditions[0].inverse);
  EXPECT_FALSE(config.conditions[0].mod);
  EXPECT_EQ(config.conditions[1].left, PatternCondition::Left::kData);
  EXPECT_EQ(config.conditions[1].source, 1);
  EXPECT_EQ(config.conditions[1].mod, 3);
  EXPECT_EQ(config.conditions[1].value, 2);
  EXPECT_EQ(config.conditions[2].compare, PatternCondition::Compare::kAtLeast);
  EXPECT_EQ(config.conditions[2].mod, 5);
}

TEST(PatternCodecTest, ReadsPriorities) {
  patterns::StructuredWriterConfig proto = TwoColumns();
  EXPECT_EQ(Decode(proto)->priority.value, 1);
  proto.mutable_priority()->mutable_constant_fn()->set_value(2.5);
  EXPECT_EQ(Decode(proto)->priority.value, 2.5);
  proto.mutable_priority()->mutable_td_error()->set_max_priority_weight(0.25);
  EXPECT_EQ(Decode(proto)->priority.value, 0.25);
  EXPECT_EQ(Decode(proto)->priority.td_source, 0);
}

TEST(PatternCodecTest, RefusesNodesThatDontFitTheStructure) {
  patterns::StructuredWriterConfig proto = TwoColumns();
  proto.add_flat()->set_stop(-1);
  EXPECT_EQ(Decode(proto).status().code(), StatusCode::kInvalidArgument);
}

TEST(PatternCodecTest, RefusesConditionsThatLackASide) {
  patterns::StructuredWriterConfig proto = TwoColumns();
  proto.add_conditions()->set_step_index(true);
  EXPECT_EQ(Decode(proto).status().code(), StatusCode::kInvalidArgument);
  proto.clear_conditions();
  proto.add_conditions()->set_eq(1);
  EXPECT_EQ(Decode(proto).status().code(), StatusCode::kInvalidArgument);
}

TEST(PatternCodecTest, RefusesNodesOfDifferentReferenceSteps) {
  patterns::StructuredWriterConfig proto = TwoColumns();
  for (const char* path : {"a", "b"}) proto.mutable_flat(0)->add_source_paths(path);
  EXPECT_EQ(Decode(proto)->source_paths, (std::vector<std::string>{"a", "b"}));
  for (const char* path : {"a", "c"}) proto.mutable_flat(1)->add_source_paths(path);
  EXPECT_EQ(Decode(proto).status().code(), StatusCode::kInvalidArgument);
}

// Bytes from anywhere are refused or make a config that compiles or is refused.
TEST(PatternCodecTest, DamagedBytesAreHandled) {
  patterns::StructuredWriterConfig proto = TwoColumns();
  proto.add_conditions()->mutable_mod_eq()->set_mod(3);
  proto.mutable_conditions(0)->set_flat_source_index(1);
  proto.mutable_priority()->mutable_td_error()->set_max_priority_weight(0.5);
  const std::string good = proto.SerializeAsString();
  std::mt19937 random(1);
  int decoded = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good.substr(0, i % 3 == 0 ? random() % good.size() : good.size());
    for (int k = static_cast<int>(random() % 4); k > 0 && !bytes.empty(); --k) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    Result<StructuredConfig> config = DecodeStructuredConfig(bytes);
    if (!config.ok()) continue;
    ++decoded;
    (void)MakePatternEvaluator({*std::move(config)}).ok();
  }
  EXPECT_GT(decoded, 100);
}

}  // namespace
}  // namespace reverb_tf
