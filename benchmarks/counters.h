// Counts what the process does: the C library's functions are replaced by ones that count.
#ifndef REVERB_TF_BENCHMARKS_COUNTERS_H_
#define REVERB_TF_BENCHMARKS_COUNTERS_H_

#include <cstdint>

namespace reverb_tf {

// Of all threads since the process began; the difference of two is what happened between.
struct Counters {
  int64_t allocations = 0;      // malloc and its kin
  int64_t locks = 0;            // pthread_mutex_lock
  int64_t copied_bytes = 0;     // by memcpy and memmove, those of 64 bytes and more
  int64_t thread_switches = 0;  // as the kernel counts them, forced ones included
  int64_t cpu_ns = 0;           // user and system time

  static Counters Now();
};

Counters operator-(const Counters& a, const Counters& b);

}  // namespace reverb_tf

#endif  // REVERB_TF_BENCHMARKS_COUNTERS_H_
