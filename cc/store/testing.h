// What the tests of store and service share: tables, items and streams that
// record what they are told.
#ifndef REVERB_TF_CC_STORE_TESTING_H_
#define REVERB_TF_CC_STORE_TESTING_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/store/table_runner.h"

namespace reverb_tf {

inline TableConfig ReplayConfig(const std::string& name = "t") {
  TableConfig config;
  config.name = name;
  config.sampler.kind = SelectorKind::kFifo;
  config.remover.kind = SelectorKind::kFifo;
  config.max_size = 1000;
  config.rate_limiter.min_diff = std::numeric_limits<double>::lowest();
  config.rate_limiter.max_diff = std::numeric_limits<double>::max();
  return config;
}

inline TableConfig QueueConfig(int64_t size, const std::string& name = "q") {
  TableConfig config = ReplayConfig(name);
  config.max_size = size;
  config.max_times_sampled = 1;
  config.rate_limiter.min_diff = 0;
  config.rate_limiter.max_diff = static_cast<double>(size);
  return config;
}

// `rows` int32 cells that count from 0.
inline ChunkPtr TestChunk(uint64_t key, int32_t rows = 1) {
  static const CellSpecPtr cell = [] {
    auto spec = std::make_shared<TensorSpec>();
    spec->dtype = DType::kInt32;
    return spec;
  }();
  ChunkOptions options;
  options.key = key;
  options.cell = cell;
  options.num_rows = rows;
  options.episode_id = 1;
  options.end = rows;
  std::vector<int32_t> values(static_cast<size_t>(rows));
  for (int32_t i = 0; i < rows; ++i) values[static_cast<size_t>(i)] = i;
  const char* bytes = reinterpret_cast<const char*>(values.data());
  return Chunk::Copy(options, {bytes, values.size() * sizeof(int32_t)}).value();
}

inline ItemPtr TestItem(uint64_t key, int32_t rows = 1) {
  const ChunkSlice slice{TestChunk(key, rows), 0, rows};
  return Item::Create(key, /*written_as_steps=*/false, {{&slice, 1, false}}).value();
}

// Inserts of items `keys`, with the keys as cookies.
inline std::vector<PendingInsert> Inserts(const std::vector<uint64_t>& keys) {
  std::vector<PendingInsert> inserts;
  for (const uint64_t key : keys) inserts.push_back({{TestItem(key), 1.0, 0, 0}, key});
  return inserts;
}

inline std::vector<Grant> Grants(const std::vector<SampledItem>& items) {
  std::vector<Grant> grants;
  for (const auto& item : items) grants.push_back({item.item->key(), item.generation});
  return grants;
}

inline std::vector<uint64_t> Keys(const std::vector<SampledItem>& items) {
  std::vector<uint64_t> keys;
  for (const auto& item : items) keys.push_back(item.item->key());
  return keys;
}

class RecordingWriter : public InsertListener {
 public:
  void OnInserted(uint64_t cookie, Status status) override {
    MutexLock lock(&mu_);
    if (status.ok()) {
      inserted_.push_back(cookie);
    } else {
      failed_.emplace_back(cookie, std::move(status));
    }
  }
  void Notify() override {
    {
      MutexLock lock(&mu_);
      ++notified_;
      changed_.SignalAll();
    }
    if (on_notify) on_notify();
  }

  std::vector<uint64_t> inserted() const {
    MutexLock lock(&mu_);
    return inserted_;
  }
  std::vector<std::pair<uint64_t, Status>> failed() const {
    MutexLock lock(&mu_);
    return failed_;
  }
  int notified() const {
    MutexLock lock(&mu_);
    return notified_;
  }
  // Blocks until `n` inserts were reported.
  void WaitFor(size_t n) {
    MutexLock lock(&mu_);
    while (inserted_.size() + failed_.size() < n) changed_.Wait(&mu_);
  }

  std::function<void()> on_notify;

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<uint64_t> inserted_ GUARDED_BY(mu_);
  std::vector<std::pair<uint64_t, Status>> failed_ GUARDED_BY(mu_);
  int notified_ GUARDED_BY(mu_) = 0;
};

class RecordingSampler : public SampleListener {
 public:
  void OnGranted(std::vector<SampledItem> items) override {
    MutexLock lock(&mu_);
    batches_.push_back(items.size());
    for (auto& item : items) items_.push_back(std::move(item));
  }
  void OnRequestDone(Status status) override {
    MutexLock lock(&mu_);
    done_.push_back(std::move(status));
  }
  void OnReset(uint64_t generation) override {
    MutexLock lock(&mu_);
    resets_.push_back(generation);
  }
  void Notify() override {
    {
      MutexLock lock(&mu_);
      ++notified_;
      changed_.SignalAll();
    }
    if (on_notify) on_notify();
  }

  std::vector<SampledItem> items() const {
    MutexLock lock(&mu_);
    return items_;
  }
  std::vector<SampledItem> TakeItems() {
    MutexLock lock(&mu_);
    return std::exchange(items_, {});
  }
  std::vector<uint64_t> keys() const { return Keys(items()); }
  std::vector<size_t> batches() const {
    MutexLock lock(&mu_);
    return batches_;
  }
  std::vector<Status> done() const {
    MutexLock lock(&mu_);
    return done_;
  }
  std::vector<uint64_t> resets() const {
    MutexLock lock(&mu_);
    return resets_;
  }
  int notified() const {
    MutexLock lock(&mu_);
    return notified_;
  }
  // Blocks until `n` requests are over.
  void WaitForDone(size_t n) {
    MutexLock lock(&mu_);
    while (done_.size() < n) changed_.Wait(&mu_);
  }

  std::function<void()> on_notify;

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<SampledItem> items_ GUARDED_BY(mu_);
  std::vector<size_t> batches_ GUARDED_BY(mu_);
  std::vector<Status> done_ GUARDED_BY(mu_);
  std::vector<uint64_t> resets_ GUARDED_BY(mu_);
  int notified_ GUARDED_BY(mu_) = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_STORE_TESTING_H_
