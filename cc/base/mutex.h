// Mutex, MutexLock and CondVar: std's, with annotations. std's because
// ThreadSanitizer understands them (absl::Mutex of the system is a closed box).
#ifndef REVERB_TF_CC_BASE_MUTEX_H_
#define REVERB_TF_CC_BASE_MUTEX_H_

#include <condition_variable>
#include <mutex>

#include "cc/base/clock.h"
#include "cc/base/thread_annotations.h"

namespace reverb_tf {

class CAPABILITY("mutex") Mutex {
 public:
  void Lock() ACQUIRE() { mu_.lock(); }
  void Unlock() RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex* mu) ACQUIRE(mu) : mu_(mu) { mu_->Lock(); }
  ~MutexLock() RELEASE() { mu_->Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex* const mu_;
};

// Callers loop on their predicate; wake-ups may be spurious.
class CondVar {
 public:
  // Releases `mu`, waits for a signal, takes `mu` again.
  void Wait(Mutex* mu) REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // The same until `deadline`; kNever waits for ever. False when it passed.
  bool WaitUntil(Mutex* mu, TimePoint deadline) REQUIRES(mu) {
    if (deadline == kNever) {
      Wait(mu);
      return true;
    }
    std::unique_lock<std::mutex> lock(mu->mu_, std::adopt_lock);
    const bool signalled = cv_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return signalled;
  }
  void Signal() { cv_.notify_one(); }
  void SignalAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_MUTEX_H_
