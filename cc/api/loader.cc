#include "cc/api/loader.h"

#include <dlfcn.h>

#include <string>

#include "cc/api/entry.h"

namespace reverb_tf {
namespace {

struct Loaded {
  const ReverbApi* api = nullptr;
  std::string error;
};

std::string LastDlError() {
  const char* text = dlerror();
  return text != nullptr ? text : "unknown error";
}

// libreverb.so in the folder of the shared library that this code is part of.
std::string LibraryPath() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&LibraryPath), &info) == 0 ||
      info.dli_fname == nullptr) {
    return "libreverb.so";
  }
  const std::string self = info.dli_fname;
  return self.substr(0, self.rfind('/') + 1) + "libreverb.so";
}

Loaded Load() {
  const std::string path = LibraryPath();
  // TensorFlow's libraries put their own gRPC and protobuf into the global
  // scope, with the symbol names of the system's. DEEPBIND makes libreverb.so
  // look into its own dependencies first, LOCAL keeps these from the others.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (library == nullptr) {
    return {nullptr, "cannot load " + path + ": " + LastDlError()};
  }
  auto* entry = reinterpret_cast<decltype(&reverb_tf_api)>(dlsym(library, "reverb_tf_api"));
  if (entry == nullptr) {
    return {nullptr, path + " is not reverb_tf's: " + LastDlError()};
  }
  const ReverbApi* api = entry(kReverbApiVersion);
  if (api == nullptr) {
    return {nullptr, path + " is of another reverb_tf: it does not have API " + "version " +
                         std::to_string(kReverbApiVersion) + "; install reverb_tf again"};
  }
  return {api, ""};
}

}  // namespace

const ReverbApi* LoadReverbApi(std::string* error) {
  // Not destroyed, as libreverb.so's threads may outlive static destructors.
  static const Loaded* loaded = new Loaded(Load());
  if (loaded->api == nullptr) *error = loaded->error;
  return loaded->api;
}

}  // namespace reverb_tf
