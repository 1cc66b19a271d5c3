// Versions of the libraries of this folder.
#ifndef REVERB_TF_CC_RPC_BUILD_INFO_H_
#define REVERB_TF_CC_RPC_BUILD_INFO_H_

#include <string>

namespace reverb_tf {

// "name: version" lines.
std::string RpcBuildInfo();

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_BUILD_INFO_H_
