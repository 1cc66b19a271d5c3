#include "cc/client/client_impl.h"

#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <thread>

#include "cc/client/fake_transport.h"
#include "cc/client/writer_testing.h"
#include "cc/service/local_registry.h"

namespace reverb_tf {
namespace {

bool Has(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

StepLeaf Leaf(const std::string& path, float value) {
  StepLeaf leaf;
  leaf.path = path;
  leaf.value.dtype = DType::kFloat32;
  leaf.value.buffer = Buffer::CopyOf({reinterpret_cast<const char*>(&value), sizeof value});
  return leaf;
}

// A leaf of `rows` cells of `width` floats: 0, 1, 2, ...
StepLeaf Batch(const std::string& path, int64_t rows, int64_t width) {
  std::vector<float> values(static_cast<size_t>(rows * width));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  StepLeaf leaf;
  leaf.path = path;
  leaf.value.dtype = DType::kFloat32;
  leaf.value.shape = {rows, width};
  leaf.value.buffer = Buffer::CopyOf(
      {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
  return leaf;
}

class ClientImplTest : public ::testing::Test {
 protected:
  ClientImplTest()
      : service_(MakeTestService({OpenTable("t"), OpenTable("u"), QueueTable("q", 2)})),
        client_(MakeReverbClient(MakeLocalTransport(service_), kTestAddress)) {}

  int64_t Size(const std::string& table) {
    return service_->store()->Find(table).value()->size();
  }

  const std::shared_ptr<Service> service_;
  const std::unique_ptr<ReverbClient> client_;
};

TEST_F(ClientImplTest, InsertPutsOneStepIntoEachTable) {
  const auto keys =
      client_->Insert({Leaf("a", 1), Leaf("b", 2)}, {{"t", 1.0}, {"u", 2.0}}, Soon());
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 2u);
  const auto t = ItemsOf(service_.get(), "t", 1), u = ItemsOf(service_.get(), "u", 1);
  ASSERT_EQ(t.size() + u.size(), 2u);
  EXPECT_EQ(t[0]->key(), (*keys)[0]);
  EXPECT_EQ(u[0]->key(), (*keys)[1]);
  EXPECT_TRUE(t[0]->written_as_steps());
  EXPECT_EQ(Floats(t[0]->column(1)), std::vector<float>{2});
  EXPECT_EQ(t[0]->slices()[0].chunk.get(), u[0]->slices()[0].chunk.get());
}

TEST_F(ClientImplTest, InsertChecksAllTablesBeforeAnyInsert) {
  const std::vector<StepLeaf> step = {Leaf("a", 1)};
  EXPECT_EQ(client_->Insert(step, {}, Soon()).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(client_->Insert({}, {{"t", 1.0}}, Soon()).status().code(),
            StatusCode::kInvalidArgument);
  const Status unknown =
      client_->Insert(step, {{"t", 1.0}, {"nope", 1.0}}, Soon()).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(unknown, "'nope'") && Has(unknown, "'u'")) << unknown;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(client_->Insert(step, {{"t", 1.0}, {"u", nan}}, Soon()).status().code(),
            StatusCode::kInvalidArgument);
  StepLeaf bad = Leaf("a", 1);
  bad.value.shape = {3};
  const Status wrong = client_->Insert({bad}, {{"t", 1.0}}, Soon()).status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Has(wrong, "'a'")) << wrong;
  EXPECT_EQ(Size("t"), 0);
}

TEST_F(ClientImplTest, InsertBatchIsCheckedWholeBeforeAnyInsert) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto insert = [&](const std::vector<StepLeaf>& steps,
                          const std::vector<std::string>& tables,
                          const std::vector<double>& priorities) {
    return client_->InsertBatch(steps, tables, priorities, Soon()).status();
  };
  const StepLeaf two = Batch("a", 2, 1);
  EXPECT_TRUE(Has(insert({two}, {"t"}, {1, nan}), "NaN"));
  EXPECT_TRUE(Has(insert({two}, {"t", "nope"}, {1, 1, 1, 1}), "'nope'"));
  EXPECT_TRUE(Has(insert({two}, {"t"}, {1, 1, 1}), "got 3 priorities, expected 2"));
  EXPECT_TRUE(Has(insert({two, Batch("b", 3, 1)}, {"t"}, {1, 1}),
                  "column 'b': got a batch of 3, expected 2 as in column 'a'"));
  EXPECT_TRUE(Has(insert({Leaf("a", 1)}, {"t"}, {1}), "batch dimension"));
  EXPECT_EQ(Size("t"), 0);
  EXPECT_EQ(client_->InsertBatch({Batch("a", 0, 1)}, {"t"}, {}, Soon())->size(), 0u);
}

TEST_F(ClientImplTest, InsertBatchThatTimesOutSaysHowManyAreIn) {
  const Status status = client_
                            ->InsertBatch({Batch("a", 3, 1)}, {"q"}, {1, 1, 1},
                                          Within(std::chrono::milliseconds(20)))
                            .status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status, "inserted into 'q' (2 of 3), withdrawn from 'q' (1 of 3)"))
      << status;
  EXPECT_EQ(Size("q"), 2);
}

TEST_F(ClientImplTest, InsertThatTimesOutWithdrawsTheRestAndSaysWhatIsIn) {
  const std::vector<StepLeaf> step = {Leaf("a", 1)};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(client_->Insert(step, {{"q", 1}}, Soon()).ok());
  const Status status =
      client_->Insert(step, {{"t", 1.0}, {"q", 1.0}}, Within(std::chrono::milliseconds(20)))
          .status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status, "inserted into 't', withdrawn from 'q'") &&
              Has(status, "insert: blocked"))
      << status;
  EXPECT_EQ(Size("t"), 1);
  EXPECT_EQ(service_->store()->Find("q").value()->Info().num_waiting_inserts, 0);
  EXPECT_TRUE(client_->Insert(step, {{"t", 1.0}}, Soon()).ok());
}

TEST_F(ClientImplTest, InsertIntoAFullTableHeedsInterrupts) {
  const std::vector<StepLeaf> step = {Leaf("a", 1)};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(client_->Insert(step, {{"q", 1}}, Soon()).ok());
  WaitOptions wait;
  int asked = 0;
  wait.interrupted = [&] { return ++asked > 1 ? CancelledError("Ctrl-C") : OkStatus(); };
  const TimePoint start = Clock::System()->Now();
  EXPECT_EQ(client_->Insert(step, {{"q", 1}}, wait).status().code(),
            StatusCode::kCancelled);
  EXPECT_LT(Clock::System()->Now() - start, std::chrono::milliseconds(200));
}

TEST_F(ClientImplTest, ConcurrentInsertsAreExact) {
  constexpr int kThreads = 4, kInserts = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kInserts; ++i) {
        ASSERT_TRUE(client_->Insert({Leaf("a", 1)}, {{"t", 1.0}, {"u", 1.0}}, Soon()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Size("t"), kThreads * kInserts);
  EXPECT_EQ(Size("u"), kThreads * kInserts);
}

TEST_F(ClientImplTest, MutateResetAndInfoReachTheServer) {
  const auto keys = client_->Insert({Leaf("a", 1)}, {{"t", 1.0}}, Soon()).value();
  const MutateReply reply =
      client_->Mutate("t", {{keys[0], 5.0}, {12345, 1.0}}, {}, Soon()).value();
  EXPECT_EQ(reply.updated, 1);
  EXPECT_EQ(reply.not_found, 1);
  EXPECT_EQ(client_->GetServerInfo(Soon())->tables.size(), 3u);
  EXPECT_EQ(client_->Mutate("nope", {}, {}, Soon()).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(client_->Reset("t", Soon()).ok());
  EXPECT_EQ(Size("t"), 0);
  EXPECT_EQ(client_->Reset("nope", Soon()).code(), StatusCode::kNotFound);
}

TEST_F(ClientImplTest, AResetThatUndecidesTheScopeIsNoticed) {
  TableConfig config = OpenTable("s");
  config.signature.emplace();
  TensorSpec leaf;
  leaf.path = "a";
  leaf.dtype = DType::kFloat32;
  config.signature->leaves = {leaf};
  const auto service = MakeTestService({config});
  const auto client = MakeReverbClient(MakeLocalTransport(service), kTestAddress);
  TrajectoryWriterOptions options;
  auto writer = client->NewTrajectoryWriter(options, Soon()).value();
  const int c = writer->Column("a");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 1).ok());
  // One step, squeezed: fits the signature as a trajectory.
  ItemColumn column = Cells("a", c, 0, 1);
  column.squeeze = true;
  ASSERT_TRUE(CreateItem(writer.get(), "s", {column}).ok());
  ASSERT_TRUE(client->GetServerInfo(Soon()).ok());
  ASSERT_TRUE(client->Reset("s", Soon()).ok());
  EXPECT_TRUE(client->Insert({Leaf("a", 1)}, {{"s", 1.0}}, Soon()).ok());
}

TEST_F(ClientImplTest, CloseEndsWaitingCallsAndLaterOnesButNotWriters) {
  auto writer = client_->NewTrajectoryWriter(TrajectoryWriterOptions(), Soon()).value();
  const std::vector<StepLeaf> step = {Leaf("a", 1)};
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(client_->Insert(step, {{"q", 1}}, Soon()).ok());
  std::atomic<bool> waiting{false};
  WaitOptions wait;
  wait.interrupted = [&] {
    waiting = true;
    return OkStatus();
  };
  std::thread blocked([&] {
    EXPECT_EQ(client_->Insert(step, {{"q", 1}}, wait).status().code(),
              StatusCode::kCancelled);
  });
  while (!waiting) std::this_thread::yield();
  client_->Close();
  blocked.join();
  client_->Close();
  EXPECT_EQ(client_->GetServerInfo(Soon()).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->Insert(step, {{"t", 1}}, Soon()).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(client_->NewTrajectoryWriter(TrajectoryWriterOptions(), Soon()).status().code(),
            StatusCode::kFailedPrecondition);
  const int c = writer->Column("a");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 1).ok());
  EXPECT_TRUE(CreateItem(writer.get(), "t", {Cells("a", c, 0, 1)}).ok());
}

TEST_F(ClientImplTest, DescribeNamesWritersWithPendingItems) {
  auto writer = client_->NewTrajectoryWriter(TrajectoryWriterOptions(), Soon()).value();
  const int c = writer->Column("a");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 1).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(CreateItem(writer.get(), "q", {Cells("a", c, 0, 1)}).ok());
  }
  const std::string text = client_->DescribeConnection();
  EXPECT_NE(text.find("in process"), std::string::npos);
  EXPECT_NE(text.find("1 items unconfirmed (table 'q': 1)"), std::string::npos) << text;
  ASSERT_TRUE(writer->Close(Within(Duration::zero())).ok());
}

TEST(RemoteClientTest, AnUnreachableServerIsToldWithAddressAndReason) {
  const auto fake = std::make_shared<FakeTransport>();
  fake->get_server_info = [] {
    return Result<ServerInfo>(UnavailableError("connection refused"));
  };
  const auto client = MakeReverbClient(fake, "localhost:1");
  const Status status =
      client->GetServerInfo(Within(std::chrono::milliseconds(50))).status();
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status, "localhost:1") && Has(status, "connection refused")) << status;
}

TEST(RemoteClientTest, CallsWaitForAServerThatStartsLater) {
  const auto fake = std::make_shared<FakeTransport>();
  int tries = 0;
  fake->get_server_info = [&] {
    return ++tries < 4 ? Result<ServerInfo>(UnavailableError("connection refused"))
                       : Result<ServerInfo>(ServerInfo());
  };
  EXPECT_TRUE(MakeReverbClient(fake, "localhost:1")->GetServerInfo(Soon()).ok());
  EXPECT_EQ(tries, 4);
}

// A server of this process behind its address, and a client that looks it up.
class RoutingTest : public ::testing::Test {
 protected:
  void Start() {
    service_ = MakeTestService({OpenTable("t")});
    RegisterLocalServer({kAddress}, service_);
  }
  void Stop() {
    service_->Stop();
    UnregisterLocalServer({kAddress}, service_.get());
    service_.reset();
  }
  ~RoutingTest() override {
    if (service_) Stop();
  }

  static constexpr char kAddress[] = "localhost:4711";
  std::shared_ptr<Service> service_;
  const std::shared_ptr<FakeTransport> remote_ = std::make_shared<FakeTransport>();
  const std::unique_ptr<ReverbClient> client_ = MakeReverbClient(
      MakeRoutingTransport(kAddress, true, [this] { return remote_; }), kAddress);
};
constexpr char RoutingTest::kAddress[];

TEST_F(RoutingTest, AStoppedServerOfThisProcessFailsCallsAtOnce) {
  Start();
  ASSERT_TRUE(client_->Insert({Leaf("a", 1)}, {{"t", 1.0}}, WaitOptions()).ok());
  Stop();
  for (const Status& status :
       {client_->Insert({Leaf("a", 1)}, {{"t", 1.0}}, WaitOptions()).status(),
        client_->GetServerInfo(WaitOptions()).status(),
        client_->Reset("t", WaitOptions())}) {
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_TRUE(Has(status, "was stopped")) << status;
  }
}

TEST_F(RoutingTest, AnAddressThatWasOursBeforeMayBeAnothersNow) {
  Start();
  Stop();
  int made = 0;
  const auto later = MakeRoutingTransport(kAddress, true, [&] {
    ++made;
    return remote_;
  });
  EXPECT_FALSE(later->is_local());
  later->OpenInsert([] {});
  EXPECT_EQ(made, 1);
}

TEST_F(RoutingTest, AWriterDeliversToASuccessor) {
  Start();
  auto writer = client_->NewTrajectoryWriter(TrajectoryWriterOptions(), Soon()).value();
  const int c = writer->Column("a");
  ASSERT_TRUE(AppendFloat(writer.get(), c, 1).ok());
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("a", c, 0, 1)}).ok());
  Stop();
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("a", c, 0, 1)}).ok());
  const Status status = writer->Flush(0, Within(std::chrono::milliseconds(20)));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Has(status, "was stopped") && Has(status, "1 items unconfirmed")) << status;
  Start();
  ASSERT_TRUE(writer->Flush(0, Soon()).ok());
  EXPECT_EQ(service_->store()->Find("t").value()->size(), 1);
  ASSERT_TRUE(CreateItem(writer.get(), "t", {Cells("a", c, 0, 1)}).ok());
  EXPECT_EQ(writer->pending_items(), 0);
  EXPECT_TRUE(client_->Insert({Leaf("a", 1)}, {{"t", 1.0}}, Soon()).ok());
  EXPECT_EQ(service_->store()->Find("t").value()->size(), 3);
}

TEST(LocalStreamTest, HalfCloseEndsAnInsertStreamWhenAllIsConfirmed) {
  const auto service = MakeTestService({QueueTable("q", 1)});
  const auto transport = MakeLocalTransport(service);
  const auto stream = transport->OpenInsert([] {});
  EXPECT_FALSE(stream->finished());
  stream->HalfClose();
  EXPECT_FALSE(stream->can_send());
  ASSERT_TRUE(stream->finished());
  EXPECT_TRUE(stream->finished()->ok());
}

TEST(LocalStreamTest, ABadRequestEndsAnInsertStreamWithItsStatus) {
  const auto service = MakeTestService({OpenTable("t")});
  std::atomic<int> calls{0};
  const auto stream = MakeLocalTransport(service)->OpenInsert([&] { ++calls; });
  stream->Send(InsertRequest());
  EXPECT_GT(calls, 0);
  InsertReply reply;
  EXPECT_FALSE(stream->Take(&reply));
  ASSERT_TRUE(stream->finished());
  EXPECT_EQ(stream->finished()->code(), StatusCode::kInvalidArgument);
}

TEST(LocalStreamTest, SamplesComeAndTheStreamEndsWithItsTable) {
  const auto service = MakeTestService({OpenTable("t")});
  const auto transport = MakeLocalTransport(service);
  const auto client = MakeReverbClient(transport, kTestAddress);
  ASSERT_TRUE(client->Insert({Leaf("a", 1)}, {{"t", 1.0}}, Soon()).ok());
  std::atomic<int> calls{0};
  const auto stream = transport->OpenSample([&] { ++calls; });
  SampleRequest request;
  request.table = "t";
  request.num_samples = 2;
  stream->Send(request);
  EXPECT_GT(calls, 0);
  SampleReply reply;
  ASSERT_TRUE(stream->Take(10, &reply));
  EXPECT_EQ(reply.items.size(), 2u);
  request.table = "nope";
  stream->Send(request);
  ASSERT_TRUE(stream->finished());
  EXPECT_EQ(stream->finished()->code(), StatusCode::kInvalidArgument);
}

// Tables that hand their items out in order.
class InsertBatchTest : public ::testing::Test {
 protected:
  const std::shared_ptr<Service> service_ =
      MakeTestService({QueueTable("t", 100), QueueTable("u", 100)});
  const std::unique_ptr<ReverbClient> client_ =
      MakeReverbClient(MakeLocalTransport(service_), kTestAddress);
};

TEST_F(InsertBatchTest, InsertBatchMakesAnItemOfEachRowAndTable) {
  const auto keys =
      client_->InsertBatch({Batch("a", 3, 2)}, {"t", "u"}, {1, 2, 3, 4, 5, 6}, Soon());
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 6u);
  const auto t = ItemsOf(service_.get(), "t", 3), u = ItemsOf(service_.get(), "u", 3);
  ASSERT_EQ(t.size() + u.size(), 6u);
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(t[row]->key(), (*keys)[2 * row]);
    EXPECT_EQ(u[row]->key(), (*keys)[2 * row + 1]);
    EXPECT_TRUE(t[row]->written_as_steps());
    const float first = 2 * static_cast<float>(row);
    EXPECT_EQ(Floats(t[row]->column(0)), (std::vector<float>{first, first + 1}));
    EXPECT_EQ(t[row]->slices()[0].chunk.get(), t[0]->slices()[0].chunk.get());
  }
}

TEST_F(InsertBatchTest, InsertBatchSpreadsLargeRowsOverChunks) {
  constexpr int64_t kWidth = 20'000;  // 80 kB a row
  ASSERT_TRUE(
      client_
          ->InsertBatch({Batch("a", 8, kWidth)}, {"t"}, std::vector<double>(8, 1.0), Soon())
          .ok());
  const auto items = ItemsOf(service_.get(), "t", 8);
  ASSERT_EQ(items.size(), 8u);
  for (size_t row = 0; row < 8; ++row) {
    const std::vector<float> got = Floats(items[row]->column(0));
    ASSERT_EQ(got.size(), static_cast<size_t>(kWidth));
    EXPECT_EQ(got[0], static_cast<float>(row) * kWidth);
  }
  EXPECT_NE(items[0]->slices()[0].chunk.get(), items[7]->slices()[0].chunk.get());
}

TEST_F(InsertBatchTest, InsertBatchSpreadsLongStringsOverChunks) {
  const std::vector<std::string> text = {std::string(200'000, 'a'), "",
                                         std::string(200'000, 'b'), "c"};
  const std::string content = MakeStringContent({text[0], text[1], text[2], text[3]});
  StepLeaf leaf;
  leaf.path = "s";
  leaf.value.dtype = DType::kString;
  leaf.value.shape = {4};
  leaf.value.buffer = Buffer::CopyOf(content);
  ASSERT_TRUE(client_->InsertBatch({leaf}, {"t"}, {1, 1, 1, 1}, Soon()).ok());
  const auto items = ItemsOf(service_.get(), "t", 4);
  ASSERT_EQ(items.size(), 4u);
  EXPECT_NE(items[0]->slices()[0].chunk.get(), items[3]->slices()[0].chunk.get());
  for (size_t row = 0; row < 4; ++row) {
    const ChunkSlice slice = items[row]->slices()[0];
    const BufferPtr decoded = slice.chunk->Decode().value();
    const StringContent strings =
        ParseStringContent(decoded->view(), slice.chunk->num_rows()).value();
    size_t at = 0;
    for (int32_t i = 0; i < slice.offset; ++i)
      at += strings.lengths[static_cast<size_t>(i)];
    EXPECT_EQ(strings.bytes.substr(at, strings.lengths[static_cast<size_t>(slice.offset)]),
              text[row]);
  }
}

}  // namespace
}  // namespace reverb_tf
