#include "cc/base/wait.h"

#include <algorithm>
#include <cstdio>

#include "cc/base/logging.h"

namespace reverb_tf {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(100);

Duration SinceStartOfLine(int line) {
  if (line == 0) return std::chrono::seconds(3);
  if (line == 1) return std::chrono::seconds(30);
  return std::chrono::minutes(5) * (line - 1);
}

std::string Seconds(Duration d) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", std::chrono::duration<double>(d).count());
  return text;
}

}  // namespace

Waiter::Waiter(const WaitOptions& options, std::function<std::string()> describe,
               const Clock* clock)
    : options_(options),
      describe_(std::move(describe)),
      clock_(clock),
      start_(clock->Now()),
      deadline_(DeadlineAfter(start_, options.timeout)),
      next_log_(start_ + SinceStartOfLine(0)) {}

Status Waiter::Until(Mutex* mu, CondVar* cv, const std::function<bool()>& ready) {
  while (!ready()) {
    const TimePoint now = clock_->Now();
    const bool expired = now >= deadline_;
    const bool log_due = now >= next_log_;
    if (expired || log_due || options_.interrupted) {
      mu->Unlock();
      Status status;
      if (options_.interrupted) status = options_.interrupted();
      if (status.ok() && log_due && !expired) {
        Log(LogLevel::kWarning,
            "still waiting (" + Seconds(now - start_) + "): " + describe_());
        next_log_ = start_ + SinceStartOfLine(++lines_);
      }
      std::string description = expired ? describe_() : "";
      mu->Lock();
      if (!status.ok()) return status;
      if (ready()) break;
      if (expired) {
        return DeadlineExceededError("timed out after " + Seconds(options_.timeout) + ": " +
                                     description);
      }
    }
    TimePoint wake = std::min(deadline_, next_log_);
    if (options_.interrupted) wake = std::min(wake, DeadlineAfter(now, kPollInterval));
    cv->WaitUntil(mu, wake);
  }
  return OkStatus();
}

}  // namespace reverb_tf
