#include "reverb_tf/kernels/client_resource.h"

namespace reverb_tf {
namespace {

SamplerOptions ToSamplerOptions(const SampleCall& call) {
  SamplerOptions options;
  options.table = call.table;
  options.specs = call.specs;
  options.batch_size = call.batch_size;
  options.single_steps = call.single_steps;
  options.rate_limiter_timeout = call.rate_limiter_timeout;
  options.wrong_dtype = StatusCode::kInternal;
  // A call gets what the table holds when it is made.
  options.on_demand = true;
  return options;
}

}  // namespace

bool SampleCall::operator==(const SampleCall& o) const {
  return table == o.table && batch_size == o.batch_size && single_steps == o.single_steps &&
         rate_limiter_timeout == o.rate_limiter_timeout && specs == o.specs;
}

std::string ClientResource::DebugString() const { return client_->DescribeConnection(); }

Status ClientResource::Sample(const SampleCall& call, const WaitOptions& wait,
                              SampleBatch* out) {
  RTF_ASSIGN_OR_RETURN(std::unique_ptr<Sampler> sampler, TakeSampler(call));
  const Status status = sampler->Next(wait, out);
  // One that failed may have asked for what comes later.
  if (status.ok()) KeepSampler(call, std::move(sampler));
  return status;
}

Result<std::unique_ptr<Sampler>> ClientResource::TakeSampler(const SampleCall& call) {
  {
    MutexLock lock(&mu_);
    for (auto it = idle_.begin(); it != idle_.end(); ++it) {
      if (!(it->call == call)) continue;
      std::unique_ptr<Sampler> sampler = std::move(it->sampler);
      idle_.erase(it);
      return sampler;
    }
  }
  return client_->NewSampler(ToSamplerOptions(call));
}

void ClientResource::KeepSampler(const SampleCall& call, std::unique_ptr<Sampler> sampler) {
  std::unique_ptr<Sampler> surplus;  // closed without the lock
  MutexLock lock(&mu_);
  if (idle_.size() >= kMaxIdleSamplers) {
    surplus = std::move(idle_.back().sampler);
    idle_.pop_back();
  }
  idle_.push_front({call, std::move(sampler)});
}

}  // namespace reverb_tf
