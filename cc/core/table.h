// A table: items, the selectors that order them, the limiter that paces them.
#ifndef REVERB_TF_CC_CORE_TABLE_H_
#define REVERB_TF_CC_CORE_TABLE_H_

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cc/base/clock.h"
#include "cc/base/status.h"
#include "cc/core/chunk_ledger.h"
#include "cc/core/item.h"
#include "cc/core/item_slab.h"
#include "cc/core/key_map.h"
#include "cc/core/random.h"
#include "cc/core/rate_limiter.h"
#include "cc/core/selectors/selector.h"
#include "cc/core/table_info.h"

namespace reverb_tf {

// An item granted to a stream, as it was at the moment of the grant.
struct SampledItem {
  ItemPtr item;
  double priority = 0;
  double probability = 0;
  int64_t table_size = 0;
  int32_t times_sampled = 0;  // this sample included
  bool rate_limited = false;  // the request had to wait
  uint64_t generation = 0;    // of the table; changes with reset
};

// Names a grant that is delivered or given back.
struct Grant {
  uint64_t key = 0;
  uint64_t generation = 0;
};

struct PriorityUpdate {
  uint64_t key = 0;
  double priority = 0;
};

struct MutateCounts {
  int64_t updated = 0;
  int64_t deleted = 0;
  int64_t not_found = 0;
};

// An item on its way in, with what makes resends harmless: per writer, items
// whose sequence is not above the last one inserted are confirmed, not inserted.
// Writers are remembered until ten minutes after their last item; when there are more
// than a million, all are forgotten.
struct NewItem {
  ItemPtr item;
  double priority = 0;
  uint64_t writer_id = 0;  // 0: no sequence (foreign peers)
  uint64_t sequence = 0;   // per writer, growing, from 1
};

// References that were dropped; the owner frees them outside its locks.
using Garbage = std::vector<ItemPtr>;

// A pure state machine: no lock, no thread, no clock (time comes in), no wait.
// What must wait is refused by CanInsert / Sample returning 0; table_runner
// (cc/store) does the waiting. Thread-compatible.
//
// Invariants: both selectors hold exactly the slots in use; limiter size() ==
// size(); chunk byte counts are those of the distinct chunks of items held;
// grants in flight == granted − delivered − returned.
class Table {
 public:
  // REQUIRES: config.Validate().ok()
  explicit Table(TableConfig config);
  ~Table();

  // OK if the item may enter now or later: priority, signature, scope, bytes.
  // No effect. INVALID_ARGUMENT says why not.
  Status CheckInsert(const Item& item, double priority) const;

  // True if NewItem was inserted before (its sequence is not new).
  bool IsRepeat(const NewItem& item) const;
  bool CanInsert() const;
  // Inserts, or updates the priority of a known key; then evicts while over
  // max_size or max_bytes. REQUIRES: CheckInsert ok, CanInsert, not IsRepeat.
  void Insert(NewItem item, TimePoint now, Garbage* garbage);

  // The limiter's answer alone (api: Table.can_insert, can_sample).
  bool LimiterAllowsInsert(int64_t n) const;
  bool LimiterAllowsSample(int64_t n) const;

  // Grants up to `n` samples as far as limiter and content allow, appends them,
  // returns how many. `random` overrides the table's own generator if not null.
  int64_t Sample(int64_t n, Random* random, std::vector<SampledItem>* out,
                 Garbage* garbage);

  // The end of grants. A returned one is undone: times_sampled and S go back, an
  // item that it removed returns to its old place. Both ignore grants of an older
  // generation; GiveBack also those whose key was deleted meanwhile.
  void Delivered(const std::vector<Grant>& grants, Garbage* garbage);
  void GiveBack(const std::vector<Grant>& grants, Garbage* garbage);
  // Items whose steps were delivered in part only.
  void CountPartial(int64_t n) { stats_.sample.partial += n; }
  void CountRefusedInsert() { ++stats_.insert.refused; }
  void CountTimedOutSample() { ++stats_.sample.timed_out; }

  // Deletes, then updates, all or nothing: INVALID_ARGUMENT (a priority that the
  // selectors refuse) changes nothing. Unknown keys are counted.
  Result<MutateCounts> Mutate(const std::vector<PriorityUpdate>& updates,
                              const std::vector<uint64_t>& deletes, Garbage* garbage);
  // Empties the table; counters and limiter to zero, generation + 1.
  void Reset(Garbage* garbage);

  // Lets a reader's declared specs decide an undecided scope.
  // FAILED_PRECONDITION if decided otherwise.
  Status DecideScope(SignatureScope scope);

  // Forgets writers that were silent since before `now` − 10 min.
  void ForgetIdleWriters(TimePoint now);

  int64_t size() const;
  uint64_t generation() const { return generation_; }
  const TableConfig& config() const { return config_; }
  // All but the fields of the waiting layer.
  TableInfo info() const;
  const RateLimiter& limiter() const { return limiter_; }
  // Key, priority, times sampled and item of every item, in insertion order.
  struct Entry {
    ItemPtr item;
    double priority;
    int32_t times_sampled;
  };
  std::vector<Entry> Entries() const;

 private:
  struct Stats {
    CallStats insert;
    CallStats sample;
  };
  struct SlotRef {
    uint32_t slot_plus_one = 0;
    static bool IsEmpty(const SlotRef& ref) { return ref.slot_plus_one == 0; }
    Slot slot() const { return slot_plus_one - 1; }
  };
  using KeySet = std::unordered_set<uint64_t, KeyHash>;
  struct Writer {
    uint64_t sequence = 0;
    TimePoint last_seen;
  };

  Status CheckItemSignature(const Item& item, SignatureScope* scope) const;
  bool IsOverFull() const;
  int64_t in_flight() const;

  void RememberSequence(const NewItem& item, TimePoint now);
  void UpdatePriority(Slot slot, double priority);
  void AddNew(NewItem item, Garbage* garbage);
  // Puts the record at `slot` into selectors, key map and limiter's size, or takes
  // it out of them.
  void Link(Slot slot);
  void Unlink(Slot slot);
  // Takes a linked item out; the record stays while it has grants in flight.
  void RemoveItem(Slot slot, Presence reason, Garbage* garbage);
  void FreeSlot(Slot slot, Garbage* garbage);
  // No grant brings an item of this key back any more.
  void ForgetExpired(uint64_t key, Garbage* garbage);
  bool DeleteKey(uint64_t key, Garbage* garbage);
  void UpdateKeys(const std::vector<PriorityUpdate>& updates, MutateCounts* counts);

  int64_t SampleShared(int64_t n, Random* random, std::vector<SampledItem>* out);
  int64_t SampleConsuming(int64_t n, Random* random, std::vector<SampledItem>* out,
                          Garbage* garbage);
  void GrantItem(const Pick& pick, std::vector<SampledItem>* out);

  // The record of a consuming table that a grant of `key` belongs to, or null.
  const SlotRef* RecordOfGrant(uint64_t key) const;
  // One grant less; `slot` is freed if it was the last of an item that left.
  void EndGrant(uint64_t key, Slot slot, Garbage* garbage);
  void ForgetDeletedKeys();
  void UndoSample(ItemRecord* record);
  void GiveBackShared(uint64_t key);
  void GiveBackConsuming(uint64_t key, Slot slot, Garbage* garbage);
  void Restore(Slot slot);

  TableConfig config_;
  SignatureScope scope_;
  uint64_t generation_ = 1;
  uint64_t next_order_ = 1;
  Stats stats_;
  int64_t num_unique_samples_ = 0;
  int64_t num_evicted_ = 0;
  int64_t num_expired_ = 0;
  RateLimiter limiter_;
  std::unique_ptr<Selector> sampler_;
  std::unique_ptr<Selector> remover_;
  Random sampler_random_;
  Random remover_random_;
  ItemSlab items_;
  ChunkLedger ledger_;
  KeyMap<SlotRef> present_;
  // Of consuming tables: items that left with grants in flight.
  KeyMap<SlotRef> departed_;
  // Of other tables: keys deleted since there were no grants in flight.
  KeySet deleted_;
  std::unordered_map<uint64_t, Writer, KeyHash> writers_;
  std::vector<Pick> picks_;  // scratch of Sample
};

// One line about a table (api: §3.3), from a complete TableInfo.
std::string ExplainTable(const TableInfo& info);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_TABLE_H_
