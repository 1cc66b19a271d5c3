#include "cc/client/pattern_evaluator.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <optional>

namespace reverb_tf {
namespace {

using Left = PatternCondition::Left;
using Compare = PatternCondition::Compare;

PatternNode Cell(int source, int index) {
  PatternNode node;
  node.path = "x";
  node.source = source;
  node.stop = index;
  return node;
}

PatternNode Slice(int source, int start, std::optional<int32_t> stop = {},
                  std::optional<int32_t> step = {}) {
  PatternNode node;
  node.path = "x";
  node.source = source;
  node.start = start;
  node.stop = stop;
  node.step = step;
  return node;
}

PatternCondition When(Left left, Compare compare, int value, bool inverse = false) {
  PatternCondition condition;
  condition.left = left;
  condition.compare = compare;
  condition.value = value;
  condition.inverse = inverse;
  return condition;
}

PatternCondition Every(Left left, int mod, int value, int source = 0) {
  PatternCondition condition = When(left, Compare::kEqual, value);
  condition.mod = mod;
  condition.source = source;
  return condition;
}

PatternCondition DataIs(int source, int value, bool inverse = false) {
  PatternCondition condition = When(Left::kData, Compare::kEqual, value, inverse);
  condition.source = source;
  return condition;
}

const PatternCondition kAtEnd = When(Left::kIsEndEpisode, Compare::kEqual, 1);

StructuredConfig Config(std::vector<PatternNode> nodes,
                        std::vector<PatternCondition> conditions = {}) {
  StructuredConfig config;
  config.table = "t";
  config.nodes = std::move(nodes);
  config.conditions = std::move(conditions);
  return config;
}

StructuredConfig TdConfig(double weight, int source, std::vector<PatternNode> nodes) {
  StructuredConfig config = Config(std::move(nodes));
  config.priority.value = weight;
  config.priority.td_source = source;
  return config;
}

// Feeds steps of int64 or double scalars, and writes down what fires.
class Stream {
 public:
  explicit Stream(std::vector<StructuredConfig> configs)
      : evaluator_(MakePatternEvaluator(std::move(configs)).value()) {}

  // One step, or a part of it; {source: value}. What fires, as "config:first+stride*count",
  // the columns joined by ",".
  std::string Step(const std::map<int, int64_t>& cells, bool closes = true) {
    Status status = Evaluate(cells, closes);
    EXPECT_TRUE(status.ok()) << status;
    evaluator_->Commit();
    return Fired();
  }
  std::string Part(const std::map<int, int64_t>& cells) { return Step(cells, false); }
  // `n` steps of source 0.
  std::string Steps(int n) {
    std::string fired;
    for (int i = 0; i < n; ++i) fired += "[" + Step({{0, i}}) + "]";
    return fired;
  }
  std::string End(bool clear = true) {
    evaluator_->EvaluateEnd(&firings_);
    std::string fired = Fired();
    evaluator_->EndEpisode(clear);
    return fired;
  }
  Status Evaluate(const std::map<int, int64_t>& cells, bool closes) {
    std::vector<CellView> views;
    for (const auto& [source, value] : cells) {
      CellView view;
      view.column = source;
      view.dtype = DType::kInt64;
      view.data = &value;
      view.bytes = 8;
      views.push_back(view);
    }
    return evaluator_->Evaluate(views.data(), views.size(), closes, &firings_);
  }
  template <typename T>
  Status Evaluate(DType dtype, T value, Shape shape = {}) {
    CellView view;
    view.dtype = dtype;
    view.dims = shape.data();
    view.rank = static_cast<int>(shape.size());
    view.data = &value;
    view.bytes = sizeof value;
    return evaluator_->Evaluate(&view, 1, /*closes=*/true, &firings_);
  }
  // The priority of the one item that a step makes.
  template <typename T>
  double PriorityAfter(DType dtype, T value) {
    const Status status = Evaluate(dtype, value);
    EXPECT_TRUE(status.ok()) << status;
    evaluator_->Commit();
    return firings_.size() == 1 ? firings_[0].priority : -999;
  }
  // Another stream that goes on where this one stands.
  Stream Resumed() const {
    Stream resumed(evaluator_->configs());
    const Status status = resumed.evaluator_->Restore(evaluator_->Save());
    EXPECT_TRUE(status.ok()) << status;
    return resumed;
  }
  PatternEvaluator* operator->() { return evaluator_.get(); }

 private:
  std::string Fired() const {
    std::string text;
    for (const PatternEvaluator::Firing& firing : firings_) {
      text += (text.empty() ? "" : " ") + std::to_string(firing.config);
      char separator = ':';
      for (const ItemColumn& column : *firing.columns) {
        const CellRun& run = column.runs.at(0);
        text += separator + std::to_string(run.first);
        if (!column.squeeze) {
          text += "+" + std::to_string(run.stride) + "*" + std::to_string(run.count);
        }
        separator = ',';
      }
    }
    return text;
  }

  std::unique_ptr<PatternEvaluator> evaluator_;
  std::vector<PatternEvaluator::Firing> firings_;
};

std::string Error(const std::vector<StructuredConfig>& configs) {
  const auto made = MakePatternEvaluator(configs);
  if (made.ok()) return "OK";
  EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
  return made.status().message();
}

// ---- Patterns -------------------------------------------------------------------

TEST(PatternEvaluatorTest, AnIndexIsOneSqueezedCell) {
  Stream stream({Config({Cell(0, -1), Cell(0, -2)})});
  EXPECT_EQ(stream.Steps(3), "[][0:1,0][0:2,1]");
}

TEST(PatternEvaluatorTest, ASliceWithoutStopIncludesTheNewestStep) {
  Stream stream({Config({Slice(0, -2)})});
  EXPECT_EQ(stream.Steps(3), "[][0:0+1*2][0:1+1*2]");
}

TEST(PatternEvaluatorTest, AStopOfZeroIsNoStop) {
  Stream stream({Config({Slice(0, -2, 0)})});
  EXPECT_EQ(stream.Steps(2), "[][0:0+1*2]");
}

TEST(PatternEvaluatorTest, ASliceEndsBeforeItsStop) {
  Stream stream({Config({Slice(0, -3, -1)})});
  EXPECT_EQ(stream.Steps(4), "[][][0:0+1*2][0:1+1*2]");
}

TEST(PatternEvaluatorTest, StridesAreExactWhereTheyDontDivideTheSpan) {
  Stream stream({Config({Slice(0, -6, -1, 2)}), Config({Slice(0, -5, {}, 3)})});
  EXPECT_EQ(stream.Steps(6), "[][][][][1:0+3*2][0:0+2*3 1:1+3*2]");
}

TEST(PatternEvaluatorTest, TheLongestNodeDecidesWhenTheHistoryIsEnough) {
  Stream stream({Config({Cell(0, -1), Slice(0, -3, -2)})});
  EXPECT_EQ(stream.Steps(3), "[][][0:2,0+1*1]");
}

TEST(PatternEvaluatorTest, TellsHowFarPatternsReachBack) {
  Stream stream({Config({Slice(1, -4, -2), Cell(1, -1)}, {DataIs(2, 1)})});
  EXPECT_EQ(stream->num_sources(), 3);
  EXPECT_EQ(stream->history(0), 0);
  EXPECT_EQ(stream->history(1), 4);
  EXPECT_EQ(stream->history(2), 0);
}

TEST(PatternEvaluatorTest, RunsHaveTheColumnsTheyAreGiven) {
  Stream stream({Config({Cell(1, -1)})});
  stream->SetColumns({-1, 7});
  EXPECT_EQ(stream->columns(0)[0].runs[0].column, 7);
}

TEST(PatternEvaluatorTest, HistoryThatWasClearedIsOutOfReach) {
  Stream stream({Config({Slice(0, -2)})});
  EXPECT_EQ(stream.Steps(2), "[][0:0+1*2]");
  stream.End(/*clear=*/true);
  EXPECT_EQ(stream.Steps(2), "[][0:2+1*2]");
}

TEST(PatternEvaluatorTest, HistoryThatWasKeptCrossesEpisodes) {
  Stream stream({Config({Slice(0, -2)})});
  stream.Steps(2);
  stream.End(/*clear=*/false);
  EXPECT_EQ(stream.Steps(1), "[0:1+1*2]");
}

// ---- Conditions -----------------------------------------------------------------

TEST(PatternEvaluatorTest, StepIndexCountsFromZeroInEachEpisode) {
  Stream stream({Config({Cell(0, -1)}, {When(Left::kStepIndex, Compare::kEqual, 1)})});
  EXPECT_EQ(stream.Steps(3), "[][0:1][]");
  stream.End(/*clear=*/false);
  EXPECT_EQ(stream.Steps(3), "[][0:4][]");
}

TEST(PatternEvaluatorTest, AllConditionsMustHold) {
  Stream stream({Config({Cell(0, -1)},
                        {When(Left::kStepIndex, Compare::kAtLeast, 1),
                         When(Left::kStepIndex, Compare::kAtLeast, 3, /*inverse=*/true)})});
  EXPECT_EQ(stream.Steps(4), "[][0:1][0:2][]");
}

TEST(PatternEvaluatorTest, StepsSinceAppliedIsOneInTheNextStep) {
  Stream stream(
      {Config({Cell(0, -1)}, {When(Left::kStepsSinceApplied, Compare::kAtLeast, 2)})});
  EXPECT_EQ(stream.Steps(5), "[][0:1][][0:3][]");
  stream.End();
  EXPECT_EQ(stream.Steps(2), "[0:5][]");  // counted across episodes
}

TEST(PatternEvaluatorTest, BufferLengthEndsAtWhatPatternsNeed) {
  Stream stream({Config({Slice(0, -2)}, {When(Left::kBufferLength, Compare::kEqual, 2)})});
  EXPECT_EQ(stream.Steps(4), "[][0:0+1*2][0:1+1*2][0:2+1*2]");
}

TEST(PatternEvaluatorTest, DataConditionsReadTheNewestCell) {
  Stream stream({Config({Cell(0, -1)}, {DataIs(1, 7)})});
  EXPECT_EQ(stream.Step({{0, 0}, {1, 7}}), "0:0");
  EXPECT_EQ(stream.Step({{0, 0}, {1, 8}}), "");
}

TEST(PatternEvaluatorTest, DataConditionsDontHoldAtAHole) {
  Stream stream({Config({Cell(0, -1)}, {DataIs(1, 7)}),
                 Config({Cell(0, -1)}, {DataIs(1, 7, /*inverse=*/true)})});
  EXPECT_EQ(stream.Step({{0, 0}, {1, 7}}), "0:0");
  EXPECT_EQ(stream.Step({{0, 0}}), "");
}

TEST(PatternEvaluatorTest, RemaindersHaveTheSignOfTheDivisor) {
  Stream stream({Config({Cell(0, -1)}, {Every(Left::kData, 3, 1)})});
  EXPECT_EQ(stream.Step({{0, -2}}), "0:0");
  EXPECT_EQ(stream.Step({{0, -1}}), "");
  EXPECT_EQ(stream.Step({{0, 4}}), "0:2");
}

TEST(PatternEvaluatorTest, DataConditionsReadEveryIntegerDtype) {
  const StructuredConfig config = Config({Cell(0, -1)}, {DataIs(0, 1)});
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kBool, true), 1);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kInt8, int8_t{1}), 1);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kUint8, uint8_t{1}), 1);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kInt16, int16_t{1}), 1);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kUint16, uint16_t{1}), 1);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kInt32, int32_t{1}), 1);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kUint32, uint32_t{1}), 1);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kUint64, uint64_t{1}), 1);
}

TEST(PatternEvaluatorTest, DataThatConditionsCantReadIsRefused) {
  Stream stream({Config({Cell(0, -1)}, {DataIs(0, 1)})});
  EXPECT_EQ(stream.Evaluate(DType::kFloat32, 1.0f).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Evaluate(DType::kInt64, int64_t{1}, {1}).code(),
            StatusCode::kInvalidArgument);
  const Status large = stream.Evaluate(DType::kUint64, ~uint64_t{0});
  EXPECT_NE(large.message().find("leaf 0"), std::string::npos) << large;
}

TEST(PatternEvaluatorTest, ARefusedCellChangesNothing) {
  Stream stream({Config({Cell(0, -1)}, {DataIs(0, 5)}), Config({Cell(0, -1)}, {kAtEnd})});
  EXPECT_EQ(stream.Step({{0, 5}}), "0:0");
  EXPECT_FALSE(stream.Evaluate(DType::kFloat32, 1.0f).ok());
  EXPECT_EQ(stream.End(), "1:0");
  EXPECT_EQ(stream.Step({{0, 5}}), "0:1");
}

// ---- Ends of episodes -----------------------------------------------------------

TEST(PatternEvaluatorTest, ConfigsConditionedOnTheEndFireOnlyThen) {
  Stream stream({Config({Slice(0, -2)}, {kAtEnd}), Config({Cell(0, -1)})});
  EXPECT_EQ(stream.Steps(2), "[1:0][1:1]");
  EXPECT_EQ(stream.End(), "0:0+1*2");
}

TEST(PatternEvaluatorTest, TheEndSeesTheLastStep) {
  Stream stream(
      {Config({Cell(0, -1)}, {kAtEnd, When(Left::kStepIndex, Compare::kEqual, 1)}),
       Config({Cell(0, -1)}, {kAtEnd, DataIs(0, 1)}),
       Config({Cell(0, -1)},
              {kAtEnd, When(Left::kStepsSinceApplied, Compare::kEqual, 2)})});
  stream.Steps(2);
  EXPECT_EQ(stream.End(), "0:1 1:1 2:1");
}

TEST(PatternEvaluatorTest, NothingFiresAtTheEndOfAnEmptyEpisode) {
  Stream stream({Config({Cell(0, -1)}, {kAtEnd})});
  EXPECT_EQ(stream.End(), "");
  stream.Steps(1);
  EXPECT_EQ(stream.End(/*clear=*/false), "0:0");
  EXPECT_EQ(stream.End(/*clear=*/false), "");
}

// ---- Holes ----------------------------------------------------------------------

TEST(PatternEvaluatorTest, AHoleInThePatternSkipsTheItem) {
  Stream stream({Config({Slice(0, -2)})});
  EXPECT_EQ(stream.Step({{0, 1}}), "");
  EXPECT_EQ(stream.Step({}), "");
  EXPECT_EQ(stream->skipped_items(), 1);
  EXPECT_EQ(stream.Step({{0, 1}}), "");
  EXPECT_EQ(stream->skipped_items(), 2);
  EXPECT_EQ(stream.Step({{0, 1}}), "0:2+1*2");
  EXPECT_EQ(stream->skipped_items(), 2);
}

TEST(PatternEvaluatorTest, AHoleBetweenTheStridesIsNoHole) {
  Stream stream({Config({Slice(0, -3, {}, 2)})});
  stream.Step({{0, 1}});
  stream.Step({});
  EXPECT_EQ(stream.Step({{0, 1}}), "0:0+2*2");
  EXPECT_EQ(stream.Step({{0, 1}}), "");
  EXPECT_EQ(stream->skipped_items(), 1);
}

TEST(PatternEvaluatorTest, AHoleInAnotherSourceDoesntMatter) {
  Stream stream({Config({Cell(0, -1)}), Config({Cell(1, -1)})});
  EXPECT_EQ(stream.Step({{0, 1}}), "0:0");
}

TEST(PatternEvaluatorTest, ConditionsThatDontHoldSkipNothing) {
  Stream stream({Config({Cell(0, -1)}, {When(Left::kStepIndex, Compare::kAtLeast, 9)})});
  stream.Step({});
  EXPECT_EQ(stream->skipped_items(), 0);
}

TEST(PatternEvaluatorTest, ASkippedItemIsNotApplied) {
  Stream stream(
      {Config({Cell(0, -1)}, {When(Left::kStepsSinceApplied, Compare::kAtLeast, 2)})});
  stream.Step({{0, 1}});
  EXPECT_EQ(stream.Step({}), "");
  EXPECT_EQ(stream.Step({{0, 1}}), "0:2");
}

TEST(PatternEvaluatorTest, AHoleAtTheEndOfTheEpisodeSkipsTheItem) {
  Stream stream({Config({Cell(0, -1)}, {kAtEnd})});
  stream.Step({{1, 1}});
  EXPECT_EQ(stream.End(), "");
  EXPECT_EQ(stream->skipped_items(), 1);
}

TEST(PatternEvaluatorTest, TheOldestCellOfAPatternIsLookedAtToo) {
  Stream stream({Config({Slice(0, -2)}, {kAtEnd}), Config({Slice(0, -2)})});
  stream.Step({});
  EXPECT_EQ(stream.Step({{0, 1}}), "");
  EXPECT_EQ(stream.End(), "");
  EXPECT_EQ(stream->skipped_items(), 2);
}

// ---- Partial steps --------------------------------------------------------------

TEST(PatternEvaluatorTest, AConfigFiresAsSoonAsItsCellsAreThere) {
  Stream stream({Config({Cell(0, -1)}), Config({Cell(0, -1), Cell(1, -1)})});
  EXPECT_EQ(stream.Part({{0, 1}}), "0:0");
  EXPECT_EQ(stream.Part({{1, 1}}), "1:0,0");
}

TEST(PatternEvaluatorTest, AConfigFiresAtMostOnceAStep) {
  Stream stream({Config({Cell(0, -1)})});
  EXPECT_EQ(stream.Part({{0, 1}}), "0:0");
  EXPECT_EQ(stream.Part({{1, 1}}), "");
  EXPECT_EQ(stream.Step({{2, 1}}), "");
  EXPECT_EQ(stream.Step({{0, 1}}), "0:1");
}

TEST(PatternEvaluatorTest, OlderCellsAreThereWhenTheStepBegins) {
  Stream stream({Config({Cell(0, -2)})});
  stream.Step({{0, 1}});
  EXPECT_EQ(stream.Part({{1, 1}}), "0:0");
}

TEST(PatternEvaluatorTest, AConditionMayComeTrueInALaterPart) {
  Stream stream({Config({Cell(0, -1)}, {DataIs(1, 1)})});
  EXPECT_EQ(stream.Part({{0, 1}}), "");
  EXPECT_EQ(stream.Step({{1, 1}}), "0:0");
}

TEST(PatternEvaluatorTest, AnItemIsSkippedOnceWhenTheStepCloses) {
  Stream stream({Config({Cell(0, -1)})});
  stream.Part({{1, 1}});
  stream.Part({{2, 1}});
  EXPECT_EQ(stream->skipped_items(), 0);
  stream.Step({});
  EXPECT_EQ(stream->skipped_items(), 1);
}

TEST(PatternEvaluatorTest, ASourceIsSetOnceAStep) {
  Stream stream({Config({Cell(0, -1)})});
  stream.Part({{0, 1}});
  const Status again = stream.Evaluate({{0, 2}}, /*closes=*/true);
  EXPECT_EQ(again.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Step({{1, 1}}), "");
  EXPECT_EQ(stream.Step({{0, 1}}), "0:1");
}

TEST(PatternEvaluatorTest, RollbackUndoesAnEvaluation) {
  Stream stream(
      {Config({Cell(0, -1)}, {When(Left::kStepsSinceApplied, Compare::kEqual, 1)}),
       Config({Cell(1, -1)})});
  EXPECT_TRUE(stream.Evaluate({{0, 1}}, /*closes=*/true).ok());
  stream->Rollback();
  EXPECT_EQ(stream->skipped_items(), 0);
  EXPECT_EQ(stream.Step({{0, 1}}), "0:0");
  EXPECT_EQ(stream->skipped_items(), 1);
}

TEST(PatternEvaluatorTest, RollbackGivesTheNewestCellBack) {
  Stream stream({Config({Cell(0, -1)}, {kAtEnd, DataIs(0, 5)})});
  stream.Step({{0, 5}});
  EXPECT_TRUE(stream.Evaluate({{0, 9}}, /*closes=*/true).ok());
  stream->Rollback();
  EXPECT_EQ(stream.End(), "0:0");
}

// ---- Priorities -----------------------------------------------------------------

TEST(PatternEvaluatorTest, TdErrorMixesMaximumAndMeanOfAbsoluteValues) {
  Stream stream({TdConfig(0.25, 0, {Slice(0, -3)})});
  stream.PriorityAfter(DType::kFloat64, 1.0);
  stream.PriorityAfter(DType::kFloat64, -6.0);
  EXPECT_DOUBLE_EQ(stream.PriorityAfter(DType::kFloat64, 2.0), 0.25 * 6 + 0.75 * 3);
}

TEST(PatternEvaluatorTest, TdErrorIsOfTheColumnOfThePattern) {
  Stream stream({TdConfig(1, 0, {Slice(0, -4, -1, 2)})});
  for (double x : {5.0, 9.0, 3.0}) stream.PriorityAfter(DType::kFloat64, x);
  EXPECT_DOUBLE_EQ(stream.PriorityAfter(DType::kFloat64, 8.0), 5);
  EXPECT_DOUBLE_EQ(stream.PriorityAfter(DType::kFloat64, 7.0), 9);
}

TEST(PatternEvaluatorTest, TdErrorReadsEveryNumber) {
  const StructuredConfig config = TdConfig(1, 0, {Slice(0, -1)});
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kFloat32, -2.5f), 2.5);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kInt8, int8_t{-3}), 3);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kUint64, uint64_t{1} << 63), 0x1p63);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kFloat16, uint16_t{0xc100}), 2.5);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kFloat16, uint16_t{1}), 0x1p-24);
  EXPECT_EQ(Stream({config}).PriorityAfter(DType::kBfloat16, uint16_t{0xc020}), 2.5);
}

TEST(PatternEvaluatorTest, TdErrorOfWhatIsNotFiniteIsNotFinite) {
  const StructuredConfig config = TdConfig(0.5, 0, {Slice(0, -1)});
  EXPECT_TRUE(
      std::isinf(Stream({config}).PriorityAfter(DType::kFloat16, uint16_t{0x7c00})));
  EXPECT_TRUE(
      std::isnan(Stream({config}).PriorityAfter(DType::kFloat16, uint16_t{0x7e00})));
}

TEST(PatternEvaluatorTest, NanAnywhereMakesTheTdErrorNan) {
  Stream stream({TdConfig(0, 0, {Slice(0, -2)})});
  stream.PriorityAfter(DType::kFloat64, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(stream.PriorityAfter(DType::kFloat64, 1.0)));
  EXPECT_EQ(stream.PriorityAfter(DType::kFloat64, 1.0), 1);
}

TEST(PatternEvaluatorTest, TdErrorRefusesWhatIsNoNumber) {
  Stream stream({TdConfig(1, 0, {Slice(0, -1)})});
  EXPECT_EQ(stream.Evaluate(DType::kBool, true).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Evaluate(DType::kFloat64, 1.0, {1}).code(),
            StatusCode::kInvalidArgument);
}

TEST(PatternEvaluatorTest, TdErrorOfAnEpisodesEndReadsTheLastSteps) {
  StructuredConfig config = TdConfig(1, 0, {Slice(0, -2)});
  config.conditions.push_back(kAtEnd);
  Stream stream({config});
  for (int64_t x : {9, 3, 4}) stream.Step({{0, x}});
  std::vector<PatternEvaluator::Firing> firings;
  stream->EvaluateEnd(&firings);
  ASSERT_EQ(firings.size(), 1u);
  EXPECT_EQ(firings[0].priority, 4);
}

// ---- Going on elsewhere ---------------------------------------------------------

std::vector<StructuredConfig> ConfigsOfEveryKind() {
  StructuredConfig td = TdConfig(0.5, 0, {Slice(0, -3), Cell(1, -2)});
  return {Config({Slice(0, -5, -1, 2), Cell(1, -1)}),
          Config({Cell(0, -1)}, {Every(Left::kStepIndex, 3, 1)}),
          Config({Cell(0, -2)}, {When(Left::kStepsSinceApplied, Compare::kAtLeast, 4)}),
          Config({Cell(0, -1)}, {DataIs(2, 1)}),
          Config({Slice(0, -2), Slice(1, -2)}, {kAtEnd, DataIs(2, 1, /*inverse=*/true)}),
          td};
}

// Step `i` of a stream with holes.
std::map<int, int64_t> StepWithHoles(int i) {
  std::map<int, int64_t> step = {{0, i}, {1, -i}, {2, i % 2}};
  if (i % 5 == 3) step.erase(1);
  if (i % 11 == 7) step.erase(0);
  return step;
}

TEST(PatternEvaluatorTest, AResumedStreamGoesOnAsTheSavedOne) {
  Stream straight(ConfigsOfEveryKind());
  Stream resumed(ConfigsOfEveryKind());
  for (int i = 0; i < 60; ++i) {
    resumed = resumed.Resumed();
    EXPECT_EQ(resumed.Step(StepWithHoles(i)), straight.Step(StepWithHoles(i))) << i;
    if (i % 7 != 6) continue;
    resumed = resumed.Resumed();
    const bool clear = i % 2 == 0;
    EXPECT_EQ(resumed.End(clear), straight.End(clear)) << i;
  }
  EXPECT_GT(straight->skipped_items(), 0);
  EXPECT_EQ(resumed->skipped_items(), straight->skipped_items());
}

TEST(PatternEvaluatorTest, AResumedStreamKnowsTheNumbersOfTheTdError) {
  Stream stream({TdConfig(1, 0, {Slice(0, -3)})});
  for (double x : {1.0, 7.5, 2.0}) stream.PriorityAfter(DType::kFloat64, x);
  stream = stream.Resumed();
  EXPECT_EQ(stream.PriorityAfter(DType::kFloat64, 3.0), 7.5);
  EXPECT_EQ(stream.PriorityAfter(DType::kFloat64, 1.0), 3.0);
}

TEST(PatternEvaluatorTest, StateOfOtherConfigsIsRefusedAndChangesNothing) {
  Stream stream({Config({Slice(0, -3)})});
  stream.Steps(2);
  Stream other(ConfigsOfEveryKind());
  other.Steps(9);
  EXPECT_EQ(stream->Restore(other->Save()).code(), StatusCode::kDataLoss);
  EXPECT_EQ(stream.Steps(2), "[0:0+1*3][0:1+1*3]");
}

TEST(PatternEvaluatorTest, StateThatIsCutOffOrTooLongIsRefused) {
  Stream stream(ConfigsOfEveryKind());
  for (int i = 0; i < 9; ++i) stream.Step(StepWithHoles(i));
  std::vector<int64_t> state = stream->Save();
  state.push_back(0);
  EXPECT_EQ(stream->Restore(state).code(), StatusCode::kDataLoss);
  for (size_t n = state.size() - 1; n-- > 0;) {
    state.resize(n);
    EXPECT_EQ(stream->Restore(state).code(), StatusCode::kDataLoss) << n;
  }
}

TEST(PatternEvaluatorTest, DamagedStateIsRefusedOrHarmless) {
  Stream stream(ConfigsOfEveryKind());
  for (int i = 0; i < 9; ++i) stream.Step(StepWithHoles(i));
  const std::vector<int64_t> good = stream->Save();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  int refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int64_t word : {-kMax - 1, int64_t{-1}, int64_t{0}, int64_t{5}, kMax}) {
      std::vector<int64_t> state = good;
      state[i] = word;
      Stream damaged(ConfigsOfEveryKind());
      if (!damaged->Restore(state).ok()) {
        ++refused;
        continue;
      }
      for (int step = 9; step < 20; ++step) damaged.Step(StepWithHoles(step));
      damaged.End();
    }
  }
  EXPECT_GT(refused, 0);
}

// ---- Configs that are refused ---------------------------------------------------

TEST(PatternEvaluatorTest, NamesThePositionOfABadConfig) {
  const StructuredConfig good = Config({Cell(0, -1)});
  EXPECT_EQ(
      Error({good, Config({Cell(0, 0)})}).rfind("Invalid configuration at position 1", 0),
      0u);
}

TEST(PatternEvaluatorTest, RefusesBadNodes) {
  EXPECT_NE(Error({Config({})}), "OK");
  EXPECT_NE(Error({Config({Cell(0, 0)})}), "OK");
  EXPECT_NE(Error({Config({Cell(-1, -1)})}), "OK");
  EXPECT_NE(Error({Config({Cell(std::numeric_limits<int32_t>::max(), -1)})}), "OK");
  EXPECT_NE(Error({Config({Slice(0, 0)})}), "OK");
  EXPECT_NE(Error({Config({Slice(0, -2, 1)})}), "OK");
  EXPECT_NE(Error({Config({Slice(0, -2, -2)})}), "OK");
  EXPECT_NE(Error({Config({Slice(0, -2, {}, 0)})}), "OK");
  EXPECT_NE(Error({Config({Slice(0, -2, {}, -1)})}), "OK");
  PatternNode empty;
  EXPECT_NE(Error({Config({empty})}), "OK");
  PatternNode no_start = Cell(0, -2);
  no_start.step = 1;
  EXPECT_NE(Error({Config({no_start})}), "OK");
}

TEST(PatternEvaluatorTest, RefusesBadConditions) {
  const auto with = [](PatternCondition condition) {
    return Error({Config({Cell(0, -1)}, {condition})});
  };
  EXPECT_NE(with(Every(Left::kStepIndex, 0, 0)), "OK");
  EXPECT_NE(with(Every(Left::kStepIndex, -1, 0)), "OK");
  EXPECT_NE(with(Every(Left::kStepIndex, 2, 2)), "OK");
  EXPECT_NE(with(Every(Left::kStepIndex, 2, -1)), "OK");
  EXPECT_NE(with(When(Left::kIsEndEpisode, Compare::kEqual, 0)), "OK");
  EXPECT_NE(with(When(Left::kIsEndEpisode, Compare::kAtLeast, 1)), "OK");
  EXPECT_NE(with(When(Left::kIsEndEpisode, Compare::kEqual, 1, /*inverse=*/true)), "OK");
  EXPECT_NE(with(DataIs(-1, 0)), "OK");
}

TEST(PatternEvaluatorTest, RefusesBadPrioritiesAndTables) {
  StructuredConfig config = Config({Cell(0, -1)});
  config.table = "";
  EXPECT_NE(Error({config}), "OK");
  config = Config({Cell(0, -1)});
  config.priority.value = std::nan("");
  EXPECT_NE(Error({config}), "OK");
  EXPECT_NE(Error({TdConfig(1.5, 0, {Cell(0, -1)})}), "OK");
  EXPECT_NE(Error({TdConfig(0.5, 1, {Cell(0, -1)})}), "OK");
  EXPECT_NE(Error({TdConfig(0.5, 0, {Cell(0, -1), Cell(0, -2)})}), "OK");
  EXPECT_NE(Error({}), "OK");
}

TEST(PatternEvaluatorTest, RefusesConfigsOfDifferentReferenceSteps) {
  StructuredConfig a = Config({Cell(0, -1)});
  StructuredConfig b = a;
  a.source_paths = {"a"};
  EXPECT_EQ(Error({a, b}), "OK");
  b.source_paths = {"b"};
  EXPECT_NE(Error({a, b}), "OK");
}

TEST(PatternEvaluatorTest, RefusesSourcesThatTheReferenceStepHasNot) {
  StructuredConfig config = Config({Cell(1, -1)});
  config.source_paths = {"a"};
  EXPECT_NE(Error({config}), "OK");
}

TEST(PatternEvaluatorTest, AFarPatternCostsNothingBeforeTheStepsAreThere) {
  Stream stream({Config({Slice(0, std::numeric_limits<int32_t>::min())})});
  EXPECT_EQ(stream.Steps(3), "[][][]");
}

}  // namespace
}  // namespace reverb_tf
