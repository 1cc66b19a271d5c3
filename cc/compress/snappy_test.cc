#include "cc/compress/snappy.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

std::string Text() {
  std::string text;
  for (int i = 0; i < 500; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

TEST(SnappyTest, RoundTrips) {
  for (const std::string& raw : {std::string(), std::string("x"), Text()}) {
    const std::string compressed = SnappyCompress(raw);
    uint64_t length = 0;
    ASSERT_TRUE(SnappyUncompressedLength(compressed, &length));
    ASSERT_EQ(length, raw.size());
    EXPECT_TRUE(SnappyIsValid(compressed));
    std::string back(raw.size(), '?');
    EXPECT_TRUE(SnappyUncompress(compressed, reinterpret_cast<uint8_t*>(back.data())));
    EXPECT_EQ(back, raw);
  }
}

TEST(SnappyTest, ShrinksWhatRepeats) {
  EXPECT_LT(SnappyCompress(Text()).size(), Text().size() / 2);
}

TEST(SnappyTest, EveryCutIsInvalid) {
  const std::string compressed = SnappyCompress(Text());
  for (size_t n = 0; n < compressed.size(); ++n) {
    EXPECT_FALSE(SnappyIsValid(compressed.substr(0, n))) << n;
  }
}

TEST(SnappyTest, NoBytesHaveNoLength) {
  uint64_t length = 0;
  EXPECT_FALSE(SnappyUncompressedLength("", &length));
}

TEST(SnappyTest, ClaimedLengthIsNotBelieved) {
  // The header claims 2^32 - 1 bytes, none follow.
  EXPECT_FALSE(SnappyIsValid("\xff\xff\xff\xff\x0f"));
}

}  // namespace
}  // namespace reverb_tf
