#include "cc/client/item_sender.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cc/client/fake_transport.h"
#include "cc/client/writer_testing.h"

namespace reverb_tf {
namespace {

ChunkHandlePtr ClosedChunk(uint64_t key, size_t bytes = 8) {
  auto spec = std::make_shared<TensorSpec>();
  spec->dtype = DType::kUint8;
  spec->shape = {static_cast<int64_t>(bytes)};
  ChunkOptions options;
  options.key = key;
  options.cell = spec;
  options.num_rows = 1;
  auto handle = ChunkHandlePtr::Adopt(new ChunkHandle);
  handle->key = key;
  handle->chunk = Chunk::Copy(options, std::string(bytes, 'x')).value();
  handle->bytes = static_cast<int64_t>(bytes);
  return handle;
}

class ItemSenderTest : public ::testing::Test {
 protected:
  ItemSenderTest()
      : transport_(std::make_shared<FakeTransport>()),
        cache_(std::make_shared<TableCache>(transport_, kTestAddress)),
        sender_(std::make_unique<ItemSender>(transport_, cache_, "writer", kTestAddress)) {}

  uint64_t Push(const std::string& table, const ChunkHandlePtr& chunk) {
    ItemSender::NewItem item;
    item.priority = 1;
    item.columns = {{1, false}};
    item.slices = {{chunk, 0, 1}};
    uint64_t key = 0;
    {
      MutexLock lock(sender_->mu());
      key = sender_->Push(table, std::move(item));
    }
    sender_->Kick();
    return key;
  }
  uint64_t Push(const std::string& table) {
    return Push(table, ClosedChunk(next_chunk_++));
  }

  Status Wait(int64_t items, const WaitOptions& wait) {
    MutexLock lock(sender_->mu());
    return sender_->Wait(wait, items, int64_t{1} << 60);
  }
  Status TakeError() {
    MutexLock lock(sender_->mu());
    return sender_->TakeError();
  }
  int64_t pending() {
    MutexLock lock(sender_->mu());
    return sender_->pending_items();
  }

  const std::shared_ptr<FakeTransport> transport_;
  const std::shared_ptr<TableCache> cache_;
  std::unique_ptr<ItemSender> sender_;
  uint64_t next_chunk_ = 1;
};

TEST_F(ItemSenderTest, KeysAreUniqueNonZeroAndBelow2To63) {
  const uint64_t a = Push("t"), b = Push("t"), c = Push("u");
  EXPECT_TRUE(a != b && b != c && a != c);
  for (const uint64_t key : {a, b, c}) {
    EXPECT_NE(key, 0u);
    EXPECT_LT(key, uint64_t{1} << 63);
  }
}

TEST_F(ItemSenderTest, SendsInCreationOrderWithGrowingSequence) {
  std::vector<uint64_t> keys;
  for (int i = 0; i < 100; ++i) keys.push_back(Push(i % 3 == 0 ? "u" : "t"));
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(100));
  const std::vector<InsertItem> items = peer->items();
  for (size_t i = 0; i < items.size(); ++i) {
    EXPECT_EQ(items[i].key, keys[i]);
    EXPECT_NE(items[i].writer_id, 0u);
    EXPECT_EQ(items[i].sequence, i + 1);
  }
}

TEST_F(ItemSenderTest, AChunkIsSentOnceAndKeptWhileItIsNeeded) {
  const ChunkHandlePtr shared = ClosedChunk(100);
  {
    MutexLock lock(sender_->mu());
    shared->in_column = true;
  }
  Push("t", shared);
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(1));
  EXPECT_EQ(peer->requests()[0].keep_chunk_keys, std::vector<uint64_t>{100});
  Push("t", shared);
  ASSERT_TRUE(peer->WaitForItems(2));
  EXPECT_TRUE(peer->requests()[1].chunks.empty());
  {
    MutexLock lock(sender_->mu());
    shared->in_column = false;
  }
  Push("t", shared);
  ASSERT_TRUE(peer->WaitForItems(3));
  EXPECT_TRUE(peer->requests()[2].chunks.empty());
  EXPECT_TRUE(peer->requests()[2].keep_chunk_keys.empty());
}

TEST_F(ItemSenderTest, WhatGathersGoesOutInOneMessage) {
  Push("t");
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(1));
  peer->SetCanSend(false);
  // One may still be under way when can_send turns false.
  for (int i = 0; i < 50; ++i) Push("t");
  peer->SetCanSend(true);
  ASSERT_TRUE(peer->WaitForItems(51));
  EXPECT_LE(peer->requests().size(), 3u);
}

TEST_F(ItemSenderTest, ALargeItemIsSpreadOverSeveralMessages) {
  ItemSender::NewItem item;
  constexpr size_t kBytes = 15 << 20;
  for (uint64_t i = 0; i < 4; ++i) {
    item.slices.push_back({ClosedChunk(10 + i, kBytes), 0, 1});
  }
  item.columns = {{4, false}};
  {
    MutexLock lock(sender_->mu());
    sender_->Push("t", std::move(item));
  }
  sender_->Kick();
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(1));
  const auto requests = peer->requests();
  ASSERT_EQ(requests.size(), 2u);
  EXPECT_EQ(requests[0].chunks.size(), 2u);
  EXPECT_TRUE(requests[0].items.empty());
  EXPECT_EQ(requests[1].chunks.size(), 2u);
}

TEST_F(ItemSenderTest, UnconfirmedItemsAreSentAgainInOrderWithTheSameNumbers) {
  for (int i = 0; i < 10; ++i) Push("t");
  const auto first = transport_->WaitForInsert(0);
  ASSERT_TRUE(first && first->WaitForItems(10));
  const auto sent = first->items();
  first->Confirm({sent[0].key, sent[1].key, sent[5].key});
  ASSERT_TRUE(Wait(7, Soon()).ok());
  first->End(UnavailableError("connection reset"));
  const auto second = transport_->WaitForInsert(1);
  ASSERT_TRUE(second && second->WaitForItems(7));
  const auto again = second->items();
  const std::vector<size_t> expected = {2, 3, 4, 6, 7, 8, 9};
  ASSERT_EQ(again.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(again[i].key, sent[expected[i]].key);
    EXPECT_EQ(again[i].writer_id, sent[expected[i]].writer_id);
    EXPECT_EQ(again[i].sequence, sent[expected[i]].sequence);
  }
  size_t chunks = 0;
  for (const auto& request : second->requests()) chunks += request.chunks.size();
  EXPECT_EQ(chunks, 7u);
  second->ConfirmAll();
  EXPECT_TRUE(Wait(0, Soon()).ok());
}

TEST_F(ItemSenderTest, AnUnreachableServerIsTriedAgainUntilItAnswers) {
  Push("t");
  for (size_t i = 0; i < 3; ++i) {
    const auto peer = transport_->WaitForInsert(i);
    ASSERT_TRUE(peer);
    peer->End(UnavailableError("connection refused"));
  }
  const auto peer = transport_->WaitForInsert(3);
  ASSERT_TRUE(peer && peer->WaitForItems(1));
  EXPECT_NE(sender_->Describe(false).find("connection refused"), std::string::npos);
  peer->ConfirmAll();
  EXPECT_TRUE(Wait(0, Soon()).ok());
}

TEST_F(ItemSenderTest, ARefusalIsReportedOnceWithTheNumberOfOthers) {
  const uint64_t a = Push("t"), b = Push("t"), c = Push("t");
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(3));
  peer->Refuse(a, InvalidArgumentError("bad shape"));
  peer->Refuse(c, InvalidArgumentError("bad dtype"));
  peer->Confirm({b});
  ASSERT_TRUE(Wait(0, Soon()).ok());  // ends at the first refusal
  while (pending() > 0) ASSERT_TRUE(Wait(0, Soon()).ok());
  const Status status = TakeError();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("bad shape"), std::string::npos);
  EXPECT_NE(status.message().find("and 1 more"), std::string::npos);
  EXPECT_TRUE(TakeError().ok());
  const uint64_t d = Push("t");
  ASSERT_TRUE(peer->WaitForItems(4));
  peer->Confirm({d});
  EXPECT_TRUE(Wait(0, Soon()).ok());
}

TEST_F(ItemSenderTest, AnyOtherEndOfTheStreamIsSticky) {
  Push("t");
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(1));
  peer->End(InvalidArgumentError("no such thing"));
  ASSERT_TRUE(Wait(0, Soon()).ok());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(TakeError().code(), StatusCode::kInvalidArgument);
  }
}

TEST_F(ItemSenderTest, ABlockedTableDoesNotHoldBackOthers) {
  const int64_t n = ItemSender::kWindowItems + 500;
  for (int64_t i = 0; i < n; ++i) Push("blocked");
  const uint64_t key = Push("open");
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(ItemSender::kWindowItems + 1));
  const auto items = peer->items();
  EXPECT_EQ(items.size(), static_cast<size_t>(ItemSender::kWindowItems + 1));
  EXPECT_TRUE(std::any_of(items.begin(), items.end(),
                          [&](const InsertItem& item) { return item.key == key; }));
}

TEST_F(ItemSenderTest, AWaitThatTimesOutSaysWhatIsUnconfirmedAndWhy) {
  transport_->get_server_info = [] {
    ServerInfo info;
    info.tables.resize(1);
    info.tables[0].config.name = "t";
    info.tables[0].explain = "table 't': insert: blocked by rate limiter";
    return Result<ServerInfo>(info);
  };
  Push("t");
  Push("t");
  Push("u");
  const Status status = Wait(0, Within(std::chrono::milliseconds(30)));
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_NE(status.message().find("writer to localhost:7: 3 items unconfirmed "
                                  "(table 't': 2, 'u': 1); "
                                  "table 't': insert: blocked by rate limiter"),
            std::string::npos)
      << status;
}

TEST_F(ItemSenderTest, TimeoutZeroSucceedsWhenNothingIsPending) {
  EXPECT_TRUE(Wait(0, Within(Duration::zero())).ok());
  Push("t");
  EXPECT_EQ(Wait(0, Within(Duration::zero())).code(), StatusCode::kDeadlineExceeded);
}

TEST_F(ItemSenderTest, AnInterruptEndsAWaitWithin200Milliseconds) {
  Push("t");
  WaitOptions wait;
  int asked = 0;
  wait.interrupted = [&] { return ++asked > 1 ? CancelledError("Ctrl-C") : OkStatus(); };
  const TimePoint start = Clock::System()->Now();
  EXPECT_EQ(Wait(0, wait).code(), StatusCode::kCancelled);
  EXPECT_LT(Clock::System()->Now() - start, std::chrono::milliseconds(200));
}

TEST_F(ItemSenderTest, AbandonTellsWhatIsLeftAndWakesWaiters) {
  Push("t");
  Push("t");
  Push("u");
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(3));
  peer->Confirm({peer->items()[0].key});
  std::thread waiter([&] { EXPECT_TRUE(Wait(0, WaitOptions()).ok()); });
  const auto left = sender_->Abandon();
  waiter.join();
  EXPECT_TRUE(peer->WaitForClose());
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0], (std::pair<std::string, int64_t>("t", 1)));
  EXPECT_EQ(left[1], (std::pair<std::string, int64_t>("u", 1)));
}

TEST_F(ItemSenderTest, PendingBytesCountEachChunkOnce) {
  const ChunkHandlePtr shared = ClosedChunk(100, 1000);
  Push("t", shared);
  Push("t", shared);
  {
    MutexLock lock(sender_->mu());
    EXPECT_EQ(sender_->pending_bytes(), 1000);
  }
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(2));
  peer->ConfirmAll();
  ASSERT_TRUE(Wait(0, Soon()).ok());
  MutexLock lock(sender_->mu());
  EXPECT_EQ(sender_->pending_bytes(), 0);
}

TEST_F(ItemSenderTest, RepliesForUnknownKeysAreIgnored) {
  Push("t");
  const auto peer = transport_->WaitForInsert(0);
  ASSERT_TRUE(peer && peer->WaitForItems(1));
  peer->Confirm({0, 1, ~uint64_t{0}});
  peer->Refuse(7, InvalidArgumentError("?"));
  EXPECT_EQ(pending(), 1);
  peer->ConfirmAll();
  peer->ConfirmAll();
  EXPECT_TRUE(Wait(0, Soon()).ok());
  EXPECT_TRUE(TakeError().ok());
}

class LocalSenderTest : public ItemSenderTest {
 protected:
  LocalSenderTest() {
    transport_->local = true;
    sender_ = std::make_unique<ItemSender>(transport_, cache_, "writer", kTestAddress);
  }
};

TEST_F(LocalSenderTest, ItemsOfThisProcessAreSentByTheCallerWithReferences) {
  Push("t");
  ASSERT_EQ(transport_->num_inserts(), 1u);
  const auto requests = transport_->WaitForInsert(0)->requests();
  ASSERT_EQ(requests.size(), 1u);
  EXPECT_TRUE(requests[0].chunks.empty());
  EXPECT_TRUE(requests[0].items[0].slices[0].chunk);
}

TEST_F(LocalSenderTest, AStoppedServerIsReplacedByItsSuccessor) {
  Push("t");
  transport_->WaitForInsert(0)->End(UnavailableError("server was stopped"));
  const auto successor = transport_->WaitForInsert(1);
  ASSERT_TRUE(successor && successor->WaitForItems(1));
  successor->ConfirmAll();
  EXPECT_TRUE(Wait(0, Soon()).ok());
  Push("t");
  ASSERT_TRUE(successor->WaitForItems(2));
}

}  // namespace
}  // namespace reverb_tf
