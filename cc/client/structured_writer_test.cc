#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "cc/client/structured_writer_impl.h"
#include "cc/client/writer_testing.h"

namespace reverb_tf {
namespace {

using Left = PatternCondition::Left;
using Compare = PatternCondition::Compare;

PatternNode Newest(const std::string& path, int source, int cells) {
  PatternNode node;
  node.path = path;
  node.source = source;
  node.start = -cells;
  return node;
}

StructuredConfig Config(const std::string& table, std::vector<PatternNode> nodes) {
  StructuredConfig config;
  config.table = table;
  config.nodes = std::move(nodes);
  return config;
}

StructuredConfig AtEnd(StructuredConfig config) {
  PatternCondition condition;
  condition.left = Left::kIsEndEpisode;
  condition.value = 1;
  config.conditions.push_back(condition);
  return config;
}

StructuredConfig ByTdError(StructuredConfig config, int source) {
  config.priority.value = 1;
  config.priority.td_source = source;
  return config;
}

TensorSpec Spec(const std::string& path, DType dtype, Shape shape) {
  TensorSpec spec;
  spec.path = path;
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  return spec;
}

// A table that gives each item once, in the order of insertion.
TableConfig OnceTable(const std::string& name) {
  TableConfig config = OpenTable(name);
  config.max_times_sampled = 1;
  return config;
}

// A OnceTable of items {x: float32[2]}.
TableConfig SignedTable(const std::string& name) {
  TableConfig config = OnceTable(name);
  config.signature.emplace();
  config.signature->leaves = {Spec("x", DType::kFloat32, {2})};
  return config;
}

class StructuredWriterTest : public ::testing::Test {
 protected:
  StructuredWriterTest() {
    Serve({OnceTable("t"), OnceTable("u"), QueueTable("q", 1), SignedTable("signed")});
  }

  void Serve(const std::vector<TableConfig>& tables) {
    service_ = MakeTestService(tables);
    transport_ = MakeLocalTransport(service_);
    cache_ = std::make_shared<TableCache>(transport_, kTestAddress);
  }
  Result<std::unique_ptr<StructuredWriter>> TryMake(std::vector<StructuredConfig> configs,
                                                    StructuredWriterOptions options = {}) {
    return MakeStructuredWriter(transport_, cache_, kTestAddress, std::move(configs),
                                options, Soon());
  }
  std::unique_ptr<StructuredWriter> Make(std::vector<StructuredConfig> configs,
                                         StructuredWriterOptions options = {}) {
    return TryMake(std::move(configs), options).value();
  }
  std::string MakeError(std::vector<StructuredConfig> configs,
                        StructuredWriterOptions options = {}) {
    const auto made = TryMake(std::move(configs), std::move(options));
    return made.ok() ? "OK" : made.status().message();
  }
  // Closes a writer whose items are blocked.
  static void Abandon(StructuredWriter* writer) {
    EXPECT_GT(writer->Close(Within(Duration::zero())).value(), 0);
  }
  // Sources 0, 1, ... get these values.
  static Status Append(StructuredWriter* writer, const std::vector<float>& values,
                       bool partial_step = false, const WaitOptions& wait = Soon()) {
    std::vector<TestCell> cells;
    for (size_t i = 0; i < values.size(); ++i) {
      cells.push_back({static_cast<int>(i), {}, {values[i]}});
    }
    std::vector<CellView> views;
    for (const TestCell& cell : cells) views.push_back(cell.view());
    return writer->Append(views.data(), views.size(), partial_step, wait);
  }
  // The floats of the first column of each item, in the order of insertion; takes them.
  std::vector<std::vector<float>> Items(const std::string& table) {
    const int64_t n = service_->store()->Find(table).value()->size();
    std::vector<std::vector<float>> items;
    for (const ItemPtr& item : ItemsOf(service_.get(), table, n)) {
      items.push_back(Floats(item->column(0)));
    }
    return items;
  }

  std::shared_ptr<Service> service_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<TableCache> cache_;
};

using Rows = std::vector<std::vector<float>>;

TEST_F(StructuredWriterTest, InsertsTheCellsOfItsPatterns) {
  const auto writer =
      Make({Config("t", {Newest("x", 0, 2)}), Config("u", {Newest("x", 1, 1)})});
  for (float i : {1.f, 2.f, 3.f}) ASSERT_TRUE(Append(writer.get(), {i, 10 * i}).ok());
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Items("t"), (Rows{{1, 2}, {2, 3}}));
  EXPECT_EQ(Items("u"), (Rows{{10}, {20}, {30}}));
}

TEST_F(StructuredWriterTest, StridesAreExact) {
  StructuredConfig config = Config("t", {Newest("x", 0, 5)});
  config.nodes[0].step = 2;
  const auto writer = Make({config});
  for (float i : {0.f, 1.f, 2.f, 3.f, 4.f, 5.f}) {
    ASSERT_TRUE(Append(writer.get(), {i}).ok());
  }
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Items("t"), (Rows{{0, 2, 4}, {1, 3, 5}}));
}

TEST_F(StructuredWriterTest, SourcesWithoutPatternAreNotStored) {
  const auto writer = Make({Config("t", {Newest("x", 0, 1)})});
  const std::vector<float> large(1 << 20, 1.f);
  const TestCell small{0, {}, {1.f}};
  const TestCell unused{1, {1 << 20}, large};
  const CellView views[] = {small.view(), unused.view()};
  ASSERT_TRUE(writer->Append(views, 2, false, Soon()).ok());
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_LT(service_->store()->Find("t").value()->Info().bytes_stored, 10'000);
}

TEST_F(StructuredWriterTest, AnUnknownTableIsRefusedAtOnce) {
  const std::string error =
      MakeError({Config("t", {Newest("x", 0, 1)}), Config("none", {Newest("x", 0, 1)})});
  EXPECT_NE(error.find("position 1"), std::string::npos) << error;
  EXPECT_NE(error.find("none"), std::string::npos) << error;
}

TEST_F(StructuredWriterTest, TheStructureIsCheckedAgainstTheSignatureAtOnce) {
  EXPECT_EQ(MakeError({Config("signed", {Newest("x", 0, 2)})}), "OK");
  const std::string error = MakeError({Config("signed", {Newest("y", 0, 2)})});
  EXPECT_NE(error.find("position 0"), std::string::npos) << error;
  EXPECT_NE(error.find("missing: x"), std::string::npos) << error;
  EXPECT_NE(error.find("extra: y"), std::string::npos) << error;
}

TEST_F(StructuredWriterTest, DtypesAndShapesAreCheckedAtOnceWithAStepSpec) {
  const auto with = [&](DType dtype, const Shape& shape, int cells) {
    StructuredWriterOptions options;
    options.step_spec = {Spec("a", dtype, shape)};
    return MakeError({Config("signed", {Newest("x", 0, cells)})}, options);
  };
  EXPECT_EQ(with(DType::kFloat32, {}, 2), "OK");
  EXPECT_NE(with(DType::kFloat64, {}, 2).find("differs"), std::string::npos);
  EXPECT_NE(with(DType::kFloat32, {1}, 2).find("differs"), std::string::npos);
  EXPECT_NE(with(DType::kFloat32, {}, 3).find("differs"), std::string::npos);
}

TEST_F(StructuredWriterTest, AStepSpecOfAnotherStepIsRefused) {
  StructuredConfig config = Config("t", {Newest("x", 0, 1)});
  config.source_paths = {"a"};
  StructuredWriterOptions options;
  options.step_spec = {Spec("b", DType::kFloat32, {})};
  EXPECT_NE(MakeError({config}, options).find("step_spec"), std::string::npos);
  EXPECT_NE(MakeError({Config("t", {Newest("x", 1, 1)})}, options).find("step_spec"),
            std::string::npos);
}

TEST_F(StructuredWriterTest, APriorityThatTheTableRefusesIsRefusedAtOnce) {
  TableConfig table = OpenTable("p");
  table.sampler.kind = SelectorKind::kPrioritized;
  Serve({table});
  StructuredConfig config = Config("p", {Newest("x", 0, 1)});
  config.priority.value = -1;
  EXPECT_NE(MakeError({config}).find("position 0"), std::string::npos);
}

TEST_F(StructuredWriterTest, AnItemThatDoesntFitItsTableFailsAlone) {
  const auto writer =
      Make({Config("signed", {Newest("x", 0, 1)}), Config("t", {Newest("x", 0, 1)})});
  const Status status = Append(writer.get(), {5});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->rejected_items(), 1);
  EXPECT_EQ(writer->episode_steps(), 1);
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Items("t"), (Rows{{5}}));
  EXPECT_EQ(Items("signed"), Rows{});
}

TEST_F(StructuredWriterTest, AnItemThatTheServerRefusesIsToldAtTheNextCall) {
  StructuredWriterOptions options;
  options.validate_items = false;
  const auto writer = Make({Config("signed", {Newest("x", 0, 1)})}, options);
  ASSERT_TRUE(Append(writer.get(), {1}).ok());
  const Status refused = writer->Flush(0, Soon());
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(writer->rejected_items(), 1);
}

TEST_F(StructuredWriterTest, ATdErrorThatIsNotFiniteRefusesThatItem) {
  const auto writer = Make(
      {ByTdError(Config("t", {Newest("x", 0, 1)}), 0), Config("u", {Newest("x", 0, 1)})});
  EXPECT_EQ(Append(writer.get(), {NAN}).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Append(writer.get(), {-3}).ok());
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(writer->rejected_items(), 1);
  EXPECT_EQ(Items("u").size(), 2u);
  EXPECT_EQ(Items("t"), (Rows{{-3}}));
}

TEST_F(StructuredWriterTest, ARefusedAppendChangesNothing) {
  const auto writer = Make({Config("t", {Newest("x", 0, 1)})});
  ASSERT_TRUE(Append(writer.get(), {1}).ok());
  const TestCell vector{0, {2}, {1.f, 2.f}};
  const CellView view = vector.view();
  EXPECT_FALSE(writer->Append(&view, 1, false, Soon()).ok());
  EXPECT_EQ(writer->episode_steps(), 1);
  ASSERT_TRUE(Append(writer.get(), {2}).ok());
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Items("t"), (Rows{{1}, {2}}));
}

TEST_F(StructuredWriterTest, ABoundedAppendWaitsBeforeItDoesAnything) {
  StructuredWriterOptions options;
  options.max_in_flight_items = 1;
  const auto writer = Make({Config("q", {Newest("x", 0, 1)})}, options);
  ASSERT_TRUE(Append(writer.get(), {1}).ok());
  ASSERT_TRUE(Append(writer.get(), {2}).ok());  // waits for the first only
  const Status full = Append(writer.get(), {3}, false, Within(Duration::zero()));
  EXPECT_EQ(full.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(writer->episode_steps(), 2);
  EXPECT_EQ(ItemsOf(service_.get(), "q", 1).size(), 1u);
  ASSERT_TRUE(Append(writer.get(), {3}).ok());
  EXPECT_EQ(writer->episode_steps(), 3);
  Abandon(writer.get());
}

TEST_F(StructuredWriterTest, ABoundOfBytesHoldsAppendsBack) {
  StructuredWriterOptions options;
  options.max_in_flight_bytes = 1;
  const auto writer = Make({Config("q", {Newest("x", 0, 1)})}, options);
  ASSERT_TRUE(Append(writer.get(), {1}).ok());
  ASSERT_TRUE(Append(writer.get(), {2}).ok());
  EXPECT_EQ(Append(writer.get(), {3}, false, Within(Duration::zero())).code(),
            StatusCode::kDeadlineExceeded);
  Abandon(writer.get());
}

TEST_F(StructuredWriterTest, AnAppendThatMakesNoItemNeverWaits) {
  StructuredWriterOptions options;
  options.max_in_flight_items = 1;
  StructuredConfig config = Config("q", {Newest("x", 0, 1)});
  PatternCondition early;
  early.compare = Compare::kAtLeast;
  early.value = 2;
  early.inverse = true;
  config.conditions = {early};
  const auto writer = Make({config}, options);
  for (float i : {1.f, 2.f, 3.f}) ASSERT_TRUE(Append(writer.get(), {i}).ok());
  Abandon(writer.get());
}

// ---- Batches --------------------------------------------------------------------

TEST_F(StructuredWriterTest, ABatchIsItsStepsOneByOne) {
  const auto writer = Make({Config("t", {Newest("x", 0, 2)})});
  const TestCell batch{0, {4}, {1, 2, 3, 4}};
  const CellView view = batch.view();
  ASSERT_TRUE(writer->AppendBatch(&view, 1, Soon()).ok());
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Items("t"), (Rows{{1, 2}, {2, 3}, {3, 4}}));
}

TEST_F(StructuredWriterTest, ABatchOfStringsIsSplitIntoSteps) {
  const auto writer = Make({Config("t", {Newest("x", 0, 1)})});
  const std::string content = MakeStringContent({"a", "bcd", "", "ef"});
  const int64_t dims[] = {2, 2};
  CellView view;
  view.dtype = DType::kString;
  view.dims = dims;
  view.rank = 2;
  view.data = content.data();
  view.bytes = content.size();
  ASSERT_TRUE(writer->AppendBatch(&view, 1, Soon()).ok());
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  const auto items = ItemsOf(service_.get(), "t", 2);
  ASSERT_EQ(items.size(), 2u);
  for (const ItemPtr& item : items) {
    const ColumnView column = item->column(0);
    EXPECT_EQ((*column.begin()).length, 1);
  }
}

TEST_F(StructuredWriterTest, UnequalBatchesAreRefusedWhole) {
  const auto writer = Make({Config("t", {Newest("x", 0, 1)})});
  const TestCell a{0, {2}, {1, 2}};
  const TestCell b{1, {3}, {1, 2, 3}};
  const CellView views[] = {a.view(), b.view()};
  EXPECT_EQ(writer->AppendBatch(views, 2, Soon()).code(), StatusCode::kInvalidArgument);
  const TestCell scalar{0, {}, {1}};
  const CellView view = scalar.view();
  EXPECT_EQ(writer->AppendBatch(&view, 1, Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->AppendBatch(nullptr, 0, Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->episode_steps(), 0);
}

TEST_F(StructuredWriterTest, ABatchThatCantWaitTellsHowManyStepsAreIn) {
  StructuredWriterOptions options;
  options.max_in_flight_items = 1;
  const auto writer = Make({Config("q", {Newest("x", 0, 1)})}, options);
  const TestCell batch{0, {4}, {1, 2, 3, 4}};
  const CellView view = batch.view();
  const Status status =
      writer->AppendBatch(&view, 1, Within(std::chrono::milliseconds(50)));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find(std::to_string(writer->episode_steps()) + " of 4 steps"),
            std::string::npos)
      << status;
  Abandon(writer.get());
}

TEST_F(StructuredWriterTest, NoBatchWhileAStepIsOpen) {
  const auto writer = Make({Config("t", {Newest("x", 0, 1)})});
  ASSERT_TRUE(Append(writer.get(), {1}, /*partial_step=*/true).ok());
  const TestCell batch{0, {2}, {1, 2}};
  const CellView view = batch.view();
  EXPECT_EQ(writer->AppendBatch(&view, 1, Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(writer->step_is_open());
}

// ---- Ends -----------------------------------------------------------------------

TEST_F(StructuredWriterTest, EndEpisodeInsertsWhatIsConditionedOnIt) {
  const auto writer = Make({AtEnd(Config("t", {Newest("x", 0, 2)}))});
  for (float i : {1.f, 2.f, 3.f}) ASSERT_TRUE(Append(writer.get(), {i}).ok());
  ASSERT_TRUE(writer->EndEpisode(true, Soon()).ok());
  EXPECT_EQ(Items("t"), (Rows{{2, 3}}));
  EXPECT_EQ(writer->episode_steps(), 0);
}

TEST_F(StructuredWriterTest, EndEpisodeClosesAnOpenStep) {
  const auto writer =
      Make({AtEnd(Config("t", {Newest("x", 0, 1)})), Config("u", {Newest("x", 1, 1)})});
  ASSERT_TRUE(Append(writer.get(), {7}, /*partial_step=*/true).ok());
  ASSERT_TRUE(writer->EndEpisode(true, Soon()).ok());
  EXPECT_FALSE(writer->step_is_open());
  EXPECT_EQ(Items("t"), (Rows{{7}}));
  EXPECT_EQ(writer->skipped_items(), 1);
}

TEST_F(StructuredWriterTest, KeptHistoryReachesIntoTheNextEpisode) {
  const auto writer = Make({Config("t", {Newest("x", 0, 2)})});
  ASSERT_TRUE(Append(writer.get(), {1}).ok());
  ASSERT_TRUE(writer->EndEpisode(/*clear_buffers=*/false, Soon()).ok());
  ASSERT_TRUE(Append(writer.get(), {2}).ok());
  ASSERT_TRUE(writer->EndEpisode(/*clear_buffers=*/true, Soon()).ok());
  ASSERT_TRUE(Append(writer.get(), {3}).ok());
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Items("t"), (Rows{{1, 2}}));
}

TEST_F(StructuredWriterTest, TheEpisodeHasEndedAlsoWhenEndEpisodeFails) {
  const auto writer = Make({AtEnd(ByTdError(Config("t", {Newest("x", 0, 1)}), 0)),
                            AtEnd(Config("u", {Newest("x", 0, 1)}))});
  ASSERT_TRUE(Append(writer.get(), {NAN}).ok());
  EXPECT_EQ(writer->EndEpisode(true, Soon()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->episode_steps(), 0);
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Items("u").size(), 1u);
}

TEST_F(StructuredWriterTest, EndEpisodeThatRunsOutOfTimeHasEndedTheEpisode) {
  const auto writer = Make({Config("q", {Newest("x", 0, 1)})});
  for (float i : {1.f, 2.f, 3.f}) ASSERT_TRUE(Append(writer.get(), {i}).ok());
  EXPECT_EQ(writer->EndEpisode(true, Within(Duration::zero())).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(writer->episode_steps(), 0);
  Abandon(writer.get());
}

TEST_F(StructuredWriterTest, CallsAfterCloseFail) {
  const auto writer = Make({Config("t", {Newest("x", 0, 1)})});
  EXPECT_EQ(writer->Close(Soon()).value(), 0);
  EXPECT_EQ(Append(writer.get(), {1}).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer->Flush(0, Soon()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer->EndEpisode(true, Soon()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer->Close(Soon()).value(), 0);
}

TEST_F(StructuredWriterTest, AppendsOfManyThreadsInterleaveWhole) {
  const auto writer = Make({Config("t", {Newest("x", 0, 1), Newest("y", 1, 1)})});
  constexpr int kThreads = 4, kSteps = 100;
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kSteps; ++i) {
        const auto value = static_cast<float>(t * kSteps + i);
        if (!Append(writer.get(), {value, -value}).ok()) ++failed;
        if (i % 10 == 9 && !writer->EndEpisode(true, Soon()).ok()) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  const auto items = ItemsOf(service_.get(), "t", kThreads * kSteps);
  ASSERT_EQ(items.size(), static_cast<size_t>(kThreads * kSteps));
  for (const ItemPtr& item : items) {
    EXPECT_EQ(Floats(item->column(0))[0], -Floats(item->column(1))[0]);
  }
}

// ---- Several writers as one ------------------------------------------------------

TEST_F(StructuredWriterTest, ACheckedAppendIsDoneByItsOtherHalf) {
  auto writer = Make({Config("t", {Newest("x", 0, 1)}), Config("u", {Newest("x", 0, 2)})});
  for (int t = 0; t < 2; ++t) {
    const TestCell cell{0, {}, {static_cast<float>(t)}};
    const CellView view = cell.view();
    int64_t items = 0;
    ASSERT_TRUE(writer->CheckAppend(&view, 1, /*partial_step=*/false, &items).ok());
    EXPECT_EQ(items, t + 1);
    EXPECT_EQ(writer->episode_steps(), t);
    EXPECT_EQ(writer->pending_items(), 0);
    ASSERT_TRUE(writer->AppendChecked(&view, 1, /*partial_step=*/false).ok());
  }
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  const auto items = ItemsOf(service_.get(), "u", 1);
  ASSERT_EQ(items.size(), 1u);
  EXPECT_EQ(Floats(items[0]->column(0)), (std::vector<float>{0, 1}));
}

TEST_F(StructuredWriterTest, SiblingsEvaluateTheirOwnSteps) {
  auto first = Make({Config("t", {Newest("x", 0, 2)})});
  auto second = first->NewSibling();
  ASSERT_TRUE(Append(first.get(), {1}).ok());
  ASSERT_TRUE(Append(second.get(), {10}).ok());
  ASSERT_TRUE(Append(second.get(), {11}).ok());
  ASSERT_TRUE(first->Flush(0, Soon()).ok());
  ASSERT_TRUE(Append(first.get(), {2}).ok());
  ASSERT_TRUE(first->Flush(0, Soon()).ok());
  const auto items = ItemsOf(service_.get(), "t", 2);
  ASSERT_EQ(items.size(), 2u);
  EXPECT_EQ(Floats(items[0]->column(0)), (std::vector<float>{10, 11}));
  EXPECT_EQ(Floats(items[1]->column(0)), (std::vector<float>{1, 2}));
}

}  // namespace
}  // namespace reverb_tf
