// Makes the Sampler of cc/api over a Transport.
#ifndef REVERB_TF_CC_CLIENT_SAMPLER_IMPL_H_
#define REVERB_TF_CC_CLIENT_SAMPLER_IMPL_H_

#include <memory>
#include <string>

#include "cc/api/sampler.h"
#include "cc/client/table_cache.h"
#include "cc/client/transport.h"

namespace reverb_tf {

// `address` is for texts. Nothing is asked of the server before the first Next.
// INVALID_ARGUMENT for bad options.
Result<std::unique_ptr<Sampler>> MakeSampler(std::shared_ptr<Transport> transport,
                                             std::shared_ptr<TableCache> cache,
                                             std::string address,
                                             const SamplerOptions& options);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_SAMPLER_IMPL_H_
