// SamplerOptions::Validate.
#include <cstdint>
#include <string>

#include "cc/api/sampler.h"

namespace reverb_tf {
namespace {

constexpr int kMaxWorkers = 1000;

Status AtLeast(const char* name, int64_t got, int64_t least) {
  if (got >= least) return OkStatus();
  return InvalidArgumentError(std::string(name) + ": got " + std::to_string(got) +
                              ", expected at least " + std::to_string(least));
}

Status NotNegative(const char* name, Duration got) {
  if (got >= Duration::zero()) return OkStatus();
  return InvalidArgumentError(std::string(name) + ": got " + std::to_string(got.count()) +
                              " ns, expected zero or more");
}

Status CheckSpec(const TensorSpec& spec) {
  if (IsSupported(spec.dtype)) return OkStatus();
  return InvalidArgumentError("dtypes: '" + spec.path + "' has dtype " +
                              std::to_string(static_cast<int>(spec.dtype)) +
                              ", which no table can hold");
}

}  // namespace

Status SamplerOptions::Validate() const {
  if (table.empty()) return InvalidArgumentError("table: got '', expected a name");
  RTF_RETURN_IF_ERROR(AtLeast("max_in_flight_samples_per_worker", max_in_flight, 1));
  RTF_RETURN_IF_ERROR(AtLeast("num_workers_per_iterator", num_workers, 1));
  if (num_workers > kMaxWorkers) {
    return InvalidArgumentError("num_workers_per_iterator: got " +
                                std::to_string(num_workers) + ", expected at most " +
                                std::to_string(kMaxWorkers));
  }
  RTF_RETURN_IF_ERROR(AtLeast("max_samples_per_stream", max_samples_per_stream, 1));
  RTF_RETURN_IF_ERROR(NotNegative("rate_limiter_timeout", rate_limiter_timeout));
  if (max_samples) RTF_RETURN_IF_ERROR(AtLeast("max_samples", *max_samples, 1));
  if (batch_size) RTF_RETURN_IF_ERROR(AtLeast("batch_size", *batch_size, 1));
  if (pad_to_longest && !batch_size) {
    return InvalidArgumentError("pad_to_longest: got True without batch_size");
  }
  if (pad_to_longest && emit_steps) {
    return InvalidArgumentError(
        "pad_to_longest: got True for steps, which have no length to be padded");
  }
  RTF_RETURN_IF_ERROR(AtLeast("consume_ahead", consume_ahead, 0));
  if (max_age) RTF_RETURN_IF_ERROR(NotNegative("max_age", *max_age));
  RTF_RETURN_IF_ERROR(NotNegative("reconnect_timeout", reconnect_timeout));
  if (!specs) return OkStatus();
  if (specs->empty()) {
    return InvalidArgumentError(
        "dtypes: got an empty structure, expected at least one leaf");
  }
  for (const TensorSpec& spec : *specs) RTF_RETURN_IF_ERROR(CheckSpec(spec));
  return OkStatus();
}

}  // namespace reverb_tf
