// Time as the project measures it: a monotonic clock that tests can fake.
#ifndef REVERB_TF_CC_BASE_CLOCK_H_
#define REVERB_TF_CC_BASE_CLOCK_H_

#include <chrono>

namespace reverb_tf {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

// A deadline that never comes, and a timeout that never fires.
inline constexpr TimePoint kNever = TimePoint::max();
inline constexpr Duration kForever = Duration::max();

// now + timeout without overflow; kForever gives kNever.
inline TimePoint DeadlineAfter(TimePoint now, Duration timeout) {
  return timeout >= kNever - now ? kNever : now + timeout;
}

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;

  // The process's steady clock.
  static const Clock* System();
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_CLOCK_H_
