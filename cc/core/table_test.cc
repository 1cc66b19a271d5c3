#include "cc/core/table.h"

#include <malloc.h>

#include <limits>
#include <string>
#include <vector>

#include "cc/core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr TimePoint kNow{std::chrono::hours(1)};

// A table and short words for what is done to it.
class TestTable {
 public:
  explicit TestTable(TableConfig config) : table(std::move(config)) {}

  bool TryInsert(uint64_t key, double priority = 1) {
    return TryInsert(SmallItem(key), priority);
  }
  bool TryInsert(const ItemPtr& item, double priority = 1) {
    const Status status = table.CheckInsert(*item, priority);
    EXPECT_TRUE(status.ok()) << status;
    if (!table.CanInsert()) return false;
    table.Insert({item, priority}, kNow, &garbage);
    return true;
  }
  // Grants up to n samples; returns their keys.
  std::vector<uint64_t> Sample(int64_t n) {
    std::vector<SampledItem> items;
    const int64_t granted = table.Sample(n, nullptr, &items, &garbage);
    EXPECT_EQ(granted, static_cast<int64_t>(items.size()));
    std::vector<uint64_t> keys;
    for (const SampledItem& item : items) keys.push_back(item.item->key());
    if (!items.empty()) last = items.back();
    return keys;
  }
  void Deliver(std::vector<uint64_t> keys) { table.Delivered(Grants(keys), &garbage); }
  void GiveBack(std::vector<uint64_t> keys) { table.GiveBack(Grants(keys), &garbage); }
  MutateCounts Mutate(const std::vector<PriorityUpdate>& updates,
                      const std::vector<uint64_t>& deletes) {
    return table.Mutate(updates, deletes, &garbage).value();
  }
  std::vector<uint64_t> Keys() const {
    std::vector<uint64_t> keys;
    for (const Table::Entry& entry : table.Entries()) keys.push_back(entry.item->key());
    return keys;
  }
  TableInfo info() const { return table.info(); }

  Table table;
  Garbage garbage;
  SampledItem last;

 private:
  std::vector<Grant> Grants(const std::vector<uint64_t>& keys) const {
    std::vector<Grant> grants;
    for (const uint64_t key : keys) grants.push_back({key, table.generation()});
    return grants;
  }
};

// ---- inserting and evicting ----

TEST(TableTest, InsertCountsAndKeepsInsertionOrder) {
  TestTable t(OpenConfig());
  for (const uint64_t key : {5, 3, 9}) EXPECT_TRUE(t.TryInsert(key, 0.5));
  EXPECT_EQ(t.table.size(), 3);
  EXPECT_THAT(t.Keys(), ElementsAre(5, 3, 9));
  EXPECT_EQ(t.info().insert_count, 3);
  EXPECT_EQ(t.info().insert_stats.completed, 3);
  EXPECT_EQ(t.table.Entries()[0].priority, 0.5);
}

TEST(TableTest, KnownKeyIsAPriorityUpdateThatMovesNoCounter) {
  TestTable t(OpenConfig());
  t.TryInsert(1, 1.0);
  t.TryInsert(1, 7.0);
  EXPECT_EQ(t.table.size(), 1);
  EXPECT_EQ(t.info().insert_count, 1);
  EXPECT_EQ(t.info().insert_stats.completed, 1);
  EXPECT_EQ(t.table.Entries()[0].priority, 7.0);
  EXPECT_EQ(t.garbage.size(), 1u);
}

TEST(TableTest, RemoverEvictsOverMaxSize) {
  TableConfig config = OpenConfig();
  config.max_size = 3;
  TestTable t(config);
  for (uint64_t key = 1; key <= 5; ++key) t.TryInsert(key);
  EXPECT_THAT(t.Keys(), ElementsAre(3, 4, 5));
  EXPECT_EQ(t.info().num_evicted, 2);
  EXPECT_EQ(t.info().delete_count, 2);
  EXPECT_EQ(t.garbage.size(), 2u);
}

TEST(TableTest, NewItemTakesPartInTheEviction) {
  TableConfig config = OpenConfig();
  config.max_size = 2;
  config.remover.kind = SelectorKind::kMinHeap;
  TestTable t(config);
  t.TryInsert(1, 5);
  t.TryInsert(2, 6);
  t.TryInsert(3, 1);
  EXPECT_THAT(t.Keys(), ElementsAre(1, 2));
  EXPECT_EQ(t.info().insert_count, 3);
  EXPECT_EQ(t.info().num_evicted, 1);
}

TEST(TableTest, MaxBytesCountsDistinctChunks) {
  const CellSpecPtr cell = Cell(DType::kUint8);
  const ChunkPtr shared = ZeroChunk(cell, 1000, 1);
  const int64_t stored = static_cast<int64_t>(shared->stored_bytes());
  TableConfig config = OpenConfig();
  config.max_bytes = 2 * stored;
  TestTable t(config);
  for (uint64_t key = 1; key <= 5; ++key) t.TryInsert(ItemOf(key, shared));
  EXPECT_EQ(t.table.size(), 5);
  EXPECT_EQ(t.info().bytes_stored, stored);
  t.TryInsert(ItemOf(6, ZeroChunk(cell, 1000, 2)));
  EXPECT_EQ(t.table.size(), 6);
  t.TryInsert(ItemOf(7, ZeroChunk(cell, 1000, 3)));
  EXPECT_THAT(t.Keys(), ElementsAre(6, 7)) << "all users of the oldest chunk must go";
}

TEST(TableTest, ItemOverMaxBytesAloneIsRefused) {
  const ChunkPtr chunk = ZeroChunk(Cell(DType::kUint8), 1000);
  TableConfig config = OpenConfig();
  config.max_bytes = 1000;
  TestTable t(config);
  const Status status = t.table.CheckInsert(*ItemOf(1, chunk), 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("max_bytes"));
}

TEST(TableTest, PriorityMustSuitBothSelectors) {
  TableConfig config = OpenConfig();
  config.remover.kind = SelectorKind::kPrioritized;
  TestTable t(config);
  EXPECT_FALSE(t.table.CheckInsert(*SmallItem(1), -1).ok());
  EXPECT_FALSE(
      t.table.CheckInsert(*SmallItem(1), std::numeric_limits<double>::quiet_NaN()).ok());
  EXPECT_TRUE(t.table.CheckInsert(*SmallItem(1), 0).ok());
}

TEST(TableTest, FullQueueRefusesInsertsUntilSampled) {
  TestTable t(QueueConfig(2));
  EXPECT_TRUE(t.TryInsert(1));
  EXPECT_TRUE(t.TryInsert(2));
  EXPECT_FALSE(t.TryInsert(3));
  EXPECT_THAT(t.Sample(1), ElementsAre(1));
  EXPECT_TRUE(t.TryInsert(3));
}

// ---- resends ----

TEST(TableTest, SequenceNumbersMakeResendsHarmless) {
  TestTable t(OpenConfig());
  const NewItem first{SmallItem(1), 1, /*writer_id=*/9, /*sequence=*/1};
  const NewItem second{SmallItem(2), 1, 9, 2};
  EXPECT_FALSE(t.table.IsRepeat(first));
  t.table.Insert(first, kNow, &t.garbage);
  EXPECT_TRUE(t.table.IsRepeat(first));
  EXPECT_FALSE(t.table.IsRepeat(second));
  EXPECT_FALSE(t.table.IsRepeat({SmallItem(1), 1, 8, 1}));
  t.Mutate({}, {1});
  EXPECT_TRUE(t.table.IsRepeat(first)) << "also after the item is gone";
  t.table.Reset(&t.garbage);
  EXPECT_TRUE(t.table.IsRepeat(first)) << "also after a reset";
  EXPECT_FALSE(t.table.IsRepeat({SmallItem(1), 1, 0, 0})) << "peers without sequence";
}

TEST(TableTest, WritersAreForgottenAfterTenIdleMinutes) {
  TestTable t(OpenConfig());
  const NewItem item{SmallItem(1), 1, 9, 1};
  t.table.Insert(item, kNow, &t.garbage);
  t.table.ForgetIdleWriters(kNow + std::chrono::minutes(10));
  EXPECT_TRUE(t.table.IsRepeat(item));
  t.table.ForgetIdleWriters(kNow + std::chrono::minutes(10) + Duration(1));
  EXPECT_FALSE(t.table.IsRepeat(item));
}

TEST(TableTest, WritersWithoutEndAreForgotten) {
  TestTable t(OpenConfig());
  const ItemPtr item = SmallItem(1);
  for (uint64_t writer = 1; writer <= (1 << 20) + 2; ++writer) {
    t.table.Insert({item, 1, writer, 1}, kNow, &t.garbage);
    t.garbage.clear();
  }
  EXPECT_FALSE(t.table.IsRepeat({item, 1, 1, 1}));
  EXPECT_TRUE(t.table.IsRepeat({item, 1, (1 << 20) + 2, 1}));
}

// ---- sampling ----

TEST(TableTest, SampleTellsTheStateAtTheGrant) {
  TableConfig config = OpenConfig();
  config.sampler.kind = SelectorKind::kMaxHeap;
  TestTable t(config);
  t.TryInsert(1, 2.5);
  t.TryInsert(2, 0.5);
  EXPECT_THAT(t.Sample(3), ElementsAre(1, 1, 1));
  EXPECT_EQ(t.last.priority, 2.5);
  EXPECT_EQ(t.last.probability, 1);
  EXPECT_EQ(t.last.table_size, 2);
  EXPECT_EQ(t.last.times_sampled, 3);
  EXPECT_EQ(t.last.generation, t.table.generation());
  EXPECT_EQ(t.info().num_unique_samples, 1);
  EXPECT_EQ(t.info().sample_count, 3);
  EXPECT_EQ(t.info().sample_stats.completed, 3);
  EXPECT_EQ(t.info().sample_stats.in_flight, 3);
}

TEST(TableTest, EmptyTableGrantsNothing) {
  TestTable t(OpenConfig());
  EXPECT_THAT(t.Sample(5), IsEmpty());
  TestTable queue(QueueConfig(3));
  EXPECT_THAT(queue.Sample(5), IsEmpty());
}

TEST(TableTest, GrantsAsManyAsTheLimiterAllows) {
  TableConfig config = OpenConfig();
  config.rate_limiter = {2, 1, 0, 100};
  TestTable t(config);
  t.TryInsert(1);
  t.TryInsert(2);
  EXPECT_EQ(t.Sample(10).size(), 4u);
  EXPECT_EQ(t.Sample(10).size(), 0u);
}

TEST(TableTest, LargeRequestIsGrantedWhole) {
  TestTable t(OpenConfig());
  t.TryInsert(1);
  EXPECT_EQ(t.Sample(5000).size(), 5000u);
  EXPECT_EQ(t.last.times_sampled, 5000);
}

TEST(TableTest, LastPermittedSampleRemovesTheItem) {
  TableConfig config = OpenConfig();
  config.max_times_sampled = 2;
  TestTable t(config);
  t.TryInsert(1);
  t.TryInsert(2);
  EXPECT_THAT(t.Sample(10), ElementsAre(1, 1, 2, 2));
  EXPECT_EQ(t.last.table_size, 1) << "before it left";
  EXPECT_EQ(t.table.size(), 0);
  EXPECT_EQ(t.info().num_expired, 2);
  EXPECT_EQ(t.info().delete_count, 2);
}

TEST(TableTest, StackGivesTheNewestFirst) {
  TableConfig config = QueueConfig(5);
  config.sampler.kind = SelectorKind::kLifo;
  config.remover.kind = SelectorKind::kLifo;
  TestTable t(config);
  for (uint64_t key = 1; key <= 3; ++key) t.TryInsert(key);
  EXPECT_THAT(t.Sample(2), ElementsAre(3, 2));
  t.GiveBack({3});
  EXPECT_THAT(t.Sample(9), ElementsAre(3, 1));
}

TEST(TableTest, SeededTablesPickAlike) {
  TableConfig config = OpenConfig();
  config.sampler = {SelectorKind::kUniform, 1.0, uint64_t{77}};
  config.remover = config.sampler;
  config.max_size = 40;
  TestTable a(config);
  TestTable b(config);
  for (uint64_t key = 0; key < 200; ++key) {
    a.TryInsert(key);
    b.TryInsert(key);
  }
  EXPECT_EQ(a.Keys(), b.Keys());
  EXPECT_EQ(a.Sample(100), b.Sample(100));
}

TEST(TableTest, GivenGeneratorOverridesTheTables) {
  TableConfig config = OpenConfig();
  config.sampler.kind = SelectorKind::kUniform;
  TestTable t(config);
  for (uint64_t key = 0; key < 100; ++key) t.TryInsert(key);
  std::vector<std::vector<uint64_t>> draws(2);
  for (auto& keys : draws) {
    Random random(5);
    std::vector<SampledItem> items;
    t.table.Sample(20, &random, &items, &t.garbage);
    for (const SampledItem& item : items) keys.push_back(item.item->key());
  }
  EXPECT_EQ(draws[0], draws[1]);
}

// ---- the end of grants ----

TEST(TableTest, GivenBackItemReturnsToTheHeadOfItsQueue) {
  TestTable t(QueueConfig(5));
  for (uint64_t key = 1; key <= 4; ++key) t.TryInsert(key);
  EXPECT_THAT(t.Sample(3), ElementsAre(1, 2, 3));
  t.GiveBack({2});
  t.GiveBack({1});
  EXPECT_THAT(t.Keys(), ElementsAre(1, 2, 4));
  EXPECT_EQ(t.info().sample_count, 1);
  EXPECT_EQ(t.info().num_expired, 1);
  EXPECT_EQ(t.info().sample_stats.returned, 2);
  EXPECT_EQ(t.info().sample_stats.in_flight, 1);
  EXPECT_THAT(t.Sample(9), ElementsAre(1, 2, 4));
  EXPECT_EQ(t.last.times_sampled, 1);
}

TEST(TableTest, DeliveredItemIsDropped) {
  TestTable t(QueueConfig(5));
  t.TryInsert(1);
  t.Sample(1);
  EXPECT_THAT(t.garbage, IsEmpty());
  t.last = {};
  t.Deliver({1});
  ASSERT_EQ(t.garbage.size(), 1u);
  EXPECT_TRUE(t.garbage[0]->key() == 1 && t.info().sample_stats.delivered == 1);
  t.GiveBack({1});
  EXPECT_EQ(t.table.size(), 0) << "a grant ends once";
  EXPECT_EQ(t.info().sample_stats.returned, 0);
}

TEST(TableTest, NothingIsEvictedForAnItemThatComesBack) {
  TableConfig config = OpenConfig();
  config.max_times_sampled = 1;
  config.max_size = 2;
  TestTable t(config);
  t.TryInsert(1);
  t.TryInsert(2);
  t.Sample(1);
  t.TryInsert(3);
  t.GiveBack({1});
  EXPECT_THAT(t.Keys(), ElementsAre(1, 2, 3));
  EXPECT_EQ(t.info().num_evicted, 0);
  t.TryInsert(4);
  EXPECT_THAT(t.Keys(), ElementsAre(3, 4));
}

TEST(TableTest, ItemWithSeveralSamplesComesBackWithThoseThatRemain) {
  TableConfig config = OpenConfig();
  config.max_times_sampled = 2;
  TestTable t(config);
  t.TryInsert(1);
  EXPECT_THAT(t.Sample(5), ElementsAre(1, 1));
  t.GiveBack({1});
  EXPECT_EQ(t.table.Entries()[0].times_sampled, 1);
  t.Deliver({1});
  EXPECT_THAT(t.Keys(), ElementsAre(1));
  EXPECT_THAT(t.Sample(5), ElementsAre(1));
  t.GiveBack({1});
  EXPECT_THAT(t.Sample(5), ElementsAre(1));
  t.Deliver({1});
  EXPECT_EQ(t.table.size(), 0);
  EXPECT_EQ(t.info().sample_stats.in_flight, 0);
}

TEST(TableTest, GivingBackOnASharedTableUndoesTheSample) {
  TestTable t(OpenConfig());
  t.TryInsert(1);
  t.Sample(2);
  t.GiveBack({1});
  EXPECT_EQ(t.table.Entries()[0].times_sampled, 1);
  EXPECT_EQ(t.info().sample_count, 1);
  t.GiveBack({1});
  EXPECT_EQ(t.info().num_unique_samples, 0);
  t.GiveBack({1});
  EXPECT_EQ(t.info().sample_count, 0) << "no more than was granted";
}

TEST(TableTest, GrantOfAnEvictedItemIsStillUndone) {
  for (const int32_t max_times_sampled : {0, 2}) {
    TableConfig config = OpenConfig();
    config.max_size = 1;
    config.max_times_sampled = max_times_sampled;
    TestTable t(config);
    t.TryInsert(1);
    t.Sample(1);
    t.TryInsert(2);
    t.GiveBack({1});
    EXPECT_EQ(t.info().sample_count, 0);
    EXPECT_THAT(t.Keys(), ElementsAre(2));
  }
}

TEST(TableTest, GrantOfADeletedKeyIsVoid) {
  for (const int32_t max_times_sampled : {0, 1, 2}) {
    TableConfig config = OpenConfig();
    config.max_times_sampled = max_times_sampled;
    TestTable t(config);
    t.TryInsert(1);
    t.Sample(1);
    t.Mutate({}, {1});
    t.GiveBack({1});
    EXPECT_EQ(t.table.size(), 0);
    EXPECT_EQ(t.info().sample_count, 1);
    EXPECT_EQ(t.info().sample_stats.in_flight, 0);
    EXPECT_EQ(t.info().sample_stats.returned, 1);
  }
}

TEST(TableTest, GrantIsVoidOnceItsKeyWasInsertedAnew) {
  TestTable t(QueueConfig(5));
  t.TryInsert(1);
  t.Sample(1);
  t.TryInsert(1);
  t.GiveBack({1});
  EXPECT_EQ(t.table.size(), 1);
  EXPECT_THAT(t.Sample(5), ElementsAre(1));
  t.Deliver({1});
  EXPECT_EQ(t.info().sample_stats.in_flight, 0);
}

TEST(TableTest, GrantsOfAnOlderGenerationAreIgnored) {
  TestTable t(QueueConfig(5));
  t.TryInsert(1);
  t.Sample(1);
  const Grant old{1, t.table.generation()};
  t.table.Reset(&t.garbage);
  t.TryInsert(1);
  t.Sample(1);
  t.table.GiveBack({old}, &t.garbage);
  t.table.Delivered({old}, &t.garbage);
  EXPECT_EQ(t.table.size(), 0);
  EXPECT_EQ(t.info().sample_stats.in_flight, 1);
}

TEST(TableTest, UnknownGrantsAreIgnored) {
  for (const int32_t max_times_sampled : {0, 1}) {
    TableConfig config = OpenConfig();
    config.max_times_sampled = max_times_sampled;
    TestTable t(config);
    t.TryInsert(1);
    t.GiveBack({1, 2});
    t.Deliver({1, 2});
    EXPECT_EQ(t.info().sample_stats.delivered, 0);
    EXPECT_EQ(t.info().sample_stats.returned, 0);
    EXPECT_EQ(t.info().sample_count, 0);
  }
}

TEST(TableTest, HeapItemComesBackBehindThoseItWasBehind) {
  TableConfig config = OpenConfig();
  config.max_times_sampled = 1;
  config.sampler.kind = SelectorKind::kMaxHeap;
  TestTable t(config);
  t.TryInsert(1, 5);
  t.TryInsert(2, 5);
  t.Mutate({{1, 5}}, {});  // 1 is now the more recently updated
  EXPECT_THAT(t.Sample(2), ElementsAre(2, 1));
  t.GiveBack({1, 2});
  EXPECT_THAT(t.Sample(2), ElementsAre(2, 1));
}

// ---- mutate and reset ----

TEST(TableTest, MutateDeletesThenUpdates) {
  TestTable t(OpenConfig());
  t.TryInsert(1);
  t.TryInsert(2);
  const MutateCounts counts = t.Mutate({{1, 4}, {2, 5}, {3, 6}}, {1, 1, 9});
  EXPECT_EQ(counts.deleted, 1);
  EXPECT_EQ(counts.updated, 1);
  EXPECT_EQ(counts.not_found, 4);
  EXPECT_THAT(t.Keys(), ElementsAre(2));
  EXPECT_EQ(t.table.Entries()[0].priority, 5);
  EXPECT_EQ(t.info().delete_count, 1);
}

TEST(TableTest, OneBadPriorityChangesNothing) {
  TestTable t(OpenConfig());
  t.TryInsert(1, 1);
  const auto result = t.table.Mutate(
      {{1, 4}, {1, std::numeric_limits<double>::quiet_NaN()}}, {1}, &t.garbage);
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(t.table.Entries()[0].priority, 1);
}

TEST(TableTest, UpdatedPriorityReachesSamplerAndRemover) {
  TableConfig config = OpenConfig();
  config.sampler.kind = SelectorKind::kMaxHeap;
  config.remover.kind = SelectorKind::kMinHeap;
  config.max_size = 3;
  TestTable t(config);
  for (uint64_t key = 1; key <= 3; ++key) t.TryInsert(key, 1);
  t.Mutate({{2, 9}, {3, -9}}, {});
  EXPECT_THAT(t.Sample(1), ElementsAre(2));
  t.TryInsert(4, 1);
  EXPECT_THAT(t.Keys(), ElementsAre(1, 2, 4));
}

TEST(TableTest, ResetEmptiesAndStartsAnew) {
  TableConfig config = QueueConfig(5);
  TestTable t(config);
  for (uint64_t key = 1; key <= 4; ++key) t.TryInsert(key);
  t.Sample(2);
  t.Deliver({1});
  const uint64_t generation = t.table.generation();
  t.table.Reset(&t.garbage);
  EXPECT_EQ(t.garbage.size(), 4u) << "the delivered, the one in flight, the two inside";
  const TableInfo info = t.info();
  EXPECT_EQ(info.generation, generation + 1);
  EXPECT_EQ(info.current_size, 0);
  EXPECT_EQ(info.insert_count, 0);
  EXPECT_EQ(info.sample_count, 0);
  EXPECT_EQ(info.delete_count, 0);
  EXPECT_EQ(info.num_unique_samples, 0);
  EXPECT_EQ(info.num_episodes, 0);
  EXPECT_EQ(info.num_deleted_episodes, 0);
  EXPECT_EQ(info.bytes_stored, 0);
  EXPECT_EQ(info.sample_stats.completed, 2) << "never falls";
  EXPECT_EQ(info.sample_stats.in_flight, 0);
  EXPECT_TRUE(t.TryInsert(1));
  EXPECT_THAT(t.Sample(1), ElementsAre(1));
}

// ---- signature ----

TableConfig SignedConfig(Shape shape) {
  TableConfig config = OpenConfig();
  config.signature.emplace();
  config.signature->leaves = {Spec("x", DType::kInt32, std::move(shape))};
  return config;
}

ItemPtr Steps(uint64_t key, int32_t rows, bool written_as_steps) {
  return ItemOf(key, ZeroChunk(Cell(DType::kInt32), rows, key), written_as_steps);
}

TEST(TableTest, ItemsMustMatchTheSignature) {
  TestTable t(SignedConfig({-1}));
  EXPECT_TRUE(t.TryInsert(Steps(1, 3, false)));
  const Status status =
      t.table.CheckInsert(*ItemOf(2, ZeroChunk(Cell(DType::kFloat32), 3)), 1);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("x got float32[3] expected int32[?]"));
  EXPECT_THAT(status.message(), HasSubstr("table 't'"));
}

TEST(TableTest, FirstItemDecidesTheScopeAndResetForgetsIt) {
  TestTable t(SignedConfig({}));
  EXPECT_EQ(t.info().config.signature_scope, SignatureScope::kUndecided);
  t.TryInsert(Steps(1, 3, true));
  EXPECT_EQ(t.info().config.signature_scope, SignatureScope::kStep);
  EXPECT_TRUE(t.table.CheckInsert(*Steps(2, 3, false), 1).ok());
  EXPECT_EQ(t.table.DecideScope(SignatureScope::kTrajectory).code(),
            StatusCode::kFailedPrecondition);
  t.table.Reset(&t.garbage);
  EXPECT_EQ(t.info().config.signature_scope, SignatureScope::kUndecided);
  EXPECT_FALSE(t.table.CheckInsert(*Steps(2, 3, false), 1).ok());
}

TEST(TableTest, CheckInsertDecidesNothing) {
  TestTable t(SignedConfig({}));
  EXPECT_TRUE(t.table.CheckInsert(*Steps(1, 3, true), 1).ok());
  EXPECT_EQ(t.info().config.signature_scope, SignatureScope::kUndecided);
}

TEST(TableTest, ReaderDecidesAnUndecidedScope) {
  TestTable t(SignedConfig({}));
  EXPECT_TRUE(t.table.DecideScope(SignatureScope::kTrajectory).ok());
  EXPECT_TRUE(t.table.DecideScope(SignatureScope::kTrajectory).ok());
  const Status status = t.table.DecideScope(SignatureScope::kStep);
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("'step'"));
  EXPECT_THAT(status.message(), HasSubstr("'trajectory'"));
  EXPECT_THAT(status.message(), HasSubstr("signature_scope="));
  EXPECT_FALSE(t.table.CheckInsert(*Steps(1, 3, true), 1).ok());
}

TEST(TableTest, ConfiguredScopeSurvivesAReset) {
  TableConfig config = SignedConfig({});
  config.signature_scope = SignatureScope::kStep;
  TestTable t(config);
  t.table.Reset(&t.garbage);
  EXPECT_EQ(t.info().config.signature_scope, SignatureScope::kStep);
}

// ---- information ----

TEST(TableTest, InfoCountsBytesEpisodesAndColumns) {
  TestTable t(OpenConfig());
  t.TryInsert(SmallItem(1, /*episode_id=*/1));
  t.TryInsert(SmallItem(2, 1));
  t.TryInsert(SmallItem(3, 2));
  TableInfo info = t.info();
  EXPECT_EQ(info.num_chunks, 3);
  EXPECT_EQ(info.num_episodes, 2);
  EXPECT_EQ(info.bytes_uncompressed, 12);
  ASSERT_EQ(info.bytes_by_column.size(), 1u);
  EXPECT_EQ(info.bytes_by_column[0].first, "[0]");
  EXPECT_EQ(info.bytes_by_column[0].second, info.bytes_stored);
  t.Mutate({}, {3});
  EXPECT_EQ(t.info().num_deleted_episodes, 1);
  EXPECT_EQ(t.info().sampler_mass, 2);
}

TEST(TableTest, ColumnsOfASignedTableAreNamedByPath) {
  TestTable t(SignedConfig({-1}));
  t.TryInsert(Steps(1, 3, false));
  EXPECT_EQ(t.info().bytes_by_column[0].first, "x");
}

TEST(TableTest, LimiterAnswersIgnoreSizes) {
  TableConfig config = QueueConfig(2);
  TestTable t(config);
  EXPECT_TRUE(t.table.LimiterAllowsInsert(2));
  EXPECT_FALSE(t.table.LimiterAllowsInsert(3));
  EXPECT_FALSE(t.table.LimiterAllowsSample(1));
}

TEST(ExplainTableTest, BlockedInsertOfASingleThread) {
  TableConfig config = OpenConfig();
  config.max_size = 100;
  config.rate_limiter = {3, 3, 6, 12};
  TestTable t(config);
  for (uint64_t key = 1; key <= 4; ++key) EXPECT_TRUE(t.TryInsert(key));
  EXPECT_FALSE(t.TryInsert(5));
  TableInfo info = t.info();
  info.bytes_stored = 18 << 10;
  info.num_writers = 1;
  info.num_waiting_inserts = 2;
  info.oldest_wait_s = 6.2;
  EXPECT_EQ(ExplainTable(info),
            "table 't': size 4/100 (18 KiB). sample: open. insert: blocked by rate "
            "limiter: inserts 4, samples 0, diff 12 = max_diff 12 (samples_per_insert 3, "
            "min_size 3); the next insert needs 3 more samples; no sampler is connected. "
            "waiting: 2 inserts (oldest 6.2 s), 0 samples");
}

TEST(ExplainTableTest, EmptyTableWithoutWriter) {
  TestTable t(OpenConfig());
  TableInfo info = t.info();
  info.num_waiting_samples = 1;
  info.num_samplers = 1;
  info.oldest_wait_s = 60;
  const std::string text = ExplainTable(info);
  EXPECT_THAT(text, HasSubstr("table empty"));
  EXPECT_THAT(text, HasSubstr("needs 1 more insert; no writer is connected"));
  EXPECT_THAT(text, HasSubstr("waiting: 0 inserts, 1 sample (oldest 60.0 s)"));
}

TEST(TableConfigTest, NamesTheSettingThatIsWrong) {
  EXPECT_TRUE(OpenConfig().Validate().ok());
  const auto message = [](auto change) {
    TableConfig config = OpenConfig();
    change(&config);
    const Status status = config.Validate();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_THAT(message([](TableConfig* c) { c->name = ""; }), HasSubstr("name"));
  EXPECT_THAT(message([](TableConfig* c) { c->max_size = 0; }), HasSubstr("max_size"));
  EXPECT_THAT(message([](TableConfig* c) { c->max_bytes = -1; }), HasSubstr("max_bytes"));
  EXPECT_THAT(message([](TableConfig* c) {
                c->max_size = 5;
                c->rate_limiter.min_size_to_sample = 10;
              }),
              HasSubstr("min_size_to_sample"));
  EXPECT_THAT(message([](TableConfig* c) { c->rate_limiter.samples_per_insert = 0; }),
              HasSubstr("samples_per_insert"));
  EXPECT_THAT(message([](TableConfig* c) {
                c->sampler = {SelectorKind::kPrioritized, -1.0, {}};
              }),
              HasSubstr("priority_exponent"));
  EXPECT_THAT(message([](TableConfig* c) { c->signature_scope = SignatureScope::kStep; }),
              HasSubstr("signature_scope"));
}

// ---- memory ----

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
size_t HeapInUse() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST(TableMemoryTest, BookkeepingTakesLittleMemory) {
  // Uniform and Fifo, every item with a chunk of its own, all of one episode:
  // slot record, selectors, key map and chunk ledger. Sizes at which the hash maps
  // are just grown, and just full.
  TableConfig config = OpenConfig();
  config.sampler.kind = SelectorKind::kUniform;
  config.max_size = 1 << 20;
  std::vector<ItemPtr> items;
  for (uint64_t key = 1; key <= 200'000; ++key) items.push_back(SmallItem(key * 7919));
  Garbage garbage;
  double sum = 0;
  int measured = 0;
  for (const size_t n : {100'000, 120'000, 140'000, 160'000, 180'000, 200'000}) {
    const size_t before = HeapInUse();
    Table table(config);
    for (size_t i = 0; i < n; ++i) table.Insert({items[i], 1.0}, kNow, &garbage);
    const double per_item = static_cast<double>(HeapInUse() - before) / n;
    RecordProperty("bytes_per_item_" + std::to_string(n), std::to_string(per_item));
    printf("%zu items: %.1f bytes an item\n", n, per_item);
    EXPECT_LT(per_item, 150);
    sum += per_item;
    ++measured;
  }
  EXPECT_LT(sum / measured, 120);
}

TEST(TableMemoryTest, EmptiedTableGivesItsMemoryBack) {
  TestTable t(OpenConfig());
  std::vector<uint64_t> keys;
  for (uint64_t key = 1; key <= 1000; ++key) {
    t.TryInsert(key);
    keys.push_back(key);
  }
  t.garbage.clear();
  const size_t full = HeapInUse();
  t.Mutate({}, keys);
  t.garbage.clear();
  t.garbage.shrink_to_fit();
  EXPECT_LT(HeapInUse() + 1000 * 200, full);
}
#endif

}  // namespace
}  // namespace reverb_tf
