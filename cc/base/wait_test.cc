#include "cc/base/wait.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/fake_clock.h"
#include "cc/base/logging.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

std::string Describe() { return "a full table"; }

TEST(DeadlineAfterTest, NeverOverflows) {
  const TimePoint now(seconds(5));
  EXPECT_EQ(DeadlineAfter(now, kForever), kNever);
  EXPECT_EQ(DeadlineAfter(now, kForever - seconds(1)), kNever);
  EXPECT_EQ(DeadlineAfter(now, seconds(2)), TimePoint(seconds(7)));
}

TEST(WaiterTest, ReadyConditionDoesNotWait) {
  WaitOptions options;
  options.timeout = Duration::zero();
  Waiter waiter(options, Describe);
  Mutex mu;
  CondVar cv;
  MutexLock lock(&mu);
  EXPECT_TRUE(waiter.Until(&mu, &cv, [] { return true; }).ok());
}

TEST(WaiterTest, ZeroTimeoutFailsWithTheReason) {
  WaitOptions options;
  options.timeout = Duration::zero();
  Waiter waiter(options, Describe);
  Mutex mu;
  CondVar cv;
  MutexLock lock(&mu);
  const Status status = waiter.Until(&mu, &cv, [] { return false; });
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(status.message(), "timed out after 0 s: a full table");
}

TEST(WaiterTest, DeadlineCountsFromTheConstruction) {
  FakeClock clock;
  WaitOptions options;
  options.timeout = seconds(10);
  Waiter waiter(options, Describe, &clock);
  EXPECT_EQ(waiter.deadline(), clock.Now() + seconds(10));
  clock.Advance(seconds(11));
  Mutex mu;
  CondVar cv;
  MutexLock lock(&mu);
  EXPECT_EQ(waiter.Until(&mu, &cv, [] { return false; }).code(),
            StatusCode::kDeadlineExceeded);
}

TEST(WaiterTest, SignalEndsTheWait) {
  WaitOptions options;
  Waiter waiter(options, Describe);
  Mutex mu;
  CondVar cv;
  bool ready = false;
  std::thread other([&] {
    MutexLock lock(&mu);
    ready = true;
    cv.SignalAll();
  });
  Status status;
  {
    MutexLock lock(&mu);
    status = waiter.Until(&mu, &cv, [&ready] { return ready; });
  }
  other.join();
  EXPECT_TRUE(status.ok());
}

TEST(WaiterTest, InterruptionEndsTheWaitWithItsStatus) {
  int asked = 0;
  WaitOptions options;
  options.interrupted = [&asked] {
    return ++asked < 3 ? OkStatus() : CancelledError("Ctrl-C");
  };
  Waiter waiter(options, Describe);
  Mutex mu;
  CondVar cv;
  MutexLock lock(&mu);
  EXPECT_EQ(waiter.Until(&mu, &cv, [] { return false; }), CancelledError("Ctrl-C"));
  EXPECT_EQ(asked, 3);
}

// Interruption, description and log run without the lock: a wait that is asked
// can lock the very mutex.
TEST(WaiterTest, CallbacksRunWithoutTheLock) {
  Mutex mu;
  CondVar cv;
  WaitOptions options;
  options.timeout = milliseconds(1);
  options.interrupted = [&mu] {
    MutexLock lock(&mu);
    return OkStatus();
  };
  Waiter waiter(options, [&mu] {
    MutexLock lock(&mu);
    return std::string("it");
  });
  MutexLock lock(&mu);
  EXPECT_EQ(waiter.Until(&mu, &cv, [] { return false; }).code(),
            StatusCode::kDeadlineExceeded);
}

TEST(WaiterTest, ItsDeadlineMovesAndItsLogGoesOn) {
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel, const std::string& line) { lines.push_back(line); });
  FakeClock clock;
  WaitOptions options;
  options.timeout = seconds(2);
  options.interrupted = [&clock] {
    clock.Advance(seconds(1));
    return OkStatus();
  };
  Waiter waiter(options, Describe, &clock);
  Mutex mu;
  CondVar cv;
  {
    MutexLock lock(&mu);
    const auto never = [] { return false; };
    EXPECT_EQ(waiter.Until(&mu, &cv, never).code(), StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(lines.empty());
    waiter.set_deadline(clock.Now() + seconds(3));
    EXPECT_EQ(waiter.Until(&mu, &cv, never).code(), StatusCode::kDeadlineExceeded);
  }
  SetLogSink([](LogLevel, const std::string&) {});
  EXPECT_EQ(lines.size(), 1u);
}

TEST(WaiterTest, LogsAfter3Then30SecondsThenEvery5Minutes) {
  std::vector<std::string> lines;
  SetLogSink([&lines](LogLevel level, const std::string& message) {
    EXPECT_EQ(level, LogLevel::kWarning);
    lines.push_back(message);
  });
  FakeClock clock;
  const TimePoint start = clock.Now();
  // Each interruption moves the clock on; the wait ends by the last one.
  const std::vector<Duration> times = {seconds(2),  seconds(4),  seconds(29),
                                       seconds(31), minutes(4),  minutes(6),
                                       minutes(9),  minutes(11), minutes(12)};
  size_t next = 0;
  WaitOptions options;
  options.interrupted = [&] {
    if (next == times.size()) return CancelledError("enough");
    clock.Advance(start + times[next++] - clock.Now());
    return OkStatus();
  };
  Waiter waiter(options, Describe, &clock);
  Mutex mu;
  CondVar cv;
  {
    MutexLock lock(&mu);
    EXPECT_EQ(waiter.Until(&mu, &cv, [] { return false; }).code(), StatusCode::kCancelled);
  }
  SetLogSink([](LogLevel, const std::string&) {});
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "still waiting (4 s): a full table",
                       "still waiting (31 s): a full table",
                       "still waiting (360 s): a full table",
                       "still waiting (660 s): a full table",
                   }));
}

}  // namespace
}  // namespace reverb_tf
