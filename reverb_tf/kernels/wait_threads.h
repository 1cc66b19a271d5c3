// Threads for calls that wait, so that they hold none of TensorFlow's.
#ifndef REVERB_TF_REVERB_TF_KERNELS_WAIT_THREADS_H_
#define REVERB_TF_REVERB_TF_KERNELS_WAIT_THREADS_H_

#include <deque>
#include <functional>
#include <list>
#include <thread>

#include "cc/base/clock.h"
#include "cc/base/mutex.h"
#include "cc/base/status.h"

namespace reverb_tf {

// Runs every function at once, on a thread that is free or a new one, so that functions
// may wait for each other. A thread without work for kIdleTime ends. Thread-safe.
class WaitThreads {
 public:
  static constexpr Duration kIdleTime = std::chrono::seconds(10);

  // Those of the op library. They last as long as the process: a call may still wait when
  // it ends.
  static WaitThreads* Get();

  // RESOURCE_EXHAUSTED if a new thread can't be had; `fn` was not run then.
  Status Run(std::function<void()> fn) EXCLUDES(mu_);

 private:
  using Threads = std::list<std::thread>;

  WaitThreads() = default;
  ~WaitThreads() = delete;

  Status StartThread(std::function<void()> fn) REQUIRES(mu_);
  // What a thread does after its first function.
  void Work(Threads::iterator self) EXCLUDES(mu_);

  Mutex mu_;
  CondVar work_;
  std::deque<std::function<void()>> queue_ GUARDED_BY(mu_);  // no longer than idle_
  size_t idle_ GUARDED_BY(mu_) = 0;
  Threads threads_ GUARDED_BY(mu_);
  Threads ended_ GUARDED_BY(mu_);  // the next Run joins them
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_WAIT_THREADS_H_
