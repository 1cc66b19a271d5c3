// Makes the ReverbClient of cc/api over a Transport.
#ifndef REVERB_TF_CC_CLIENT_CLIENT_IMPL_H_
#define REVERB_TF_CC_CLIENT_CLIENT_IMPL_H_

#include <memory>
#include <string>

#include "cc/api/client.h"
#include "cc/client/transport.h"

namespace reverb_tf {

std::unique_ptr<ReverbClient> MakeReverbClient(std::shared_ptr<Transport> transport,
                                               std::string address);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_CLIENT_IMPL_H_
