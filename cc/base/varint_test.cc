#include "cc/base/varint.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

const uint8_t* Begin(const std::string& s) {
  return reinterpret_cast<const uint8_t*>(s.data());
}
const uint8_t* End(const std::string& s) { return Begin(s) + s.size(); }

TEST(VarintTest, KnownBytes) {
  std::string out;
  AppendVarint(&out, 300);
  EXPECT_EQ(out, "\xac\x02");
}

TEST(VarintTest, RoundTripsTheEdgesOfEveryLength) {
  for (int bits = 0; bits <= 64; ++bits) {
    for (int delta = -1; delta <= 1; ++delta) {
      const uint64_t power = bits == 64 ? 0 : uint64_t{1} << bits;
      const uint64_t value = power + static_cast<uint64_t>(delta);
      std::string out;
      AppendVarint(&out, value);
      EXPECT_EQ(static_cast<int>(out.size()), VarintSize(value));
      uint64_t read = 0;
      EXPECT_EQ(GetVarint(Begin(out), End(out), &read), End(out));
      EXPECT_EQ(read, value);
    }
  }
}

TEST(VarintTest, EveryCutIsRefused) {
  std::string out;
  AppendVarint(&out, UINT64_MAX);
  ASSERT_EQ(out.size(), static_cast<size_t>(kMaxVarintBytes));
  uint64_t value = 0;
  for (size_t n = 0; n < out.size(); ++n) {
    EXPECT_EQ(GetVarint(Begin(out), Begin(out) + n, &value), nullptr) << n;
  }
}

TEST(VarintTest, MoreThanTenBytesAreRefused) {
  std::string bytes(10, '\x80');
  bytes += '\x01';
  uint64_t value = 0;
  EXPECT_EQ(GetVarint(Begin(bytes), End(bytes), &value), nullptr);
}

TEST(VarintTest, StopsAtItsLastByte) {
  const std::string bytes("\x05\xff", 2);
  uint64_t value = 0;
  EXPECT_EQ(GetVarint(Begin(bytes), End(bytes), &value), Begin(bytes) + 1);
  EXPECT_EQ(value, 5u);
}

}  // namespace
}  // namespace reverb_tf
