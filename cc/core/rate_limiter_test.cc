#include "cc/core/rate_limiter.h"

#include <limits>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

constexpr double kMax = std::numeric_limits<double>::max();
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();

RateLimiter MinSize(int64_t n) { return RateLimiter({1, n, -kMax, kMax}); }
RateLimiter Queue(int64_t size) {
  return RateLimiter({1, 1, 0, static_cast<double>(size)});
}

void Insert(RateLimiter* limiter, int n) {
  for (int i = 0; i < n; ++i) limiter->OnInsert();
}

TEST(RateLimiterTest, MinSizeBlocksSamplesUntilReached) {
  RateLimiter limiter = MinSize(3);
  Insert(&limiter, 2);
  EXPECT_FALSE(limiter.CanSample(1));
  Insert(&limiter, 1);
  EXPECT_TRUE(limiter.CanSample(1));
  EXPECT_TRUE(limiter.CanSample(1'000'000));
  limiter.OnDelete();
  EXPECT_FALSE(limiter.CanSample(1));
}

TEST(RateLimiterTest, QueueTakesAsManyInsertsAsItHasRoom) {
  RateLimiter limiter = Queue(2);
  EXPECT_TRUE(limiter.CanInsert(2));
  EXPECT_FALSE(limiter.CanInsert(3));
  Insert(&limiter, 2);
  EXPECT_FALSE(limiter.CanInsert(1));
  EXPECT_EQ(limiter.MaxSamples(10), 2);
  limiter.OnSample(1);
  limiter.OnDelete();
  EXPECT_TRUE(limiter.CanInsert(1));
  limiter.OnSampleReturned(1);
  limiter.OnDeleteUndone();
  EXPECT_FALSE(limiter.CanInsert(1));
}

TEST(RateLimiterTest, DeletingByKeyGivesAQueueNoRoomBack) {
  RateLimiter limiter = Queue(2);
  Insert(&limiter, 2);
  limiter.OnDelete();
  EXPECT_EQ(limiter.size(), 1);
  EXPECT_FALSE(limiter.CanInsert(1));
}

TEST(RateLimiterTest, TableBelowMinSizeLetsInsertsIn) {
  RateLimiter limiter({1, 5, 0, 1});
  Insert(&limiter, 4);
  EXPECT_TRUE(limiter.CanInsert(1));
  EXPECT_FALSE(limiter.CanInsert(2));
}

TEST(RateLimiterTest, HugeRequestsDoNotOverflow) {
  RateLimiter limiter = MinSize(1);
  Insert(&limiter, 1);
  EXPECT_TRUE(limiter.CanInsert(kMaxInt));
  EXPECT_TRUE(limiter.CanSample(kMaxInt));
  EXPECT_EQ(limiter.MaxSamples(kMaxInt), kMaxInt);
  RateLimiter queue = Queue(3);
  Insert(&queue, 1);
  EXPECT_FALSE(queue.CanInsert(kMaxInt));
  EXPECT_FALSE(queue.CanSample(kMaxInt));
  EXPECT_EQ(queue.MaxSamples(kMaxInt), 1);
}

TEST(RateLimiterTest, MaxSamplesIsWhatGrantingOneByOneGives) {
  for (const double spi : {0.1, 0.3, 1.0, 2.5, 7.0}) {
    for (const double min_diff : {-3.7, 0.0, 0.1, 2.0}) {
      for (int inserts = 0; inserts < 30; ++inserts) {
        RateLimiter limiter({spi, 2, min_diff, kMax});
        Insert(&limiter, inserts);
        limiter.OnSample(1);
        RateLimiter one_by_one = limiter;
        int64_t granted = 0;
        while (granted < 50 && one_by_one.CanSample(1)) {
          one_by_one.OnSample(1);
          ++granted;
        }
        EXPECT_EQ(limiter.MaxSamples(50), granted)
            << spi << " " << min_diff << " " << inserts;
      }
    }
  }
}

TEST(RateLimiterTest, MaxSamplesStaysQuickWhenRoundingIsCoarse) {
  RateLimiter limiter({1e300, 1, 1e299, kMax});
  Insert(&limiter, 1);
  const int64_t n = limiter.MaxSamples(kMaxInt);
  EXPECT_EQ(n, kMaxInt);
}

TEST(RateLimiterTest, InsertExplanationOfTheRatioThatBlocksASingleThread) {
  // SampleToInsertRatio(3, 3, 3): min_diff 6, max_diff 12.
  RateLimiter limiter({3, 3, 6, 12});
  Insert(&limiter, 4);
  EXPECT_EQ(limiter.ExplainInsert(),
            "blocked by rate limiter: inserts 4, samples 0, diff 12 = max_diff 12 "
            "(samples_per_insert 3, min_size 3); the next insert needs 3 more samples");
  EXPECT_EQ(limiter.ExplainSample(), "open");
}

TEST(RateLimiterTest, NumberOfSamplesInTheExplanationUnblocks) {
  for (const double spi : {0.4, 1.0, 3.0}) {
    RateLimiter limiter({spi, 1, 0, 5.3});
    while (limiter.CanInsert(1)) limiter.OnInsert();
    const std::string text = limiter.ExplainInsert();
    const int needed = std::stoi(text.substr(text.find("needs ") + 6));
    limiter.OnSample(needed - 1);
    EXPECT_FALSE(limiter.CanInsert(1)) << text;
    limiter.OnSample(1);
    EXPECT_TRUE(limiter.CanInsert(1)) << text;
  }
}

TEST(RateLimiterTest, NumberOfInsertsInTheExplanationUnblocks) {
  for (const double spi : {0.4, 1.0, 3.0}) {
    RateLimiter limiter({spi, 2, 4.1, kMax});
    const std::string text = limiter.ExplainSample();
    const int needed = std::stoi(text.substr(text.find("needs ") + 6));
    Insert(&limiter, needed - 1);
    EXPECT_FALSE(limiter.CanSample(1)) << text;
    limiter.OnInsert();
    EXPECT_TRUE(limiter.CanSample(1)) << text;
  }
}

TEST(RateLimiterTest, SampleExplanationsNameTheReason) {
  RateLimiter limiter({1, 3, 1, 10});
  EXPECT_NE(limiter.ExplainSample().find("table empty"), std::string::npos);
  Insert(&limiter, 2);
  EXPECT_EQ(limiter.ExplainSample(),
            "blocked by rate limiter: inserts 2, samples 0, size 2 < min_size 3 "
            "(samples_per_insert 1, min_size 3); the next sample needs 1 more insert");
  Insert(&limiter, 1);
  limiter.OnSample(2);
  EXPECT_NE(limiter.ExplainSample().find("diff 1 − 1 < min_diff 1"), std::string::npos)
      << limiter.ExplainSample();
}

TEST(RateLimiterConfigTest, RefusesWhatCannotWork) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE((RateLimiterConfig{1, 1, 0, 1}.Validate().ok()));
  EXPECT_TRUE((RateLimiterConfig{1, 1, 0, 0}.Validate().ok()));
  for (const RateLimiterConfig& bad :
       std::initializer_list<RateLimiterConfig>{{0, 1, 0, 1},
                                                {-1, 1, 0, 1},
                                                {inf, 1, 0, 1},
                                                {nan, 1, 0, 1},
                                                {1, 0, 0, 1},
                                                {1, 1, 2, 1},
                                                {1, 1, nan, 1},
                                                {1, 1, -inf, 1},
                                                {1, 1, 0, inf}}) {
    EXPECT_EQ(bad.Validate().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace reverb_tf
