// Sampling: a stream of a table's samples, one by one or assembled into batches.
#ifndef REVERB_TF_CC_API_SAMPLER_H_
#define REVERB_TF_CC_API_SAMPLER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/clock.h"
#include "cc/base/status.h"
#include "cc/base/tensor.h"
#include "cc/base/wait.h"

namespace reverb_tf {

struct SamplerOptions {
  std::string table;
  // Samples asked for per round and worker; no effect on tables whose items are
  // used up by sampling, of which only what a caller waits for is taken.
  int64_t max_in_flight = 16;
  // Take only what a caller waits for from the other tables, too.
  bool on_demand = false;
  int num_workers = 1;
  // Samples after which a worker opens a new stream.
  int64_t max_samples_per_stream = 10'000;
  // Longest wait of one Next on the limiter; zero: only what can be granted now.
  Duration rate_limiter_timeout = kForever;
  // Samples delivered in all, then the end; absent: no bound.
  std::optional<int64_t> max_samples;
  // Absent: Next gives one sample, columns without batch dimension.
  std::optional<int64_t> batch_size;
  bool drop_remainder = false;
  bool pad_to_longest = false;
  // Tables whose items are used up: samples held beyond those asked for.
  int64_t consume_ahead = 0;
  // A buffered sample older than this is given back and replaced.
  std::optional<Duration> max_age;
  std::optional<uint64_t> seed;
  uint64_t seed_iterator = 0;  // number of the iterator of the seeded dataset
  // How long a lost server is tried again before UNAVAILABLE.
  Duration reconnect_timeout = kForever;
  // A rate limiter timeout ends the sequence (OUT_OF_RANGE) instead of being
  // DEADLINE_EXCEEDED.
  bool end_on_timeout = false;
  // What the reader declared, in order, with paths: checked against the table's
  // signature (once, by path) or against every sample (tables without). Absent:
  // anything goes. Columns are delivered in this order and in its ranks.
  std::optional<std::vector<TensorSpec>> specs;
  // Refuse (and give back) samples whose columns aren't steps: every column of one
  // length, none squeezed, or all squeezed. For readers of single steps.
  bool require_steps = false;
  // Refuse (and give back) samples that aren't one step, and deliver the others' cells
  // without time dimension; `specs` are then those of the step.
  bool single_steps = false;
  // Deliver the items' steps, one after another: Next gives a step, or `batch_size` steps,
  // of several items perhaps, each with its item's info; `specs` are those of a step. Items
  // without steps are refused as by require_steps. An item counts as delivered
  // (delivered(), max_samples) with its first step; what is left of it at the end is
  // dropped.
  bool emit_steps = false;
  // Of samples whose dtypes aren't those of `specs`, in a table without signature.
  StatusCode wrong_dtype = StatusCode::kInvalidArgument;

  Status Validate() const;
};

// One sample (info vectors of length 1, columns as they are), or a batch of B
// (vectors of length B, columns [B, …]). Of emit_steps: one step, or B.
struct SampleBatch {
  std::vector<uint64_t> keys;
  std::vector<double> probabilities;
  std::vector<int64_t> table_sizes;
  std::vector<double> priorities;
  std::vector<int32_t> times_sampled;
  std::vector<Tensor> columns;
  // Per column: it is squeezed (has no time dimension) in the item.
  std::vector<bool> squeezed;
  // pad_to_longest: rows of every sample, per column.
  std::vector<std::vector<int32_t>> lengths;
};

// One caller of Next at a time; Close from any thread. Destroying it gives back
// what was granted and not delivered.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // The next sample or batch. OUT_OF_RANGE: the sequence has ended (max_samples,
  // or a timeout with end_on_timeout). DEADLINE_EXCEEDED: limiter timeout, text
  // with the table's explain line; the sampler stays usable. INVALID_ARGUMENT: a
  // sample doesn't fit (specs, require_steps, single_steps, emit_steps, unequal lengths);
  // it was given back and the sampler stays usable. `wrong_dtype` is such an error too.
  // NOT_FOUND: no such table. UNAVAILABLE: the server is gone. `wait` bounds the call in
  // addition to rate_limiter_timeout.
  virtual Status Next(const WaitOptions& wait, SampleBatch* out) = 0;

  // Wakes a waiting Next with CANCELLED, gives everything undelivered back and
  // returns when that is done (remote: when it was sent). Idempotent.
  virtual void Close() = 0;

  // Samples delivered so far, and told at restore (counts for max_samples).
  virtual int64_t delivered() const = 0;
  virtual void set_delivered(int64_t n) = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_API_SAMPLER_H_
