#include "cc/core/item.h"

#include <malloc.h>

#include <limits>

#include "cc/core/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

using testing::HasSubstr;

const CellSpecPtr kInt = Cell(DType::kInt32);
const CellSpecPtr kPair = Cell(DType::kFloat32, {2});

TEST(ItemTest, GivesBackItsColumns) {
  const ChunkPtr a = ZeroChunk(kInt, 4, 1);
  const ChunkPtr b = ZeroChunk(kInt, 3, 2);
  const ChunkPtr c = ZeroChunk(kPair, 5, 3);
  const ChunkSlice first[] = {{a, 1, 3}, {b, 0, 2}};
  const ChunkSlice second[] = {{c, 4, 1}};
  const ItemPtr item =
      Item::Create(77, /*written_as_steps=*/true, {{first, 2, false}, {second, 1, true}})
          .value();
  EXPECT_EQ(item->key(), 77u);
  EXPECT_TRUE(item->written_as_steps());
  ASSERT_EQ(item->num_columns(), 2);
  EXPECT_EQ(item->num_slices(), 3);
  const ColumnView x = item->column(0);
  EXPECT_EQ(x.num_slices, 2);
  EXPECT_EQ(x.slices[0].chunk, a);
  EXPECT_EQ(x.slices[1].length, 2);
  EXPECT_EQ(x.length(), 5);
  EXPECT_FALSE(x.squeeze);
  EXPECT_EQ(x.shape(), Shape({5}));
  const ColumnView y = item->column(1);
  EXPECT_TRUE(y.squeeze);
  EXPECT_EQ(y.length(), 1);
  EXPECT_EQ(y.shape(), Shape({2}));
  EXPECT_EQ(y.slices[0].offset, 4);
}

TEST(ItemTest, HoldsItsChunksAndLetsThemGo) {
  ChunkPtr chunk = ZeroChunk(kInt, 4);
  ItemPtr item = ItemOf(1, chunk);
  EXPECT_FALSE(chunk->unique());
  item = nullptr;
  EXPECT_TRUE(chunk->unique());
}

TEST(ItemTest, RefusedCreationLeavesNoReference) {
  const ChunkPtr chunk = ZeroChunk(kInt, 4);
  {
    const ChunkSlice slices[] = {{chunk, 0, 2}, {chunk, 3, 2}};
    EXPECT_FALSE(Item::Create(1, false, {{slices, 2, false}}).ok());
  }
  EXPECT_TRUE(chunk->unique());
}

TEST(ItemTest, SlicesMustLieWithinTheirChunks) {
  const ChunkPtr chunk = ZeroChunk(kInt, 4);
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max();
  for (const auto& [offset, length] : std::vector<std::pair<int32_t, int32_t>>{
           {-1, 2}, {0, 0}, {0, 5}, {4, 1}, {2, -1}, {kMax, kMax}, {-kMax - 1, kMax}}) {
    const ChunkSlice slice{chunk, offset, length};
    const Status status = Item::Create(5, false, {{&slice, 1, false}}).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << offset << " " << length;
    EXPECT_THAT(status.message(), HasSubstr("column [0]"));
  }
}

TEST(ItemTest, ColumnsMustHaveRows) {
  const ChunkSlice good{ZeroChunk(kInt, 1), 0, 1};
  EXPECT_FALSE(Item::Create(5, false, {}).ok());
  const Status status = Item::Create(5, false, {{&good, 1, false}, {}}).status();
  EXPECT_THAT(status.message(), HasSubstr("column [1]"));
  const ChunkSlice missing{nullptr, 0, 1};
  EXPECT_FALSE(Item::Create(5, false, {{&missing, 1, false}}).ok());
}

TEST(ItemTest, CellsOfAColumnMustAgree) {
  const ChunkPtr a = ZeroChunk(kInt, 1);
  const ChunkPtr other_int = ZeroChunk(Cell(DType::kInt32), 1);
  const ChunkPtr wide = ZeroChunk(Cell(DType::kInt32, {1}), 1);
  const ChunkPtr real = ZeroChunk(Cell(DType::kFloat32), 1);
  const auto create = [&](const ChunkPtr& b) {
    const ChunkSlice slices[] = {{a, 0, 1}, {b, 0, 1}};
    return Item::Create(5, false, {{slices, 2, false}}).status();
  };
  EXPECT_TRUE(create(other_int).ok());
  EXPECT_THAT(create(wide).message(), HasSubstr("int32[] and of int32[1]"));
  EXPECT_THAT(create(real).message(), HasSubstr("float32[]"));
}

TEST(ItemTest, SqueezedColumnsHaveOneRow) {
  const ChunkSlice one{ZeroChunk(kInt, 2), 1, 1};
  const ChunkSlice two{ZeroChunk(kInt, 2), 0, 2};
  EXPECT_TRUE(Item::Create(5, false, {{&one, 1, true}}).ok());
  EXPECT_THAT(Item::Create(5, false, {{&one, 1, true}, {&two, 1, true}}).status().message(),
              HasSubstr("column [1]"));
}

TEST(ItemTest, RowsAndElementsOfAColumnMustBeCountable) {
  // Cells without elements, so that many cost nothing.
  const ChunkPtr many = ZeroChunk(Cell(DType::kBool, {0}), INT32_MAX);
  const ChunkPtr wide = ZeroChunk(Cell(DType::kBool, {int64_t{1} << 62, 0}), 2);
  const ChunkSlice rows[] = {{many, 0, INT32_MAX}, {many, 0, 1}};
  EXPECT_TRUE(Item::Create(1, false, {{rows, 1, false}}).ok());
  EXPECT_THAT(Item::Create(1, false, {{rows, 2, false}}).status().message(),
              HasSubstr("has 2147483648 rows, too many"));
  const ChunkSlice elements[] = {{wide, 0, 1}, {wide, 0, 2}};
  EXPECT_TRUE(Item::Create(1, false, {{elements, 1, false}}).ok());
  EXPECT_THAT(Item::Create(1, false, {{elements + 1, 1, false}}).status().message(),
              HasSubstr("impossible shape [2,4611686018427387904,0]"));
}

TEST(ItemTest, ShapesForTheSignatureCheck) {
  const ChunkSlice slice{ZeroChunk(kPair, 3), 0, 3};
  const auto shapes = ColumnShapes(*Item::Create(5, false, {{&slice, 1, false}}).value());
  ASSERT_EQ(shapes.size(), 1u);
  EXPECT_EQ(shapes[0].dtype, DType::kFloat32);
  EXPECT_EQ(shapes[0].cell, Shape({2}));
  EXPECT_EQ(shapes[0].length, 3);
}

#if !defined(__SANITIZE_ADDRESS__)
TEST(ItemTest, OneColumnItemTakesLittleMemory) {
  const ItemPtr item = ItemOf(1, ZeroChunk(kInt, 1));
  const size_t bytes = malloc_usable_size(const_cast<Item*>(item.get()));
  RecordProperty("bytes", static_cast<int>(bytes));
  EXPECT_LE(bytes, 80u);
}
#endif

}  // namespace
}  // namespace reverb_tf
