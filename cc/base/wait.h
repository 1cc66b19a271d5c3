// How every blocking call of the project waits: until its condition holds, its
// deadline passes or its caller is interrupted; and never in silence.
#ifndef REVERB_TF_CC_BASE_WAIT_H_
#define REVERB_TF_CC_BASE_WAIT_H_

#include <functional>
#include <string>

#include "cc/base/clock.h"
#include "cc/base/mutex.h"
#include "cc/base/status.h"

namespace reverb_tf {

// What a caller allows a blocking call.
struct WaitOptions {
  // Longest wait; zero does not wait at all.
  Duration timeout = kForever;
  // Asked at least every 100 ms, without locks; a non-OK answer ends the wait
  // with that status (Ctrl-C, a cancelled TensorFlow step). May be empty.
  std::function<Status()> interrupted;
};

// One wait of one call. Usage:
//
//   Waiter waiter(options, [this] { return Describe(); });
//   MutexLock lock(&mu_);
//   RTF_RETURN_IF_ERROR(waiter.Until(&mu_, &cv_, [&] { return ready_; }));
//
// Until() may be called several times; the deadline is counted from the
// construction. After 3 s, 30 s and then every 5 min of waiting one line is
// logged: "still waiting (12 s): " + describe(). Not thread-safe.
class Waiter {
 public:
  // `describe` says what is waited for; called without the lock, must not block.
  Waiter(const WaitOptions& options, std::function<std::string()> describe,
         const Clock* clock = Clock::System());

  // OK once `ready` (called with `mu` held) is true. DEADLINE_EXCEEDED
  // "timed out after 1.5 s: " + describe(), or the interruption's status.
  // `mu` is released while waiting, logging, asking and describing.
  Status Until(Mutex* mu, CondVar* cv, const std::function<bool()>& ready) REQUIRES(mu);

  TimePoint deadline() const { return deadline_; }
  // For a wait of several stages: the log goes on counting from the construction.
  void set_deadline(TimePoint deadline) { deadline_ = deadline; }

 private:
  const WaitOptions& options_;
  const std::function<std::string()> describe_;
  const Clock* const clock_;
  const TimePoint start_;
  TimePoint deadline_;
  TimePoint next_log_;
  int lines_ = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_WAIT_H_
