#include <cstdio>
#include <string>

#include "cc/core/table.h"

namespace reverb_tf {
namespace {

std::string Bytes(int64_t bytes) {
  static const char* const kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.3g %s", value, kUnits[unit]);
  return text;
}

std::string Count(int64_t n, const char* noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

}  // namespace

std::string ExplainTable(const TableInfo& info) {
  const RateLimiter limiter(info.config.rate_limiter, info.insert_count, info.sample_count,
                            info.delete_count);
  std::string text =
      "table '" + info.config.name + "': size " + std::to_string(info.current_size) + "/" +
      std::to_string(info.config.max_size) + " (" + Bytes(info.bytes_stored) + ")";
  text += ". sample: " + limiter.ExplainSample();
  if (!limiter.CanSample(1) && info.num_writers == 0) text += "; no writer is connected";
  text += ". insert: " + limiter.ExplainInsert();
  if (!limiter.CanInsert(1) && info.num_samplers == 0) text += "; no sampler is connected";
  char oldest[48];
  std::snprintf(oldest, sizeof oldest, " (oldest %.1f s)", info.oldest_wait_s);
  text += ". waiting: " + Count(info.num_waiting_inserts, "insert");
  if (info.num_waiting_inserts > 0 && info.num_waiting_samples == 0) text += oldest;
  text += ", " + Count(info.num_waiting_samples, "sample");
  if (info.num_waiting_samples > 0) text += oldest;
  return text;
}

}  // namespace reverb_tf
