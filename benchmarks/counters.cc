#include "benchmarks/counters.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace {

std::atomic<int64_t> num_allocations{0};
std::atomic<int64_t> num_locks{0};
std::atomic<int64_t> num_copied_bytes{0};

void Add(std::atomic<int64_t>* counter, int64_t n) {
  counter->fetch_add(n, std::memory_order_relaxed);
}

// The C library's function that the one of this file replaces.
template <typename F>
F* Original(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

using CopyFunction = void*(void*, const void*, size_t);

// Smaller copies are of integers and short texts, never of steps.
constexpr size_t kLeastCopy = 64;

void* CountedCopy(CopyFunction* copy, void* dest, const void* source, size_t n) {
  if (n >= kLeastCopy) Add(&num_copied_bytes, static_cast<int64_t>(n));
  return copy(dest, source, n);
}

}  // namespace

extern "C" {

void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  Add(&num_allocations, 1);
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Add(&num_allocations, 1);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  Add(&num_allocations, 1);
  return __libc_realloc(memory, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  Add(&num_allocations, 1);
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  Add(&num_allocations, 1);
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static auto* const original = Original<int(pthread_mutex_t*)>("pthread_mutex_lock");
  Add(&num_locks, 1);
  return original(mutex);
}

void* memmove(void* dest, const void* source, size_t n) {
  static CopyFunction* const original = Original<CopyFunction>("memmove");
  return CountedCopy(original, dest, source, n);
}
void* memcpy(void* dest, const void* source, size_t n) {
  static CopyFunction* const original = Original<CopyFunction>("memcpy");
  return CountedCopy(original, dest, source, n);
}

}  // extern "C"

namespace reverb_tf {

Counters Counters::Now() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto ns = [](const timeval& t) {
    return t.tv_sec * 1'000'000'000 + t.tv_usec * 1'000;
  };
  Counters now;
  now.allocations = num_allocations.load();
  now.locks = num_locks.load();
  now.copied_bytes = num_copied_bytes.load();
  now.thread_switches = usage.ru_nvcsw + usage.ru_nivcsw;
  now.cpu_ns = ns(usage.ru_utime) + ns(usage.ru_stime);
  return now;
}

Counters operator-(const Counters& a, const Counters& b) {
  return {a.allocations - b.allocations, a.locks - b.locks, a.copied_bytes - b.copied_bytes,
          a.thread_switches - b.thread_switches, a.cpu_ns - b.cpu_ns};
}

}  // namespace reverb_tf
