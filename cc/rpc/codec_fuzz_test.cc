// Runs generated inputs. Of other lengths than the default:
//
//   bazel test //cc/rpc:codec_fuzz_test --test_env=FUZZ_SECONDS=600 --test_env=FUZZ_SEED=7
//       --test_timeout=900 --test_output=all
//
// and one input again, by what a failure prints: FUZZ_SEED=7 FUZZ_INPUT=123.
#include "cc/rpc/codec_fuzz.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>

#include "cc/rpc/fuzz_inputs.h"

// What a sanitizer calls before it ends the process, and asks for its settings.
extern "C" {
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());
const char* __asan_default_options() { return "max_allocation_size_mb=256:handle_abort=1"; }
}

namespace reverb_tf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kDefaultInputs = 5'000;
constexpr unsigned kMaxSeconds = 10;     // of one input
constexpr rlim_t kMaxBytes = 512 << 20;  // beyond what the process has at its start

uint64_t FromEnv(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The input that runs, for whoever ends the process.
struct Current {
  uint64_t seed = 0;
  uint64_t input = 0;
} current;

void PrintCurrent() {
  char text[128];
  const int n =
      std::snprintf(text, sizeof text, "\nfailed: FUZZ_SEED=%llu FUZZ_INPUT=%llu\n",
                    static_cast<unsigned long long>(current.seed),
                    static_cast<unsigned long long>(current.input));
  if (write(STDERR_FILENO, text, static_cast<size_t>(n)) < 0) _exit(2);
}

void OnSignal(int signal) {
  if (signal == SIGALRM) {
    std::fprintf(stderr, "an input takes more than %u s\n", kMaxSeconds);
    std::abort();
  }
  PrintCurrent();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Crashes, inputs that take too long and ones that take too much memory end the process
// and name the input.
void Watch() {
  std::signal(SIGALRM, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) {
    return __sanitizer_set_death_callback(PrintCurrent);
  }
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, OnSignal);
  }
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  limit.rlim_cur = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + kMaxBytes;
  setrlimit(RLIMIT_AS, &limit);
}

void RunInput(uint64_t seed, uint64_t input) {
  current = {seed, input};
  const std::string bytes = MakeFuzzInput(seed, input);
  alarm(kMaxSeconds);
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  alarm(0);
}

// What a bug may do to the process.
constexpr char kNamed[] = "failed: FUZZ_SEED=7 FUZZ_INPUT=9";

TEST(CodecFuzzDeathTest, ACrashNamesTheInput) {
  current = {7, 9};
  EXPECT_DEATH((Watch(), std::abort()), kNamed);
}

TEST(CodecFuzzDeathTest, TakingTooLongNamesTheInput) {
  current = {7, 9};
  EXPECT_DEATH((Watch(), std::raise(SIGALRM)), kNamed);
}

// Not to be caught by the death test.
void Allocate(size_t bytes) noexcept {
  void* volatile block = ::operator new(bytes);
  ::operator delete(block);
}

TEST(CodecFuzzDeathTest, AllocatingTooMuchNamesTheInput) {
  current = {7, 9};
  EXPECT_DEATH((Watch(), Allocate(kMaxBytes)), kNamed);
}

TEST(CodecFuzz, NothingThatAPeerSendsCrashesHangsOrFillsTheMemory) {
  Watch();
  const uint64_t seed = FromEnv("FUZZ_SEED", 1);
  if (std::getenv("FUZZ_INPUT") != nullptr) return RunInput(seed, FromEnv("FUZZ_INPUT", 0));
  const std::chrono::seconds seconds(FromEnv("FUZZ_SECONDS", 0));
  const Clock::time_point start = Clock::now();
  uint64_t n = 0;
  while (seconds.count() > 0 ? Clock::now() - start < seconds : n < kDefaultInputs) {
    RunInput(seed, n++);
  }
  const std::chrono::duration<double> took = Clock::now() - start;
  const FuzzCounts& counts = GetFuzzCounts();
  std::cout << "seed " << seed << ": " << n << " inputs in " << took.count() << " s, "
            << static_cast<double>(n) / took.count() << "/s; items " << counts.inserted
            << " inserted, " << counts.refused << " refused; samples " << counts.sampled
            << " served, " << counts.received << " received; " << counts.ended
            << " streams ended by errors\n";
  // Inputs that all stop at the first check would test little.
  const auto inputs = static_cast<int64_t>(n);
  EXPECT_GT(counts.inserted, inputs / 4);
  EXPECT_GT(counts.refused, inputs / 20);
  EXPECT_GT(counts.sampled, inputs / 4);
  EXPECT_GT(counts.received, inputs / 4);
  EXPECT_GT(counts.ended, inputs / 20);
}

TEST(FuzzInputs, AreTheSameForTheSameSeedAndNumber) {
  EXPECT_EQ(MakeFuzzInput(3, 5), MakeFuzzInput(3, 5));
  EXPECT_NE(MakeFuzzInput(3, 5), MakeFuzzInput(3, 6));
  EXPECT_NE(MakeFuzzInput(3, 5), MakeFuzzInput(4, 5));
}

}  // namespace
}  // namespace reverb_tf
