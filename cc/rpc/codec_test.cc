#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "cc/rpc/control_codec.h"
#include "cc/rpc/insert_codec.h"
#include "cc/rpc/sample_codec.h"
#include "cc/rpc/status_codec.h"

namespace reverb_tf {
namespace {

ChunkPtr MakeChunk(uint64_t key, DType dtype, Shape cell, int32_t rows,
                   const std::string& payload, Encoding encoding = Encoding::kRaw) {
  auto spec = std::make_shared<TensorSpec>();
  spec->dtype = dtype;
  spec->shape = std::move(cell);
  ChunkOptions options;
  options.key = key;
  options.cell = spec;
  options.num_rows = rows;
  options.episode_id = 7;
  options.start = 3;
  options.end = 3 + rows - 1;
  options.encoding = encoding;
  return Chunk::Copy(options, payload).value();
}

ChunkPtr FloatChunk(uint64_t key, int32_t rows, int64_t width) {
  std::string payload(static_cast<size_t>(rows * width) * 4, 0);
  for (size_t i = 0; i < payload.size(); ++i) payload[i] = static_cast<char>(i * 7 + key);
  return MakeChunk(key, DType::kFloat32, {width}, rows, payload);
}

InsertRequest SomeRequest() {
  InsertRequest request;
  request.chunks = {FloatChunk(11, 4, 3), FloatChunk(12, 2, 1000),
                    MakeChunk(13, DType::kString, {}, 2,
                              MakeStringContent({"ab", std::string(3000, 'x')}))};
  InsertItem item;
  item.key = 99;
  item.table = "t";
  item.priority = 1.5;
  item.columns = {{2, false}, {1, true}, {1, false}};
  item.slices = {
      {11, 1, 2, nullptr}, {11, 0, 1, nullptr}, {12, 1, 1, nullptr}, {13, 0, 2, nullptr}};
  item.writer_id = 1234567;
  item.sequence = 5;
  item.written_as_steps = true;
  request.items = {item};
  request.keep_chunk_keys = {11, 12};
  return request;
}

std::string Flat(grpc::ByteBuffer buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string out;
  for (const grpc::Slice& s : slices) {
    out.append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return out;
}

// The bytes in slices of `step`, so that fields span them.
grpc::ByteBuffer Sliced(const std::string& bytes, size_t step) {
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < bytes.size(); i += step)
    slices.emplace_back(bytes.substr(i, step));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

TEST(InsertCodec, GeneratedClassesReadWhatIsWritten) {
  pb::InsertStreamRequest message;
  ASSERT_TRUE(message.ParseFromString(
      Flat(EncodeInsertRequest(SomeRequest(), Peer::kOwn).value())));
  ASSERT_EQ(message.chunks_size(), 3);
  EXPECT_EQ(message.chunks(0).chunk_key(), 11u);
  EXPECT_EQ(message.chunks(0).encoding(), 1u);
  EXPECT_EQ(message.chunks(0).sequence_range().episode_id(), 7u);
  EXPECT_EQ(message.chunks(0).sequence_range().start(), 3);
  EXPECT_EQ(message.chunks(0).data_tensors_len(), 1);
  const auto& tensor = message.chunks(0).data().tensors(0);
  EXPECT_EQ(tensor.dtype(), 1);
  ASSERT_EQ(tensor.tensor_shape().dim_size(), 2);
  EXPECT_EQ(tensor.tensor_shape().dim(0).size(), 4);
  EXPECT_EQ(tensor.tensor_content().size(), 48u);
  ASSERT_EQ(message.items_size(), 1);
  EXPECT_EQ(message.items(0).key(), 99u);
  EXPECT_EQ(message.items(0).priority(), 1.5);
  EXPECT_EQ(message.items(0).writer_id(), 1234567u);
  EXPECT_EQ(message.items(0).sequence(), 5u);
  ASSERT_EQ(message.items(0).flat_trajectory().columns_size(), 3);
  EXPECT_TRUE(message.items(0).flat_trajectory().columns(1).squeeze());
  EXPECT_EQ(message.items(0).flat_trajectory().columns(0).chunk_slices(0).offset(), 1);
  EXPECT_THAT(message.keep_chunk_keys(), testing::ElementsAre(11, 12));
}

TEST(InsertCodec, ForeignPeersGetSnappyNumbersAndPlainStrings) {
  pb::InsertStreamRequest message;
  ASSERT_TRUE(message.ParseFromString(
      Flat(EncodeInsertRequest(SomeRequest(), Peer::kForeign).value())));
  EXPECT_EQ(message.chunks(0).encoding(), 0u);
  EXPECT_EQ(message.items(0).writer_id(), 0u);
  grpc::ByteBuffer bytes = Serialize(message);
  const InsertRequest decoded = DecodeInsertRequest(&bytes).value();
  EXPECT_EQ(decoded.chunks[0]->options().encoding, Encoding::kSnappy);
  EXPECT_EQ(decoded.chunks[0]->Decode().value()->view(),
            SomeRequest().chunks[0]->payload());
  EXPECT_EQ(decoded.chunks[2]->payload(), SomeRequest().chunks[2]->payload());
}

TEST(InsertCodec, RoundTripsHoweverTheMessageIsSliced) {
  const InsertRequest request = SomeRequest();
  const std::string bytes = Flat(EncodeInsertRequest(request, Peer::kOwn).value());
  for (size_t step : {size_t{1}, size_t{7}, size_t{100}, bytes.size()}) {
    grpc::ByteBuffer sliced = Sliced(bytes, step);
    const InsertRequest decoded = DecodeInsertRequest(&sliced).value();
    ASSERT_EQ(decoded.chunks.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(decoded.chunks[i]->payload(), request.chunks[i]->payload());
      EXPECT_EQ(decoded.chunks[i]->key(), request.chunks[i]->key());
    }
    EXPECT_EQ(decoded.items[0].slices.size(), 4u);
    EXPECT_TRUE(decoded.items[0].written_as_steps);
    EXPECT_EQ(decoded.keep_chunk_keys, request.keep_chunk_keys);
  }
}

TEST(InsertCodec, ChunksOfSeveralTensorsBecomeOnePerColumn) {
  InsertRequest two;
  two.chunks = {FloatChunk(5, 2, 3), FloatChunk(6, 2, 4)};
  pb::InsertStreamRequest message;
  ASSERT_TRUE(
      message.ParseFromString(Flat(EncodeInsertRequest(two, Peer::kForeign).value())));
  *message.mutable_chunks(0)->mutable_data()->add_tensors() =
      message.chunks(1).data().tensors(0);
  message.mutable_chunks()->RemoveLast();
  auto* item = message.add_items();
  auto* slice = item->mutable_flat_trajectory()->add_columns()->add_chunk_slices();
  slice->set_chunk_key(5);
  slice->set_index(1);
  slice->set_length(1);
  grpc::ByteBuffer bytes = Serialize(message);
  const InsertRequest decoded = DecodeInsertRequest(&bytes).value();
  ASSERT_EQ(decoded.chunks.size(), 2u);
  EXPECT_EQ(decoded.chunks[0]->key(), 5u);
  EXPECT_EQ(decoded.items[0].slices[0].chunk_key, decoded.chunks[1]->key());
  EXPECT_TRUE(decoded.items[0].written_as_steps);
}

SampleReply SomeReply() {
  const ChunkPtr wide = FloatChunk(21, 8, 600);
  const ChunkPtr narrow = FloatChunk(22, 8, 2);
  SampleReply reply;
  reply.generation = 4;
  reply.request_done = DeadlineExceededError("why");
  for (int i = 0; i < 3; ++i) {
    const ChunkSlice slices[] = {{wide, 2 + i, 2}, {narrow, i, 1}, {narrow, 5, 1}};
    SampledItem s;
    s.item =
        Item::Create(100 + i, i == 1, {{slices, 1, false}, {slices + 1, 2, false}}).value();
    s.priority = 0.5 * i;
    s.probability = 0.25;
    s.table_size = 10;
    s.times_sampled = i;
    s.rate_limited = i == 2;
    reply.items.push_back(s);
  }
  return reply;
}

TEST(SampleCodec, RoundTripsAndSendsOnlyTheRowsInUse) {
  const SampleReply reply = SomeReply();
  const std::string bytes = Flat(EncodeSampleReply(reply));
  pb::SampleStreamResponse message;
  ASSERT_TRUE(message.ParseFromString(bytes));
  ASSERT_EQ(message.rows_size(), 2);
  EXPECT_EQ(message.rows(0).num_rows(), 4u);
  EXPECT_EQ(message.rows(0).payload().size(), 4u * 600 * 4);
  for (size_t step : {size_t{1}, size_t{13}, bytes.size()}) {
    grpc::ByteBuffer sliced = Sliced(bytes, step);
    const SampleReply decoded = DecodeSampleReply(&sliced).value();
    EXPECT_EQ(decoded.generation, 4u);
    EXPECT_EQ(decoded.request_done->message(), "why");
    ASSERT_EQ(decoded.items.size(), 3u);
    for (int i = 0; i < 3; ++i) {
      const SampledItem& got = decoded.items[i];
      const SampledItem& want = reply.items[i];
      EXPECT_EQ(got.item->key(), want.item->key());
      EXPECT_EQ(got.priority, want.priority);
      EXPECT_EQ(got.times_sampled, want.times_sampled);
      EXPECT_EQ(got.rate_limited, want.rate_limited);
      EXPECT_EQ(got.item->written_as_steps(), want.item->written_as_steps());
      std::string a(2 * 600 * 4, 0), b(a);
      const ChunkSlice& x = *got.item->column(0).slices;
      const ChunkSlice& y = *want.item->column(0).slices;
      ASSERT_TRUE(
          x.chunk->CopyRows(x.offset, x.length, reinterpret_cast<uint8_t*>(a.data())).ok());
      ASSERT_TRUE(
          y.chunk->CopyRows(y.offset, y.length, reinterpret_cast<uint8_t*>(b.data())).ok());
      EXPECT_EQ(a, b);
      EXPECT_EQ(got.item->column(1).length(), 2);
    }
  }
}

TEST(SampleCodec, AnItemOfManyKindsOfCellsIsEncodedInLinearTime) {
  constexpr int kKinds = 1000;
  std::vector<ChunkSlice> slices;
  std::vector<ColumnView> columns;
  // The last cell is like the first: by then it is too far back to be looked for.
  for (int i = 0; i <= kKinds; ++i) {
    const ChunkPtr chunk = MakeChunk(i, DType::kBool, {0, i % kKinds}, 1, "");
    slices.push_back({chunk, 0, 1});
  }
  for (const ChunkSlice& slice : slices) columns.push_back({&slice, 1, false});
  SampleReply reply;
  reply.items.emplace_back();
  reply.items[0].item = Item::Create(1, false, columns).value();
  grpc::ByteBuffer bytes = EncodeSampleReply(reply);
  pb::SampleStreamResponse message;
  ASSERT_TRUE(message.ParseFromString(Flat(bytes)));
  EXPECT_EQ(message.specs_size(), kKinds + 1);
  const SampleReply decoded = DecodeSampleReply(&bytes).value();
  EXPECT_EQ(decoded.items[0].item->column(kKinds).cell().shape, Shape({0, 0}));
}

TEST(SampleCodec, ForeignFormIsPutTogetherAgain) {
  const SampleReply reply = SomeReply();
  ForeignSampleReader reader;
  std::vector<SampledItem> samples;
  std::vector<grpc::ByteBuffer> messages = EncodeForeignSamples(reply.items).value();
  for (grpc::ByteBuffer& bytes : messages) {
    pb::SampleStreamResponse message;
    ASSERT_TRUE(Parse(&bytes, &message));
    ASSERT_TRUE(reader.Read(message, &samples).ok());
  }
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[2].item->key(), 102u);
  EXPECT_EQ(samples[2].item->column(0).length(), 2);
}

// Whatever the bytes, decoding ends with a message or INVALID_ARGUMENT.
void DecodeBoth(const std::string& bytes, size_t step) {
  grpc::ByteBuffer a = Sliced(bytes, step);
  const Result<InsertRequest> insert = DecodeInsertRequest(&a);
  EXPECT_TRUE(insert.ok() || insert.status().code() == StatusCode::kInvalidArgument);
  grpc::ByteBuffer b = Sliced(bytes, step);
  const Result<SampleReply> sample = DecodeSampleReply(&b);
  EXPECT_TRUE(sample.ok() || sample.status().code() == StatusCode::kInvalidArgument);
}

TEST(Codecs, SurviveMessagesCutOffAnywhere) {
  for (const std::string& bytes :
       {Flat(EncodeInsertRequest(SomeRequest(), Peer::kOwn).value()),
        Flat(EncodeSampleReply(SomeReply()))}) {
    for (size_t n = 0; n < bytes.size(); n += 1 + n / 200)
      DecodeBoth(bytes.substr(0, n), 64);
  }
}

// 20,000 messages with up to 8 random bytes changed; seed 1.
TEST(Codecs, SurviveChangedBytes) {
  std::mt19937_64 random(1);
  const std::string originals[] = {
      Flat(EncodeInsertRequest(SomeRequest(), Peer::kOwn).value()).substr(0, 900),
      Flat(EncodeSampleReply(SomeReply())).substr(0, 900)};
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = originals[i % 2];
    for (uint64_t n = 1 + random() % 8; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    DecodeBoth(bytes, 1 + random() % 100);
  }
}

TEST(StatusCodec, AConnectionThatBrokeIsUnavailable) {
  for (const grpc::Status& broken :
       {grpc::Status(grpc::StatusCode::UNKNOWN, "Stream removed"),
        grpc::Status(grpc::StatusCode::INTERNAL,
                     "Received RST_STREAM with error code 2")}) {
    EXPECT_EQ(FromGrpc(broken).code(), StatusCode::kUnavailable);
    EXPECT_EQ(FromGrpc(broken).message(), broken.error_message());
  }
}

TEST(StatusCodec, OtherErrorsKeepTheirCode) {
  EXPECT_EQ(FromGrpc({grpc::StatusCode::UNKNOWN, "x"}).code(), StatusCode::kUnknown);
  EXPECT_EQ(FromGrpc({grpc::StatusCode::INTERNAL, "x"}).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace reverb_tf
