#include "cc/core/chunk_ledger.h"

#include "cc/core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

using testing::ElementsAre;

const CellSpecPtr kInt = Cell(DType::kInt32);

int64_t Stored(const ChunkPtr& chunk) {
  return static_cast<int64_t>(chunk->stored_bytes());
}

TEST(ChunkLedgerTest, SharedChunksCountOnce) {
  const ChunkPtr chunk = ZeroChunk(kInt, 10);
  const ItemPtr a = ItemOf(1, chunk);
  const ItemPtr b = ItemOf(2, chunk);
  ChunkLedger ledger;
  ledger.Add(*a);
  ledger.Add(*b);
  EXPECT_EQ(ledger.num_chunks(), 1);
  EXPECT_EQ(ledger.stored_bytes(), Stored(chunk));
  EXPECT_EQ(ledger.uncompressed_bytes(), 40);
  ledger.Remove(*a);
  EXPECT_EQ(ledger.num_chunks(), 1);
  ledger.Remove(*b);
  EXPECT_EQ(ledger.num_chunks(), 0);
  EXPECT_EQ(ledger.stored_bytes(), 0);
  EXPECT_EQ(ledger.uncompressed_bytes(), 0);
}

TEST(ChunkLedgerTest, ChunkBelongsToTheColumnThatReferredToItFirst) {
  const ChunkPtr x = ZeroChunk(kInt, 10, 1);
  const ChunkPtr y = ZeroChunk(kInt, 20, 2);
  const ChunkSlice sx{x, 0, 10};
  const ChunkSlice sy{y, 0, 20};
  const ItemPtr item =
      Item::Create(1, false, {{&sx, 1, false}, {&sy, 1, false}, {&sx, 1, false}}).value();
  ChunkLedger ledger;
  ledger.Add(*item);
  EXPECT_THAT(ledger.bytes_by_column(), ElementsAre(Stored(x), Stored(y)));
  EXPECT_EQ(DistinctStoredBytes(*item), Stored(x) + Stored(y));
  ledger.Remove(*item);
  EXPECT_THAT(ledger.bytes_by_column(), ElementsAre(0, 0));
}

TEST(ChunkLedgerTest, EpisodesLiveAsLongAsTheirChunks) {
  const ItemPtr a = ItemOf(1, ZeroChunk(kInt, 1, 1, /*episode_id=*/7));
  const ItemPtr b = ItemOf(2, ZeroChunk(kInt, 1, 2, /*episode_id=*/7));
  const ItemPtr c = ItemOf(3, ZeroChunk(kInt, 1, 3, /*episode_id=*/8));
  ChunkLedger ledger;
  ledger.Add(*a);
  ledger.Add(*b);
  ledger.Add(*c);
  EXPECT_EQ(ledger.num_episodes(), 2);
  ledger.Remove(*a);
  EXPECT_EQ(ledger.num_deleted_episodes(), 0);
  ledger.Remove(*b);
  EXPECT_EQ(ledger.num_episodes(), 1);
  EXPECT_EQ(ledger.num_deleted_episodes(), 1);
  ledger.Restore(*b);
  EXPECT_EQ(ledger.num_episodes(), 2);
  EXPECT_EQ(ledger.num_deleted_episodes(), 0);
}

}  // namespace
}  // namespace reverb_tf
