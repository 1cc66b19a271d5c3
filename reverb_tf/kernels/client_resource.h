// What a client handle of a graph stands for.
#ifndef REVERB_TF_REVERB_TF_KERNELS_CLIENT_RESOURCE_H_
#define REVERB_TF_REVERB_TF_KERNELS_CLIENT_RESOURCE_H_

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/api/client.h"
#include "cc/api/sampler.h"
#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "tensorflow/core/framework/resource_base.h"

namespace reverb_tf {

// What one execution of a sample op asks for.
struct SampleCall {
  std::string table;
  std::vector<TensorSpec> specs;      // of the outputs, without batch dimension
  std::optional<int64_t> batch_size;  // absent: one sample
  bool single_steps = false;          // else whole items
  Duration rate_limiter_timeout = kForever;

  bool operator==(const SampleCall& o) const;
};

// A client, and its samplers: their streams stay open from call to call, so that a call
// costs a round trip. The last handle's end closes them, which gives back what they hold.
// Thread-safe.
class ClientResource : public tensorflow::ResourceBase {
 public:
  // Samplers kept while nobody uses them.
  static constexpr size_t kMaxIdleSamplers = 16;

  ClientResource(std::string address, bool in_process, std::unique_ptr<ReverbClient> client)
      : address_(std::move(address)), in_process_(in_process), client_(std::move(client)) {}

  const std::string& address() const { return address_; }
  bool in_process() const { return in_process_; }
  ReverbClient* client() const { return client_.get(); }
  std::string DebugString() const override;

  // The statuses of Sampler::Next; a call that fails leaves nothing taken behind.
  Status Sample(const SampleCall& call, const WaitOptions& wait, SampleBatch* out);

 private:
  struct IdleSampler {
    SampleCall call;
    std::unique_ptr<Sampler> sampler;
  };

  Result<std::unique_ptr<Sampler>> TakeSampler(const SampleCall& call);
  void KeepSampler(const SampleCall& call, std::unique_ptr<Sampler> sampler);

  const std::string address_;
  const bool in_process_;
  const std::unique_ptr<ReverbClient> client_;
  Mutex mu_;
  std::list<IdleSampler> idle_ GUARDED_BY(mu_);  // the last used first
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_CLIENT_RESOURCE_H_
