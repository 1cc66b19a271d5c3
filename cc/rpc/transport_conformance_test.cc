// What every Transport does alike, over a real Service: in process, over TCP and over
// a unix socket.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <future>
#include <limits>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/client/local_transport.h"
#include "cc/compress/snappy.h"
#include "cc/rpc/grpc_server.h"
#include "cc/rpc/grpc_transport.h"
#include "cc/service/service.h"
#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
// Longer than anything takes that does happen.
constexpr Duration kLong = std::chrono::seconds(20);

template <typename F>
void Eventually(const F& reached) {
  const TimePoint limit = Clock::System()->Now() + kLong;
  while (!reached() && Clock::System()->Now() < limit) std::this_thread::yield();
  EXPECT_TRUE(reached());
}

// Rung when a stream may have news; wakes whoever waits for some.
class Bell {
 public:
  std::function<void()> ringer() {
    return [this] { Ring(); };
  }
  void Ring() {
    MutexLock lock(&mu_);
    ++rings_;
    rung_.SignalAll();
  }
  int64_t rings() const {
    MutexLock lock(&mu_);
    return rings_;
  }
  // Until `done`, which is looked at again after each ring only.
  template <typename F>
  void WaitFor(const F& done) {
    const TimePoint limit = Clock::System()->Now() + kLong;
    while (true) {
      const int64_t seen = rings();
      if (done()) return;
      MutexLock lock(&mu_);
      while (rings_ == seen) {
        if (rung_.WaitUntil(&mu_, limit) || rings_ != seen) continue;
        ADD_FAILURE() << "on_ready was not called";
        return;
      }
    }
  }

 private:
  mutable Mutex mu_;
  CondVar rung_;
  int64_t rings_ GUARDED_BY(mu_) = 0;
};

// An insert stream whose owner waits for what it wants. Sending and awaiting is for
// one thread at a time.
class TestWriter {
 public:
  explicit TestWriter(Transport* transport)
      : stream_(transport->OpenInsert(bell_.ringer())) {}

  InsertStream* stream() { return stream_.get(); }
  void Send(InsertRequest request) {
    bell_.WaitFor([this] {
      Drain();
      return stream_->can_send() || stream_->finished();
    });
    if (stream_->can_send()) stream_->Send(std::move(request));
  }
  // What one message of the server says.
  InsertReply NextReply() {
    InsertReply reply;
    bell_.WaitFor([&] { return stream_->Take(&reply) || stream_->finished(); });
    return reply;
  }
  // What became of the next `n` items at least, fewer if the stream ends.
  InsertReply Await(size_t n) {
    bell_.WaitFor([&] {
      Drain();
      return got_.confirmed.size() + got_.refused.size() >= n || stream_->finished();
    });
    return std::exchange(got_, {});
  }
  Status End() {
    bell_.WaitFor([this] {
      Drain();
      return stream_->finished().has_value();
    });
    return stream_->finished().value_or(InternalError("the stream goes on"));
  }

 private:
  void Drain() {
    for (InsertReply reply; stream_->Take(&reply);) {
      got_.confirmed.insert(got_.confirmed.end(), reply.confirmed.begin(),
                            reply.confirmed.end());
      for (RefusedItem& item : reply.refused) got_.refused.push_back(std::move(item));
    }
  }

  Bell bell_;
  InsertReply got_;
  const std::unique_ptr<InsertStream> stream_;
};

// The same for a sample stream.
class TestSampler {
 public:
  explicit TestSampler(Transport* transport)
      : stream_(transport->OpenSample(bell_.ringer())) {}

  SampleStream* stream() { return stream_.get(); }
  void Send(SampleRequest request) {
    bell_.WaitFor([this] { return stream_->can_send() || stream_->finished(); });
    if (stream_->can_send()) stream_->Send(std::move(request));
  }
  // One message of the server; nothing if the stream is over.
  std::optional<SampleReply> Next(int64_t max_items = kNoLimit) {
    SampleReply reply;
    bool any = false;
    bell_.WaitFor([&] {
      any = stream_->Take(max_items, &reply);
      return any || stream_->finished();
    });
    return any ? std::optional<SampleReply>(std::move(reply)) : std::nullopt;
  }
  // All that answers one request, as one reply.
  SampleReply Await() {
    SampleReply all;
    while (!all.request_done) {
      std::optional<SampleReply> next = Next();
      if (!next) break;
      for (SampledItem& item : next->items) all.items.push_back(std::move(item));
      all.generation = next->generation;
      all.request_done = next->request_done;
    }
    return all;
  }
  SampleReply Request(SampleRequest request) {
    Send(std::move(request));
    return Await();
  }
  Status End() {
    bell_.WaitFor([this] {
      for (SampleReply reply; stream_->Take(kNoLimit, &reply);) continue;
      return stream_->finished().has_value();
    });
    return stream_->finished().value_or(InternalError("the stream goes on"));
  }
  void WaitForGeneration(uint64_t generation) {
    bell_.WaitFor([&] {
      for (SampleReply reply; stream_->Take(kNoLimit, &reply);) continue;
      return stream_->generation() == generation;
    });
  }

 private:
  Bell bell_;
  const std::unique_ptr<SampleStream> stream_;
};

// Starts a unary call and waits for its answer.
template <typename T, typename Start>
Result<T> Wait(const Start& start) {
  std::promise<Result<T>> answer;
  const auto call = start([&answer](Result<T> r) { answer.set_value(std::move(r)); });
  std::future<Result<T>> future = answer.get_future();
  if (future.wait_for(kLong) == std::future_status::ready) return future.get();
  return InternalError("the call was not answered");
}

Result<ServerInfo> Info(Transport* t) {
  return Wait<ServerInfo>([t](Done<ServerInfo> d) { return t->GetServerInfo(d); });
}
Result<MutateCounts> Mutate(Transport* t, const MutateRequest& request) {
  return Wait<MutateCounts>([&](Done<MutateCounts> d) { return t->Mutate(request, d); });
}
Status Reset(Transport* t, const std::string& table) {
  return Wait<bool>([&](Done<bool> d) { return t->Reset(table, d); }).status();
}
Status Checkpoint(Transport* t) {
  return Wait<std::string>([&](Done<std::string> d) { return t->Checkpoint(d); }).status();
}

// ---- messages ----

InsertRequest Message(std::vector<ChunkPtr> chunks, std::vector<InsertItem> items,
                      std::vector<uint64_t> keep = {}) {
  InsertRequest request;
  request.chunks = std::move(chunks);
  request.items = std::move(items);
  request.keep_chunk_keys = std::move(keep);
  return request;
}

// An item of one column: row 0 of `chunk`.
InsertItem ItemOf(uint64_t key, const std::string& table, uint64_t chunk) {
  InsertItem item;
  item.key = key;
  item.table = table;
  item.priority = 1;
  item.columns = {{1, false}};
  item.slices = {{chunk, 0, 1, nullptr}};
  return item;
}

// Items `keys` of `table` with a chunk that they share.
InsertRequest Items(const std::string& table, const std::vector<uint64_t>& keys) {
  InsertRequest request = Message({TestChunk(1)}, {});
  for (const uint64_t key : keys) request.items.push_back(ItemOf(key, table, 1));
  return request;
}

SampleRequest Ask(const std::string& table, int64_t n, Duration timeout = kForever) {
  SampleRequest request;
  request.table = table;
  request.num_samples = n;
  request.timeout = timeout;
  return request;
}

SampleRequest Acknowledge(int64_t delivered, std::vector<int64_t> returned = {}) {
  SampleRequest request;
  request.delivered = delivered;
  request.returned = std::move(returned);
  return request;
}

std::vector<uint64_t> Range(uint64_t first, size_t count) {
  std::vector<uint64_t> keys(count);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

ChunkPtr MakeChunk(uint64_t key, DType dtype, Shape cell, int32_t rows,
                   std::string_view payload, Encoding encoding = Encoding::kRaw,
                   bool delta = false) {
  auto spec = std::make_shared<TensorSpec>();
  spec->dtype = dtype;
  spec->shape = std::move(cell);
  ChunkOptions options;
  options.key = key;
  options.cell = std::move(spec);
  options.num_rows = rows;
  options.episode_id = 1;
  options.end = rows;
  options.encoding = encoding;
  options.delta_encoded = delta;
  return Chunk::Copy(options, payload).value();
}

// A byte of each value, over and over.
std::string Pattern(size_t size, uint64_t seed) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + seed * 31);
  return bytes;
}

// The elements that a slice shows: their bytes, of strings also their lengths.
std::string SliceBytes(const ChunkSlice& slice) {
  const Chunk& chunk = *slice.chunk;
  if (chunk.cell().dtype != DType::kString) {
    std::string bytes(chunk.row_bytes() * static_cast<size_t>(slice.length), '\0');
    EXPECT_EQ(chunk.CopyRows(slice.offset, slice.length,
                             reinterpret_cast<uint8_t*>(bytes.data())),
              OkStatus());
    return bytes;
  }
  const int64_t per_row = NumElements(chunk.cell().shape);
  const BufferPtr plain = chunk.Decode().value();
  const StringContent content =
      ParseStringContent(plain->view(), per_row * chunk.num_rows()).value();
  std::string bytes;
  size_t at = 0;
  for (int64_t i = 0; i < per_row * (slice.offset + slice.length); ++i) {
    const size_t length = content.lengths[static_cast<size_t>(i)];
    if (i >= per_row * slice.offset) {
      bytes += std::to_string(length) + ":" + std::string(content.bytes.substr(at, length));
    }
    at += length;
  }
  return bytes;
}

std::string ColumnBytes(const ColumnView& column) {
  std::string bytes;
  for (const ChunkSlice& slice : column) bytes += SliceBytes(slice);
  return bytes;
}

// All of a table's information but what time alone changes.
std::string Describe(const TableInfo& info) {
  std::ostringstream out;
  const auto selector = [&out](const SelectorConfig& s) {
    out << static_cast<int>(s.kind) << " " << s.priority_exponent << " "
        << (s.seed ? std::to_string(*s.seed) : "-") << "\n";
  };
  const auto stats = [&out](const CallStats& s) {
    out << s.completed << " " << s.refused << " " << s.delivered << " " << s.returned << " "
        << s.partial << " " << s.in_flight << " " << s.timed_out << "\n";
  };
  const TableConfig& c = info.config;
  const RateLimiterConfig& r = c.rate_limiter;
  out << c.name << " " << c.max_size << " " << c.max_times_sampled << " " << c.max_bytes
      << " " << static_cast<int>(c.signature_scope) << "\n"
      << r.samples_per_insert << " " << r.min_size_to_sample << " " << r.min_diff << " "
      << r.max_diff << "\n";
  selector(c.sampler);
  selector(c.remover);
  if (c.signature) {
    out << c.signature->structured_value;
    for (const TensorSpec& leaf : c.signature->leaves) out << leaf.path << leaf.ToString();
  }
  stats(info.insert_stats);
  stats(info.sample_stats);
  for (const auto& [path, bytes] : info.bytes_by_column) out << path << "=" << bytes << " ";
  out << info.current_size << " " << info.num_episodes << " " << info.num_deleted_episodes
      << " " << info.num_unique_samples << " " << info.bytes_stored << " "
      << info.bytes_uncompressed << " " << info.num_chunks << " " << info.generation << " "
      << info.insert_count << " " << info.sample_count << " " << info.delete_count << " "
      << info.num_evicted << " " << info.num_expired << " " << info.num_waiting_inserts
      << " " << info.num_waiting_samples << " " << info.num_writers << " "
      << info.num_samplers << " " << info.sampler_mass << "\n"
      << info.explain;
  return out.str();
}

// ---- the fixture ----

enum class Road { kInProcess, kTcp, kUnixSocket };

TableConfig WithSignature(TableConfig config) {
  // A bare int32 leaf of shape [].
  config.signature =
      Signature::Parse(std::string("\x8a\x02\x04\x12\x00\x18\x03", 7)).value();
  return config;
}

TableConfig UniformConfig(const std::string& name) {
  TableConfig config = ReplayConfig(name);
  config.sampler.kind = SelectorKind::kUniform;
  return config;
}

// A server of replay tables ("t"; "u" picks uniformly; "s" has a signature) and queues
// ("q" of 100, "one" of 1).
class TransportConformanceTest : public testing::TestWithParam<Road> {
 protected:
  TransportConformanceTest() {
    for (const auto& table : service_->store()->tables()) table->AddWriter(writer_);
    if (GetParam() == Road::kInProcess) {
      transport_ = MakeLocalTransport(service_);
      return;
    }
    const bool tcp = GetParam() == Road::kTcp;
    server_ =
        GrpcServer::Start(tcp ? "localhost" : "unix:" + SocketPath(), 0, service_).value();
    transport_ = MakeGrpcTransport(server_->addresses().front());
  }

  static std::string SocketPath() {
    return "/tmp/reverb_conformance_" + std::to_string(getpid());
  }
  // As a server does it.
  void Stop() {
    service_->Stop();
    if (server_) server_->Stop(Duration::zero());
  }
  TableRunner* Table(const std::string& name) {
    return service_->store()->Find(name).value().get();
  }
  CallStats Sampled(const std::string& name) { return Table(name)->Info().sample_stats; }
  // Puts items into a table past the transport.
  void Fill(const std::string& table, const std::vector<uint64_t>& keys) {
    Table(table)->Insert(writer_, Inserts(keys));
  }
  // The items of a consuming table, taken out past the transport.
  std::vector<uint64_t> Empty(const std::string& table) {
    TestSampler sampler(local_.get());
    return Keys(sampler.Request(Ask(table, 1000, Duration::zero())).items);
  }
  void WaitForWaitingInserts(const std::string& table, int64_t n) {
    Eventually([&] { return Table(table)->Info().num_waiting_inserts == n; });
  }
  void WaitForWaitingSamples(const std::string& table, int64_t n) {
    Eventually([&] { return Table(table)->Info().num_waiting_samples == n; });
  }

  const std::shared_ptr<Service> service_ = std::make_shared<Service>(
      Store::Create({std::make_shared<TableRunner>(ReplayConfig("t")),
                     std::make_shared<TableRunner>(UniformConfig("u")),
                     std::make_shared<TableRunner>(WithSignature(ReplayConfig("s"))),
                     std::make_shared<TableRunner>(QueueConfig(100, "q")),
                     std::make_shared<TableRunner>(QueueConfig(1, "one"))},
                    "localhost:1")
          .value());
  const std::shared_ptr<RecordingWriter> writer_ = std::make_shared<RecordingWriter>();
  const std::shared_ptr<Transport> local_ = MakeLocalTransport(service_);
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<Transport> transport_;
};

std::string RoadName(const testing::TestParamInfo<Road>& info) {
  const char* const names[] = {"InProcess", "Tcp", "UnixSocket"};
  return names[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Roads, TransportConformanceTest,
                         testing::Values(Road::kInProcess, Road::kTcp, Road::kUnixSocket),
                         RoadName);

// ---- inserts ----

TEST_P(TransportConformanceTest, ItemsOfAMessageAreConfirmedTogetherInOrder) {
  TestWriter writer(transport_.get());
  writer.Send(Items("q", {3, 1, 2}));
  EXPECT_THAT(writer.NextReply().confirmed, ElementsAre(3, 1, 2));
  EXPECT_THAT(Empty("q"), ElementsAre(3, 1, 2));
}

TEST_P(TransportConformanceTest, MessagesAreHandledInTheOrderInWhichTheyWereSent) {
  TestWriter writer(transport_.get());
  const std::vector<uint64_t> keys = Range(1, 90);
  for (const uint64_t key : keys) writer.Send(Items("q", {key}));
  EXPECT_EQ(writer.Await(90).confirmed, keys);
  EXPECT_EQ(Empty("q"), keys);
}

TEST_P(TransportConformanceTest, AMessageMayHaveItemsOfSeveralTables) {
  TestWriter writer(transport_.get());
  writer.Send(
      Message({TestChunk(1)}, {ItemOf(1, "t", 1), ItemOf(2, "q", 1), ItemOf(3, "t", 1)}));
  EXPECT_THAT(writer.Await(3).confirmed, UnorderedElementsAre(1, 2, 3));
  EXPECT_EQ(Table("t")->size(), 2);
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_P(TransportConformanceTest, ARefusedItemFailsAloneAndTheStreamGoesOn) {
  TestWriter writer(transport_.get());
  InsertRequest request = Items("t", {1, 2, 3, 4});
  request.items[1].priority = std::numeric_limits<double>::quiet_NaN();
  request.items[2].table = "nowhere";
  writer.Send(std::move(request));
  const InsertReply reply = writer.Await(4);
  EXPECT_THAT(reply.confirmed, ElementsAre(1, 4));
  ASSERT_THAT(reply.refused, SizeIs(2));
  EXPECT_EQ(reply.refused[0].key, 3u) << "known before the table was asked";
  EXPECT_EQ(reply.refused[0].status.code(), StatusCode::kNotFound);
  EXPECT_EQ(reply.refused[1].key, 2u);
  EXPECT_EQ(reply.refused[1].status.code(), StatusCode::kInvalidArgument);
  writer.Send(Items("t", {5}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(5));
}

TEST_P(TransportConformanceTest, ChunksMayComeInMessagesBeforeTheirItems) {
  TestWriter writer(transport_.get());
  writer.Send(Message({TestChunk(11)}, {}));
  writer.Send(Message({TestChunk(12)}, {}));
  InsertItem item = ItemOf(1, "t", 11);
  item.columns = {{2, false}};
  item.slices.push_back({12, 0, 1, nullptr});
  writer.Send(Message({}, {item}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
}

TEST_P(TransportConformanceTest, KeptChunksServeItemsOfLaterMessages) {
  TestWriter writer(transport_.get());
  writer.Send(Message({TestChunk(11), TestChunk(12)}, {ItemOf(1, "t", 12)}, {11}));
  writer.Send(Message({}, {ItemOf(2, "t", 11)}, {11}));
  writer.Send(Message({TestChunk(13)}, {ItemOf(3, "t", 11)}, {13}));
  writer.Send(Message({}, {ItemOf(4, "t", 13)}));
  EXPECT_THAT(writer.Await(4).confirmed, ElementsAre(1, 2, 3, 4));
}

TEST_P(TransportConformanceTest, AChunkThatIsNotKeptIsForgotten) {
  TestWriter writer(transport_.get());
  writer.Send(Message({TestChunk(11), TestChunk(12)}, {ItemOf(1, "t", 11)}, {12}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
  writer.Send(Message({}, {ItemOf(2, "t", 11)}, {12}));
  const Status end = writer.End();
  EXPECT_EQ(end.code(), StatusCode::kInternal);
  EXPECT_THAT(end.message(), HasSubstr("item 2 names chunk 11"));
  EXPECT_EQ(Table("t")->size(), 1);
}

TEST_P(TransportConformanceTest, ChunksOfAnotherStreamAreUnknown) {
  TestWriter one(transport_.get()), other(transport_.get());
  one.Send(Message({TestChunk(11)}, {ItemOf(1, "t", 11)}, {11}));
  EXPECT_THAT(one.Await(1).confirmed, ElementsAre(1));
  other.Send(Message({}, {ItemOf(2, "t", 11)}));
  EXPECT_EQ(other.End().code(), StatusCode::kInternal);
}

TEST_P(TransportConformanceTest, ABadMessageConfirmsWhatCameBeforeIt) {
  TestWriter writer(transport_.get());
  writer.Send(Items("t", {1}));
  writer.Send(Message({}, {ItemOf(2, "t", 99)}));
  EXPECT_THAT(writer.Await(2).confirmed, ElementsAre(1));
  EXPECT_EQ(writer.End().code(), StatusCode::kInternal);
  EXPECT_FALSE(writer.stream()->can_send());
}

TEST_P(TransportConformanceTest, ABadMessageWithdrawsWhatWaits) {
  TestWriter writer(transport_.get());
  writer.Send(Items("one", {1, 2}));
  WaitForWaitingInserts("one", 1);
  writer.Send(Message({}, {ItemOf(3, "t", 99)}));
  EXPECT_EQ(writer.End().code(), StatusCode::kInternal);
  WaitForWaitingInserts("one", 0);
}

TEST_P(TransportConformanceTest, AResentSequenceIsConfirmedAndNotInsertedAgain) {
  InsertRequest request = Items("t", {1, 2});
  for (size_t i = 0; i < 2; ++i) {
    request.items[i].writer_id = 77;
    request.items[i].sequence = i + 1;
  }
  {
    TestWriter writer(transport_.get());
    writer.Send(request);
    EXPECT_THAT(writer.Await(2).confirmed, ElementsAre(1, 2));
    writer.Send(request);
    EXPECT_THAT(writer.Await(2).confirmed, ElementsAre(1, 2));
  }
  TestWriter successor(transport_.get());
  successor.Send(request);
  EXPECT_THAT(successor.Await(2).confirmed, ElementsAre(1, 2));
  EXPECT_EQ(Table("t")->Info().insert_stats.completed, 2);
}

TEST_P(TransportConformanceTest, ABlockedInsertIsConfirmedOnceThereIsRoom) {
  TestWriter writer(transport_.get());
  writer.Send(Items("one", {1, 2}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
  WaitForWaitingInserts("one", 1);
  TestSampler sampler(transport_.get());
  EXPECT_THAT(Keys(sampler.Request(Ask("one", 1)).items), ElementsAre(1));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(2));
}

TEST_P(TransportConformanceTest, ABlockedTableHoldsBackNoOtherStream) {
  TestWriter blocked(transport_.get()), free(transport_.get());
  blocked.Send(Items("one", {1, 2}));
  WaitForWaitingInserts("one", 1);
  free.Send(Items("t", {3}));
  EXPECT_THAT(free.Await(1).confirmed, ElementsAre(3));
}

TEST_P(TransportConformanceTest, CancellingAWriterWithdrawsWhatWaits) {
  TestWriter writer(transport_.get());
  writer.Send(Items("one", {1, 2}));
  WaitForWaitingInserts("one", 1);
  writer.stream()->Cancel();
  EXPECT_EQ(writer.End().code(), StatusCode::kCancelled);
  WaitForWaitingInserts("one", 0);
  EXPECT_THAT(Empty("one"), ElementsAre(1));
}

TEST_P(TransportConformanceTest, DestroyingAWriterWithdrawsWhatWaits) {
  {
    TestWriter writer(transport_.get());
    writer.Send(Items("one", {1, 2}));
    WaitForWaitingInserts("one", 1);
  }
  WaitForWaitingInserts("one", 0);
  Eventually([&] { return Table("one")->Info().num_writers == 1; });
  EXPECT_THAT(Empty("one"), ElementsAre(1));
}

TEST_P(TransportConformanceTest, AHalfClosedWriterIsAnsweredToTheEnd) {
  TestWriter writer(transport_.get());
  writer.Send(Items("one", {1, 2}));
  WaitForWaitingInserts("one", 1);
  writer.stream()->HalfClose();
  EXPECT_FALSE(writer.stream()->can_send());
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
  EXPECT_FALSE(writer.stream()->finished());
  TestSampler sampler(local_.get());
  EXPECT_THAT(Keys(sampler.Request(Ask("one", 1)).items), ElementsAre(1));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(2));
  EXPECT_EQ(writer.End(), OkStatus());
}

TEST_P(TransportConformanceTest, HalfClosingAnIdleWriterEndsIt) {
  TestWriter writer(transport_.get());
  writer.stream()->HalfClose();
  EXPECT_EQ(writer.End(), OkStatus());
}

// More than the server is willing to hold.
TEST_P(TransportConformanceTest, AFloodOfABlockedTableIsInsertedInOrderInTheEnd) {
  constexpr uint64_t kItems = 3 * InsertSession::kMaxPending;
  TestWriter writer(transport_.get());
  std::vector<uint64_t> confirmed;
  std::thread sender([&] {
    for (uint64_t key = 1; key <= kItems; key += 64)
      writer.Send(Items("q", Range(key, 64)));
    while (confirmed.size() < kItems && !writer.stream()->finished()) {
      const InsertReply reply = writer.Await(1);
      confirmed.insert(confirmed.end(), reply.confirmed.begin(), reply.confirmed.end());
    }
  });
  TestSampler sampler(transport_.get());
  const std::vector<uint64_t> sampled = Keys(sampler.Request(Ask("q", kItems)).items);
  sender.join();
  EXPECT_EQ(sampled, Range(1, kItems));
  EXPECT_EQ(confirmed, sampled);
}

// ---- samples ----

TEST_P(TransportConformanceTest, ARequestYieldsExactlyWhatItAskedFor) {
  Fill("q", {1, 2, 3, 4});
  TestSampler sampler(transport_.get());
  const SampleReply reply = sampler.Request(Ask("q", 3));
  EXPECT_THAT(Keys(reply.items), ElementsAre(1, 2, 3));
  EXPECT_EQ(reply.request_done, OkStatus());
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_P(TransportConformanceTest, RequestsAreAnsweredOneAfterAnother) {
  TestSampler sampler(transport_.get());
  for (const int64_t n : {2, 1, 3}) sampler.Send(Ask("q", n));
  Fill("q", Range(1, 6));
  EXPECT_THAT(Keys(sampler.Await().items), ElementsAre(1, 2));
  EXPECT_THAT(Keys(sampler.Await().items), ElementsAre(3));
  EXPECT_THAT(Keys(sampler.Await().items), ElementsAre(4, 5, 6));
}

TEST_P(TransportConformanceTest, TheTableNeedBeNamedOnce) {
  Fill("q", {1, 2});
  TestSampler sampler(transport_.get());
  EXPECT_THAT(Keys(sampler.Request(Ask("q", 1)).items), ElementsAre(1));
  EXPECT_THAT(Keys(sampler.Request(Ask("", 1)).items), ElementsAre(2));
}

TEST_P(TransportConformanceTest, WhatIsGrantedPiecemealArrivesPiecemeal) {
  TestSampler sampler(transport_.get());
  sampler.Send(Ask("q", 2));
  WaitForWaitingSamples("q", 1);
  Fill("q", {1});
  const SampleReply first = sampler.Next().value();
  EXPECT_THAT(Keys(first.items), ElementsAre(1));
  EXPECT_FALSE(first.request_done);
  Fill("q", {2});
  EXPECT_THAT(Keys(sampler.Await().items), ElementsAre(2));
}

TEST_P(TransportConformanceTest, WhatIsKnownOfASampleArrives) {
  InsertRequest request = Items("u", {1, 1'234'567'890'123'456'789u});
  request.items[1].priority = 0.1;
  request.items[1].written_as_steps = true;
  {
    TestWriter writer(transport_.get());
    writer.Send(request);
    writer.Await(2);
  }
  TestSampler sampler(transport_.get());
  int32_t times[2] = {0, 0};
  for (const SampledItem& sample : sampler.Request(Ask("u", 50)).items) {
    const bool second = sample.item->key() != 1;
    EXPECT_EQ(sample.item->key(), request.items[second].key);
    EXPECT_EQ(sample.item->written_as_steps(), second);
    EXPECT_EQ(sample.priority, second ? 0.1 : 1.0);
    EXPECT_EQ(sample.probability, 0.5);
    EXPECT_EQ(sample.table_size, 2);
    EXPECT_EQ(sample.times_sampled, ++times[second]);
    EXPECT_FALSE(sample.rate_limited);
    EXPECT_EQ(sample.generation, Table("u")->Info().generation);
  }
  EXPECT_EQ(times[0] + times[1], 50);
}

TEST_P(TransportConformanceTest, ASampleThatHadToWaitSaysSo) {
  TestSampler sampler(transport_.get());
  sampler.Send(Ask("q", 1));
  WaitForWaitingSamples("q", 1);
  Fill("q", {1});
  EXPECT_TRUE(sampler.Await().items.at(0).rate_limited);
}

TEST_P(TransportConformanceTest, ColumnsArriveAsTheyWereWritten) {
  const ChunkPtr ints = TestChunk(11, 5);
  const ChunkPtr more = TestChunk(12, 9);
  const ChunkPtr strings =
      MakeChunk(13, DType::kString, {2}, 3,
                MakeStringContent({"a", "", std::string_view("\0b", 2), "cc",
                                   std::string(5000, 'x'), "é"}));
  InsertItem item;
  item.key = 1;
  item.table = "t";
  item.columns = {{3, false}, {1, true}, {1, false}, {1, true}};
  item.slices = {{11, 1, 4, nullptr}, {12, 7, 2, nullptr}, {11, 0, 1, nullptr},
                 {12, 8, 1, nullptr}, {13, 1, 2, nullptr}, {13, 0, 1, nullptr}};
  TestWriter writer(transport_.get());
  writer.Send(Message({ints, more, strings}, {item}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
  TestSampler sampler(transport_.get());
  const ItemPtr got = sampler.Request(Ask("t", 1)).items.at(0).item;
  ASSERT_EQ(got->num_columns(), 4);
  EXPECT_EQ(got->column(0).shape(), Shape({7}));
  EXPECT_EQ(ColumnBytes(got->column(0)),
            SliceBytes({ints, 1, 4}) + SliceBytes({more, 7, 2}) + SliceBytes({ints, 0, 1}));
  EXPECT_TRUE(got->column(1).squeeze);
  EXPECT_EQ(got->column(1).shape(), Shape());
  EXPECT_EQ(ColumnBytes(got->column(1)), SliceBytes({more, 8, 1}));
  EXPECT_EQ(got->column(2).shape(), Shape({2, 2}));
  EXPECT_EQ(ColumnBytes(got->column(2)), SliceBytes({strings, 1, 2}));
  EXPECT_EQ(ColumnBytes(got->column(3)), SliceBytes({strings, 0, 1}));
}

constexpr DType kAllDTypes[] = {DType::kFloat32,    DType::kFloat64,     DType::kInt32,
                                DType::kUint8,      DType::kInt16,       DType::kInt8,
                                DType::kComplex64,  DType::kInt64,       DType::kBool,
                                DType::kBfloat16,   DType::kUint16,      DType::kComplex128,
                                DType::kFloat16,    DType::kUint32,      DType::kUint64,
                                DType::kFloat8E5m2, DType::kFloat8E4m3fn};

// Chunks of 3 rows and of each numeric dtype: as they are, compressed, delta coded and
// of cells without elements; and of strings, as they are and compressed.
std::vector<ChunkPtr> ChunksOfAllKinds() {
  std::vector<ChunkPtr> chunks;
  const auto key = [&chunks] { return 100 + chunks.size(); };
  for (const DType dtype : kAllDTypes) {
    const std::string plain = Pattern(3 * 4 * ElementSize(dtype), key());
    const std::string snappy = SnappyCompress(plain);
    chunks.push_back(MakeChunk(key(), dtype, {4}, 3, plain));
    chunks.push_back(MakeChunk(key(), dtype, {2, 2}, 3, snappy, Encoding::kSnappy));
    chunks.push_back(MakeChunk(key(), dtype, {2, 0}, 3, ""));
    if (!IsInteger(dtype)) continue;
    chunks.push_back(MakeChunk(key(), dtype, {4}, 3, snappy, Encoding::kSnappy, true));
    chunks.push_back(MakeChunk(key(), dtype, {1, 4}, 3, plain, Encoding::kRaw, true));
  }
  const std::string strings =
      MakeStringContent({"", "a", std::string_view("\0\0", 2), std::string(300, 'b'),
                         "\xff\xfe", std::string(100'000, 'c')});
  chunks.push_back(MakeChunk(key(), DType::kString, {2}, 3, strings));
  chunks.push_back(MakeChunk(key(), DType::kString, {2, 1}, 3, SnappyCompress(strings),
                             Encoding::kSnappy));
  return chunks;
}

TEST_P(TransportConformanceTest, AllDTypesAndCodingsArriveByteForByte) {
  const std::vector<ChunkPtr> chunks = ChunksOfAllKinds();
  InsertItem item;
  item.key = 1;
  item.table = "t";
  for (const ChunkPtr& chunk : chunks) {
    item.columns.insert(item.columns.end(), {{1, false}, {1, true}});
    item.slices.push_back({chunk->key(), 0, 3, nullptr});
    item.slices.push_back({chunk->key(), 2, 1, nullptr});
  }
  TestWriter writer(transport_.get());
  writer.Send(Message(chunks, {item}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
  TestSampler sampler(transport_.get());
  const ItemPtr got = sampler.Request(Ask("t", 1)).items.at(0).item;
  ASSERT_EQ(got->num_columns(), static_cast<int>(2 * chunks.size()));
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ColumnView all = got->column(static_cast<int>(2 * i));
    const ColumnView last = got->column(static_cast<int>(2 * i + 1));
    const std::string what = chunks[i]->cell().ToString() + " " + std::to_string(i);
    EXPECT_EQ(all.cell().dtype, chunks[i]->cell().dtype) << what;
    EXPECT_EQ(all.cell().shape, chunks[i]->cell().shape) << what;
    EXPECT_EQ(ColumnBytes(all), SliceBytes({chunks[i], 0, 3})) << what;
    EXPECT_EQ(ColumnBytes(last), SliceBytes({chunks[i], 2, 1})) << what;
  }
}

TEST_P(TransportConformanceTest, LargeSamplesComeInSeveralMessages) {
  constexpr size_t kBytes = 1 << 20;
  TestWriter writer(transport_.get());
  std::vector<ChunkPtr> chunks;
  for (uint64_t key = 1; key <= 20; ++key) {
    chunks.push_back(MakeChunk(key, DType::kUint8, {kBytes}, 1, Pattern(kBytes, key)));
    writer.Send(Message({chunks.back()}, {ItemOf(key, "q", key)}));
  }
  writer.Await(20);
  TestSampler sampler(transport_.get());
  sampler.Send(Ask("q", 20));
  std::vector<SampledItem> items;
  int messages = 0;
  for (bool done = false; !done; ++messages) {
    std::optional<SampleReply> reply = sampler.Next();
    ASSERT_TRUE(reply);
    for (SampledItem& item : reply->items) items.push_back(std::move(item));
    done = reply->request_done.has_value();
    EXPECT_EQ(done, items.size() == 20);
  }
  EXPECT_EQ(messages > 1, !transport_->is_local());
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_TRUE(ColumnBytes(items[i].item->column(0)) == SliceBytes({chunks[i], 0, 1}));
  }
}

TEST_P(TransportConformanceTest, ASampleLargerThanAnyMessageShouldBeArrivesWhole) {
  constexpr size_t kBytes = 20 << 20;
  const ChunkPtr chunk = MakeChunk(1, DType::kUint8, {kBytes}, 1, Pattern(kBytes, 1));
  TestWriter writer(transport_.get());
  writer.Send(Message({chunk}, {ItemOf(1, "t", 1)}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
  TestSampler sampler(transport_.get());
  const SampleReply reply = sampler.Request(Ask("t", 1));
  ASSERT_THAT(reply.items, SizeIs(1));
  EXPECT_TRUE(ColumnBytes(reply.items[0].item->column(0)) == SliceBytes({chunk, 0, 1}));
}

TEST_P(TransportConformanceTest, ARequestLargerThanTheServerHoldsIsServedAsItIsRead) {
  constexpr int64_t kSamples = 3 * SampleSession::kMaxGranted;
  // Of what the network holds (tens of megabytes at the most), each message has 32.
  constexpr int64_t kAhead = SampleSession::kMaxGranted + 32 * 256;
  constexpr size_t kBytes = 128 << 10;
  TestWriter writer(transport_.get());
  writer.Send(Message({MakeChunk(1, DType::kUint8, {kBytes}, 1, Pattern(kBytes, 1))},
                      {ItemOf(1, "t", 1)}));
  writer.Await(1);
  TestSampler sampler(transport_.get());
  sampler.Send(Ask("t", kSamples));
  int64_t taken = 0;
  for (bool done = false; !done;) {
    const std::optional<SampleReply> reply = sampler.Next(/*max_items=*/1024);
    ASSERT_TRUE(reply);
    EXPECT_LE(reply->items.size(), 1024u);
    for (const SampledItem& sample : reply->items) {
      ASSERT_EQ(sample.times_sampled, ++taken);
    }
    EXPECT_LE(Sampled("t").completed, taken + kAhead);
    done = reply->request_done.has_value();
  }
  EXPECT_EQ(taken, kSamples);
}

TEST_P(TransportConformanceTest, ASeedDecidesThePicks) {
  Fill("u", Range(1, 50));
  const auto picks = [](Transport* transport, SampleSeed seed) {
    SampleRequest request = Ask("u", 20);
    request.seed = seed;
    TestSampler sampler(transport);
    return Keys(sampler.Request(request).items);
  };
  const std::vector<uint64_t> keys = picks(transport_.get(), {7, 1});
  EXPECT_EQ(keys, picks(local_.get(), {7, 1}));
  EXPECT_NE(keys, picks(transport_.get(), {7, 2}));
}

TEST_P(TransportConformanceTest, AReadersScopeDecidesTheTables) {
  TestSampler sampler(transport_.get());
  SampleRequest request = Ask("s", 0);
  request.scope = SignatureScope::kStep;
  sampler.Send(request);
  Eventually(
      [&] { return Table("s")->Info().config.signature_scope == SignatureScope::kStep; });
}

// ---- time-outs ----

TEST_P(TransportConformanceTest,
       AnEmptyTableTimesOutWithTheLimitersTextAndTheStreamGoesOn) {
  TestSampler sampler(transport_.get());
  const SampleReply reply = sampler.Request(Ask("q", 1, std::chrono::milliseconds(5)));
  EXPECT_THAT(reply.items, IsEmpty());
  ASSERT_TRUE(reply.request_done);
  EXPECT_EQ(reply.request_done->code(), StatusCode::kDeadlineExceeded);
  EXPECT_THAT(reply.request_done->message(), HasSubstr("table 'q': size 0/100"));
  EXPECT_THAT(reply.request_done->message(), HasSubstr("blocked by rate limiter"));
  EXPECT_EQ(Sampled("q").timed_out, 1);
  Fill("q", {1});
  EXPECT_THAT(Keys(sampler.Request(Ask("q", 1)).items), ElementsAre(1));
}

TEST_P(TransportConformanceTest, ATimeoutComesAfterWhatWasGranted) {
  Fill("q", {1, 2});
  TestSampler sampler(transport_.get());
  const SampleReply reply = sampler.Request(Ask("q", 3, Duration::zero()));
  EXPECT_THAT(Keys(reply.items), ElementsAre(1, 2));
  EXPECT_EQ(reply.request_done->code(), StatusCode::kDeadlineExceeded);
}

// ---- acknowledgements ----

TEST_P(TransportConformanceTest, AcknowledgementsAreCountedOnceEach) {
  Fill("q", {1, 2, 3, 4});
  TestSampler sampler(transport_.get());
  sampler.Request(Ask("q", 3));
  SampleRequest request = Acknowledge(2);
  request.partial = 1;
  sampler.Send(request);
  Eventually([&] { return Sampled("q").delivered == 2 && Sampled("q").partial == 1; });
  EXPECT_EQ(Sampled("q").in_flight, 1);
  request = Ask("q", 1);
  request.delivered = 3;
  sampler.Request(request);
  EXPECT_EQ(Sampled("q").delivered, 3);
  EXPECT_EQ(Sampled("q").partial, 1);
}

TEST_P(TransportConformanceTest, ReturnedSamplesGoBackToTheirPlaces) {
  Fill("q", {1, 2, 3, 4});
  TestSampler sampler(transport_.get());
  sampler.Request(Ask("q", 3));
  sampler.Send(Acknowledge(3, {1}));
  Eventually([&] { return Sampled("q").returned == 1; });
  EXPECT_EQ(Sampled("q").delivered, 2);
  EXPECT_THAT(Keys(sampler.Request(Ask("q", 2)).items), ElementsAre(2, 4));
}

TEST_P(TransportConformanceTest, ClosingGivesBackWhatWasNotAcknowledged) {
  Fill("q", {1, 2, 3, 4, 5});
  {
    TestSampler sampler(transport_.get());
    sampler.Request(Ask("q", 4));
    sampler.Send(Acknowledge(1));
    Eventually([&] { return Sampled("q").delivered == 1; });
  }
  Eventually([&] { return Table("q")->Info().num_samplers == 0; });
  EXPECT_EQ(Sampled("q").delivered, 1);
  EXPECT_EQ(Sampled("q").returned, 3);
  EXPECT_EQ(Sampled("q").in_flight, 0);
  EXPECT_EQ(Table("q")->Info().sample_count, 1);
  EXPECT_THAT(Empty("q"), ElementsAre(2, 3, 4, 5));
}

TEST_P(TransportConformanceTest, ClosingGivesBackWhatWasNeverTaken) {
  Fill("q", Range(1, 50));
  {
    TestSampler sampler(transport_.get());
    sampler.Send(Ask("q", 50));
    Eventually([&] { return Sampled("q").completed == 50; });
  }
  Eventually([&] { return Sampled("q").in_flight == 0; });
  EXPECT_EQ(Sampled("q").returned, 50);
  EXPECT_EQ(Empty("q"), Range(1, 50));
}

TEST_P(TransportConformanceTest, AHalfClosedSamplerEndsAndGivesBack) {
  Fill("q", {1, 2});
  TestSampler sampler(transport_.get());
  sampler.Request(Ask("q", 2));
  sampler.Send(Acknowledge(1));
  sampler.Send(Ask("q", 1));
  WaitForWaitingSamples("q", 1);
  sampler.stream()->HalfClose();
  EXPECT_FALSE(sampler.stream()->can_send());
  EXPECT_EQ(sampler.End(), OkStatus());
  Eventually([&] { return Table("q")->Info().num_samplers == 0; });
  EXPECT_EQ(Table("q")->Info().num_waiting_samples, 0);
  EXPECT_EQ(Sampled("q").delivered, 1);
  EXPECT_THAT(Empty("q"), ElementsAre(2));
}

// ---- cancelling ----

TEST_P(TransportConformanceTest, CancellingASamplerWithdrawsItsRequest) {
  TestSampler sampler(transport_.get());
  sampler.Send(Ask("q", 1));
  WaitForWaitingSamples("q", 1);
  sampler.stream()->Cancel();
  EXPECT_EQ(sampler.End().code(), StatusCode::kCancelled);
  WaitForWaitingSamples("q", 0);
  Fill("q", {1});
  EXPECT_EQ(Sampled("q").completed, 0);
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_P(TransportConformanceTest, DestroyingASamplerWithdrawsItsRequest) {
  {
    TestSampler sampler(transport_.get());
    sampler.Send(Ask("q", 1));
    WaitForWaitingSamples("q", 1);
  }
  WaitForWaitingSamples("q", 0);
  Eventually([&] { return Table("q")->Info().num_samplers == 0; });
  Fill("q", {1});
  EXPECT_EQ(Table("q")->size(), 1);
}

TEST_P(TransportConformanceTest, CancellingFromAnotherThreadWakesWhoWaits) {
  TestSampler sampler(transport_.get());
  TestWriter writer(transport_.get());
  sampler.Send(Ask("q", 1));
  WaitForWaitingSamples("q", 1);
  writer.Send(Items("one", {1, 2}));
  WaitForWaitingInserts("one", 1);
  std::thread samples([&] { EXPECT_EQ(sampler.End().code(), StatusCode::kCancelled); });
  std::thread inserts([&] { EXPECT_EQ(writer.End().code(), StatusCode::kCancelled); });
  sampler.stream()->Cancel();
  writer.stream()->Cancel();
  samples.join();
  inserts.join();
}

TEST_P(TransportConformanceTest, DestroyingStreamsAtAnyMomentLeavesNothingBehind) {
  for (uint64_t round = 0; round < 50; ++round) {
    TestSampler sampler(transport_.get());
    TestWriter writer(transport_.get());
    if (round % 3 > 0) sampler.Send(Ask("one", 2));
    if (round % 5 > 0) writer.Send(Items("one", Range(1 + 3 * round, 3)));
    if (round % 7 == 0) sampler.stream()->Cancel();
    if (round % 11 == 0) writer.stream()->Cancel();
  }
  Eventually([&] {
    const TableInfo info = Table("one")->Info();
    return info.num_samplers == 0 && info.num_writers == 1;
  });
  const TableInfo info = Table("one")->Info();
  EXPECT_EQ(info.num_waiting_inserts + info.num_waiting_samples, 0);
  EXPECT_EQ(info.sample_stats.in_flight, 0);
  EXPECT_EQ(info.insert_count - info.sample_count, info.current_size);
}

TEST_P(TransportConformanceTest, AStreamMayBeUsedFromItsCallback) {
  constexpr int kRequests = 20;
  Fill("t", {1});
  Bell bell;
  std::atomic<SampleStream*> open{nullptr};
  std::atomic<int> sent{0}, done{0};
  const auto stream = transport_->OpenSample([&] {
    SampleStream* const s = open;
    SampleReply reply;
    while (s != nullptr && s->Take(kNoLimit, &reply)) done += reply.request_done ? 1 : 0;
    if (s != nullptr && done == sent && sent < kRequests && s->can_send()) {
      ++sent;
      s->Send(Ask("t", 1));
    }
    bell.Ring();
  });
  ++sent;
  open = stream.get();
  stream->Send(Ask("t", 1));
  bell.WaitFor([&] { return done == kRequests; });
  EXPECT_EQ(Sampled("t").completed, kRequests);
}

TEST_P(TransportConformanceTest, ManyStreamsAtOnceLoseAndRepeatNothing) {
  constexpr uint64_t kStreams = 3, kItems = 300;
  std::vector<std::thread> threads;
  Mutex mu;
  std::vector<uint64_t> delivered;
  for (uint64_t s = 0; s < kStreams; ++s) {
    threads.emplace_back([&, s] {
      TestWriter writer(transport_.get());
      for (uint64_t i = 0; i < kItems; i += 3) {
        writer.Send(Items("q", Range(s * kItems + i, 3)));
        EXPECT_THAT(writer.Await(3).confirmed, SizeIs(3));
      }
    });
    threads.emplace_back([&] {
      TestSampler sampler(transport_.get());
      for (uint64_t taken = 0; taken < kItems; taken += 5) {
        SampleRequest request = Ask("q", 5);
        request.delivered = static_cast<int64_t>(taken);
        const std::vector<uint64_t> keys = Keys(sampler.Request(request).items);
        MutexLock lock(&mu);
        delivered.insert(delivered.end(), keys.begin(), keys.end());
      }
      sampler.Send(Acknowledge(kItems));
      sampler.stream()->HalfClose();
      EXPECT_EQ(sampler.End(), OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(delivered.begin(), delivered.end());
  EXPECT_EQ(delivered, Range(0, kStreams * kItems));
}

// ---- unary calls ----

TEST_P(TransportConformanceTest, InfoTellsTheSameOfEveryTable) {
  TestWriter writer(transport_.get());
  InsertRequest steps = Items("s", {1, 2});
  for (InsertItem& item : steps.items) item.columns[0].squeeze = true;
  writer.Send(steps);
  writer.Send(Message({TestChunk(1)}, {ItemOf(1, "q", 1)}));
  writer.Await(3);
  TestSampler sampler(transport_.get());
  sampler.Request(Ask("s", 3));
  const ServerInfo info = Info(transport_.get()).value();
  EXPECT_EQ(info.state_id, service_->store()->state_id());
  ASSERT_THAT(info.tables, SizeIs(5));
  for (size_t i = 0; i < info.tables.size(); ++i) {
    EXPECT_EQ(Describe(info.tables[i]), Describe(service_->store()->tables()[i]->Info()));
  }
}

TEST_P(TransportConformanceTest, MutateDeletesThenUpdatesAndCounts) {
  Fill("t", {1, 2, 3});
  const MutateCounts counts =
      Mutate(transport_.get(), {"t", {{1, 0.5}, {3, 2.5}, {9, 1}}, {3, 8}}).value();
  EXPECT_EQ(counts.updated, 1);
  EXPECT_EQ(counts.deleted, 1);
  EXPECT_EQ(counts.not_found, 3);
  TestSampler sampler(transport_.get());
  const SampleReply reply = sampler.Request(Ask("t", 1));
  EXPECT_EQ(reply.items.at(0).priority, 0.5);
  EXPECT_EQ(reply.items.at(0).table_size, 2);
}

TEST_P(TransportConformanceTest, AMutationWithABadPriorityChangesNothing) {
  Fill("t", {1, 2});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Mutate(transport_.get(), {"t", {{1, 5}, {2, nan}}, {1}}).status().code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Table("t")->size(), 2);
}

TEST_P(TransportConformanceTest, ResetEmptiesATableAndTellsItsSamplers) {
  Fill("q", {1, 2, 3});
  TestSampler sampler(transport_.get());
  const uint64_t before = sampler.Request(Ask("q", 1)).generation;
  EXPECT_EQ(sampler.stream()->generation(), before);
  EXPECT_EQ(Reset(transport_.get(), "q"), OkStatus());
  EXPECT_EQ(Table("q")->size(), 0);
  sampler.WaitForGeneration(before + 1);
  Fill("q", {4});
  const SampleReply reply = sampler.Request(Ask("q", 1));
  EXPECT_THAT(Keys(reply.items), ElementsAre(4));
  EXPECT_EQ(reply.generation, before + 1);
}

TEST_P(TransportConformanceTest, ADestroyedCallSaysNothingMore) {
  for (int i = 0; i < 50; ++i) {
    auto calls = std::make_unique<std::atomic<int>>(0);
    auto call = transport_->GetServerInfo([&](const Result<ServerInfo>&) { ++*calls; });
    call.reset();
    const int answered = *calls;
    ASSERT_TRUE(Info(transport_.get()).ok());
    EXPECT_EQ(*calls, answered);
  }
}

TEST_P(TransportConformanceTest, TheServerIsKnownToBeOfThisProject) {
  ASSERT_TRUE(Info(transport_.get()).ok());
  EXPECT_TRUE(transport_->is_own_peer());
  EXPECT_EQ(transport_->is_local(), GetParam() == Road::kInProcess);
}

// ---- errors ----

// How one thing goes wrong, with the status that says so.
struct Failure {
  std::string name;
  StatusCode code;
  std::function<Status(Transport*)> status;
};

Failure WriterEnds(const std::string& name, StatusCode code, InsertRequest request) {
  return {name, code, [request](Transport* transport) {
            TestWriter writer(transport);
            writer.Send(request);
            return writer.End();
          }};
}

Failure ItemRefused(const std::string& name, StatusCode code, InsertItem item) {
  return {name, code, [item](Transport* transport) {
            TestWriter writer(transport);
            writer.Send(Message(
                {TestChunk(1, 3), MakeChunk(2, DType::kFloat32, {2}, 1, Pattern(8, 1))},
                {item}));
            const InsertReply reply = writer.Await(1);
            return reply.refused.empty() ? OkStatus() : reply.refused[0].status;
          }};
}

// The last of `requests` is what the stream ends of.
Failure SamplerEnds(const std::string& name, StatusCode code,
                    std::vector<SampleRequest> requests) {
  return {name, code, [requests](Transport* transport) {
            TestSampler sampler(transport);
            for (size_t i = 0; i + 1 < requests.size(); ++i) sampler.Request(requests[i]);
            sampler.Send(requests.back());
            return sampler.End();
          }};
}

std::vector<Failure> WriterFailures() {
  const InsertItem good = ItemOf(1, "t", 1);
  InsertItem priority = good, no_columns = good, no_rows = good, too_far = good,
             mixed = good, squeezed = good;
  priority.priority = std::nan("");
  no_columns.columns.clear();
  no_columns.slices.clear();
  no_rows.slices[0].length = 0;
  too_far.slices[0].offset = 3;
  mixed.columns = {{2, false}};
  mixed.slices.push_back({2, 0, 1, nullptr});
  squeezed.columns[0].squeeze = true;
  squeezed.slices[0].length = 2;
  const StatusCode bad = StatusCode::kInvalidArgument;
  return {
      WriterEnds("empty", bad, {}),
      WriterEnds("unknown chunk", StatusCode::kInternal, Message({}, {good})),
      WriterEnds("unknown chunk to keep", StatusCode::kFailedPrecondition,
                 Message({TestChunk(1)}, {good}, {5})),
      ItemRefused("unknown table", StatusCode::kNotFound, ItemOf(1, "nowhere", 1)),
      ItemRefused("table without a name", StatusCode::kNotFound, ItemOf(1, "", 1)),
      ItemRefused("priority", bad, priority),
      ItemRefused("no columns", bad, no_columns),
      ItemRefused("no rows", bad, no_rows),
      ItemRefused("rows beyond the chunk", bad, too_far),
      ItemRefused("cells that differ", bad, mixed),
      ItemRefused("squeezed rows", bad, squeezed),
      ItemRefused("signature", bad, ItemOf(1, "s", 2)),
  };
}

std::vector<Failure> SamplerFailures() {
  SampleRequest partial = Acknowledge(1), step = Ask("s", 0), trajectory = Ask("s", 0);
  partial.partial = 2;
  step.scope = SignatureScope::kStep;
  trajectory.scope = SignatureScope::kTrajectory;
  const StatusCode bad = StatusCode::kInvalidArgument;
  const SampleRequest first = Ask("t", 1);
  return {
      SamplerEnds("unknown table", StatusCode::kNotFound, {Ask("nowhere", 1)}),
      SamplerEnds("table without a name", StatusCode::kNotFound, {Ask("", 1)}),
      SamplerEnds("negative number", bad, {Ask("t", -1)}),
      SamplerEnds("another table", bad, {first, Ask("q", 1)}),
      SamplerEnds("delivered too much", bad, {first, Acknowledge(2)}),
      SamplerEnds("delivered less than nothing", bad, {first, Acknowledge(-1)}),
      SamplerEnds("returned what was not sent", bad, {first, Acknowledge(1, {1})}),
      SamplerEnds("returned twice", bad, {first, Acknowledge(1, {0, 0})}),
      SamplerEnds("partial", bad, {first, partial}),
  };
}

TEST_P(TransportConformanceTest, FailuresHaveTheStatusesOfTheInProcessRoad) {
  Fill("t", {1});
  std::vector<Failure> failures = WriterFailures();
  for (Failure& failure : SamplerFailures()) failures.push_back(std::move(failure));
  failures.push_back({"time-out", StatusCode::kDeadlineExceeded, [](Transport* t) {
                        TestSampler sampler(t);
                        const auto reply = sampler.Request(Ask("q", 1, Duration::zero()));
                        return reply.request_done.value_or(OkStatus());
                      }});
  failures.push_back({"mutate", StatusCode::kNotFound, [](Transport* t) {
                        return Mutate(t, {"no", {}, {}}).status();
                      }});
  failures.push_back({"bad mutation", StatusCode::kInvalidArgument, [](Transport* t) {
                        return Mutate(t, {"t", {{1, std::nan("")}}, {}}).status();
                      }});
  failures.push_back(
      {"reset", StatusCode::kNotFound, [](Transport* t) { return Reset(t, "no"); }});
  failures.push_back({"checkpoint", StatusCode::kUnimplemented, Checkpoint});
  for (const Failure& failure : failures) {
    const Status status = failure.status(transport_.get());
    EXPECT_EQ(status.code(), failure.code) << failure.name << ": " << status;
    EXPECT_EQ(status, failure.status(local_.get())) << failure.name;
  }
  EXPECT_EQ(Table("t")->size(), 1);
}

TEST_P(TransportConformanceTest, AScopeThatContradictsTheTablesEndsTheStream) {
  SampleRequest request = Ask("s", 0);
  request.scope = SignatureScope::kStep;
  ASSERT_EQ(Table("s")->DecideScope(SignatureScope::kTrajectory), OkStatus());
  TestSampler sampler(transport_.get()), local(local_.get());
  sampler.Send(request);
  local.Send(request);
  const Status end = sampler.End();
  EXPECT_EQ(end.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(end, local.End());
}

TEST_P(TransportConformanceTest, TooManyRequestsEndTheStream) {
  TestSampler sampler(transport_.get());
  for (size_t i = 0; i <= SampleSession::kMaxRequests; ++i) sampler.Send(Ask("q", 1));
  EXPECT_EQ(sampler.End().code(), StatusCode::kResourceExhausted);
  WaitForWaitingSamples("q", 0);
}

// ---- the end of a server ----

const Status kStopped = UnavailableError("server at localhost:1 was stopped");

TEST_P(TransportConformanceTest, AStopEndsWaitsAndUndoneInsertsAreNotConfirmed) {
  TestWriter writer(transport_.get());
  writer.Send(Items("one", {1, 2}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
  WaitForWaitingInserts("one", 1);
  TestSampler sampler(transport_.get());
  sampler.Send(Ask("q", 1));
  WaitForWaitingSamples("q", 1);
  service_->Stop();
  EXPECT_THAT(writer.Await(1).confirmed, IsEmpty());
  EXPECT_EQ(writer.End(), kStopped);
  EXPECT_EQ(sampler.End(), kStopped);
}

TEST_P(TransportConformanceTest, AStopEndsIdleSamplers) {
  Fill("q", {1, 2});
  TestSampler sampler(transport_.get());
  sampler.Request(Ask("q", 1));
  service_->Stop();
  EXPECT_EQ(sampler.End(), kStopped);
  EXPECT_FALSE(sampler.stream()->can_send());
}

TEST_P(TransportConformanceTest, GrantsInFlightAtAStopGoBack) {
  Fill("q", {1, 2});
  {
    TestSampler sampler(transport_.get());
    sampler.Request(Ask("q", 1));
    Stop();
  }
  Eventually([&] { return Sampled("q").in_flight == 0; });
  EXPECT_EQ(Table("q")->size(), 2);
}

TEST_P(TransportConformanceTest, AnIdleWriterHearsOfTheStopWithItsNextItem) {
  TestWriter writer(transport_.get());
  writer.Send(Items("t", {1}));
  EXPECT_THAT(writer.Await(1).confirmed, ElementsAre(1));
  service_->Stop();
  writer.Send(Items("t", {2}));
  EXPECT_EQ(writer.End(), kStopped);
  EXPECT_EQ(Table("t")->size(), 1);
}

TEST_P(TransportConformanceTest, AfterAStopCallsAndNewStreamsAreUnavailable) {
  service_->Stop();
  EXPECT_EQ(Mutate(transport_.get(), {"t", {}, {1}}).status(), kStopped);
  EXPECT_EQ(Reset(transport_.get(), "t"), kStopped);
  EXPECT_TRUE(Info(transport_.get()).ok()) << "keeps its last info";
  TestWriter writer(transport_.get());
  writer.Send(Items("t", {1}));
  EXPECT_EQ(writer.End(), kStopped);
  TestSampler sampler(transport_.get());
  sampler.Send(Ask("t", 1));
  EXPECT_EQ(sampler.End(), kStopped);
}

TEST_P(TransportConformanceTest, StreamsOfManyThreadsEndWhenTheServerDoes) {
  std::vector<std::unique_ptr<TestSampler>> samplers;
  std::vector<std::unique_ptr<TestWriter>> writers;
  Fill("one", {1});
  for (uint64_t i = 0; i < 4; ++i) {
    samplers.push_back(std::make_unique<TestSampler>(transport_.get()));
    samplers.back()->Send(Ask("q", 1));
    writers.push_back(std::make_unique<TestWriter>(transport_.get()));
    writers.back()->Send(Items("one", {2 + i}));
  }
  WaitForWaitingSamples("q", 4);
  WaitForWaitingInserts("one", 4);
  const auto is_end = [](const Status& status) {
    return status.code() == StatusCode::kUnavailable ||
           status.code() == StatusCode::kCancelled;
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { EXPECT_TRUE(is_end(samplers[i]->End())); });
    threads.emplace_back([&, i] { EXPECT_TRUE(is_end(writers[i]->End())); });
  }
  Stop();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Table("one")->size(), 1);
}

TEST_P(TransportConformanceTest, AServerMayEndBeforeItsStreams) {
  TestWriter writer(transport_.get());
  TestSampler sampler(transport_.get());
  writer.Send(Items("one", {1, 2}));
  WaitForWaitingInserts("one", 1);
  sampler.Request(Ask("one", 1));
  Stop();
  server_.reset();
}

}  // namespace
}  // namespace reverb_tf
