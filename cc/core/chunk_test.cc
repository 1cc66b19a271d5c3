#include "cc/core/chunk.h"

#include <malloc.h>

#include <string>
#include <vector>

#include "cc/base/varint.h"
#include "cc/compress/snappy.h"
#include "cc/core/random.h"
#include "cc/core/testing.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

ChunkOptions Options(CellSpecPtr cell, int32_t rows, Encoding encoding = Encoding::kRaw,
                     bool delta = false) {
  ChunkOptions options;
  options.key = 9;
  options.cell = std::move(cell);
  options.num_rows = rows;
  options.encoding = encoding;
  options.delta_encoded = delta;
  return options;
}

StatusCode CopyCode(const ChunkOptions& options, std::string_view payload) {
  return Chunk::Copy(options, payload).status().code();
}

// What delta coding does to `rows` rows of `columns` elements.
template <typename T>
std::vector<T> Delta(const std::vector<T>& values, size_t columns) {
  std::vector<T> coded = values;
  for (size_t i = columns; i < values.size(); ++i) {
    coded[i] = static_cast<T>(values[i] - values[i - columns]);
  }
  return coded;
}

template <typename T>
std::vector<T> Rows(const Chunk& chunk, int32_t offset, int32_t length) {
  std::vector<T> rows(static_cast<size_t>(length) * chunk.row_bytes() / sizeof(T));
  EXPECT_TRUE(chunk.CopyRows(offset, length, reinterpret_cast<uint8_t*>(rows.data())).ok());
  return rows;
}

TEST(ChunkTest, KeepsRowsOfAnyEncoding) {
  std::vector<int16_t> values;
  for (int i = 0; i < 60; ++i) values.push_back(static_cast<int16_t>(i * i * 37));
  const std::vector<int16_t> delta = Delta(values, 3);
  const CellSpecPtr cell = Cell(DType::kInt16, {3});
  for (const bool is_delta : {false, true}) {
    const std::string raw(BytesOf(is_delta ? delta : values));
    for (const Encoding encoding : {Encoding::kRaw, Encoding::kSnappy}) {
      const std::string payload = encoding == Encoding::kRaw ? raw : SnappyCompress(raw);
      const ChunkPtr chunk =
          Chunk::Copy(Options(cell, 20, encoding, is_delta), payload).value();
      EXPECT_EQ(chunk->is_plain(), !is_delta && encoding == Encoding::kRaw);
      EXPECT_EQ(chunk->row_bytes(), 6u);
      EXPECT_EQ(chunk->uncompressed_bytes(), 120u);
      EXPECT_EQ(chunk->payload(), payload);
      for (int32_t offset = 0; offset <= 20; ++offset) {
        for (int32_t length = 0; length <= 20 - offset; ++length) {
          const std::vector<int16_t> expected(values.begin() + offset * 3,
                                              values.begin() + (offset + length) * 3);
          ASSERT_EQ(Rows<int16_t>(*chunk, offset, length), expected);
        }
      }
      EXPECT_EQ(chunk->Decode().value()->view(), BytesOf(values));
    }
  }
}

template <typename T>
void ExpectWrapAround(DType dtype) {
  Random random(21);
  std::vector<T> values;
  for (int i = 0; i < 40; ++i) values.push_back(static_cast<T>(random.Next()));
  const ChunkPtr chunk = Chunk::Copy(Options(Cell(dtype, {4}), 10, Encoding::kRaw, true),
                                     BytesOf(Delta(values, 4)))
                             .value();
  EXPECT_EQ(Rows<T>(*chunk, 0, 10), values) << DTypeName(dtype);
}

TEST(ChunkTest, DeltaSumsWrapAroundInEveryIntegerType) {
  ExpectWrapAround<uint8_t>(DType::kUint8);
  ExpectWrapAround<uint8_t>(DType::kInt8);
  ExpectWrapAround<uint16_t>(DType::kUint16);
  ExpectWrapAround<uint16_t>(DType::kInt16);
  ExpectWrapAround<uint32_t>(DType::kUint32);
  ExpectWrapAround<uint32_t>(DType::kInt32);
  ExpectWrapAround<uint64_t>(DType::kUint64);
  ExpectWrapAround<uint64_t>(DType::kInt64);
}

TEST(ChunkTest, DeltaLeavesFloatsAndScalarsAsTheyAre) {
  const std::vector<float> floats = {1, 2, 3, 4};
  const ChunkPtr f =
      Chunk::Copy(Options(Cell(DType::kFloat32, {2}), 2, Encoding::kRaw, true),
                  BytesOf(floats))
          .value();
  EXPECT_TRUE(f->is_plain());
  EXPECT_EQ(Rows<float>(*f, 0, 2), floats);
  const std::vector<int32_t> scalars = {5, 6, 7};
  const ChunkPtr s =
      Chunk::Copy(Options(Cell(DType::kInt32), 3, Encoding::kRaw, true), BytesOf(scalars))
          .value();
  EXPECT_TRUE(s->is_plain());
  EXPECT_EQ(Rows<int32_t>(*s, 1, 2), (std::vector<int32_t>{6, 7}));
}

TEST(ChunkTest, UnalignedPayloadsDecode) {
  const std::vector<int64_t> values = {1, -1, 1'000'000'000'000, 3, 4, 5};
  const std::string shifted = "x" + std::string(BytesOf(Delta(values, 2)));
  const ChunkPtr chunk =
      Chunk::Copy(Options(Cell(DType::kInt64, {2}), 3, Encoding::kRaw, true),
                  std::string_view(shifted).substr(1))
          .value();
  std::vector<uint8_t> dest(1 + values.size() * 8);
  ASSERT_TRUE(chunk->CopyRows(0, 3, dest.data() + 1).ok());
  EXPECT_EQ(std::string_view(reinterpret_cast<char*>(dest.data()) + 1, 48),
            BytesOf(values));
}

TEST(ChunkTest, StringsKeepTheirContentForm) {
  const std::string content =
      MakeStringContent({"a", "", std::string_view("b\0c", 3), "d"});
  const ChunkPtr raw = Chunk::Copy(Options(Cell(DType::kString, {2}), 2), content).value();
  EXPECT_TRUE(raw->is_plain());
  EXPECT_EQ(raw->row_bytes(), 0u);
  EXPECT_EQ(raw->Decode().value()->view(), content);
  const ChunkPtr packed =
      Chunk::Copy(Options(Cell(DType::kString, {2}), 2, Encoding::kSnappy),
                  SnappyCompress(content))
          .value();
  EXPECT_EQ(packed->uncompressed_bytes(), content.size());
  EXPECT_EQ(packed->Decode().value()->view(), content);
}

TEST(ChunkTest, StringContentIsCheckedToTheLastByte) {
  const ChunkOptions options = Options(Cell(DType::kString), 2);
  const std::string good = MakeStringContent({"abc", "de"});
  EXPECT_EQ(CopyCode(options, good), StatusCode::kOk);
  EXPECT_EQ(CopyCode(options, good + "x"), StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(options, good.substr(0, 6)), StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(options, ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(options, std::string(20, '\xff')), StatusCode::kInvalidArgument);
  std::string overflow;
  AppendVarint(&overflow, ~uint64_t{0});
  AppendVarint(&overflow, 3);
  EXPECT_EQ(CopyCode(options, overflow + "a"), StatusCode::kInvalidArgument);
  ChunkOptions packed = options;
  packed.encoding = Encoding::kSnappy;
  EXPECT_EQ(CopyCode(packed, SnappyCompress(good)), StatusCode::kOk);
  EXPECT_EQ(CopyCode(packed, SnappyCompress(good + "x")), StatusCode::kInvalidArgument);
}

TEST(ChunkTest, PayloadMustHaveTheDeclaredSize) {
  const ChunkOptions raw = Options(Cell(DType::kFloat32, {2}), 3);
  EXPECT_EQ(CopyCode(raw, std::string(24, 'x')), StatusCode::kOk);
  EXPECT_EQ(CopyCode(raw, std::string(23, 'x')), StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(raw, std::string(25, 'x')), StatusCode::kInvalidArgument);
  ChunkOptions packed = raw;
  packed.encoding = Encoding::kSnappy;
  EXPECT_EQ(CopyCode(packed, SnappyCompress(std::string(24, 'x'))), StatusCode::kOk);
  EXPECT_EQ(CopyCode(packed, SnappyCompress(std::string(20, 'x'))),
            StatusCode::kInvalidArgument);
}

TEST(ChunkTest, DamagedSnappyIsRefused) {
  Random random(22);
  std::string data;
  for (int i = 0; i < 1000; ++i) data.push_back(static_cast<char>(random.Below(4)));
  const std::string packed = SnappyCompress(data);
  const ChunkOptions options = Options(Cell(DType::kUint8, {1000}), 1, Encoding::kSnappy);
  EXPECT_EQ(CopyCode(options, packed), StatusCode::kOk);
  for (size_t cut = 0; cut < packed.size(); ++cut) {
    EXPECT_EQ(CopyCode(options, packed.substr(0, cut)), StatusCode::kInvalidArgument);
  }
  // Whatever is accepted after a flipped bit still decodes.
  for (size_t i = 0; i < packed.size(); ++i) {
    std::string flipped = packed;
    flipped[i] = static_cast<char>(flipped[i] ^ (1 << random.Below(8)));
    const Result<ChunkPtr> chunk = Chunk::Copy(options, flipped);
    if (chunk.ok()) {
      EXPECT_TRUE((*chunk)->Decode().ok());
    }
  }
}

TEST(ChunkTest, HostileSizesAllocateNothing) {
  std::string claims_4_gib;
  AppendVarint(&claims_4_gib, 0xffffffff);
  const size_t before = mallinfo2().arena + mallinfo2().hblkhd;
  EXPECT_NE(CopyCode(Options(Cell(DType::kUint8, {0x7fffffff}), 2, Encoding::kSnappy),
                     claims_4_gib),
            StatusCode::kOk);
  EXPECT_NE(CopyCode(Options(Cell(DType::kString, {1 << 30}), 4), "abc"), StatusCode::kOk);
  EXPECT_NE(CopyCode(Options(Cell(DType::kString, {}), 1, Encoding::kSnappy), claims_4_gib),
            StatusCode::kOk);
  EXPECT_LT(mallinfo2().arena + mallinfo2().hblkhd, before + (1 << 20));
  for (const Shape& shape :
       {Shape{int64_t{1} << 40, int64_t{1} << 40}, Shape{int64_t{1} << 62, 2},
        Shape{(int64_t{1} << 61) + 1}, Shape{-1}, Shape(255, 1)}) {
    EXPECT_EQ(CopyCode(Options(Cell(DType::kInt64, shape), 8), "12345678"),
              StatusCode::kInvalidArgument);
  }
}

TEST(ChunkTest, MeaninglessOptionsAreRefused) {
  EXPECT_EQ(CopyCode(Options(nullptr, 1), ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(Options(Cell(DType::kInt32), 0), ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(Options(Cell(DType::kInt32), -1), ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(Options(Cell(DType::kInvalid), 1), ""), StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(Options(Cell(static_cast<DType>(99)), 1), "x"),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(CopyCode(Options(Cell(DType::kUint8), 1, static_cast<Encoding>(7)), "x"),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(Chunk::Wrap(Options(Cell(DType::kUint8), 1), nullptr).status().code(),
            StatusCode::kInvalidArgument);
}

TEST(ChunkTest, EmptyCellsAreFine) {
  const ChunkPtr chunk = Chunk::Copy(Options(Cell(DType::kFloat32, {0, 5}), 3), "").value();
  EXPECT_EQ(chunk->row_bytes(), 0u);
  EXPECT_TRUE(chunk->CopyRows(0, 3, nullptr).ok());
  EXPECT_EQ(chunk->Decode().value()->size(), 0u);
  EXPECT_TRUE(Chunk::Copy(Options(Cell(DType::kString, {0}), 3), "").ok());
}

TEST(ChunkTest, LargePayloadKeepsTheCallersBuffer) {
  const BufferPtr buffer = Buffer::CopyOf(std::string(4096, 'x'));
  const ChunkPtr chunk = Chunk::Wrap(Options(Cell(DType::kUint8), 4096), buffer).value();
  EXPECT_EQ(chunk->payload_buffer(), buffer);
  EXPECT_EQ(chunk->Decode().value(), buffer);
}

TEST(ChunkTest, SmallPayloadLivesInTheChunk) {
  const BufferPtr buffer = Buffer::CopyOf(std::string(40, 'x'));
  const ChunkPtr chunk = Chunk::Wrap(Options(Cell(DType::kUint8), 40), buffer).value();
  EXPECT_EQ(chunk->payload_buffer(), nullptr);
  EXPECT_TRUE(buffer->unique());
  EXPECT_EQ(chunk->payload(), std::string(40, 'x'));
}

#if !defined(__SANITIZE_ADDRESS__)
TEST(ChunkTest, SmallChunkTakesLittleMemory) {
  const ChunkPtr chunk =
      Chunk::Copy(Options(Cell(DType::kFloat32, {10}), 1), std::string(40, 'x')).value();
  const size_t bytes = malloc_usable_size(const_cast<Chunk*>(chunk.get()));
  RecordProperty("bytes", static_cast<int>(bytes));
  EXPECT_LE(bytes, 176u);
}
#endif

}  // namespace
}  // namespace reverb_tf
