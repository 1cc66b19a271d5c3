// The calls of a channel that gRPC still works on.
#ifndef REVERB_TF_CC_RPC_OPEN_CALLS_H_
#define REVERB_TF_CC_RPC_OPEN_CALLS_H_

#include <cstdint>
#include <memory>

#include "cc/base/mutex.h"

namespace reverb_tf {

// With its last channel gRPC joins its callback threads, so the last reference to a
// channel must not be dropped by one of them. Each call holds a token for as long as its
// grpc::ClientContext (which refers to the channel) lives, and who owns the channel waits
// for them before letting go. Thread-safe; outlives its tokens.
class OpenCalls {
 public:
  using Token = std::shared_ptr<void>;

  Token Enter() {
    MutexLock lock(&mu_);
    ++open_;
    return Token(this, [](void* calls) { static_cast<OpenCalls*>(calls)->Leave(); });
  }

  // Not to be called by a callback of gRPC's.
  void AwaitNone() {
    MutexLock lock(&mu_);
    while (open_ > 0) none_.Wait(&mu_);
  }

 private:
  void Leave() {
    MutexLock lock(&mu_);
    if (--open_ == 0) none_.SignalAll();
  }

  Mutex mu_;
  CondVar none_;
  int64_t open_ GUARDED_BY(mu_) = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_OPEN_CALLS_H_
