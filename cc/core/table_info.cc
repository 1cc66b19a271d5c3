#include "cc/core/table_info.h"

namespace reverb_tf {

Status TableConfig::Validate() const {
  const auto prefix = [this](const std::string& what) {
    return InvalidArgumentError("table '" + name + "': " + what);
  };
  if (name.empty()) return InvalidArgumentError("table name must not be empty");
  if (max_size < 1) {
    return prefix("max_size must be >= 1, got " + std::to_string(max_size));
  }
  if (max_bytes < 0) {
    return prefix("max_bytes must be >= 0 (0: no limit), got " + std::to_string(max_bytes));
  }
  for (const Status& status :
       {sampler.Validate(), remover.Validate(), rate_limiter.Validate()}) {
    if (!status.ok()) return prefix(status.message());
  }
  if (rate_limiter.min_size_to_sample > max_size) {
    return prefix("min_size_to_sample " + std::to_string(rate_limiter.min_size_to_sample) +
                  " of the rate_limiter is above max_size " + std::to_string(max_size) +
                  ": the table could never be sampled; raise max_size or lower it");
  }
  if (!signature && signature_scope != SignatureScope::kUndecided) {
    return prefix("signature_scope needs a signature");
  }
  return OkStatus();
}

Status TableConfig::CheckPriority(double priority) const {
  for (const Status& status :
       {sampler.CheckPriority(priority), remover.CheckPriority(priority)}) {
    if (!status.ok())
      return InvalidArgumentError("table '" + name + "': " + status.message());
  }
  return OkStatus();
}

}  // namespace reverb_tf
