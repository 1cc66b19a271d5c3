// When inserts and samples have to wait.
//
//   can_sample(n):  size >= min_size            and  I·spi − S − n >= min_diff
//   can_insert(n):  size + n <= min_size        or   (I + n)·spi − S <= max_diff
//
// with size = I − D. I counts new keys, S samples granted less those given back,
// D removals of any kind.
#ifndef REVERB_TF_CC_CORE_RATE_LIMITER_H_
#define REVERB_TF_CC_CORE_RATE_LIMITER_H_

#include <cstdint>
#include <string>

#include "cc/base/status.h"

namespace reverb_tf {

struct RateLimiterConfig {
  double samples_per_insert = 1.0;
  int64_t min_size_to_sample = 1;
  double min_diff = 0;
  double max_diff = 0;

  // INVALID_ARGUMENT for a value that isn't finite, samples_per_insert <= 0,
  // min_size_to_sample < 1 or min_diff > max_diff.
  Status Validate() const;
};

// Arithmetic only: counts in, decisions out. Thread-compatible.
class RateLimiter {
 public:
  explicit RateLimiter(const RateLimiterConfig& config) : config_(config) {}
  // One that has counted already.
  RateLimiter(const RateLimiterConfig& config, int64_t inserts, int64_t samples,
              int64_t deletes)
      : config_(config), inserts_(inserts), samples_(samples), deletes_(deletes) {}

  bool CanInsert(int64_t n) const;
  bool CanSample(int64_t n) const;
  // The most samples up to `limit` that may be granted now.
  int64_t MaxSamples(int64_t limit) const;

  void OnInsert() { ++inserts_; }
  void OnSample(int64_t n) { samples_ += n; }
  void OnSampleReturned(int64_t n) { samples_ -= n; }
  void OnDelete() { ++deletes_; }
  // An item removed by its last sample came back.
  void OnDeleteUndone() { --deletes_; }
  void Reset() { inserts_ = samples_ = deletes_ = 0; }

  // "open", or "blocked by rate limiter: <numbers>; the next insert needs …".
  std::string ExplainInsert() const;
  std::string ExplainSample() const;

  const RateLimiterConfig& config() const { return config_; }
  int64_t inserts() const { return inserts_; }
  int64_t samples() const { return samples_; }
  int64_t deletes() const { return deletes_; }
  int64_t size() const { return inserts_ - deletes_; }

 private:
  // I·spi − S
  double Diff() const {
    return static_cast<double>(inserts_) * config_.samples_per_insert -
           static_cast<double>(samples_);
  }

  const RateLimiterConfig config_;
  int64_t inserts_ = 0;
  int64_t samples_ = 0;
  int64_t deletes_ = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_RATE_LIMITER_H_
