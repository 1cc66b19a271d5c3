#include "reverb_tf/kernels/wait_threads.h"

#include <string>
#include <system_error>
#include <utility>

namespace reverb_tf {

WaitThreads* WaitThreads::Get() {
  static WaitThreads* const threads = new WaitThreads;
  return threads;
}

Status WaitThreads::Run(std::function<void()> fn) {
  Threads ended;
  Status status;
  {
    MutexLock lock(&mu_);
    ended.swap(ended_);
    if (queue_.size() < idle_) {
      queue_.push_back(std::move(fn));
      work_.Signal();
    } else {
      status = StartThread(std::move(fn));
    }
  }
  for (std::thread& thread : ended) thread.join();
  return status;
}

Status WaitThreads::StartThread(std::function<void()> fn) {
  const auto self = threads_.emplace(threads_.end());
  try {
    *self = std::thread([this, self, fn = std::move(fn)]() mutable {
      fn();
      fn = nullptr;
      Work(self);
    });
  } catch (const std::system_error& e) {
    threads_.erase(self);
    return ResourceExhaustedError(std::string("can't start a thread: ") + e.what());
  }
  return OkStatus();
}

void WaitThreads::Work(Threads::iterator self) {
  MutexLock lock(&mu_);
  while (true) {
    ++idle_;
    const TimePoint end = Clock::System()->Now() + kIdleTime;
    while (queue_.empty() && work_.WaitUntil(&mu_, end)) {
    }
    --idle_;
    if (queue_.empty()) break;
    std::function<void()> fn = std::move(queue_.front());
    queue_.pop_front();
    mu_.Unlock();
    fn();
    fn = nullptr;
    mu_.Lock();
  }
  ended_.splice(ended_.end(), threads_, self);
}

}  // namespace reverb_tf
