#include "cc/service/insert_session.h"

#include <utility>

namespace reverb_tf {
namespace {

template <typename Chunks>
Status CheckKept(const Chunks& chunks) {
  if (chunks.by_key.size() <= InsertSession::kMaxKeptChunks &&
      chunks.bytes <= InsertSession::kMaxKeptBytes) {
    return OkStatus();
  }
  return ResourceExhaustedError("the stream would keep " +
                                std::to_string(chunks.by_key.size()) + " chunks of " +
                                std::to_string(chunks.bytes) + " bytes, expected at most " +
                                std::to_string(InsertSession::kMaxKeptChunks) + " and " +
                                std::to_string(InsertSession::kMaxKeptBytes) +
                                " bytes; send items and list fewer keep_chunk_keys");
}

template <typename Chunks>
void Keep(ChunkPtr chunk, Chunks* chunks) {
  ChunkPtr& place = chunks->by_key[chunk->key()];
  if (place) chunks->bytes -= place->payload().size();
  chunks->bytes += chunk->payload().size();
  place = std::move(chunk);
}

// The chunks of `all` that `keys` lists.
template <typename Chunks>
Result<Chunks> Select(const Chunks& all, const std::vector<uint64_t>& keys) {
  Chunks kept;
  for (const uint64_t key : keys) {
    auto it = all.by_key.find(key);
    if (it == all.by_key.end()) {
      return FailedPreconditionError("keep_chunk_keys: chunk " + std::to_string(key) +
                                     " is not one of the stream's");
    }
    for (uint32_t index = 1; it != all.by_key.end(); ++index) {
      Keep(it->second, &kept);
      it = all.by_key.find(MixKey(key, index));
    }
  }
  RTF_RETURN_IF_ERROR(CheckKept(kept));
  return kept;
}

}  // namespace

std::shared_ptr<InsertSession> InsertSession::Open(Store* store, Peer peer,
                                                   std::function<void()> on_ready) {
  return std::shared_ptr<InsertSession>(
      new InsertSession(store, peer, std::move(on_ready)));
}

InsertSession::InsertSession(Store* store, Peer peer, std::function<void()> on_ready)
    : store_(store), peer_(peer), on_ready_(std::move(on_ready)) {}

InsertSession::~InsertSession() = default;

Status InsertSession::Handle(InsertRequest request) {
  if (request.chunks.empty() && request.items.empty()) {
    return InvalidArgumentError(
        "insert request: got neither chunks nor items, expected one of them");
  }
  KeptChunks chunks;
  {
    MutexLock lock(&mu_);
    if (closed_) return CancelledError("the insert stream was closed");
    std::swap(chunks, chunks_);
  }
  Status status = Process(request, &chunks);
  for (const auto& target : targets_) target->batch.clear();
  MutexLock lock(&mu_);
  if (!closed_) std::swap(chunks, chunks_);
  return status;
}

Status InsertSession::Process(const InsertRequest& request, KeptChunks* chunks) {
  for (const ChunkPtr& chunk : request.chunks) {
    if (!chunk) return InvalidArgumentError("insert request: a chunk is null");
    Keep(chunk, chunks);
  }
  if (request.items.empty()) return CheckKept(*chunks);
  Resolved resolved;
  RTF_RETURN_IF_ERROR(Resolve(request, *chunks, &resolved));
  RTF_ASSIGN_OR_RETURN(KeptChunks kept, Select(*chunks, request.keep_chunk_keys));
  if (peer_ == Peer::kForeign) {
    for (const Target* target : resolved.targets) {
      RTF_RETURN_IF_ERROR(target->runner->CheckInserts(target->batch));
    }
  }
  const size_t released = chunks->bytes - kept.bytes;
  *chunks = std::move(kept);
  Submit(&resolved, released);
  return OkStatus();
}

Status InsertSession::Resolve(const InsertRequest& request, const KeptChunks& chunks,
                              Resolved* out) {
  for (size_t index = 0; index < request.items.size(); ++index) {
    const InsertItem& source = request.items[index];
    Result<Target*> target = FindTarget(source.table);
    Result<ItemPtr> item = target.ok() ? MakeItem(source, chunks) : target.status();
    if (item.ok()) {
      if ((*target)->batch.empty()) {
        out->targets.push_back(*target);
        (*target)->batch.reserve(request.items.size() - index);
      }
      const bool counts = peer_ == Peer::kOwn;
      (*target)->batch.push_back(
          {{std::move(*item), source.priority, counts ? source.writer_id : 0,
            counts ? source.sequence : 0},
           source.key});
      ++out->num_items;
      continue;
    }
    const StatusCode code = item.status().code();
    const bool item_alone =
        code == StatusCode::kInvalidArgument || code == StatusCode::kNotFound;
    if (peer_ == Peer::kForeign || !item_alone) return item.status();
    out->refused.push_back({source.key, item.status()});
  }
  return OkStatus();
}

Result<ItemPtr> InsertSession::MakeItem(const InsertItem& item, const KeptChunks& chunks) {
  slices_.clear();
  for (const SliceRef& slice : item.slices) {
    ChunkPtr chunk = slice.chunk;
    if (!chunk) {
      const auto it = chunks.by_key.find(slice.chunk_key);
      if (it == chunks.by_key.end()) {
        return InternalError("item " + std::to_string(item.key) + " names chunk " +
                             std::to_string(slice.chunk_key) +
                             ", which is not one of the stream's");
      }
      chunk = it->second;
    }
    slices_.push_back({std::move(chunk), slice.offset, slice.length});
  }
  columns_.clear();
  size_t used = 0;
  for (const ColumnRef& column : item.columns) {
    const size_t left = slices_.size() - used;
    if (column.num_slices < 0 || static_cast<size_t>(column.num_slices) > left) break;
    columns_.push_back({slices_.data() + used, column.num_slices, column.squeeze});
    used += static_cast<size_t>(column.num_slices);
  }
  if (columns_.size() != item.columns.size() || used != slices_.size()) {
    return InvalidArgumentError("item " + std::to_string(item.key) +
                                ": its columns don't add up to its " +
                                std::to_string(slices_.size()) + " slices");
  }
  // A foreign peer's row of one leaf looks like a trajectory of one column: either may be
  // meant.
  const bool maybe_row =
      peer_ == Peer::kForeign && columns_.size() == 1 && !columns_[0].squeeze;
  Result<ItemPtr> made =
      Item::Create(item.key, item.written_as_steps || maybe_row, columns_);
  slices_.clear();
  return made;
}

Result<InsertSession::Target*> InsertSession::FindTarget(const std::string& table) {
  for (const auto& target : targets_) {
    if (target->runner->name() == table) return target.get();
  }
  RTF_ASSIGN_OR_RETURN(auto runner, store_->Find(table));
  if (!JoinTarget(runner)) return CancelledError("the insert stream was closed");
  targets_.push_back(std::make_unique<Target>());
  targets_.back()->runner = std::move(runner);
  return targets_.back().get();
}

bool InsertSession::JoinTarget(const std::shared_ptr<TableRunner>& runner) {
  {
    MutexLock lock(&mu_);
    if (closed_) return false;
    joined_.push_back(runner);
  }
  runner->AddWriter(shared_from_this());
  {
    MutexLock lock(&mu_);
    if (!closed_) return true;
  }
  runner->RemoveWriter(this);  // Close may have come before AddWriter
  return false;
}

void InsertSession::Submit(Resolved* resolved, size_t released) {
  const bool any_refused = !resolved->refused.empty();
  {
    MutexLock lock(&mu_);
    pending_ += resolved->num_items + static_cast<int64_t>(resolved->refused.size());
    pending_bytes_ += static_cast<int64_t>(released);
    for (RefusedItem& item : resolved->refused) refused_.push_back(std::move(item));
  }
  const auto self = shared_from_this();
  for (Target* target : resolved->targets) {
    target->runner->Insert(self, std::exchange(target->batch, {}));
  }
  if (any_refused) Notify();
}

void InsertSession::OnInserted(uint64_t cookie, Status status) {
  MutexLock lock(&mu_);
  if (status.ok()) {
    confirmed_.push_back(cookie);
  } else if (peer_ == Peer::kOwn && status.code() != StatusCode::kUnavailable) {
    refused_.push_back({cookie, std::move(status)});
  } else if (error_.ok()) {
    error_ = std::move(status);
  }
}

void InsertSession::Notify() {
  if (on_ready_) on_ready_();
}

Result<bool> InsertSession::Take(InsertReply* reply) {
  reply->confirmed.clear();
  reply->refused.clear();
  MutexLock lock(&mu_);
  if (confirmed_.empty() && refused_.empty()) {
    if (!error_.ok()) return error_;
    return false;
  }
  reply->confirmed.swap(confirmed_);
  reply->refused.swap(refused_);
  const auto taken = static_cast<int64_t>(reply->confirmed.size() + reply->refused.size());
  pending_bytes_ -= pending_bytes_ / pending_ * taken;
  pending_ -= taken;
  if (pending_ == 0) pending_bytes_ = 0;
  return true;
}

int64_t InsertSession::pending() const {
  MutexLock lock(&mu_);
  return pending_;
}

bool InsertSession::is_full() const {
  MutexLock lock(&mu_);
  return pending_ > kMaxPending || pending_bytes_ > kMaxPendingBytes;
}

void InsertSession::Close() {
  KeptChunks chunks;  // freed without the lock
  std::vector<std::shared_ptr<TableRunner>> joined;
  {
    MutexLock lock(&mu_);
    if (closed_) return;
    closed_ = true;
    std::swap(chunks, chunks_);
    joined.swap(joined_);
  }
  for (const auto& runner : joined) runner->RemoveWriter(this);
  MutexLock lock(&mu_);
  pending_ = static_cast<int64_t>(confirmed_.size() + refused_.size());
}

}  // namespace reverb_tf
