// How long calls waited.
#ifndef REVERB_TF_CC_STORE_WAIT_METER_H_
#define REVERB_TF_CC_STORE_WAIT_METER_H_

#include <cstdint>

#include "cc/base/clock.h"

namespace reverb_tf {

// Adds up the waiting of one kind of call: of each call, and for how long there
// was any that waited. Those that still wait count too. Thread-compatible.
class WaitMeter {
 public:
  // From `now` on, `count` calls wait.
  void Set(int64_t count, TimePoint now) {
    const double passed = static_cast<double>((now - since_).count());
    if (count_ > 0) {
      total_ns_ += passed * static_cast<double>(count_);
      any_ns_ += passed;
    }
    count_ = count;
    since_ = now;
  }
  int64_t count() const { return count_; }
  // As of the last Set.
  int64_t total_ms() const { return static_cast<int64_t>(total_ns_ / 1e6); }
  int64_t any_ms() const { return static_cast<int64_t>(any_ns_ / 1e6); }

 private:
  int64_t count_ = 0;
  TimePoint since_;
  // A sum over many waiters outgrows int64 nanoseconds within days.
  double total_ns_ = 0;
  double any_ns_ = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_STORE_WAIT_METER_H_
