// One writer's stream.
#ifndef REVERB_TF_CC_SERVICE_INSERT_SESSION_H_
#define REVERB_TF_CC_SERVICE_INSERT_SESSION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/core/item.h"
#include "cc/core/key_map.h"
#include "cc/service/messages.h"
#include "cc/store/store.h"

namespace reverb_tf {

// Takes requests, resolves their items' chunks, hands items to the tables and
// gathers what became of them. Call order: (Handle | Take | pending)* Close.
//
// Handle is called by one thread at a time; everything else by any.
class InsertSession : public InsertListener,
                      public std::enable_shared_from_this<InsertSession> {
 public:
  // `on_ready` is called, without locks, after there is something to Take; perhaps
  // inside Handle, and on another thread perhaps still when Close has returned (so
  // what it uses must be safe then, by a weak_ptr say). It must not own the session.
  // `store` outlives the session.
  static std::shared_ptr<InsertSession> Open(Store* store, Peer peer,
                                             std::function<void()> on_ready);
  ~InsertSession() override;

  // Not OK ends the stream: an empty request (INVALID_ARGUMENT), a chunk to keep
  // that is unknown (FAILED_PRECONDITION), an item's chunk that is unknown
  // (INTERNAL), for foreign peers also any refused item (its status), and more kept
  // chunks than kMaxKeptChunks or kMaxKeptBytes (RESOURCE_EXHAUSTED). Then nothing
  // of the request was done. For own peers a refused item is reported by Take alone.
  Status Handle(InsertRequest request);

  // Moves what was confirmed and refused since the last call into `reply`; false
  // if nothing. Once all that was taken, a foreign peer's refused item makes it
  // return its status instead, a stopped server UNAVAILABLE.
  Result<bool> Take(InsertReply* reply);

  // Items handed in whose result was not taken yet. Zero means that nothing is left
  // to do or to Take.
  int64_t pending() const;
  // The transport stops reading while it is true (a blocked table's back-pressure, or
  // that of a peer that doesn't read replies): more than kMaxPending items are
  // pending, or chunks of about kMaxPendingBytes that the stream itself has let go.
  bool is_full() const;
  static constexpr int64_t kMaxPending = 4096;
  static constexpr int64_t kMaxPendingBytes = int64_t{256} << 20;

  // What a peer can make a stream hold without items.
  static constexpr size_t kMaxKeptChunks = 1'000'000;
  static constexpr size_t kMaxKeptBytes = size_t{10} << 30;

  // The stream is gone: withdraws what waits, forgets its chunks. Idempotent.
  void Close();

  // InsertListener.
  void OnInserted(uint64_t cookie, Status status) override;
  void Notify() override;

 private:
  // Chunks that items of this and later requests may name.
  struct KeptChunks {
    std::unordered_map<uint64_t, ChunkPtr, KeyHash> by_key;
    size_t bytes = 0;
  };
  // A table that the stream has used, with the items of the request at hand.
  struct Target {
    std::shared_ptr<TableRunner> runner;
    std::vector<PendingInsert> batch;
  };
  // What a request's items turned into.
  struct Resolved {
    std::vector<Target*> targets;
    std::vector<RefusedItem> refused;
    int64_t num_items = 0;
  };

  InsertSession(Store* store, Peer peer, std::function<void()> on_ready);
  Status Process(const InsertRequest& request, KeptChunks* chunks);
  Status Resolve(const InsertRequest& request, const KeptChunks& chunks, Resolved* out);
  Result<ItemPtr> MakeItem(const InsertItem& item, const KeptChunks& chunks);
  Result<Target*> FindTarget(const std::string& table);
  // False if the stream was closed meanwhile.
  bool JoinTarget(const std::shared_ptr<TableRunner>& runner);
  // `released`: bytes of chunks that the request lets go.
  void Submit(Resolved* resolved, size_t released);

  Store* const store_;
  const Peer peer_;
  const std::function<void()> on_ready_;

  // Handle's alone.
  std::vector<std::unique_ptr<Target>> targets_;
  std::vector<ChunkSlice> slices_;
  std::vector<ColumnView> columns_;

  mutable Mutex mu_;
  bool closed_ GUARDED_BY(mu_) = false;
  KeptChunks chunks_ GUARDED_BY(mu_);  // empty while Handle works on them
  std::vector<std::shared_ptr<TableRunner>> joined_ GUARDED_BY(mu_);
  int64_t pending_ GUARDED_BY(mu_) = 0;
  // Of chunks let go for the pending items, each of which takes its share with it.
  int64_t pending_bytes_ GUARDED_BY(mu_) = 0;
  std::vector<uint64_t> confirmed_ GUARDED_BY(mu_);
  std::vector<RefusedItem> refused_ GUARDED_BY(mu_);
  Status error_ GUARDED_BY(mu_);  // ends the stream once the rest was taken
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_SERVICE_INSERT_SESSION_H_
