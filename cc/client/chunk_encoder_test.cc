#include "cc/client/chunk_encoder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cc/core/random.h"

namespace reverb_tf {
namespace {

ChunkOptions Rows(DType dtype, Shape shape, int32_t rows) {
  auto spec = std::make_shared<TensorSpec>();
  spec->dtype = dtype;
  spec->shape = std::move(shape);
  ChunkOptions options;
  options.key = 1;
  options.cell = spec;
  options.num_rows = rows;
  return options;
}

std::string RandomBytes(size_t n) {
  Random random(1);
  std::string bytes(n, 0);
  for (char& c : bytes) c = static_cast<char>(random.Next());
  return bytes;
}

TEST(ChunkEncoderTest, AutoCompressesWhatGetsSmaller) {
  ChunkEncoder encoder;
  const std::string zeros(4096, 0);
  const auto chunk = encoder.Encode(Rows(DType::kUint8, {4096}, 1), zeros, nullptr).value();
  EXPECT_EQ(chunk->options().encoding, Encoding::kSnappy);
  EXPECT_EQ(chunk->Decode().value()->view(), zeros);
}

TEST(ChunkEncoderTest, AutoLeavesWhatDoesNotAndTriesAgainLater) {
  ChunkEncoder encoder;
  const auto options = Rows(DType::kUint8, {4096}, 1);
  const std::string noise = RandomBytes(4096), zeros(4096, 0);
  EXPECT_EQ(encoder.Encode(options, noise, nullptr).value()->options().encoding,
            Encoding::kRaw);
  int raw = 0;
  while (encoder.Encode(options, zeros, nullptr).value()->options().encoding ==
         Encoding::kRaw) {
    ASSERT_LT(++raw, ChunkEncoder::kRetryInterval);
  }
  EXPECT_EQ(raw, ChunkEncoder::kRetryInterval - 1);
}

TEST(ChunkEncoderTest, AutoLeavesSmallPayloadsAlone) {
  ChunkEncoder encoder;
  const std::string zeros(ChunkEncoder::kMinBytes - 1, 0);
  const auto options = Rows(DType::kUint8, {static_cast<int64_t>(zeros.size())}, 1);
  EXPECT_TRUE(encoder.Encode(options, zeros, nullptr).value()->is_plain());
}

TEST(ChunkEncoderTest, NoneAndSnappyAreFixed) {
  ChunkEncoder encoder;
  const auto options = Rows(DType::kUint8, {8}, 1);
  encoder.set_codec(Codec::kSnappy);
  const auto chunk = encoder.Encode(options, "abcdefgh", nullptr).value();
  EXPECT_EQ(chunk->options().encoding, Encoding::kSnappy);
  EXPECT_EQ(chunk->Decode().value()->view(), "abcdefgh");
  encoder.set_codec(Codec::kNone);
  EXPECT_TRUE(encoder.Encode(options, "aaaaaaaa", nullptr).value()->is_plain());
}

TEST(ChunkEncoderTest, LargePlainPayloadsKeepTheirBuffer) {
  ChunkEncoder encoder;
  const BufferPtr buffer = Buffer::CopyOf(RandomBytes(100'000));
  const auto chunk =
      encoder.Encode(Rows(DType::kUint8, {100'000}, 1), buffer->view(), buffer).value();
  EXPECT_EQ(chunk->payload().data(), buffer->view().data());
}

template <typename T>
void CheckDeltas(DType dtype) {
  Random random(2);
  std::vector<T> values(64 * 5);
  for (T& v : values) v = static_cast<T>(random.Next());
  ChunkEncoder encoder;
  encoder.set_codec(Codec::kSnappy);
  encoder.set_delta_encode(true);
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(T));
  const auto chunk = encoder.Encode(Rows(dtype, {5}, 64), bytes, nullptr).value();
  EXPECT_TRUE(chunk->options().delta_encoded);
  EXPECT_EQ(chunk->Decode().value()->view(), bytes);
}

TEST(ChunkEncoderTest, DeltasAreLosslessForEveryWidth) {
  CheckDeltas<uint8_t>(DType::kInt8);
  CheckDeltas<uint16_t>(DType::kUint16);
  CheckDeltas<uint32_t>(DType::kInt32);
  CheckDeltas<uint64_t>(DType::kUint64);
}

TEST(ChunkEncoderTest, OnlyIntegersOfRankOneAndUpAreDeltaCoded) {
  ChunkEncoder encoder;
  encoder.set_codec(Codec::kSnappy);
  encoder.set_delta_encode(true);
  const std::string bytes(64, 1);
  for (const auto& options : {Rows(DType::kFloat32, {2}, 8), Rows(DType::kInt32, {}, 16),
                              Rows(DType::kInt32, {16}, 1)}) {
    EXPECT_FALSE(encoder.Encode(options, bytes, nullptr).value()->options().delta_encoded);
  }
}

TEST(ChunkEncoderTest, SlowlyChangingIntegersShrinkWithDeltas) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < 1000; ++i) values.insert(values.end(), {i * 123457, i * 7919});
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * 8);
  ChunkEncoder plain, delta;
  delta.set_delta_encode(true);
  const auto options = Rows(DType::kInt64, {2}, 1000);
  EXPECT_LT(delta.Encode(options, bytes, nullptr).value()->payload().size() * 2,
            plain.Encode(options, bytes, nullptr).value()->payload().size());
}

}  // namespace
}  // namespace reverb_tf
