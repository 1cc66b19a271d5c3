#include "cc/client/delivery_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cc/client/sampler_testing.h"

namespace reverb_tf {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TableConfig SignedTable(std::vector<TensorSpec> leaves,
                        SignatureScope scope = SignatureScope::kUndecided) {
  TableConfig table = ReplayConfig("t");
  table.signature = Signature();
  table.signature->leaves = std::move(leaves);
  table.signature_scope = scope;
  return table;
}

Result<DeliveryPlan> Plan(const TableConfig& table,
                          std::optional<std::vector<TensorSpec>> specs,
                          bool require_steps = false) {
  SamplerOptions options;
  options.table = table.name;
  options.specs = std::move(specs);
  options.require_steps = require_steps;
  return DeliveryPlan::Make(options, table);
}

TEST(DeliveryPlanTest, ColumnsComeInTheOrderThatTheReaderDeclared) {
  const TableConfig table =
      SignedTable({Spec("a", DType::kInt32, {-1}), Spec("b", DType::kInt32, {-1, 2})});
  const auto plan =
      Plan(table, {{Spec("b", DType::kInt32, {-1, 2}), Spec("a", DType::kInt32, {-1})}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const ItemPtr item =
      MakeItem(1, {Whole(Int32Chunk({1, 2, 3})), Whole(Int32Chunk({4, 5}, {2}))});
  EXPECT_THAT(plan->column(*item, 0).shape(), ElementsAre(1, 2));
  EXPECT_THAT(plan->column(*item, 1).shape(), ElementsAre(3));
  EXPECT_EQ(plan->Name(0), "'b'");
}

TEST(DeliveryPlanTest, MissingAndExtraPathsAreNamed) {
  const auto plan = Plan(SignedTable({Spec("a", DType::kInt32, {-1})}),
                         {{Spec("z", DType::kInt32, {-1})}});
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(plan.status().message(),
              AllOf(HasSubstr("missing: a"), HasSubstr("extra: z"), HasSubstr("'t'")));
}

TEST(DeliveryPlanTest, DifferencesNamePathAndBothSides) {
  const auto plan = Plan(SignedTable({Spec("a", DType::kFloat64, {-1, 3})}),
                         {{Spec("a", DType::kFloat32, {-1, 3})}});
  EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(
      plan.status().message(),
      AllOf(HasSubstr("'a' got float32[?,3] expected float64[?,3]"), HasSubstr("hint")));
}

TEST(DeliveryPlanTest, SpecsThatFitOneScopeAskForIt) {
  const TableConfig table = SignedTable({Spec("a", DType::kInt32, {3})});
  EXPECT_EQ(Plan(table, {{Spec("a", DType::kInt32, {3})}})->scope(),
            SignatureScope::kTrajectory);
  EXPECT_EQ(Plan(table, {{Spec("a", DType::kInt32, {-1, 3})}})->scope(),
            SignatureScope::kStep);
  TensorSpec any = Spec("a", DType::kInt32, {});
  any.unknown_rank = true;
  EXPECT_EQ(Plan(table, {{any}})->scope(), SignatureScope::kUndecided);
  EXPECT_EQ(Plan(table, std::nullopt)->scope(), SignatureScope::kUndecided);
}

TEST(DeliveryPlanTest, SpecsOfTheOtherScopeAreRefusedOnceItIsDecided) {
  const std::vector<TensorSpec> leaves = {Spec("a", DType::kInt32, {3})};
  EXPECT_FALSE(Plan(SignedTable(leaves, SignatureScope::kTrajectory),
                    {{Spec("a", DType::kInt32, {-1, 3})}})
                   .ok());
  const auto plan =
      Plan(SignedTable(leaves, SignatureScope::kStep), {{Spec("a", DType::kInt32, {3})}});
  EXPECT_THAT(plan.status().message(), HasSubstr("got int32[3] expected int32[?,3]"));
}

TEST(DeliveryPlanTest, AnItemWrittenAsOneStepComesInTheDeclaredRank) {
  const TableConfig table = SignedTable({Spec("a", DType::kInt32, {2})});
  const ItemPtr step = MakeItem(1, {Whole(Int32Chunk({4, 5}, {2}))}, true);
  EXPECT_THAT(Plan(table, {{Spec("a", DType::kInt32, {2})}})->column(*step, 0).shape(),
              ElementsAre(2));
  EXPECT_THAT(Plan(table, {{Spec("a", DType::kInt32, {-1, 2})}})->column(*step, 0).shape(),
              ElementsAre(1, 2));
  EXPECT_THAT(Plan(table, std::nullopt)->column(*step, 0).shape(), ElementsAre(2))
      << "in the signature's rank when the reader declares none";
}

TEST(DeliveryPlanTest, ASqueezedColumnComesWithTimeToAReaderWhoDeclaredIt) {
  const TableConfig table =
      SignedTable({Spec("a", DType::kInt32, {2})}, SignatureScope::kStep);
  const ItemPtr item = MakeItem(1, {Whole(Int32Chunk({4, 5}, {2}), /*squeeze=*/true)});
  const auto plan = Plan(table, {{Spec("a", DType::kInt32, {-1, 2})}});
  ASSERT_TRUE(plan->Check(*item).ok()) << plan->Check(*item);
  EXPECT_THAT(plan->column(*item, 0).shape(), ElementsAre(1, 2));
}

TEST(DeliveryPlanTest, WithoutSignatureSpecsAreCheckedByPosition) {
  const auto plan = Plan(ReplayConfig("t"), {{Spec("x", DType::kInt32, {-1, 2})}});
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->Check(*MakeItem(7, {Whole(Int32Chunk({4, 5}, {2}))})).ok());
  const Status status = plan->Check(*MakeItem(7, {Whole(Int32Chunk({4, 5}))}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("item 7"), HasSubstr("'x' got int32[2] expected int32[?,2]"),
                    HasSubstr("mutate_priorities('t', deletes=[7])")));
  EXPECT_THAT(
      plan->Check(*MakeItem(7, {Whole(Int32Chunk({1})), Whole(Int32Chunk({1}))})).message(),
      HasSubstr("has 2 columns, expected 1"));
}

TEST(DeliveryPlanTest, SpecsNarrowerThanTheSignatureAreCheckedToo) {
  const auto plan = Plan(SignedTable({Spec("a", DType::kInt32, {-1})}),
                         {{Spec("a", DType::kInt32, {2})}});
  EXPECT_TRUE(plan->Check(*MakeItem(1, {Whole(Int32Chunk({4, 5}))})).ok());
  EXPECT_FALSE(plan->Check(*MakeItem(1, {Whole(Int32Chunk({4, 5, 6}))})).ok());
}

TEST(DeliveryPlanTest, ItemsWithoutStepsAreRefusedIfStepsAreRequired) {
  const auto plan = Plan(ReplayConfig("t"), std::nullopt, /*require_steps=*/true);
  const auto three = Int32Chunk({1, 2, 3});
  const auto one = Int32Chunk({1});
  EXPECT_TRUE(plan->Check(*MakeItem(1, {Whole(three), Whole(three)})).ok());
  EXPECT_TRUE(plan->Check(*MakeItem(1, {Whole(one, true), Whole(one, true)})).ok());
  EXPECT_FALSE(plan->Check(*MakeItem(1, {Whole(one, true), Whole(one)})).ok());
  const Status status = plan->Check(*MakeItem(9, {Whole(three), Whole(one)}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("item 9"), HasSubstr("length 3"), HasSubstr("length 1"),
                    HasSubstr("emit_timesteps=False")));
}

Result<DeliveryPlan> SingleStepPlan(const TableConfig& table, TensorSpec spec) {
  SamplerOptions options;
  options.table = table.name;
  options.specs = {std::move(spec)};
  options.single_steps = true;
  return DeliveryPlan::Make(options, table);
}

TEST(DeliveryPlanTest, SingleStepsComeWithoutTime) {
  const auto plan = SingleStepPlan(ReplayConfig("t"), Spec("a", DType::kInt32, {2}));
  const ItemPtr step = MakeItem(1, {Whole(Int32Chunk({4, 5}, {2}))});
  const ItemPtr squeezed = MakeItem(2, {Whole(Int32Chunk({4, 5}, {2}), true)});
  for (const ItemPtr& item : {step, squeezed}) {
    ASSERT_TRUE(plan->Check(*item).ok()) << plan->Check(*item);
    EXPECT_THAT(plan->column(*item, 0).shape(), ElementsAre(2));
  }
}

TEST(DeliveryPlanTest, ItemsOfSeveralStepsAreRefusedIfOneIsAskedFor) {
  const auto plan = SingleStepPlan(ReplayConfig("t"), Spec("a", DType::kInt32, {}));
  const Status status = plan->Check(*MakeItem(9, {Whole(Int32Chunk({1, 2, 3}))}));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("item 9"), HasSubstr("'a' has length 3"),
                                      HasSubstr("emit_trajectory=True")));
}

TEST(DeliveryPlanTest, SpecsOfASingleStepMatchEitherScope) {
  const TensorSpec step = Spec("a", DType::kInt32, {2});
  EXPECT_TRUE(SingleStepPlan(SignedTable({Spec("a", DType::kInt32, {2})}), step).ok());
  EXPECT_TRUE(SingleStepPlan(SignedTable({Spec("a", DType::kInt32, {-1, 2})}), step).ok());
  EXPECT_TRUE(SingleStepPlan(SignedTable({step}, SignatureScope::kStep), step).ok());
  EXPECT_EQ(
      SingleStepPlan(SignedTable({Spec("a", DType::kInt32, {3})}), step).status().code(),
      StatusCode::kInvalidArgument);
}

TEST(DeliveryPlanTest, AnUndeclaredRankIsTheSignatures) {
  TensorSpec any = Spec("a", DType::kInt32, {});
  any.unknown_rank = true;
  const auto plan = Plan(SignedTable({Spec("a", DType::kInt32, {2})}), {{any}});
  const ItemPtr step = MakeItem(1, {Whole(Int32Chunk({4, 5}, {2}))}, true);
  EXPECT_THAT(plan->column(*step, 0).shape(), ElementsAre(2));
}

Result<DeliveryPlan> StepsPlan(const TableConfig& table,
                               std::optional<std::vector<TensorSpec>> specs) {
  SamplerOptions options;
  options.table = table.name;
  options.specs = std::move(specs);
  options.emit_steps = true;
  return DeliveryPlan::Make(options, table);
}

TEST(DeliveryPlanTest, StepsOfATrajectoryTableAreItsSignatureWithoutTime) {
  const TableConfig table =
      SignedTable({Spec("a", DType::kInt32, {-1, 3})}, SignatureScope::kTrajectory);
  EXPECT_TRUE(StepsPlan(table, {{Spec("a", DType::kInt32, {3})}}).ok());
  EXPECT_THAT(StepsPlan(table, {{Spec("a", DType::kInt32, {-1, 3})}}).status().message(),
              HasSubstr("'a' got int32[?,3] expected int32[3]"));
}

TEST(DeliveryPlanTest, StepsOfAStepTableAreItsSignature) {
  const TableConfig table =
      SignedTable({Spec("a", DType::kInt32, {3})}, SignatureScope::kStep);
  EXPECT_TRUE(StepsPlan(table, {{Spec("a", DType::kInt32, {3})}}).ok());
  EXPECT_THAT(StepsPlan(table, {{Spec("a", DType::kInt32, {})}}).status().message(),
              HasSubstr("'a' got int32[] expected int32[3]"));
}

TEST(DeliveryPlanTest, StepsThatFitOneScopeAskForIt) {
  const TableConfig table = SignedTable({Spec("a", DType::kInt32, {3})});
  EXPECT_EQ(StepsPlan(table, {{Spec("a", DType::kInt32, {3})}})->scope(),
            SignatureScope::kStep);
  EXPECT_EQ(StepsPlan(table, {{Spec("a", DType::kInt32, {})}})->scope(),
            SignatureScope::kTrajectory);
  TensorSpec any = Spec("a", DType::kInt32, {});
  any.unknown_rank = true;
  EXPECT_EQ(StepsPlan(table, {{any}})->scope(), SignatureScope::kUndecided);
}

TEST(DeliveryPlanTest, StepsThatFitNeitherScopeAreComparedWithTheSignature) {
  const TableConfig table =
      SignedTable({Spec("a", DType::kInt32, {3}), Spec("b", DType::kInt32, {})});
  const Status status =
      StepsPlan(table, {{Spec("a", DType::kInt32, {}), Spec("b", DType::kInt32, {})}})
          .status();
  EXPECT_THAT(status.message(), HasSubstr("differs: 'a' got int32[] expected int32[3]"));
}

TEST(DeliveryPlanTest, AScalarOfATrajectoryTableHasNoSteps) {
  TensorSpec any = Spec("a", DType::kInt32, {});
  any.unknown_rank = true;
  const TableConfig table =
      SignedTable({Spec("a", DType::kInt32, {})}, SignatureScope::kTrajectory);
  const Status status = StepsPlan(table, {{any}}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("a time dimension in the signature"));
}

TEST(DeliveryPlanTest, EachStepIsCheckedAgainstTheSpecsOfTablesWithoutSignature) {
  const auto plan = StepsPlan(ReplayConfig("t"), {{Spec("a", DType::kInt32, {2})}});
  EXPECT_TRUE(plan->Check(*MakeItem(1, {Whole(Int32Chunk({1, 2, 3, 4}, {2}))})).ok());
  EXPECT_TRUE(plan->Check(*MakeItem(2, {Whole(Int32Chunk({1, 2}, {2}), true)})).ok());
  EXPECT_THAT(plan->Check(*MakeItem(3, {Whole(Int32Chunk({1, 2}))})).message(),
              AllOf(HasSubstr("item 3"), HasSubstr("'a' got int32[] expected int32[2]")));
}

TEST(DeliveryPlanTest, WrongDtypesOfAnUnsignedTableHaveTheStatusAskedFor) {
  SamplerOptions options;
  options.table = "t";
  options.specs = {Spec("a", DType::kInt64, {1})};
  options.wrong_dtype = StatusCode::kInternal;
  const auto plan = DeliveryPlan::Make(options, ReplayConfig("t"));
  const ItemPtr item = MakeItem(1, {Whole(Int32Chunk({4}))});
  EXPECT_EQ(plan->Check(*item).code(), StatusCode::kInternal);
  options.specs = {Spec("a", DType::kInt32, {2})};
  EXPECT_EQ(DeliveryPlan::Make(options, ReplayConfig("t"))->Check(*item).code(),
            StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace reverb_tf
