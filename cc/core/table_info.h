// What a table tells of itself: settings, counters, sizes, who waits.
#ifndef REVERB_TF_CC_CORE_TABLE_INFO_H_
#define REVERB_TF_CC_CORE_TABLE_INFO_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/core/rate_limiter.h"
#include "cc/core/selectors/selector_config.h"
#include "cc/core/signature.h"

namespace reverb_tf {

struct TableConfig {
  std::string name;
  SelectorConfig sampler;
  SelectorConfig remover;
  int64_t max_size = 0;
  // An item is removed by its so-manieth sample; < 1: no limit.
  int32_t max_times_sampled = 0;
  RateLimiterConfig rate_limiter;
  std::optional<Signature> signature;
  // Most stored bytes of the distinct chunks; 0: no limit.
  int64_t max_bytes = 0;
  SignatureScope signature_scope = SignatureScope::kUndecided;

  // INVALID_ARGUMENT naming the setting, what was got and what is expected.
  Status Validate() const;
  // Samples are used up: max_times_sampled >= 1.
  bool is_consuming() const { return max_times_sampled >= 1; }
  // The priority rule of both selectors.
  Status CheckPriority(double priority) const;
};

struct CallStats {
  int64_t completed = 0;  // inserts done / samples granted; never falls
  int64_t refused = 0;    // inserts
  int64_t delivered = 0;  // samples, as the rest
  int64_t returned = 0;
  int64_t partial = 0;
  int64_t in_flight = 0;
  int64_t timed_out = 0;
  int64_t blocked_ms = 0;
};

struct WorkerTime {
  int64_t running_ms = 0;
  int64_t sampling_ms = 0;
  int64_t inserting_ms = 0;
  int64_t sleeping_ms = 0;
  int64_t waiting_for_sampling_ms = 0;
  int64_t waiting_for_inserts_ms = 0;
};

struct TableInfo {
  TableConfig config;  // signature_scope: as decided so far
  int64_t current_size = 0;
  int64_t num_episodes = 0;
  int64_t num_deleted_episodes = 0;
  int64_t num_unique_samples = 0;
  WorkerTime worker_time;
  CallStats insert_stats;
  CallStats sample_stats;
  int64_t bytes_stored = 0;
  int64_t bytes_uncompressed = 0;
  int64_t num_chunks = 0;
  // Column path (signature's, else "[i]") and stored bytes.
  std::vector<std::pair<std::string, int64_t>> bytes_by_column;
  uint64_t generation = 0;
  int64_t insert_count = 0;  // the limiter's I, S and D
  int64_t sample_count = 0;
  int64_t delete_count = 0;
  int64_t num_evicted = 0;
  int64_t num_expired = 0;
  // Filled by the layer that waits.
  int64_t num_waiting_inserts = 0;
  int64_t num_waiting_samples = 0;
  double oldest_wait_s = 0;
  int64_t num_writers = 0;
  int64_t num_samplers = 0;
  double sampler_mass = 0;
  std::string explain;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_TABLE_INFO_H_
