#include "cc/base/clock.h"

namespace reverb_tf {
namespace {

class SystemClock : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace

const Clock* Clock::System() {
  static const SystemClock clock;
  return &clock;
}

}  // namespace reverb_tf
