#include "cc/core/table.h"

#include <algorithm>
#include <string>

namespace reverb_tf {
namespace {

// Streams of a seed: sampler and remover draw independently even if the user
// gave both the same one.
constexpr uint64_t kSamplerStream = 0;
constexpr uint64_t kRemoverStream = 1;

constexpr Duration kWriterMemory = std::chrono::minutes(10);
// Draws that are made at once; bounds the scratch memory of a huge request.
constexpr int64_t kMaxPicks = 1024;
// Deleted keys remembered because of grants in flight.
constexpr size_t kMaxDeletedKeys = 64 << 10;
// Writers remembered: a peer can give each of its items another.
constexpr size_t kMaxWriters = 1 << 20;

}  // namespace

Table::Table(TableConfig config)
    : config_(std::move(config)),
      scope_(config_.signature_scope),
      limiter_(config_.rate_limiter),
      sampler_(MakeSelector(config_.sampler)),
      remover_(MakeSelector(config_.remover)),
      sampler_random_(Random::FromOptionalSeed(config_.sampler.seed, kSamplerStream)),
      remover_random_(Random::FromOptionalSeed(config_.remover.seed, kRemoverStream)) {}

Table::~Table() = default;

int64_t Table::size() const { return static_cast<int64_t>(sampler_->size()); }

int64_t Table::in_flight() const {
  const CallStats& s = stats_.sample;
  return s.completed - s.delivered - s.returned;
}

// ---- insert ----

Status Table::CheckItemSignature(const Item& item, SignatureScope* scope) const {
  if (!config_.signature) return OkStatus();
  std::vector<ColumnShapeRef> columns;
  columns.reserve(static_cast<size_t>(item.num_columns()));
  for (int i = 0; i < item.num_columns(); ++i) {
    const ColumnView c = item.column(i);
    columns.push_back({c.cell().dtype, &c.cell().shape, c.length(), c.squeeze});
  }
  Status status =
      CheckSignature(*config_.signature, columns, item.written_as_steps(), scope);
  if (status.ok()) return status;
  return Status(status.code(), "table '" + config_.name + "': " + status.message());
}

Status Table::CheckInsert(const Item& item, double priority) const {
  RTF_RETURN_IF_ERROR(config_.CheckPriority(priority));
  SignatureScope scope = scope_;
  RTF_RETURN_IF_ERROR(CheckItemSignature(item, &scope));
  if (config_.max_bytes > 0) {
    const int64_t bytes = DistinctStoredBytes(item);
    if (bytes > config_.max_bytes) {
      return InvalidArgumentError(
          "table '" + config_.name + "': the item's chunks take " + std::to_string(bytes) +
          " bytes, more than max_bytes, which is " + std::to_string(config_.max_bytes));
    }
  }
  return OkStatus();
}

bool Table::IsRepeat(const NewItem& item) const {
  if (item.writer_id == 0) return false;
  const auto it = writers_.find(item.writer_id);
  return it != writers_.end() && item.sequence <= it->second.sequence;
}

bool Table::CanInsert() const { return limiter_.CanInsert(1); }
bool Table::LimiterAllowsInsert(int64_t n) const { return limiter_.CanInsert(n); }
bool Table::LimiterAllowsSample(int64_t n) const { return limiter_.CanSample(n); }

bool Table::IsOverFull() const {
  return size() > config_.max_size ||
         (config_.max_bytes > 0 && ledger_.stored_bytes() > config_.max_bytes);
}

void Table::RememberSequence(const NewItem& item, TimePoint now) {
  if (item.writer_id == 0) return;
  if (writers_.size() > kMaxWriters) writers_.clear();
  Writer& writer = writers_[item.writer_id];
  writer.sequence = std::max(writer.sequence, item.sequence);
  writer.last_seen = now;
}

void Table::Insert(NewItem item, TimePoint now, Garbage* garbage) {
  RememberSequence(item, now);
  if (const SlotRef* known = present_.Find(item.item->key())) {
    UpdatePriority(known->slot(), item.priority);
    garbage->push_back(std::move(item.item));
    return;
  }
  AddNew(std::move(item), garbage);
  while (IsOverFull()) {
    Pick pick;
    remover_->Sample(&remover_random_, 1, &pick);
    RemoveItem(pick.slot, Presence::kEvicted, garbage);
    ++num_evicted_;
  }
}

void Table::AddNew(NewItem item, Garbage* garbage) {
  if (scope_ == SignatureScope::kUndecided) {
    const Status status = CheckItemSignature(*item.item, &scope_);
    RTF_CHECK(status.ok()) << status.ToString();
  }
  ForgetExpired(item.item->key(), garbage);
  ItemRecord record;
  record.item = std::move(item.item);
  record.priority = item.priority;
  record.order = record.last_order = next_order_++;
  const Slot slot = items_.Add(std::move(record));
  Link(slot);
  ledger_.Add(*items_[slot].item);
  limiter_.OnInsert();
  ++stats_.insert.completed;
}

void Table::Link(Slot slot) {
  const ItemRecord& record = items_[slot];
  const auto insert = [&](Selector* selector, const SelectorConfig& config) {
    const bool is_heap =
        config.kind == SelectorKind::kMinHeap || config.kind == SelectorKind::kMaxHeap;
    selector->Insert(slot, is_heap ? record.last_order : record.order, record.priority);
  };
  insert(sampler_.get(), config_.sampler);
  insert(remover_.get(), config_.remover);
  present_.FindOrAdd(record.item->key())->slot_plus_one = slot + 1;
}

void Table::Unlink(Slot slot) {
  const ItemRecord& record = items_[slot];
  sampler_->Remove(slot, record.order);
  remover_->Remove(slot, record.order);
  present_.Remove(record.item->key());
}

void Table::UpdatePriority(Slot slot, double priority) {
  ItemRecord& record = items_[slot];
  record.priority = priority;
  record.last_order = next_order_++;
  sampler_->Update(slot, record.last_order, priority);
  remover_->Update(slot, record.last_order, priority);
}

// ---- remove ----

void Table::FreeSlot(Slot slot, Garbage* garbage) {
  ItemPtr item = items_.Take(slot).item;
  if (item) garbage->push_back(std::move(item));
}

void Table::RemoveItem(Slot slot, Presence reason, Garbage* garbage) {
  ItemRecord& record = items_[slot];
  const uint64_t key = record.item->key();
  Unlink(slot);
  ledger_.Remove(*record.item);
  limiter_.OnDelete();
  if (record.in_flight == 0) return FreeSlot(slot, garbage);
  record.presence = reason;
  if (reason != Presence::kExpired) garbage->push_back(std::move(record.item));
  SlotRef* const departed = departed_.FindOrAdd(key);
  if (departed->slot_plus_one != 0) {
    // The grants of an earlier item of this key end with those of this one.
    record.in_flight += items_[departed->slot()].in_flight;
    FreeSlot(departed->slot(), garbage);
  }
  departed->slot_plus_one = slot + 1;
}

void Table::ForgetExpired(uint64_t key, Garbage* garbage) {
  const SlotRef* const departed = departed_.Find(key);
  if (departed == nullptr) return;
  ItemRecord& record = items_[departed->slot()];
  record.presence = Presence::kDeleted;
  if (record.item) garbage->push_back(std::move(record.item));
}

bool Table::DeleteKey(uint64_t key, Garbage* garbage) {
  ForgetExpired(key, garbage);
  if (!config_.is_consuming() && in_flight() > 0) {
    if (deleted_.size() >= kMaxDeletedKeys) deleted_.clear();
    deleted_.insert(key);
  }
  const SlotRef* const known = present_.Find(key);
  if (known == nullptr) return false;
  RemoveItem(known->slot(), Presence::kDeleted, garbage);
  return true;
}

Result<MutateCounts> Table::Mutate(const std::vector<PriorityUpdate>& updates,
                                   const std::vector<uint64_t>& deletes, Garbage* garbage) {
  for (const PriorityUpdate& update : updates) {
    Status status = config_.CheckPriority(update.priority);
    if (!status.ok()) {
      return Status(status.code(),
                    "key " + std::to_string(update.key) + ": " + status.message());
    }
  }
  MutateCounts counts;
  for (const uint64_t key : deletes) {
    ++(DeleteKey(key, garbage) ? counts.deleted : counts.not_found);
  }
  UpdateKeys(updates, &counts);
  return counts;
}

void Table::UpdateKeys(const std::vector<PriorityUpdate>& updates, MutateCounts* counts) {
  constexpr size_t kAhead = 16;
  for (size_t i = 0; i < updates.size(); ++i) {
    if (i + kAhead < updates.size()) present_.Prefetch(updates[i + kAhead].key);
    const SlotRef* const known = present_.Find(updates[i].key);
    if (known == nullptr) {
      ++counts->not_found;
      continue;
    }
    UpdatePriority(known->slot(), updates[i].priority);
    ++counts->updated;
  }
}

void Table::Reset(Garbage* garbage) {
  items_.ForEach(
      [garbage](ItemRecord* record) { garbage->push_back(std::move(record->item)); });
  items_.Clear();
  sampler_->Clear();
  remover_->Clear();
  ledger_.Clear();
  present_.Clear();
  departed_.Clear();
  deleted_ = KeySet();
  limiter_.Reset();
  stats_.sample.returned += in_flight();
  num_unique_samples_ = 0;
  scope_ = config_.signature_scope;
  ++generation_;
}

// ---- sample ----

int64_t Table::Sample(int64_t n, Random* random, std::vector<SampledItem>* out,
                      Garbage* garbage) {
  if (random == nullptr) random = &sampler_random_;
  const int64_t granted = config_.is_consuming() ? SampleConsuming(n, random, out, garbage)
                                                 : SampleShared(n, random, out);
  limiter_.OnSample(granted);
  stats_.sample.completed += granted;
  return granted;
}

int64_t Table::SampleShared(int64_t n, Random* random, std::vector<SampledItem>* out) {
  const int64_t granted = limiter_.MaxSamples(n);
  for (int64_t left = granted; left > 0;) {
    const int64_t draws = std::min(left, kMaxPicks);
    picks_.resize(static_cast<size_t>(draws));
    sampler_->Sample(random, picks_.size(), picks_.data());
    // Three rounds, each fetching what the next one touches.
    for (const Pick& pick : picks_) __builtin_prefetch(&items_[pick.slot], 1);
    for (const Pick& pick : picks_) __builtin_prefetch(items_[pick.slot].item.get(), 1);
    for (const Pick& pick : picks_) GrantItem(pick, out);
    left -= draws;
  }
  return granted;
}

int64_t Table::SampleConsuming(int64_t n, Random* random, std::vector<SampledItem>* out,
                               Garbage* garbage) {
  int64_t granted = 0;
  // One by one: removals change size and probabilities.
  for (; granted < n && limiter_.CanSample(granted + 1); ++granted) {
    Pick pick;
    sampler_->Sample(random, 1, &pick);
    GrantItem(pick, out);
    ItemRecord& record = items_[pick.slot];
    ++record.in_flight;
    if (record.times_sampled < config_.max_times_sampled) continue;
    RemoveItem(pick.slot, Presence::kExpired, garbage);
    ++num_expired_;
  }
  return granted;
}

void Table::GrantItem(const Pick& pick, std::vector<SampledItem>* out) {
  ItemRecord& record = items_[pick.slot];
  if (record.times_sampled++ == 0) ++num_unique_samples_;
  SampledItem& sampled = out->emplace_back();
  sampled.item = record.item;
  sampled.priority = record.priority;
  sampled.probability = pick.probability;
  sampled.table_size = size();
  sampled.times_sampled = record.times_sampled;
  sampled.generation = generation_;
}

// ---- the end of grants ----

const Table::SlotRef* Table::RecordOfGrant(uint64_t key) const {
  const SlotRef* const present = present_.Find(key);
  if (present != nullptr && items_[present->slot()].in_flight > 0) return present;
  return departed_.Find(key);
}

void Table::EndGrant(uint64_t key, Slot slot, Garbage* garbage) {
  ItemRecord& record = items_[slot];
  if (--record.in_flight > 0 || record.presence == Presence::kPresent) return;
  departed_.Remove(key);
  FreeSlot(slot, garbage);
}

void Table::Delivered(const std::vector<Grant>& grants, Garbage* garbage) {
  for (const Grant& grant : grants) {
    if (grant.generation != generation_ || in_flight() == 0) continue;
    if (config_.is_consuming()) {
      const SlotRef* const ref = RecordOfGrant(grant.key);
      if (ref == nullptr) continue;
      EndGrant(grant.key, ref->slot(), garbage);
    }
    ++stats_.sample.delivered;
  }
  ForgetDeletedKeys();
}

void Table::GiveBack(const std::vector<Grant>& grants, Garbage* garbage) {
  for (const Grant& grant : grants) {
    if (grant.generation != generation_ || in_flight() == 0) continue;
    if (config_.is_consuming()) {
      const SlotRef* const ref = RecordOfGrant(grant.key);
      if (ref == nullptr) continue;
      GiveBackConsuming(grant.key, ref->slot(), garbage);
    } else {
      GiveBackShared(grant.key);
    }
    ++stats_.sample.returned;
  }
  ForgetDeletedKeys();
}

void Table::ForgetDeletedKeys() {
  if (!deleted_.empty() && in_flight() == 0) deleted_ = KeySet();
}

void Table::UndoSample(ItemRecord* record) {
  if (record->times_sampled > 0 && --record->times_sampled == 0) --num_unique_samples_;
}

void Table::GiveBackShared(uint64_t key) {
  if (deleted_.count(key) > 0) return;
  limiter_.OnSampleReturned(1);
  // Else it was evicted meanwhile.
  if (const SlotRef* known = present_.Find(key)) UndoSample(&items_[known->slot()]);
}

void Table::GiveBackConsuming(uint64_t key, Slot slot, Garbage* garbage) {
  ItemRecord& record = items_[slot];
  if (record.presence != Presence::kDeleted) limiter_.OnSampleReturned(1);
  if (record.item) UndoSample(&record);
  if (record.presence == Presence::kExpired) Restore(slot);
  EndGrant(key, slot, garbage);
}

void Table::Restore(Slot slot) {
  ItemRecord& record = items_[slot];
  departed_.Remove(record.item->key());
  record.presence = Presence::kPresent;
  Link(slot);
  ledger_.Restore(*record.item);
  limiter_.OnDeleteUndone();
  --num_expired_;
}

// ---- the rest ----

Status Table::DecideScope(SignatureScope scope) {
  if (!config_.signature || scope == SignatureScope::kUndecided || scope == scope_) {
    return OkStatus();
  }
  if (scope_ != SignatureScope::kUndecided) {
    return FailedPreconditionError(
        "table '" + config_.name + "': a reader declares items of signature_scope='" +
        SignatureScopeName(scope) + "', but earlier items, another reader or the table's " +
        "constructor made it signature_scope='" + SignatureScopeName(scope_) +
        "'; declare the reader's specs accordingly, or give the table signature_scope=");
  }
  scope_ = scope;
  return OkStatus();
}

void Table::ForgetIdleWriters(TimePoint now) {
  for (auto it = writers_.begin(); it != writers_.end();) {
    it = it->second.last_seen < now - kWriterMemory ? writers_.erase(it) : std::next(it);
  }
}

std::vector<Table::Entry> Table::Entries() const {
  std::vector<std::pair<uint64_t, Entry>> ordered;
  ordered.reserve(static_cast<size_t>(size()));
  items_.ForEach([&ordered](const ItemRecord& r) {
    if (r.presence != Presence::kPresent) return;
    ordered.push_back({r.order, {r.item, r.priority, r.times_sampled}});
  });
  std::sort(ordered.begin(), ordered.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<Entry> entries;
  entries.reserve(ordered.size());
  for (auto& [order, entry] : ordered) entries.push_back(std::move(entry));
  return entries;
}

TableInfo Table::info() const {
  TableInfo info;
  info.config = config_;
  info.config.signature_scope = scope_;
  info.current_size = size();
  info.num_episodes = ledger_.num_episodes();
  info.num_deleted_episodes = ledger_.num_deleted_episodes();
  info.num_unique_samples = num_unique_samples_;
  info.insert_stats = stats_.insert;
  info.sample_stats = stats_.sample;
  info.sample_stats.in_flight = in_flight();
  info.bytes_stored = ledger_.stored_bytes();
  info.bytes_uncompressed = ledger_.uncompressed_bytes();
  info.num_chunks = ledger_.num_chunks();
  const std::vector<int64_t>& bytes = ledger_.bytes_by_column();
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool named = config_.signature && i < config_.signature->leaves.size();
    info.bytes_by_column.emplace_back(
        named ? config_.signature->leaves[i].path : "[" + std::to_string(i) + "]",
        bytes[i]);
  }
  info.generation = generation_;
  info.insert_count = limiter_.inserts();
  info.sample_count = limiter_.samples();
  info.delete_count = limiter_.deletes();
  info.num_evicted = num_evicted_;
  info.num_expired = num_expired_;
  info.sampler_mass = sampler_->mass();
  return info;
}

}  // namespace reverb_tf
