// The sending half of a writer: pending items, the stream, retries.
#ifndef REVERB_TF_CC_CLIENT_ITEM_SENDER_H_
#define REVERB_TF_CC_CLIENT_ITEM_SENDER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/base/wait.h"
#include "cc/client/chunk_handle.h"
#include "cc/client/table_cache.h"
#include "cc/client/transport.h"

namespace reverb_tf {

// Takes items in and keeps each until its table confirmed or refused it.
//
// Messages to a server of this process are sent by the calling thread inside Kick
// (and by whoever makes room in a table, inside the stream's on_ready). For remote
// servers, and to retry, one thread is started when first needed; it takes whatever
// has gathered into one message and sleeps only when there is nothing to do.
//
// Items of a table are sent in order. No more than a window of unconfirmed ones are
// under way per table, so that a table that blocks doesn't hold back others. When
// a stream ends with UNAVAILABLE, unconfirmed items are sent again on the next one,
// with the writer id and sequence numbers that make repeats harmless; any other end
// is sticky.
//
// Thread-safe. Its lock also guards the columns of its writer (their open chunks are
// closed when an item is sent); callbacks and the transport are never called under it.
class ItemSender {
 public:
  // A message is closed at so many items or bytes, and is larger only if one chunk is.
  static constexpr size_t kMessageItems = 1024;
  static constexpr int64_t kMessageBytes = 8 << 20;
  static constexpr int64_t kMaxMessageBytes = 40 << 20;
  // Unconfirmed items and bytes under way per table.
  static constexpr int64_t kWindowItems = 1000;
  static constexpr int64_t kWindowBytes = 64 << 20;
  // Over all tables; below what a session reads before it stops reading.
  static constexpr int64_t kStreamItems = 4000;

  struct NewItem {
    double priority = 0;
    bool written_as_steps = false;
    std::vector<ColumnRef> columns;
    std::vector<HandleSlice> slices;
  };

  // `role` and `address` are for texts: "writer" gives "writer to ADDRESS: ...".
  // `cache` is asked why a table blocks.
  ItemSender(std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
             std::string role, std::string address);
  // Abandons what is pending.
  ~ItemSender();

  Mutex* mu() { return &mu_; }

  // Queues an item and returns its key. Kick() afterwards, without the lock.
  uint64_t Push(const std::string& table, NewItem item) REQUIRES(mu_);
  // Sees to it that what is queued gets sent.
  void Kick() EXCLUDES(mu_);

  // The sticky error, or, once, the error of the items that were refused since.
  Status TakeError() REQUIRES(mu_);
  // Waits until at most `max_items` are unconfirmed (`max_bytes` likewise), or there
  // is an error to take. DEADLINE_EXCEEDED with Describe(), or the interruption.
  Status Wait(const WaitOptions& wait, int64_t max_items, int64_t max_bytes) REQUIRES(mu_);
  // The same until nothing is pending, the sender failed, or the server can't be
  // reached for the `max_failures`-th time from now. `ask` as in Describe.
  Status WaitForAll(const WaitOptions& wait, int max_failures, bool ask) REQUIRES(mu_);

  // Ends the stream and forgets what is pending: returns how many of each table. What
  // the server had confirmed by then counts as confirmed.
  std::vector<std::pair<std::string, int64_t>> Abandon() EXCLUDES(mu_);

  int64_t pending_items() const REQUIRES(mu_) { return pending_items_; }
  int64_t pending_bytes() const REQUIRES(mu_) { return pending_bytes_; }
  int64_t rejected_items() const REQUIRES(mu_) { return rejected_items_; }
  bool abandoned() const REQUIRES(mu_) { return abandoned_; }
  // There is a sticky error.
  bool failed() const REQUIRES(mu_) { return !sticky_.ok(); }
  bool is_pending(uint64_t key) const REQUIRES(mu_);
  // When the oldest unconfirmed item was pushed.
  std::optional<TimePoint> oldest() const REQUIRES(mu_);

  // "writer to ADDRESS: 12 items unconfirmed (table 't': 10, 'u': 2); <why>". With
  // `ask` a remote server is asked for the reason (for about as long as `wait` allows, but
  // at most 1 s), else memory is.
  std::string Describe(bool ask, const WaitOptions& wait = WaitOptions()) EXCLUDES(mu_);

 private:
  struct PendingItem {
    uint64_t sequence;
    NewItem item;
    TimePoint created;
    int64_t sent_bytes = 0;  // of the chunks that were sent on its behalf
    bool done = false;       // confirmed or refused, after ones that aren't
  };
  // The items of one table that aren't confirmed, in order.
  struct TableQueue {
    std::string name;
    std::deque<PendingItem> items;
    size_t sent = 0;  // the first so many are on the stream
    int64_t pending = 0;
    int64_t in_flight = 0;  // sent and not done
    int64_t in_flight_bytes = 0;
  };

  TableQueue* QueueOf(const std::string& table) REQUIRES(mu_);
  // The queue whose next unsent item is the oldest of those that have room.
  TableQueue* NextQueue() REQUIRES(mu_);
  bool HasRoom(const TableQueue& queue) const REQUIRES(mu_);
  // The item of `key`, if it is under way.
  PendingItem* FindSent(uint64_t key, TableQueue** queue) REQUIRES(mu_);
  void Settle(TableQueue* queue, PendingItem* item) REQUIRES(mu_);
  void CountSlices(const NewItem& item) REQUIRES(mu_);
  void ForgetSlices(const NewItem& item, bool unsent) REQUIRES(mu_);

  // Fills the next message; false if there is nothing to send.
  bool BuildRequest(InsertRequest* request) REQUIRES(mu_);
  // Closes the item's chunks and adds those that the server hasn't got; false if
  // the message is full before.
  Result<bool> AddChunks(PendingItem* item, InsertRequest* request, int64_t* bytes)
      REQUIRES(mu_);
  void AddItem(TableQueue* queue, InsertRequest* request) REQUIRES(mu_);
  void ListKeptChunks(InsertRequest* request) REQUIRES(mu_);

  // Talks to the stream until there is nothing to do; one thread at a time, others
  // return at once. Releases the lock while it calls the transport.
  void Pump() REQUIRES(mu_);
  bool PumpOnce() REQUIRES(mu_);
  void OpenStream() REQUIRES(mu_);
  void Apply(const InsertReply& reply) REQUIRES(mu_);
  void OnStreamOver(const Status& status) REQUIRES(mu_);
  void ResendAll() REQUIRES(mu_);
  void Fail(Status status) REQUIRES(mu_);
  void OnReady() EXCLUDES(mu_);

  void WakeThread() REQUIRES(mu_);
  void RunThread() EXCLUDES(mu_);
  // Takes the right to pump, for good or to replace the stream.
  void WaitForPump() REQUIRES(mu_);
  void DropStream() REQUIRES(mu_);
  void StopThread() EXCLUDES(mu_);

  bool can_be_sent() const REQUIRES(mu_) { return sticky_.ok() && !stopping_; }

  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<TableCache> cache_;
  const std::string role_;
  const std::string address_;
  const uint64_t writer_id_;
  const uint64_t key_base_;  // an item's key less its sequence number

  mutable Mutex mu_;
  CondVar changed_;  // something was confirmed, refused or failed
  int waiting_ GUARDED_BY(mu_) = 0;

  std::vector<std::unique_ptr<TableQueue>> queues_ GUARDED_BY(mu_);
  uint64_t last_sequence_ GUARDED_BY(mu_) = 0;
  int64_t pending_items_ GUARDED_BY(mu_) = 0;
  int64_t pending_bytes_ GUARDED_BY(mu_) = 0;
  int64_t rejected_items_ GUARDED_BY(mu_) = 0;
  Status sticky_ GUARDED_BY(mu_);
  Status refused_ GUARDED_BY(mu_);  // the first since it was taken
  int64_t more_refused_ GUARDED_BY(mu_) = 0;
  Status connection_error_ GUARDED_BY(mu_);
  int64_t failures_ GUARDED_BY(mu_) = 0;  // streams that ended with UNAVAILABLE

  // The stream. Replaced only by who has the right to pump.
  std::unique_ptr<InsertStream> stream_ GUARDED_BY(mu_);
  bool local_ GUARDED_BY(mu_) = false;
  bool broken_ GUARDED_BY(mu_) = false;  // stream_ is over
  bool can_send_ GUARDED_BY(mu_) = false;
  uint64_t stream_number_ GUARDED_BY(mu_) = 0;
  std::vector<ChunkHandlePtr> held_ GUARDED_BY(mu_);  // what the server keeps
  std::atomic<uint64_t> events_{0};                   // calls of OnReady
  bool pumping_ GUARDED_BY(mu_) = false;
  bool pump_again_ GUARDED_BY(mu_) = false;
  int pump_waiters_ GUARDED_BY(mu_) = 0;
  CondVar pump_free_;

  // The thread.
  std::thread thread_;
  bool thread_started_ GUARDED_BY(mu_) = false;
  bool thread_asleep_ GUARDED_BY(mu_) = false;
  bool thread_event_ GUARDED_BY(mu_) = false;
  CondVar thread_wake_;
  Duration backoff_ GUARDED_BY(mu_);
  TimePoint retry_at_ GUARDED_BY(mu_);
  bool stopping_ GUARDED_BY(mu_) = false;
  bool abandoned_ GUARDED_BY(mu_) = false;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_ITEM_SENDER_H_
