#include "cc/base/status.h"

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

TEST(StatusTest, DefaultIsOk) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kOk);
  EXPECT_EQ(status.ToString(), "OK");
}

TEST(StatusTest, ErrorPrintsCodeAndMessage) {
  const Status status = NotFoundError("no table 't'");
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.message(), "no table 't'");
  std::ostringstream os;
  os << status;
  EXPECT_EQ(os.str(), "NOT_FOUND: no table 't'");
}

TEST(StatusTest, CodesHaveTheCanonicalNumbers) {
  EXPECT_EQ(static_cast<int>(InvalidArgumentError("").code()), 3);
  EXPECT_EQ(static_cast<int>(DeadlineExceededError("").code()), 4);
  EXPECT_EQ(static_cast<int>(UnavailableError("").code()), 14);
}

TEST(StatusTest, EveryCodeHasADistinctName) {
  for (int a = 0; a <= 16; ++a) {
    for (int b = a + 1; b <= 16; ++b) {
      EXPECT_STRNE(StatusCodeName(static_cast<StatusCode>(a)),
                   StatusCodeName(static_cast<StatusCode>(b)));
    }
  }
}

TEST(StatusTest, CodeOutsideTheEnumHasAName) {
  EXPECT_STREQ(StatusCodeName(static_cast<StatusCode>(99)), "UNKNOWN_CODE");
}

TEST(StatusTest, EqualityLooksAtCodeAndMessage) {
  EXPECT_EQ(InternalError("a"), InternalError("a"));
  EXPECT_FALSE(InternalError("a") == InternalError("b"));
  EXPECT_FALSE(InternalError("a") == DataLossError("a"));
}

TEST(ResultTest, HoldsAValue) {
  Result<int> result = 7;
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result.status().ok());
  EXPECT_EQ(*result, 7);
}

TEST(ResultTest, HoldsAnError) {
  const Result<int> result = CancelledError("stop");
  EXPECT_FALSE(result.ok());
  EXPECT_EQ(result.status(), CancelledError("stop"));
}

TEST(ResultTest, MovesAValueThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  const std::unique_ptr<int> value = std::move(result).value();
  EXPECT_EQ(*value, 3);
}

TEST(ResultTest, AMemberOfATemporarysValueCanBeLoopedOver) {
  struct Owner {
    std::shared_ptr<int> life = std::make_shared<int>(0);
    std::vector<int> values = {1, 2};
  };
  std::weak_ptr<int> life;
  const auto make = [&life]() -> Result<Owner> {
    Owner owner;
    life = owner.life;
    return owner;
  };
  const std::vector<int>& values = make().value().values;
  EXPECT_FALSE(life.expired());
  const std::vector<int>& same = (*make()).values;
  EXPECT_FALSE(life.expired());
  EXPECT_EQ(values, same);
}

TEST(ResultDeathTest, ValueOfAnErrorDies) {
  const Result<int> result = DataLossError("gone");
  EXPECT_DEATH((void)result.value(), "DATA_LOSS: gone");
}

Result<int> Half(int x) {
  if (x % 2 != 0) return InvalidArgumentError("odd");
  return x / 2;
}

Result<int> Quarter(int x) {
  RTF_ASSIGN_OR_RETURN(const int half, Half(x));
  RTF_ASSIGN_OR_RETURN(const int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int x) {
  RTF_RETURN_IF_ERROR(Quarter(x).status());
  return OkStatus();
}

TEST(StatusMacrosTest, PassValuesAndErrorsOn) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status(), InvalidArgumentError("odd"));
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_EQ(CheckQuarter(1), InvalidArgumentError("odd"));
}

}  // namespace
}  // namespace reverb_tf
