// The tables of a server, by name, and the one thread that watches their clocks.
#ifndef REVERB_TF_CC_STORE_STORE_H_
#define REVERB_TF_CC_STORE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/store/table_runner.h"
#include "cc/store/trim_policy.h"

namespace reverb_tf {

using TableRunners = std::vector<std::shared_ptr<TableRunner>>;

// Thread-safe. The set of tables is fixed at construction.
class Store : public DeadlineScheduler {
 public:
  // Serves `tables` at `address` (used in texts). INVALID_ARGUMENT for an empty
  // list or a name twice, FAILED_PRECONDITION for a table that is served already;
  // then none is.
  static Result<std::unique_ptr<Store>> Create(TableRunners tables,
                                               const std::string& address);
  ~Store() override;

  // NOT_FOUND "Priority table <name> was not found", with the names there are.
  Result<std::shared_ptr<TableRunner>> Find(const std::string& name) const;
  const TableRunners& tables() const { return tables_; }
  // Random, per store.
  std::pair<uint64_t, uint64_t> state_id() const { return state_id_; }

  // What the texts say once a free port was found.
  void SetAddress(const std::string& address);

  // Ends every wait with UNAVAILABLE "server at … was stopped". Idempotent.
  void Stop();

  void ScheduleAt(TimePoint when) override;

 private:
  explicit Store(TableRunners tables);
  Status Start(const std::string& address);
  std::string address() const;
  // Expires waiters at their deadlines; gives freed memory back to the system
  // within seconds of a large release.
  void WatchClock();
  void TrimHeap();

  const TableRunners tables_;
  const std::pair<uint64_t, uint64_t> state_id_;

  mutable Mutex mu_;
  std::string address_ GUARDED_BY(mu_);
  CondVar wake_;
  TimePoint next_ GUARDED_BY(mu_) = kNever;
  bool ending_ GUARDED_BY(mu_) = false;

  TrimPolicy trim_policy_;    // the clock thread's
  std::thread clock_thread_;  // runs while the tables are served
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_STORE_STORE_H_
