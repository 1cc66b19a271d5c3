#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <set>
#include <thread>

#include "cc/base/logging.h"
#include "cc/client/fake_transport.h"
#include "cc/client/trajectory_writer_impl.h"
#include "cc/client/writer_testing.h"

namespace reverb_tf {
namespace {

TrajectoryWriterOptions Keep(int64_t refs) {
  TrajectoryWriterOptions options;
  options.num_keep_alive_refs = refs;
  return options;
}

bool Has(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TensorSpec Leaf(const std::string& path, DType dtype, Shape shape) {
  TensorSpec spec;
  spec.path = path;
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  return spec;
}

class TrajectoryWriterTest : public ::testing::Test {
 protected:
  TrajectoryWriterTest() { Serve({OpenTable("t"), OpenTable("u"), QueueTable("q", 3)}); }

  void Serve(const std::vector<TableConfig>& tables) {
    service_ = MakeTestService(tables);
    transport_ = MakeLocalTransport(service_);
    cache_ = std::make_shared<TableCache>(transport_, kTestAddress);
  }
  std::unique_ptr<TrajectoryWriter> Make(const TrajectoryWriterOptions& options) {
    return MakeTrajectoryWriter(transport_, cache_, kTestAddress, options).value();
  }
  std::vector<float> Stored(const std::string& table, size_t n, size_t item, int column) {
    const auto items = ItemsOf(service_.get(), table, static_cast<int64_t>(n));
    if (items.size() != n) return {-999};
    return Floats(items[item]->column(column));
  }
  int64_t Size(const std::string& table) {
    return service_->store()->Find(table).value()->size();
  }

  std::shared_ptr<Service> service_;
  std::shared_ptr<Transport> transport_;
  std::shared_ptr<TableCache> cache_;
};

TEST_F(TrajectoryWriterTest, RefusesOptionsOutOfRange) {
  for (const int64_t refs : {int64_t{0}, int64_t{-1}}) {
    EXPECT_EQ(MakeTrajectoryWriter(transport_, cache_, "a", Keep(refs)).status().code(),
              StatusCode::kInvalidArgument);
  }
}

TEST_F(TrajectoryWriterTest, AnItemOfThisProcessIsInWhenCreateItemReturns) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(AppendFloat(writer.get(), c, i).ok());
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 1, 3)}).ok());
  EXPECT_EQ(writer->pending_items(), 0);
  EXPECT_EQ(Stored("t", 1, 0, 0), (std::vector<float>{1, 2, 3}));
  EXPECT_TRUE(writer->Flush(0, Within(Duration::zero())).ok());
}

TEST_F(TrajectoryWriterTest, ConsecutiveCellsOfAChunkAreOneSlice) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(AppendFloat(writer.get(), c, i).ok());
  ItemColumn column = Cells("x", c, 0, 3);
  column.runs.push_back({c, 3, 1, 2});
  ASSERT_TRUE(CreateItem(writer.get(), "t", {column}).ok());
  EXPECT_EQ(ItemsOf(service_.get(), "t", 1)[0]->num_slices(), 1);
}

TEST_F(TrajectoryWriterTest, ARefusedAppendLeavesAllAsItWas) {
  auto writer = Make(Keep(10));
  const int a = writer->Column("a"), b = writer->Column("b");
  const TestCell good_a{a, {2}, {1, 2}}, good_b{b, {}, {3}}, bad_b{b, {1}, {3}};
  const CellView first[] = {good_a.view(), good_b.view()};
  ASSERT_TRUE(writer->Append(first, 2, false).ok());
  const CellView second[] = {good_a.view(), bad_b.view()};
  const Status status = writer->Append(second, 2, false);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(status, "'b'") && Has(status, "float32[1]") && Has(status, "float32[]"))
      << status;
  EXPECT_EQ(writer->episode_steps(), 1);
  EXPECT_EQ(writer->history_end(), 1);
  EXPECT_TRUE(writer->is_hole(a, 1));
  ASSERT_TRUE(writer->Append(first, 2, false).ok());
  EXPECT_FALSE(writer->is_hole(a, 1));
}

TEST_F(TrajectoryWriterTest, BytesThatAreNotTheShapeAreRefused) {
  auto writer = Make(Keep(10));
  const int64_t dims[] = {4};
  CellView view;
  view.column = writer->Column("x");
  view.dtype = DType::kInt64;
  view.dims = dims;
  view.rank = 1;
  view.data = "12345678";
  view.bytes = 8;
  EXPECT_EQ(writer->Append(&view, 1, false).code(), StatusCode::kInvalidArgument);
  view.dtype = DType::kString;
  EXPECT_EQ(writer->Append(&view, 1, false).code(), StatusCode::kInvalidArgument);
  view.column = 77;
  EXPECT_EQ(writer->Append(&view, 1, false).code(), StatusCode::kInvalidArgument);
}

TEST_F(TrajectoryWriterTest, ALeafIsSetAtMostOnceAStep) {
  auto writer = Make(Keep(10));
  const int a = writer->Column("a"), b = writer->Column("b");
  const TestCell cell_a{a, {}, {1}}, cell_b{b, {}, {2}};
  const CellView va = cell_a.view(), vb = cell_b.view();
  ASSERT_TRUE(writer->Append(&va, 1, /*partial_step=*/true).ok());
  EXPECT_TRUE(writer->step_is_open());
  EXPECT_EQ(writer->episode_steps(), 0);
  EXPECT_EQ(writer->history_end(), 1);
  EXPECT_EQ(writer->Append(&va, 1, false).code(), StatusCode::kInvalidArgument);
  const CellView twice[] = {vb, vb};
  EXPECT_EQ(writer->Append(twice, 2, false).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(writer->step_is_open());
  EXPECT_EQ(writer->AppendBatch(&va, 1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer->Append(&vb, 1, false).ok());
  EXPECT_EQ(writer->episode_steps(), 1);
  ASSERT_TRUE(
      CreateItem(writer.get(), "t", {Cells("a", a, 0, 1), Cells("b", b, 0, 1)}).ok());
}

TEST_F(TrajectoryWriterTest, AHoleInAnItemIsRefusedWithPathAndStep) {
  auto writer = Make(Keep(10));
  const int a = writer->Column("a");
  ASSERT_TRUE(AppendFloat(writer.get(), a, 0).ok());
  ASSERT_TRUE(writer->Append(nullptr, 0, false).ok());
  ASSERT_TRUE(AppendFloat(writer.get(), a, 2).ok());
  const int late = writer->Column("late");
  EXPECT_TRUE(writer->is_hole(a, 1));
  EXPECT_TRUE(writer->is_hole(late, 0));
  const Status status = CreateItem(writer.get(), "t", {Cells("a", a, 0, 3)}).status();
  EXPECT_TRUE(Has(status, "cannot contain any None") && Has(status, "'a'") &&
              Has(status, "step 1"))
      << status;
  EXPECT_EQ(CreateItem(writer.get(), "t", {Cells("late", late, 0, 1)}).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("a", a, 0, 2, 2)}).ok());
  EXPECT_EQ(Stored("t", 1, 0, 0), (std::vector<float>{0, 2}));
}

TEST_F(TrajectoryWriterTest, ExpiredCellsNameTheLimitAndTheOldestIndex) {
  auto writer = Make(Keep(2));
  const int c = writer->Column("x");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(AppendFloat(writer.get(), c, i).ok());
  EXPECT_EQ(writer->oldest_cell(c), 3);
  const Status status = CreateItem(writer.get(), "t", {Cells("x", c, 0, 5)}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(status, "num_keep_alive_refs is 2") && Has(status, "index is 3"))
      << status;
  EXPECT_EQ(writer->Read(Cells("x", c, 2, 1)).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(TrajectoryWriterTest, MalformedItemsAreRefused) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x"), d = writer->Column("d");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  const TestCell wide{d, {2}, {1, 2}};
  const CellView view = wide.view();
  ASSERT_TRUE(writer->Append(&view, 1, false).ok());
  ItemColumn squeezed = Cells("x", c, 0, 1);
  squeezed.squeeze = true;
  squeezed.runs.push_back({c, 0, 1, 1});
  ItemColumn mixed = Cells("x", c, 0, 1);
  mixed.runs.push_back({d, 1, 1, 1});
  const int64_t most = std::numeric_limits<int64_t>::max();
  const std::vector<std::vector<ItemColumn>> bad = {{},
                                                    {Cells("x", c, 0, 0)},
                                                    {Cells("x", c, 0, 9)},
                                                    {Cells("x", c, -1, 1)},
                                                    {Cells("x", 99, 0, 1)},
                                                    {Cells("x", c, 0, -1)},
                                                    {Cells("x", c, 0, most, most)},
                                                    {Cells("x", c, 0, most, 0)},
                                                    {squeezed},
                                                    {mixed}};
  for (const auto& columns : bad) {
    EXPECT_EQ(CreateItem(writer.get(), "t", columns).status().code(),
              StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(
      writer->CreateItem("t", std::nan(""), {Cells("x", c, 0, 1)}, Soon()).status().code(),
      StatusCode::kInvalidArgument);
  EXPECT_EQ(Size("t"), 0);
}

TEST_F(TrajectoryWriterTest, AnUnknownTableIsRefusedWithTheTablesThereAre) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  const Status status = CreateItem(writer.get(), "nope", {Cells("x", c, 0, 1)}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(status, "'nope'") && Has(status, "'t'") && Has(status, "'q'")) << status;
}

TEST_F(TrajectoryWriterTest, ColumnsGoInTheOrderOfTheSignature) {
  TableConfig config = OpenTable("s");
  config.signature.emplace();
  config.signature->leaves = {Leaf("b", DType::kFloat32, {-1}),
                              Leaf("a", DType::kFloat32, {-1})};
  Serve({config});
  for (const bool validate : {true, false}) {
    TrajectoryWriterOptions options = Keep(10);
    options.validate_items = validate;
    auto writer = Make(options);
    const int a = writer->Column("a"), b = writer->Column("b");
    const TestCell ca{a, {}, {1}}, cb{b, {}, {2}};
    const CellView cells[] = {ca.view(), cb.view()};
    ASSERT_TRUE(writer->Append(cells, 2, false).ok());
    ASSERT_TRUE(
        CreateItem(writer.get(), "s", {Cells("a", a, 0, 1), Cells("b", b, 0, 1)}).ok());
    ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(Stored("s", 2, i, 0), std::vector<float>{2});
    EXPECT_EQ(Stored("s", 2, i, 1), std::vector<float>{1});
  }
}

TEST_F(TrajectoryWriterTest, AnItemThatBreaksTheSignatureIsRefusedAtOnce) {
  TableConfig config = OpenTable("s");
  config.signature.emplace();
  config.signature->leaves = {Leaf("obs", DType::kFloat64, {-1}),
                              Leaf("act", DType::kInt32, {-1})};
  Serve({config});
  auto writer = Make(Keep(10));
  const int c = writer->Column("obs");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  const Status status = CreateItem(writer.get(), "s", {Cells("obs", c, 0, 1)}).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(status, "missing: act")) << status;
  EXPECT_EQ(writer->rejected_items(), 0);
}

TEST_F(TrajectoryWriterTest, AServersRefusalIsRaisedOnceAndTheWriterGoesOn) {
  TableConfig config = OpenTable("s");
  config.signature.emplace();
  config.signature->leaves = {Leaf("x", DType::kFloat32, {2})};
  Serve({config, OpenTable("t")});
  TrajectoryWriterOptions options = Keep(10);
  options.validate_items = false;
  auto writer = Make(options);
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  ASSERT_TRUE(CreateItem(writer.get(), "s", {Cells("x", c, 0, 1)}).ok());
  const Status status = AppendFloat(writer.get(), c, 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(writer->history_end(), 1);
  EXPECT_EQ(writer->rejected_items(), 1);
  ASSERT_TRUE(AppendFloat(writer.get(), c, 1).ok());
  ASSERT_TRUE(CreateItem(writer.get(), "s", {Cells("x", c, 0, 2)}).ok());
  EXPECT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Size("s"), 1);
}

TEST_F(TrajectoryWriterTest, ABlockedTableHoldsNothingBackAndFlushSaysWhy) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(CreateItem(writer.get(), "q", {Cells("x", c, 0, 1)}).ok());
  }
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 0, 1)}).ok());
  EXPECT_EQ(Size("q"), 3);
  EXPECT_EQ(Size("t"), 1);
  EXPECT_EQ(writer->pending_items(), 7);
  EXPECT_GT(writer->pending_bytes(), 0);
  EXPECT_TRUE(writer->Flush(7, Within(Duration::zero())).ok());
  const Status status = writer->Flush(0, Within(std::chrono::milliseconds(20)));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status, "7 items unconfirmed (table 'q': 7)") &&
              Has(status, "insert: blocked"))
      << status;
  EXPECT_EQ(ItemsOf(service_.get(), "q", 3).size(), 3u);  // and gives them back
  const auto session = service_->OpenSample(Peer::kOwn, nullptr);
  SampleRequest request;
  request.table = "q";
  request.num_samples = 10;
  ASSERT_TRUE(session->Handle(request).ok());
  EXPECT_TRUE(writer->Flush(0, Soon()).ok());
  session->Close();
}

TEST_F(TrajectoryWriterTest, CreateItemWaitsForRoomIfBounded) {
  TrajectoryWriterOptions options = Keep(10);
  options.max_in_flight_items = 2;
  auto writer = Make(options);
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(CreateItem(writer.get(), "q", {Cells("x", c, 0, 1)}).ok());
  }
  EXPECT_EQ(writer->CreateItem("q", 1, {Cells("x", c, 0, 1)}, Within(Duration::zero()))
                .status()
                .code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(writer->pending_items(), 2);
  EXPECT_TRUE(writer->Close(Within(Duration::zero())).ok());
}

TEST_F(TrajectoryWriterTest, EndEpisodeClearsOrKeepsTheCells) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(AppendFloat(writer.get(), c, i).ok());
  ASSERT_TRUE(writer->EndEpisode(/*clear_buffers=*/false, Soon()).ok());
  EXPECT_EQ(writer->episode_steps(), 0);
  EXPECT_EQ(writer->history_begin(), 0);
  for (int i = 3; i < 5; ++i) ASSERT_TRUE(AppendFloat(writer.get(), c, i).ok());
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 1, 4)}).ok());
  const auto items = ItemsOf(service_.get(), "t", 1);
  EXPECT_EQ(Floats(items[0]->column(0)), (std::vector<float>{1, 2, 3, 4}));
  ASSERT_EQ(items[0]->num_slices(), 2);
  const Chunk& first = *items[0]->slices()[0].chunk;
  const Chunk& second = *items[0]->slices()[1].chunk;
  EXPECT_NE(first.options().episode_id, second.options().episode_id);
  EXPECT_EQ(second.options().start, 0);
  EXPECT_EQ(second.options().end, 1);
  ASSERT_TRUE(writer->EndEpisode(/*clear_buffers=*/true, Soon()).ok());
  EXPECT_EQ(writer->history_begin(), 5);
  EXPECT_EQ(CreateItem(writer.get(), "t", {Cells("x", c, 4, 1)}).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(AppendFloat(writer.get(), c, 5).ok());
  EXPECT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 5, 1)}).ok());
}

TEST_F(TrajectoryWriterTest, TheEpisodeHasEndedAlsoWhenEndEpisodeFails) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(CreateItem(writer.get(), "q", {Cells("x", c, 0, 1)}).ok());
  }
  EXPECT_EQ(writer->EndEpisode(true, Within(Duration::zero())).code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_EQ(writer->episode_steps(), 0);
  EXPECT_EQ(writer->history_begin(), 1);
  EXPECT_TRUE(writer->Close(Within(Duration::zero())).ok());
}

TEST_F(TrajectoryWriterTest, CloseDropsWhatIsLeftAndCountsIt) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(CreateItem(writer.get(), "q", {Cells("x", c, 0, 1)}).ok());
  }
  std::string logged;
  SetLogSink([&](LogLevel, const std::string& line) { logged += line; });
  const Result<int64_t> dropped = writer->Close(Within(Duration::zero()));
  SetLogSink([](LogLevel, const std::string&) {});
  ASSERT_TRUE(dropped.ok());
  EXPECT_EQ(*dropped, 2);
  EXPECT_NE(logged.find("table 'q': 2"), std::string::npos) << logged;
  EXPECT_EQ(*writer->Close(Soon()), 0);
  EXPECT_EQ(AppendFloat(writer.get(), c, 0).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer->Flush(0, Soon()).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Size("q"), 3);
}

TEST_F(TrajectoryWriterTest, DestroyingFlushes) {
  const auto fake = std::make_shared<FakeTransport>();
  const auto cache = std::make_shared<TableCache>(fake, kTestAddress);
  TrajectoryWriterOptions options = Keep(10);
  options.validate_items = false;
  auto writer = MakeTrajectoryWriter(fake, cache, kTestAddress, options).value();
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 0, 1)}).ok());
  std::thread server([&] {
    const auto peer = fake->WaitForInsert(0);
    ASSERT_TRUE(peer && peer->WaitForItems(1));
    peer->ConfirmAll();
    EXPECT_TRUE(peer->WaitForClose());
  });
  writer.reset();
  server.join();
}

TEST_F(TrajectoryWriterTest, FinishTellsWhatItDroppedAndWhy) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(CreateItem(writer.get(), "q", {Cells("x", c, 0, 1)}).ok());
  }
  const Status status = writer->Finish(/*retry=*/true, Within(Duration::zero()));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("closed with 2 items dropped"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("rate limiter"), std::string::npos) << status.message();
  EXPECT_EQ(AppendFloat(writer.get(), c, 0).code(), StatusCode::kFailedPrecondition);
}

class FinishTest : public TrajectoryWriterTest {
 protected:
  // Finishes a writer with one item, which `server` is to deal with.
  Status Finish(bool retry, const std::function<void()>& server) {
    const auto cache = std::make_shared<TableCache>(fake_, kTestAddress);
    TrajectoryWriterOptions options = Keep(10);
    options.validate_items = false;
    auto writer = MakeTrajectoryWriter(fake_, cache, kTestAddress, options).value();
    const int c = writer->Column("x");
    RTF_RETURN_IF_ERROR(AppendFloat(writer.get(), c, 0));
    RTF_RETURN_IF_ERROR(CreateItem(writer.get(), "t", {Cells("x", c, 0, 1)}).status());
    std::thread thread(server);
    const Status status = writer->Finish(retry, Soon());
    thread.join();
    return status;
  }

  const std::shared_ptr<FakeTransport> fake_ = std::make_shared<FakeTransport>();
};

TEST_F(FinishTest, WithRetryASuccessorMayConfirm) {
  const Status status = Finish(/*retry=*/true, [&] {
    const auto peer = fake_->WaitForInsert(0);
    ASSERT_TRUE(peer && peer->WaitForItems(1));
    peer->End(UnavailableError("gone"));
    const auto successor = fake_->WaitForInsert(1);
    ASSERT_TRUE(successor && successor->WaitForItems(1));
    successor->ConfirmAll();
  });
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(FinishTest, WithoutRetryTheFirstFailureIsTheEnd) {
  // Whether or not Finish has begun when the first stream ends.
  fake_->EndNewInserts(UnavailableError("gone"));
  const Status status = Finish(/*retry=*/false, [] {});
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(status.message().find("1 items dropped; gone"), std::string::npos)
      << status.message();
}

TEST_F(TrajectoryWriterTest, AStepWritersColumnMayChangeAndForgetsTheCellsBefore) {
  TrajectoryWriterOptions options = Keep(10);
  options.writes_steps = true;
  auto writer = Make(options);
  const int c = writer->Column("x");
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(AppendFloat(writer.get(), c, i).ok());
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 0, 2)}).ok());
  const TestCell pair{c, {2}, {5, 6}};
  const CellView view = pair.view();
  ASSERT_TRUE(writer->Append(&view, 1, /*partial_step=*/false).ok());
  EXPECT_EQ(writer->oldest_cell(c), 2);
  EXPECT_EQ(writer->column_spec(c).shape, (Shape{2}));
  EXPECT_EQ(CreateItem(writer.get(), "t", {Cells("x", c, 1, 2)}).status().code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(CreateItem(writer.get(), "u", {Cells("x", c, 2, 1)}).ok());
  EXPECT_EQ(Stored("t", 1, 0, 0), (std::vector<float>{0, 1}));
  EXPECT_EQ(Stored("u", 1, 0, 0), (std::vector<float>{5, 6}));
}

TEST_F(TrajectoryWriterTest, ConfigureChecksBoundsAndUnsentCells) {
  auto writer = Make(Keep(10));
  ColumnOptions options;
  options.max_chunk_length = 11;
  EXPECT_EQ(writer->Configure("x", options).code(), StatusCode::kInvalidArgument);
  options.max_chunk_length = 0;
  EXPECT_EQ(writer->Configure("x", options).code(), StatusCode::kInvalidArgument);
  options.max_chunk_length = 2;
  options.num_keep_alive_refs = 4;
  ASSERT_TRUE(writer->Configure("x", options).ok());
  const int c = writer->Column("x");
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(AppendFloat(writer.get(), c, i).ok());
  EXPECT_EQ(writer->Configure("x", options).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer->oldest_cell(c), 3);
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 3, 4)}).ok());
  EXPECT_EQ(ItemsOf(service_.get(), "t", 1)[0]->num_slices(), 3);  // 3 | 4 5 | 6
  EXPECT_EQ(Stored("t", 1, 0, 0), (std::vector<float>{3, 4, 5, 6}));
}

TEST_F(TrajectoryWriterTest, StringsAndZeroSizeCellsComeBack) {
  auto writer = Make(Keep(10));
  const int s = writer->Column("s"), z = writer->Column("z");
  const std::vector<std::string> texts = {"", "abc", std::string(300, 'x'), "end"};
  const int64_t zero[] = {0, 3};
  const int64_t two[] = {2};
  for (size_t i = 0; i + 1 < texts.size(); ++i) {
    const std::string content = MakeStringContent({texts[i], texts[i + 1]});
    CellView cells[2];
    cells[0] = {s, DType::kString, two, 1, content.data(), content.size()};
    cells[1] = {z, DType::kInt64, zero, 2, nullptr, 0};
    ASSERT_TRUE(writer->Append(cells, 2, false).ok());
  }
  const auto strings = [&](const Tensor& tensor) {
    const auto parsed =
        ParseStringContent(tensor.buffer->view(), NumElements(tensor.shape)).value();
    std::vector<std::string> out;
    size_t at = 0;
    for (const uint64_t n : parsed.lengths) {
      out.emplace_back(parsed.bytes.substr(at, n));
      at += n;
    }
    return out;
  };
  const std::vector<std::string> expected = {"", "abc", "abc", texts[2], texts[2], "end"};
  Tensor open = writer->Read(Cells("s", s, 0, 3)).value();
  EXPECT_EQ(open.shape, (Shape{3, 2}));
  EXPECT_EQ(strings(open), expected);
  ASSERT_TRUE(
      CreateItem(writer.get(), "t", {Cells("s", s, 0, 3), Cells("z", z, 0, 3)}).ok());
  EXPECT_EQ(strings(writer->Read(Cells("s", s, 0, 3)).value()), expected);
  const auto item = ItemsOf(service_.get(), "t", 1).at(0);
  EXPECT_EQ(item->column(1).shape(), (Shape{3, 0, 3}));
  const ChunkSlice& slice = item->slices()[0];
  Tensor stored{DType::kString, {slice.length, 2}, slice.chunk->Decode().value()};
  EXPECT_EQ(strings(stored), expected);
}

TEST_F(TrajectoryWriterTest, ABatchIsTheSameAsSingleSteps) {
  auto writer = Make(Keep(100));
  ColumnOptions options;
  options.max_chunk_length = 4;
  ASSERT_TRUE(writer->Configure("x", options).ok());
  const int c = writer->Column("x"), d = writer->Column("d");
  TestCell batch{c, {11, 2}, {}};
  for (int i = 0; i < 22; ++i) batch.values.push_back(static_cast<float>(i));
  const TestCell short_batch{d, {3}, {1, 2, 3}};
  const CellView uneven[] = {batch.view(), short_batch.view()};
  const Status status = writer->AppendBatch(uneven, 2);
  EXPECT_TRUE(Has(status, "'d'") && Has(status, "'x'")) << status;
  const CellView view = batch.view();
  ASSERT_TRUE(writer->AppendBatch(&view, 1).ok());
  EXPECT_EQ(writer->episode_steps(), 11);
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 0, 11)}).ok());
  EXPECT_EQ(Stored("t", 1, 0, 0), batch.values);
}

TEST_F(TrajectoryWriterTest, FourThreadsOnOneWriterLoseNothing) {
  constexpr int kThreads = 4, kItems = 500;
  auto writer = Make(Keep(4));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  std::vector<std::thread> threads;
  std::vector<std::vector<uint64_t>> keys(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kItems; ++i) {
        ASSERT_TRUE(AppendFloat(writer.get(), c, t).ok());
        Result<uint64_t> key = FailedPreconditionError("");
        do {  // the cell may expire meanwhile
          const int64_t newest = writer->history_end() - 1;
          key = CreateItem(writer.get(), i % 2 ? "t" : "u", {Cells("x", c, newest, 1)});
        } while (!key.ok());
        keys[static_cast<size_t>(t)].push_back(*key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  std::set<uint64_t> all;
  for (const auto& list : keys) all.insert(list.begin(), list.end());
  EXPECT_EQ(all.size(), size_t{kThreads * kItems});
  EXPECT_EQ(Size("t") + Size("u"), kThreads * kItems);
}

TEST_F(TrajectoryWriterTest, FourThreadsOnABlockingTableLoseNothing) {
  constexpr int kThreads = 4, kItems = 300;
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 0).ok());
  std::atomic<int> taken{0};
  std::atomic<bool> wrong{false};
  std::thread reader([&] {
    Mutex mu;
    CondVar ready;
    bool event = false;
    const auto session = service_->OpenSample(Peer::kOwn, [&] {
      MutexLock lock(&mu);
      event = true;
      ready.Signal();
    });
    SampleRequest request;
    request.table = "q";
    request.num_samples = kThreads * kItems;
    if (!session->Handle(request).ok()) wrong = true;
    while (taken < kThreads * kItems && !wrong) {
      SampleReply reply;
      while (session->Take(100, int64_t{1} << 60, &reply).value()) {
        taken += static_cast<int>(reply.items.size());
      }
      if (taken >= kThreads * kItems) break;
      MutexLock lock(&mu);
      while (!event) {
        if (!ready.WaitUntil(&mu, Clock::System()->Now() + kFakeLimit)) wrong = true;
        if (wrong) break;
      }
      event = false;
    }
    session->Close();
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kItems; ++i) {
        ASSERT_TRUE(CreateItem(writer.get(), "q", {Cells("x", c, 0, 1)}).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(writer->Flush(0, Soon()).ok());
  reader.join();
  EXPECT_EQ(taken, kThreads * kItems);
}

// ---- Several writers as one ------------------------------------------------------

TEST_F(TrajectoryWriterTest, ACheckedAppendIsDoneByItsOtherHalf) {
  auto writer = Make(Keep(10));
  const int c = writer->Column("x");
  const TestCell cell{c, {}, {7}};
  const CellView view = cell.view();
  ASSERT_TRUE(writer->CheckAppend(&view, 1, AppendKind::kPartialStep).ok());
  EXPECT_EQ(writer->history_end(), 0);
  ASSERT_TRUE(writer->AppendChecked(&view, 1, AppendKind::kPartialStep).ok());
  EXPECT_TRUE(writer->step_is_open());
  EXPECT_EQ(writer->CheckAppend(&view, 1, AppendKind::kStep).code(),
            StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer->AppendChecked(nullptr, 0, AppendKind::kStep).ok());
  const TestCell cells{c, {3}, {8, 9, 10}};
  const CellView batch = cells.view();
  ASSERT_TRUE(writer->CheckAppend(&batch, 1, AppendKind::kBatch).ok());
  ASSERT_TRUE(writer->AppendChecked(&batch, 1, AppendKind::kBatch).ok());
  EXPECT_EQ(writer->episode_steps(), 4);
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("x", c, 0, 4)}).ok());
  EXPECT_EQ(Stored("t", 1, 0, 0), (std::vector<float>{7, 8, 9, 10}));
}

TEST_F(TrajectoryWriterTest, APreparedItemKeepsItsDataUntilItIsQueued) {
  auto writer = Make(Keep(1));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 1).ok());
  auto prepared = writer->PrepareItem("t", 1.0, {Cells("x", c, 0, 1)}, Soon());
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(writer->pending_items(), 0);
  EXPECT_EQ(Size("t"), 0);
  ASSERT_TRUE(writer->EndEpisode(true, Soon()).ok());
  for (int i = 2; i < 5; ++i) ASSERT_TRUE(AppendFloat(writer.get(), c, i).ok());
  std::vector<std::unique_ptr<PreparedItem>> items;
  items.push_back(std::move(prepared).value());
  EXPECT_EQ(writer->Queue(std::move(items)).value().size(), 1u);
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(Stored("t", 1, 0, 0), (std::vector<float>{1}));
}

TEST_F(TrajectoryWriterTest, PrepareItemRefusesWhatCreateItemDoes) {
  auto writer = Make(Keep(1));
  const int c = writer->Column("x");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 1).ok());
  const auto prepare = [&](const std::string& table, double priority, int64_t cells) {
    return writer->PrepareItem(table, priority, {Cells("x", c, 0, cells)}, Soon())
        .status()
        .code();
  };
  EXPECT_EQ(prepare("t", 1, 2), StatusCode::kInvalidArgument);
  EXPECT_EQ(prepare("t", std::nan(""), 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(prepare("nope", 1, 1), StatusCode::kInvalidArgument);
  EXPECT_EQ(prepare("t", 1, 1), StatusCode::kOk);
}

TEST_F(TrajectoryWriterTest, SiblingsHaveHistoriesOfTheirOwnAndOneOrderOfItems) {
  auto first = Make(Keep(10));
  auto second = first->NewSibling();
  const int c = first->Column("x");
  ASSERT_EQ(second->Column("x"), c);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(AppendFloat(first.get(), c, i).ok());
    if (i % 2 == 1) continue;
    ASSERT_TRUE(AppendFloat(second.get(), c, 10 + i).ok());
  }
  EXPECT_EQ(second->history_end(), 2);
  std::vector<std::unique_ptr<PreparedItem>> items;
  for (TrajectoryWriter* const writer : {second.get(), first.get()}) {
    items.push_back(writer->PrepareItem("q", 1.0, {Cells("x", c, 0, 2)}, Soon()).value());
  }
  const std::vector<uint64_t> keys = first->Queue(std::move(items)).value();
  ASSERT_TRUE(second->Flush(0, Soon()).ok());
  EXPECT_LT(keys[0], keys[1]);
  const auto stored = ItemsOf(service_.get(), "q", 2);
  ASSERT_EQ(stored.size(), 2u);
  EXPECT_EQ(Floats(stored[0]->column(0)), (std::vector<float>{10, 12}));
  EXPECT_EQ(Floats(stored[1]->column(0)), (std::vector<float>{0, 1}));
  ASSERT_TRUE(second->EndEpisode(true, Soon()).ok());
  EXPECT_EQ(first->episode_steps(), 4);
}

TEST_F(TrajectoryWriterTest, SiblingsAreClosedTogether) {
  auto first = Make(Keep(10));
  auto second = first->NewSibling();
  const int c = second->Column("x");
  ASSERT_TRUE(AppendFloat(second.get(), c, 1).ok());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(CreateItem(second.get(), "q", {Cells("x", c, 0, 1)}).ok());
  }
  const int64_t pending = second->pending_items();
  EXPECT_GT(pending, 0);
  EXPECT_EQ(first->pending_items(), pending);
  EXPECT_EQ(first->Close(Within(Duration::zero())).value(), pending);
  EXPECT_EQ(second->pending_items(), 0);
  EXPECT_EQ(AppendFloat(second.get(), c, 2).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(second->Close(Soon()).value(), 0);
}

}  // namespace
}  // namespace reverb_tf
