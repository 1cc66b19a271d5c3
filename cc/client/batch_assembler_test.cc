#include "cc/client/batch_assembler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "cc/client/sampler_testing.h"

namespace reverb_tf {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

BatchAssembler Assembler(bool pad_to_longest = false,
                         std::optional<std::vector<TensorSpec>> specs = std::nullopt) {
  SamplerOptions options;
  options.table = "t";
  options.specs = std::move(specs);
  return BatchAssembler(DeliveryPlan::Make(options, ReplayConfig("t")).value(),
                        pad_to_longest);
}

Status Batch(const BatchAssembler& assembler, const std::vector<ItemPtr>& items,
             SampleBatch* out) {
  std::vector<SampledItem> samples;
  for (const ItemPtr& item : items) samples.push_back(Sampled(item));
  std::vector<const SampledItem*> pointers;
  for (const SampledItem& sample : samples) pointers.push_back(&sample);
  return assembler.AssembleBatch(pointers, out);
}

TEST(BatchAssemblerTest, RowsOfSlicesGoToTheirPlace) {
  const ChunkPtr a = Int32Chunk({0, 1, 2, 3});
  const ChunkPtr b = Int32Chunk({10, 11, 12});
  SampleBatch out;
  ASSERT_TRUE(Batch(Assembler(),
                    {MakeItem(1, {{{{a, 2, 2}, {b, 0, 1}}, false}}),
                     MakeItem(2, {{{{b, 0, 3}}, false}})},
                    &out)
                  .ok());
  ASSERT_EQ(out.columns.size(), 1u);
  EXPECT_THAT(out.columns[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(out.columns[0].dtype, DType::kInt32);
  EXPECT_TRUE(out.columns[0].writable);
  EXPECT_THAT(Int32s(out.columns[0]), ElementsAre(2, 3, 10, 10, 11, 12));
  EXPECT_THAT(out.squeezed, ElementsAre(false));
}

TEST(BatchAssemblerTest, ElementsOfABatchMustBeCountable) {
  auto cell = std::make_shared<TensorSpec>();
  cell->dtype = DType::kBool;
  cell->shape = {int64_t{1} << 62, 0};
  ChunkOptions options;
  options.cell = cell;
  options.num_rows = 1;
  const ItemPtr item = MakeItem(1, {Whole(Chunk::Copy(options, "").value())});
  SampleBatch out;
  EXPECT_TRUE(Batch(Assembler(), {item}, &out).ok());
  EXPECT_THAT(Batch(Assembler(), {item, item}, &out).message(),
              HasSubstr("a batch of shape [2,1,4611686018427387904,0] is too large"));
}

TEST(BatchAssemblerTest, InfoIsFilledAsVectors) {
  SampleBatch out;
  const ChunkPtr a = Int32Chunk({0});
  ASSERT_TRUE(
      Batch(Assembler(), {MakeItem(1, {Whole(a)}), MakeItem(2, {Whole(a)})}, &out).ok());
  EXPECT_THAT(out.keys, ElementsAre(1, 2));
  EXPECT_THAT(out.priorities, ElementsAre(2, 2));
  EXPECT_THAT(out.probabilities, ElementsAre(0.5, 0.5));
  EXPECT_THAT(out.table_sizes, ElementsAre(3, 3));
  EXPECT_THAT(out.times_sampled, ElementsAre(4, 4));
}

TEST(BatchAssemblerTest, CompressedChunksAreDecodedWhetherSharedOrNot) {
  const ChunkPtr shared = Int32Chunk({0, 1, 2, 3}, {}, Encoding::kSnappy);
  const ChunkPtr other = Int32Chunk({7, 8}, {}, Encoding::kSnappy);
  SampleBatch out;
  ASSERT_TRUE(Batch(Assembler(),
                    {MakeItem(1, {{{{shared, 1, 2}}, false}}), MakeItem(2, {Whole(other)}),
                     MakeItem(3, {{{{shared, 0, 1}, {shared, 3, 1}}, false}})},
                    &out)
                  .ok());
  EXPECT_THAT(Int32s(out.columns[0]), ElementsAre(1, 2, 7, 8, 0, 3));
}

TEST(BatchAssemblerTest, SqueezedColumnsHaveNoTimeDimension) {
  const ChunkPtr a = Int32Chunk({1, 2}, {2});
  SampleBatch out;
  ASSERT_TRUE(Batch(Assembler(),
                    {MakeItem(1, {Whole(a, true)}), MakeItem(2, {Whole(a, true)})}, &out)
                  .ok());
  EXPECT_THAT(out.columns[0].shape, ElementsAre(2, 2));
  EXPECT_THAT(out.squeezed, ElementsAre(true));
}

TEST(BatchAssemblerTest, UnequalLengthsNameThePathTheShapesAndTheCures) {
  SampleBatch out;
  const Status status = Batch(
      Assembler(false, {{Spec("obs", DType::kInt32, {-1})}}),
      {MakeItem(1, {Whole(Int32Chunk({1, 2}))}), MakeItem(2, {Whole(Int32Chunk({1}))})},
      &out);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("'obs'"), HasSubstr("[2]"), HasSubstr("[1]"),
                    HasSubstr("pad_to_longest=True"), HasSubstr("padded_batch"),
                    HasSubstr("ragged_batch")));
}

TEST(BatchAssemblerTest, PadToLongestFillsUpWithZerosAndTellsLengths) {
  SampleBatch out;
  ASSERT_TRUE(
      Batch(Assembler(/*pad_to_longest=*/true),
            {MakeItem(1, {Whole(Int32Chunk({1})), Whole(StringChunk({"a", "bc"}))}),
             MakeItem(2, {Whole(Int32Chunk({2, 3, 4})), Whole(StringChunk({"d"}))})},
            &out)
          .ok());
  EXPECT_THAT(out.columns[0].shape, ElementsAre(2, 3));
  EXPECT_THAT(Int32s(out.columns[0]), ElementsAre(1, 0, 0, 2, 3, 4));
  EXPECT_THAT(Strings(out.columns[1]), ElementsAre("a", "bc", "d", ""));
  EXPECT_THAT(out.lengths, ElementsAre(ElementsAre(1, 3), ElementsAre(2, 1)));
}

TEST(BatchAssemblerTest, DifferentCellsAndColumnCountsAreRefused) {
  SampleBatch out;
  const ChunkPtr ints = Int32Chunk({1});
  EXPECT_THAT(
      Batch(Assembler(true),
            {MakeItem(1, {Whole(ints)}), MakeItem(2, {Whole(Int32Chunk({1}, {1}))})}, &out)
          .message(),
      AllOf(HasSubstr("int32[1]"), HasSubstr("int32[1,1]")));
  EXPECT_THAT(
      Batch(Assembler(true),
            {MakeItem(1, {Whole(ints)}), MakeItem(2, {Whole(StringChunk({"a"}))})}, &out)
          .message(),
      AllOf(HasSubstr("int32[1]"), HasSubstr("string[1]")));
  EXPECT_EQ(
      Batch(Assembler(true),
            {MakeItem(1, {Whole(ints)}), MakeItem(2, {Whole(ints), Whole(ints)})}, &out)
          .code(),
      StatusCode::kInvalidArgument);
}

TEST(BatchAssemblerTest, StringsOfSlicesAreJoined) {
  const ChunkPtr a = StringChunk({"zero", "one", "", "three"});
  const ChunkPtr b = StringChunk({std::string(300, 'x'), "y"});
  SampleBatch out;
  ASSERT_TRUE(Batch(Assembler(),
                    {MakeItem(1, {{{{a, 1, 2}}, false}}),
                     MakeItem(2, {{{{a, 3, 1}, {b, 0, 1}}, false}})},
                    &out)
                  .ok());
  EXPECT_THAT(out.columns[0].shape, ElementsAre(2, 2));
  EXPECT_THAT(Strings(out.columns[0]),
              ElementsAre("one", "", "three", std::string(300, 'x')));
}

TEST(BatchAssemblerTest, AWholePlainChunkIsSharedUnbatched) {
  std::vector<int32_t> values(4096);
  std::iota(values.begin(), values.end(), 0);
  const ChunkPtr chunk = Int32Chunk(values);
  ASSERT_TRUE(chunk->payload_buffer());
  SampleBatch out;
  ASSERT_TRUE(Assembler().AssembleOne(Sampled(MakeItem(1, {Whole(chunk)})), &out).ok());
  EXPECT_EQ(out.columns[0].buffer, chunk->payload_buffer());
  EXPECT_FALSE(out.columns[0].writable);
  EXPECT_THAT(out.columns[0].shape, ElementsAre(4096));
}

TEST(BatchAssemblerTest, PartsAndSmallChunksAreCopiedUnbatched) {
  const ChunkPtr large = Int32Chunk(std::vector<int32_t>(4096, 5));
  const ChunkPtr small = Int32Chunk({1, 2});
  SampleBatch out;
  ASSERT_TRUE(
      Assembler()
          .AssembleOne(Sampled(MakeItem(1, {{{{large, 1, 2}}, false}, Whole(small)})), &out)
          .ok());
  EXPECT_THAT(Int32s(out.columns[0]), ElementsAre(5, 5));
  EXPECT_THAT(Int32s(out.columns[1]), ElementsAre(1, 2));
  EXPECT_TRUE(out.columns[0].writable);
  EXPECT_TRUE(out.columns[1].writable);
}

TEST(BatchAssemblerTest, OutputThatIsUsedAgainHoldsNothingOfBefore) {
  SampleBatch out;
  ASSERT_TRUE(Batch(Assembler(true),
                    {MakeItem(1, {Whole(Int32Chunk({1})), Whole(Int32Chunk({1}))})}, &out)
                  .ok());
  ASSERT_TRUE(
      Assembler().AssembleOne(Sampled(MakeItem(2, {Whole(Int32Chunk({7}))})), &out).ok());
  EXPECT_THAT(out.keys, ElementsAre(2));
  ASSERT_EQ(out.columns.size(), 1u);
  EXPECT_THAT(out.columns[0].shape, ElementsAre(1));
  EXPECT_THAT(out.squeezed, ElementsAre(false));
  EXPECT_THAT(out.lengths, IsEmpty());
}

// ---- steps ----

BatchAssembler StepAssembler() {
  SamplerOptions options;
  options.table = "t";
  options.emit_steps = true;
  return BatchAssembler(DeliveryPlan::Make(options, ReplayConfig("t")).value(), false);
}

TEST(BatchAssemblerTest, StepsOfSeveralItemsGoIntoOneBatch) {
  const ChunkPtr a = Int32Chunk({0, 1, 2, 3});
  const ChunkPtr b = Int32Chunk({10, 11, 12});
  const SampledItem first = Sampled(MakeItem(1, {{{{a, 2, 2}, {b, 0, 2}}, false}}));
  const SampledItem second = Sampled(MakeItem(2, {Whole(b)}));
  PlainChunks plain;
  SampleBatch out;
  ASSERT_TRUE(StepAssembler()
                  .AssembleSteps({{&first, 1, 3}, {&second, 0, 2}}, true, &plain, &out)
                  .ok());
  EXPECT_THAT(out.keys, ElementsAre(1, 1, 1, 2, 2));
  EXPECT_THAT(out.times_sampled, ElementsAre(4, 4, 4, 4, 4));
  ASSERT_EQ(out.columns.size(), 1u);
  EXPECT_THAT(out.columns[0].shape, ElementsAre(5));
  EXPECT_THAT(Int32s(out.columns[0]), ElementsAre(3, 10, 11, 10, 11));
}

TEST(BatchAssemblerTest, ASingleStepHasNoBatchDimension) {
  const SampledItem sample = Sampled(MakeItem(1, {Whole(Int32Chunk({0, 1, 2, 3}, {2}))}));
  PlainChunks plain;
  SampleBatch out;
  ASSERT_TRUE(StepAssembler().AssembleSteps({{&sample, 1, 1}}, false, &plain, &out).ok());
  EXPECT_THAT(out.keys, ElementsAre(1));
  EXPECT_THAT(out.columns[0].shape, ElementsAre(2));
  EXPECT_THAT(Int32s(out.columns[0]), ElementsAre(2, 3));
}

TEST(BatchAssemblerTest, StepsOfSqueezedColumnsAreTheirCells) {
  const SampledItem sample = Sampled(MakeItem(1, {Whole(Int32Chunk({5, 6}, {2}), true)}));
  PlainChunks plain;
  SampleBatch out;
  ASSERT_TRUE(StepAssembler()
                  .AssembleSteps({{&sample, 0, 1}, {&sample, 0, 1}}, true, &plain, &out)
                  .ok());
  EXPECT_THAT(out.columns[0].shape, ElementsAre(2, 2));
  EXPECT_THAT(Int32s(out.columns[0]), ElementsAre(5, 6, 5, 6));
}

TEST(BatchAssemblerTest, StepsOfStringsAndCompressedChunksAreRead) {
  const SampledItem sample =
      Sampled(MakeItem(1, {Whole(Int32Chunk({1, 2, 3}, {}, Encoding::kSnappy)),
                           Whole(StringChunk({"a", "bc", "d"}))}));
  PlainChunks plain;
  SampleBatch out;
  const BatchAssembler assembler = StepAssembler();
  for (int32_t step = 0; step < 2; ++step) {
    ASSERT_TRUE(assembler.AssembleSteps({{&sample, step, 2}}, true, &plain, &out).ok());
    EXPECT_THAT(Int32s(out.columns[0]), ElementsAre(step + 1, step + 2));
    EXPECT_THAT(Strings(out.columns[1]),
                step == 0 ? ElementsAre("a", "bc") : ElementsAre("bc", "d"));
  }
}

TEST(BatchAssemblerTest, AChunkIsMadePlainOnceWhileItsStepsAreRead) {
  const ChunkPtr chunk = Int32Chunk({1, 2, 3}, {}, Encoding::kSnappy);
  PlainChunks plain;
  plain.BeginBatch();
  const ChunkPtr first = plain.Get(chunk).value();
  EXPECT_TRUE(first->is_plain());
  plain.BeginBatch();
  EXPECT_EQ(plain.Get(chunk).value().get(), first.get());
  plain.BeginBatch();
  plain.BeginBatch();
  EXPECT_NE(plain.Get(chunk).value().get(), first.get()) << "forgotten when not used";
}

TEST(BatchAssemblerTest, StepsOfDifferentCellsAreNotOneBatch) {
  const SampledItem first = Sampled(MakeItem(1, {Whole(Int32Chunk({1}))}));
  const SampledItem second = Sampled(MakeItem(2, {Whole(Int32Chunk({1, 2}, {2}))}));
  PlainChunks plain;
  SampleBatch out;
  const Status status =
      StepAssembler().AssembleSteps({{&first, 0, 1}, {&second, 0, 1}}, true, &plain, &out);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("int32[]"), HasSubstr("int32[2]")));
}

TEST(BatchAssemblerTest, CellsWithoutElementsBatch) {
  ChunkOptions options;
  options.key = 1;
  options.cell = std::make_shared<TensorSpec>(Spec("", DType::kFloat32, {0, 3}));
  options.num_rows = 2;
  options.end = 2;
  const ChunkPtr empty = Chunk::Copy(options, {}).value();
  SampleBatch out;
  ASSERT_TRUE(
      Batch(Assembler(), {MakeItem(1, {Whole(empty)}), MakeItem(2, {Whole(empty)})}, &out)
          .ok());
  EXPECT_THAT(out.columns[0].shape, ElementsAre(2, 2, 0, 3));
  EXPECT_EQ(out.columns[0].buffer->size(), 0u);
}

}  // namespace
}  // namespace reverb_tf
