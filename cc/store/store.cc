#include "cc/store/store.h"

#include <malloc.h>

#include <algorithm>
#include <chrono>

#include "cc/base/buffer.h"
#include "cc/base/clock.h"
#include "cc/core/random.h"

namespace reverb_tf {
namespace {

// How often the clock thread looks after idle writers and memory.
constexpr Duration kTick = std::chrono::seconds(1);

Status CheckTables(const TableRunners& tables) {
  if (tables.empty()) {
    return InvalidArgumentError("tables: got none, expected at least one table");
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i] == nullptr) return InvalidArgumentError("tables: one is null");
    for (size_t j = 0; j < i; ++j) {
      if (tables[j]->name() != tables[i]->name()) continue;
      return InvalidArgumentError("tables: the name '" + tables[i]->name() +
                                  "' is there twice; names must be unique");
    }
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<Store>> Store::Create(TableRunners tables,
                                             const std::string& address) {
  RTF_RETURN_IF_ERROR(CheckTables(tables));
  std::unique_ptr<Store> store(new Store(std::move(tables)));
  RTF_RETURN_IF_ERROR(store->Start(address));
  return store;
}

Store::Store(TableRunners tables)
    : tables_(std::move(tables)), state_id_(RandomSeed(), RandomSeed()) {}

Status Store::Start(const std::string& address) {
  {
    MutexLock lock(&mu_);
    address_ = address;
  }
  for (size_t i = 0; i < tables_.size(); ++i) {
    Status status = tables_[i]->StartServing(address, this);
    if (status.ok()) continue;
    while (i-- > 0) tables_[i]->AbortServing();
    return status;
  }
  clock_thread_ = std::thread([this] { WatchClock(); });
  return OkStatus();
}

Store::~Store() {
  if (!clock_thread_.joinable()) return;
  Stop();
  {
    MutexLock lock(&mu_);
    ending_ = true;
    wake_.Signal();
  }
  clock_thread_.join();
}

Result<std::shared_ptr<TableRunner>> Store::Find(const std::string& name) const {
  for (const auto& table : tables_) {
    if (table->name() == name) return table;
  }
  std::string names;
  for (const auto& table : tables_) {
    names += (names.empty() ? "'" : ", '") + table->name() + "'";
  }
  return NotFoundError("Priority table " + name + " was not found at " + address() +
                       "; there is " + names);
}

std::string Store::address() const {
  MutexLock lock(&mu_);
  return address_;
}

void Store::SetAddress(const std::string& address) {
  {
    MutexLock lock(&mu_);
    address_ = address;
  }
  for (const auto& table : tables_) table->SetAddress(address);
}

void Store::Stop() {
  const Status reason = UnavailableError("server at " + address() + " was stopped");
  for (const auto& table : tables_) table->StopServing(reason);
}

void Store::ScheduleAt(TimePoint when) {
  MutexLock lock(&mu_);
  if (when >= next_) return;
  next_ = when;
  wake_.Signal();
}

void Store::WatchClock() {
  const Clock* const clock = Clock::System();
  for (TimePoint tick = clock->Now();;) {
    {
      MutexLock lock(&mu_);
      while (!ending_ && clock->Now() < std::min(next_, tick)) {
        wake_.WaitUntil(&mu_, std::min(next_, tick));
      }
      if (ending_) return;
      next_ = kNever;
    }
    const TimePoint now = clock->Now();
    TimePoint next = kNever;
    for (const auto& table : tables_) next = std::min(next, table->ExpireWaiters(now));
    ScheduleAt(next);
    if (now < tick) continue;
    TrimHeap();
    tick = now + kTick;
  }
}

void Store::TrimHeap() {
  int64_t freed = 0;
  for (const auto& table : tables_) freed += table->TakeFreedBytes();
  const TrimPolicy::Decision decision = trim_policy_.Tick(freed);
  if (decision.release_pool) ReleasePooledBuffers();
  if (decision.trim_heap) malloc_trim(0);
}

}  // namespace reverb_tf
