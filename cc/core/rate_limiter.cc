#include "cc/core/rate_limiter.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace reverb_tf {
namespace {

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.15g", value);
  return text;
}

// The smallest whole number >= `operations`, at least 1, with its noun.
std::string Operations(double operations, const char* noun) {
  const double whole = std::max(1.0, std::ceil(operations));
  return Number(whole) + " more " + noun + (whole == 1 ? "" : "s");
}

Status CheckFinite(const char* name, double value) {
  if (std::isfinite(value)) return OkStatus();
  return InvalidArgumentError(std::string(name) + ": got " + Number(value) +
                              ", expected a finite number");
}

}  // namespace

Status RateLimiterConfig::Validate() const {
  RTF_RETURN_IF_ERROR(CheckFinite("samples_per_insert", samples_per_insert));
  RTF_RETURN_IF_ERROR(CheckFinite("min_diff", min_diff));
  RTF_RETURN_IF_ERROR(CheckFinite("max_diff", max_diff));
  if (samples_per_insert <= 0) {
    return InvalidArgumentError("samples_per_insert: got " + Number(samples_per_insert) +
                                ", expected a number > 0");
  }
  if (min_size_to_sample < 1) {
    return InvalidArgumentError("min_size_to_sample: got " +
                                std::to_string(min_size_to_sample) +
                                ", expected a number >= 1");
  }
  if (min_diff > max_diff) {
    return InvalidArgumentError("min_diff: got " + Number(min_diff) +
                                ", expected at most max_diff, which is " +
                                Number(max_diff));
  }
  return OkStatus();
}

bool RateLimiter::CanInsert(int64_t n) const {
  if (n <= config_.min_size_to_sample - size()) return true;
  const double inserts = static_cast<double>(inserts_) + static_cast<double>(n);
  return inserts * config_.samples_per_insert - static_cast<double>(samples_) <=
         config_.max_diff;
}

bool RateLimiter::CanSample(int64_t n) const {
  return size() >= config_.min_size_to_sample &&
         Diff() - static_cast<double>(n) >= config_.min_diff;
}

int64_t RateLimiter::MaxSamples(int64_t limit) const {
  if (limit < 1 || !CanSample(1)) return 0;
  if (CanSample(limit)) return limit;
  // CanSample is monotone in n, also as rounded: at most 63 steps give what
  // granting one by one would.
  int64_t allowed = 1;
  int64_t refused = limit;
  while (refused - allowed > 1) {
    const int64_t middle = allowed + (refused - allowed) / 2;
    (CanSample(middle) ? allowed : refused) = middle;
  }
  return allowed;
}

std::string RateLimiter::ExplainInsert() const {
  if (CanInsert(1)) return "open";
  const double spi = config_.samples_per_insert;
  const double diff = Diff();
  std::string relation = "diff " + Number(diff);
  if (diff < config_.max_diff) relation += " + " + Number(spi);
  relation += diff == config_.max_diff ? " = " : " > ";
  return "blocked by rate limiter: inserts " + std::to_string(inserts_) + ", samples " +
         std::to_string(samples_) + ", " + relation + "max_diff " +
         Number(config_.max_diff) + " (samples_per_insert " + Number(spi) + ", min_size " +
         std::to_string(config_.min_size_to_sample) + "); the next insert needs " +
         Operations(diff + spi - config_.max_diff, "sample");
}

std::string RateLimiter::ExplainSample() const {
  if (CanSample(1)) return "open";
  const double diff = Diff();
  std::string reason;
  if (size() <= 0) {
    reason = "table empty";
  } else if (size() < config_.min_size_to_sample) {
    reason = "size " + std::to_string(size()) + " < min_size " +
             std::to_string(config_.min_size_to_sample);
  } else {
    reason = "diff " + Number(diff) + " − 1 < min_diff " + Number(config_.min_diff);
  }
  const double for_size = static_cast<double>(config_.min_size_to_sample - size());
  const double for_diff = (config_.min_diff + 1 - diff) / config_.samples_per_insert;
  return "blocked by rate limiter: inserts " + std::to_string(inserts_) + ", samples " +
         std::to_string(samples_) + ", " + reason + " (samples_per_insert " +
         Number(config_.samples_per_insert) + ", min_size " +
         std::to_string(config_.min_size_to_sample) + "); the next sample needs " +
         Operations(std::max(for_size, for_diff), "insert");
}

}  // namespace reverb_tf
