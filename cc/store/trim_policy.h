// When the memory of dropped items goes back to the operating system.
#ifndef REVERB_TF_CC_STORE_TRIM_POLICY_H_
#define REVERB_TF_CC_STORE_TRIM_POLICY_H_

#include <algorithm>
#include <cstdint>
#include <utility>

namespace reverb_tf {

// Asked once a second. Trimming the heap walks all its arenas, so it must be worth
// it; the buffer pool is kept while as much is freed every second, since then its
// pages are about to be used again. Thread-compatible.
class TrimPolicy {
 public:
  static constexpr int64_t kWorthwhileBytes = 32 << 20;

  struct Decision {
    bool release_pool = false;  // before the trim
    bool trim_heap = false;
  };

  // `freed_bytes`: what was freed since the last call.
  Decision Tick(int64_t freed_bytes) {
    unpooled_ += freed_bytes;
    untrimmed_ += freed_bytes;
    Decision decision;
    if (freed_bytes < kWorthwhileBytes && unpooled_ > 0) {
      decision.release_pool = true;
      untrimmed_ = std::max(untrimmed_, std::exchange(unpooled_, 0));
    }
    if (untrimmed_ >= kWorthwhileBytes) {
      decision.trim_heap = true;
      untrimmed_ = 0;
    }
    return decision;
  }

 private:
  // Freed since the pool was released, and since the heap was trimmed.
  int64_t unpooled_ = 0;
  int64_t untrimmed_ = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_STORE_TRIM_POLICY_H_
