#include "cc/client/table_cache.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace reverb_tf {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(10);
constexpr Duration kLongestBackoff = std::chrono::seconds(5);
constexpr Duration kPollInterval = std::chrono::milliseconds(100);

// The answer of one try; outlives a call that is given up.
template <typename T>
struct Answer {
  Mutex mu;
  CondVar arrived;
  std::optional<Result<T>> result GUARDED_BY(mu);
};

// Waits until `when`, the waiter's deadline or an interruption.
Status SleepUntil(TimePoint when, Waiter* waiter) {
  const Clock* const clock = Clock::System();
  Mutex mu;
  CondVar never_signalled;
  MutexLock lock(&mu);
  // Until() asks again every 100 ms; a shorter rest is slept here.
  never_signalled.WaitUntil(
      &mu, std::min({when, waiter->deadline(), clock->Now() + kPollInterval}));
  return waiter->Until(&mu, &never_signalled, [&] { return clock->Now() >= when; });
}

}  // namespace

template <typename T>
Result<T> CallWithRetry(const std::string& what, const std::string& address,
                        Transport* transport, const WaitOptions& wait,
                        const std::function<std::unique_ptr<Call>(Done<T>)>& start) {
  std::string last_error = "no answer yet";
  WaitOptions polled = wait;  // so that Until() looks at the clock in between
  polled.interrupted = [&] { return wait.interrupted ? wait.interrupted() : OkStatus(); };
  Waiter waiter(polled, [&] { return what + " of " + address + ": " + last_error; });
  for (Duration backoff = kFirstBackoff;;
       backoff = std::min(backoff * 2, kLongestBackoff)) {
    const auto answer = std::make_shared<Answer<T>>();
    const std::unique_ptr<Call> call = start([answer](Result<T> result) {
      MutexLock lock(&answer->mu);
      answer->result = std::move(result);
      answer->arrived.SignalAll();
    });
    std::optional<Result<T>> result;
    {
      MutexLock lock(&answer->mu);
      RTF_RETURN_IF_ERROR(waiter.Until(&answer->mu, &answer->arrived,
                                       [&] { return answer->result.has_value(); }));
      result = std::move(answer->result);
    }
    if (result->ok() || result->status().code() != StatusCode::kUnavailable ||
        transport->is_local()) {
      return *std::move(result);
    }
    last_error = result->status().message();
    RTF_RETURN_IF_ERROR(SleepUntil(Clock::System()->Now() + backoff, &waiter));
  }
}

#define RTF_INSTANTIATE(T)                                                    \
  template Result<T> CallWithRetry<T>(                                        \
      const std::string&, const std::string&, Transport*, const WaitOptions&, \
      const std::function<std::unique_ptr<Call>(Done<T>)>&)
RTF_INSTANTIATE(ServerInfo);
RTF_INSTANTIATE(MutateCounts);
RTF_INSTANTIATE(bool);
RTF_INSTANTIATE(std::string);
#undef RTF_INSTANTIATE

Result<ServerInfo> TableCache::Refresh(const WaitOptions& wait) {
  Result<ServerInfo> info = CallWithRetry<ServerInfo>(
      "server_info", address_, transport_.get(), wait,
      [this](Done<ServerInfo> done) { return transport_->GetServerInfo(std::move(done)); });
  if (!info.ok()) return info;
  std::vector<std::shared_ptr<const TableInfo>> tables;
  tables.reserve(info->tables.size());
  for (const TableInfo& table : info->tables) {
    tables.push_back(std::make_shared<const TableInfo>(table));
  }
  MutexLock lock(&mu_);
  tables_.swap(tables);
  return info;
}

Result<std::shared_ptr<const TableInfo>> TableCache::Find(const std::string& table,
                                                          const WaitOptions& wait) {
  if (auto known = Known(table)) return known;
  RTF_ASSIGN_OR_RETURN(const ServerInfo info, Refresh(wait));
  if (auto known = Known(table)) return known;
  std::string names;
  for (const TableInfo& t : info.tables) {
    names += (names.empty() ? "'" : ", '") + t.config.name + "'";
  }
  return NotFoundError("table '" + table + "' was not found at " + address_ +
                       "; there is " + (names.empty() ? "none" : names));
}

std::shared_ptr<const TableInfo> TableCache::Known(const std::string& table) const {
  MutexLock lock(&mu_);
  for (const auto& known : tables_) {
    if (known->config.name == table) return known;
  }
  return nullptr;
}

}  // namespace reverb_tf
