// Streams that are closed by one thread while another uses them: whatever the
// moment, each item is inserted once and delivered once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "cc/core/random.h"
#include "cc/service/insert_session.h"
#include "cc/service/sample_session.h"
#include "cc/store/testing.h"

namespace reverb_tf {
namespace {

constexpr int kRounds = 100;

// Calls `use` until it is false; another thread calls `close` after `calls` of it.
template <typename Use, typename Close>
void Race(int calls, const Use& use, const Close& close) {
  std::atomic<int> left{calls};
  std::thread closer([&] {
    while (left > 0) std::this_thread::yield();
    close();
  });
  while (use()) --left;
  left = 0;
  closer.join();
}

class RacingWriter {
 public:
  RacingWriter(Store* store, uint64_t id) : store_(store), id_(id), random_(1, id) {}

  void Round() {
    const auto session = InsertSession::Open(store_, Peer::kOwn, nullptr);
    bool resend = true;
    Race(
        static_cast<int>(random_.Below(30)),
        [&] {
          Collect(session.get());
          if (!resend && session->pending() > 20) return !Closed(session.get());
          if (!resend) unconfirmed_.insert(next_++);
          const Status status = session->Handle(Request(resend));
          resend = false;
          return status.ok();
        },
        [&] { session->Close(); });
    Collect(session.get());
  }
  const std::set<uint64_t>& confirmed() const { return confirmed_; }

 private:
  InsertRequest Request(bool all) const {
    InsertRequest request;
    request.chunks.push_back(TestChunk(id_));
    for (const uint64_t n : unconfirmed_) {
      if (!all && n + 1 != next_) continue;
      InsertItem item;
      item.key = id_ << 32 | n;
      item.table = "q";
      item.columns = {{1, false}};
      item.slices = {{id_, 0, 1, nullptr}};
      item.writer_id = id_;
      item.sequence = n;
      request.items.push_back(std::move(item));
    }
    return request;
  }
  bool Closed(InsertSession* session) {
    InsertRequest probe;
    probe.chunks.push_back(TestChunk(id_));
    return !session->Handle(std::move(probe)).ok();
  }
  void Collect(InsertSession* session) {
    InsertReply reply;
    while (session->Take(&reply).value()) {
      for (const uint64_t key : reply.confirmed) {
        confirmed_.insert(key);
        unconfirmed_.erase(key & 0xffffffff);
      }
    }
  }

  Store* const store_;
  const uint64_t id_;
  Random random_;
  uint64_t next_ = 1;
  std::set<uint64_t> unconfirmed_;
  std::set<uint64_t> confirmed_;
};

class RacingSampler {
 public:
  RacingSampler(Store* store, uint64_t id) : store_(store), random_(2, id) {}

  // Each request acknowledges what was taken before it.
  void Round() {
    const auto session = SampleSession::Open(store_, Peer::kOwn, nullptr);
    std::vector<uint64_t> taken;
    int64_t position = 0;
    Race(
        static_cast<int>(random_.Below(30)),
        [&] {
          SampleRequest request;
          request.table = "q";
          request.num_samples = 1 + static_cast<int64_t>(random_.Below(3));
          request.timeout = Duration(0);
          request.delivered = position;
          if (!session->Handle(request).ok()) return false;
          delivered_.insert(delivered_.end(), taken.begin(), taken.end());
          taken.clear();
          SampleReply reply;
          while (session->Take(2, 1 << 20, &reply).value()) {
            position += static_cast<int64_t>(reply.items.size());
            for (const uint64_t key : Keys(reply.items)) taken.push_back(key);
          }
          return true;
        },
        [&] { session->Close(); });
  }
  const std::vector<uint64_t>& delivered() const { return delivered_; }

 private:
  Store* const store_;
  Random random_;
  std::vector<uint64_t> delivered_;
};

TEST(SessionRaceTest, EachItemIsInsertedOnceAndDeliveredOnce) {
  const auto runner = std::make_shared<TableRunner>(QueueConfig(16));
  const auto store = Store::Create({runner}, "localhost:1").value();
  RacingWriter writers[] = {{store.get(), 1}, {store.get(), 2}};
  RacingSampler samplers[] = {{store.get(), 1}, {store.get(), 2}};
  std::vector<std::thread> threads;
  for (auto& w : writers) {
    threads.emplace_back([&w] {
      for (int i = 0; i < kRounds; ++i) w.Round();
    });
  }
  for (auto& s : samplers) {
    threads.emplace_back([&s] {
      for (int i = 0; i < kRounds; ++i) s.Round();
    });
  }
  for (auto& thread : threads) thread.join();

  const TableInfo info = runner->Info();
  EXPECT_EQ(info.num_writers + info.num_samplers, 0);
  EXPECT_EQ(info.num_waiting_inserts + info.num_waiting_samples, 0);
  EXPECT_EQ(info.sample_stats.in_flight, 0);
  auto last = std::make_shared<RecordingSampler>();
  runner->AddSampler(last);
  if (runner->size() > 0) runner->Sample(last, {runner->size(), kNever, nullptr});
  runner->RemoveSampler(last.get(), {});

  std::vector<uint64_t> inserted, delivered = last->keys();
  for (auto& w : writers) {
    inserted.insert(inserted.end(), w.confirmed().begin(), w.confirmed().end());
  }
  for (auto& s : samplers) {
    delivered.insert(delivered.end(), s.delivered().begin(), s.delivered().end());
  }
  std::sort(delivered.begin(), delivered.end());
  EXPECT_EQ(delivered, inserted);
  EXPECT_FALSE(inserted.empty());
}

}  // namespace
}  // namespace reverb_tf
