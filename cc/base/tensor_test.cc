#include "cc/base/tensor.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(ElementSize(DType::kFloat32), 4u);
  EXPECT_EQ(ElementSize(DType::kComplex128), 16u);
  EXPECT_EQ(ElementSize(DType::kBfloat16), 2u);
  EXPECT_EQ(ElementSize(DType::kString), 0u);
  EXPECT_STREQ(DTypeName(DType::kFloat8E4m3fn), "float8_e4m3fn");
}

TEST(DTypeTest, NumbersWithoutADtypeAreNotSupported) {
  for (const int number : {-1, 0, 11, 20, 21, 100, 1 << 30}) {
    const auto dtype = static_cast<DType>(number);
    EXPECT_FALSE(IsSupported(dtype)) << number;
    EXPECT_EQ(ElementSize(dtype), 0u);
    EXPECT_STREQ(DTypeName(dtype), "invalid");
  }
  EXPECT_TRUE(IsSupported(DType::kString));
}

TEST(DTypeTest, BoolAndFloatsAreNoIntegers) {
  EXPECT_TRUE(IsInteger(DType::kUint64));
  EXPECT_TRUE(IsInteger(DType::kInt8));
  EXPECT_FALSE(IsInteger(DType::kBool));
  EXPECT_FALSE(IsInteger(DType::kFloat16));
  EXPECT_FALSE(IsInteger(DType::kString));
}

TEST(ShapeTest, CountsElements) {
  EXPECT_EQ(NumElements({}), 1);
  EXPECT_EQ(NumElements({2, 3}), 6);
  EXPECT_EQ(NumElements({2, 0, 3}), 0);
}

TEST(ShapeTest, UnknownOrHugeCountsAreMinusOne) {
  EXPECT_EQ(NumElements({2, -1}), -1);
  EXPECT_EQ(NumElements({0, -1}), -1);
  EXPECT_EQ(NumElements({int64_t{1} << 32, int64_t{1} << 32}), -1);
}

TEST(ShapeTest, Prints) {
  EXPECT_EQ(ShapeString({}), "[]");
  EXPECT_EQ(ShapeString({2, -1, 3}), "[2,?,3]");
}

TEST(TensorSpecTest, Prints) {
  EXPECT_EQ((TensorSpec{"a", DType::kInt32, {-1}, false}).ToString(), "int32[?]");
  EXPECT_EQ((TensorSpec{"a", DType::kInt32, {}, true}).ToString(), "int32[...]");
}

TEST(TensorSpecTest, CompatibleShapesAgreeWhereKnown) {
  const TensorSpec spec{"", DType::kFloat32, {-1, 3}, false};
  EXPECT_TRUE(ShapeIsCompatible(spec, {0, 3}));
  EXPECT_TRUE(ShapeIsCompatible(spec, {7, 3}));
  EXPECT_FALSE(ShapeIsCompatible(spec, {7, 4}));
  EXPECT_FALSE(ShapeIsCompatible(spec, {3}));
  EXPECT_TRUE(ShapeIsCompatible({"", DType::kFloat32, {}, true}, {1, 2, 3}));
}

TEST(StringContentTest, RoundTrips) {
  const std::string with_nul("a\0", 2);
  const std::string content = MakeStringContent({"", with_nul, std::string(200, 'x')});
  const Result<StringContent> parsed = ParseStringContent(content, 3);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->lengths, (std::vector<uint64_t>{0, 2, 200}));
  EXPECT_EQ(parsed->bytes, with_nul + std::string(200, 'x'));
}

TEST(StringContentTest, NoElements) {
  EXPECT_TRUE(ParseStringContent("", 0).ok());
  EXPECT_FALSE(ParseStringContent("x", 0).ok());
}

TEST(StringContentTest, EveryCutAndEverySurplusIsRefused) {
  const std::string content = MakeStringContent({"ab", "", "cde"});
  for (size_t n = 0; n < content.size(); ++n) {
    EXPECT_FALSE(ParseStringContent(content.substr(0, n), 3).ok()) << n;
  }
  EXPECT_FALSE(ParseStringContent(content + "x", 3).ok());
  EXPECT_FALSE(ParseStringContent(content, 4).ok());
}

TEST(StringContentTest, HugeCountsAreRefusedBeforeAnythingIsAllocated) {
  EXPECT_FALSE(ParseStringContent("abc", INT64_MAX).ok());
  EXPECT_FALSE(ParseStringContent("abc", -1).ok());
}

TEST(StringContentTest, LengthsThatOverflowAreRefused) {
  std::string content;
  for (int i = 0; i < 2; ++i) content.append("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  content += "some bytes";
  EXPECT_FALSE(ParseStringContent(content, 2).ok());
}

}  // namespace
}  // namespace reverb_tf
