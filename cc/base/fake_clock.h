// A clock that stands still until a test moves it.
#ifndef REVERB_TF_CC_BASE_FAKE_CLOCK_H_
#define REVERB_TF_CC_BASE_FAKE_CLOCK_H_

#include <atomic>

#include "cc/base/clock.h"

namespace reverb_tf {

// Thread-safe.
class FakeClock : public Clock {
 public:
  TimePoint Now() const override { return TimePoint(Duration(now_.load())); }
  void Advance(Duration by) { now_ += by.count(); }

 private:
  std::atomic<Duration::rep> now_{1'000'000'000};
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_FAKE_CLOCK_H_
