#include "cc/client/item_sender.h"

#include <algorithm>
#include <limits>
#include <system_error>

#include "cc/core/random.h"

namespace reverb_tf {
namespace {

constexpr Duration kFirstBackoff = std::chrono::milliseconds(10);
constexpr Duration kLongestBackoff = std::chrono::seconds(5);
constexpr Duration kShortestAsk = std::chrono::milliseconds(100);
constexpr Duration kLongestAsk = std::chrono::seconds(1);

// What another try may cure; foreign servers report a lost connection as UNKNOWN.
bool IsRetryable(const Status& status) {
  return status.ok() || status.code() == StatusCode::kUnavailable ||
         (status.code() == StatusCode::kUnknown && status.message() == "Stream removed");
}

}  // namespace

ItemSender::ItemSender(std::shared_ptr<Transport> transport,
                       std::shared_ptr<TableCache> cache, std::string role,
                       std::string address)
    : transport_(std::move(transport)),
      cache_(std::move(cache)),
      role_(std::move(role)),
      address_(std::move(address)),
      writer_id_(RandomSeed()),
      key_base_(RandomSeed() >> 2),  // room for 2^62 sequence numbers below 2^63
      local_(transport_->is_local()),
      backoff_(kFirstBackoff) {}

ItemSender::~ItemSender() { Abandon(); }

// ---- Pending items --------------------------------------------------------------

uint64_t ItemSender::Push(const std::string& table, NewItem item) {
  TableQueue* const queue = QueueOf(table);
  CountSlices(item);
  queue->items.push_back({++last_sequence_, std::move(item), Clock::System()->Now()});
  ++queue->pending;
  ++pending_items_;
  return key_base_ + last_sequence_;
}

ItemSender::TableQueue* ItemSender::QueueOf(const std::string& table) {
  for (const auto& queue : queues_) {
    if (queue->name == table) return queue.get();
  }
  queues_.push_back(std::make_unique<TableQueue>());
  queues_.back()->name = table;
  return queues_.back().get();
}

void ItemSender::CountSlices(const NewItem& item) {
  for (const HandleSlice& slice : item.slices) {
    ChunkHandle& handle = *slice.chunk;
    ++handle.unsent_slices;
    if (handle.pending_slices++ > 0) continue;
    handle.counted_bytes = handle.bytes;
    pending_bytes_ += handle.counted_bytes;
  }
}

void ItemSender::ForgetSlices(const NewItem& item, bool unsent) {
  for (const HandleSlice& slice : item.slices) {
    ChunkHandle& handle = *slice.chunk;
    if (unsent) --handle.unsent_slices;
    if (--handle.pending_slices == 0) pending_bytes_ -= handle.counted_bytes;
  }
}

ItemSender::PendingItem* ItemSender::FindSent(uint64_t key, TableQueue** queue) {
  const uint64_t sequence = key - key_base_;
  for (const auto& q : queues_) {
    if (q->sent == 0) continue;
    const auto end = q->items.begin() + static_cast<std::ptrdiff_t>(q->sent);
    auto it = q->items.begin();
    if (it->sequence != sequence) {
      it = std::lower_bound(it, end, sequence, [](const PendingItem& item, uint64_t s) {
        return item.sequence < s;
      });
    }
    if (it == end || it->sequence != sequence || it->done) continue;
    *queue = q.get();
    return &*it;
  }
  return nullptr;
}

void ItemSender::Settle(TableQueue* queue, PendingItem* item) {
  item->done = true;
  ForgetSlices(item->item, /*unsent=*/false);
  item->item = NewItem();
  --pending_items_;
  --queue->pending;
  --queue->in_flight;
  queue->in_flight_bytes -= item->sent_bytes;
  while (!queue->items.empty() && queue->items.front().done) {
    queue->items.pop_front();
    --queue->sent;
  }
}

bool ItemSender::is_pending(uint64_t key) const {
  const uint64_t sequence = key - key_base_;
  for (const auto& queue : queues_) {
    for (const PendingItem& item : queue->items) {
      if (item.sequence == sequence) return !item.done;
    }
  }
  return false;
}

std::optional<TimePoint> ItemSender::oldest() const {
  std::optional<TimePoint> oldest;
  for (const auto& queue : queues_) {
    if (queue->items.empty()) continue;
    const TimePoint created = queue->items.front().created;
    if (!oldest || created < *oldest) oldest = created;
  }
  return oldest;
}

// ---- Errors and waiting ---------------------------------------------------------

Status ItemSender::TakeError() {
  if (!refused_.ok()) {
    std::string message = refused_.message();
    if (more_refused_ > 0) {
      message += " (and " + std::to_string(more_refused_) + " more)";
    }
    const StatusCode code = refused_.code();
    refused_ = OkStatus();
    more_refused_ = 0;
    return Status(code, std::move(message));
  }
  return sticky_;
}

Status ItemSender::Wait(const WaitOptions& wait, int64_t max_items, int64_t max_bytes) {
  const auto ready = [&]() REQUIRES(mu_) {
    return (pending_items_ <= max_items && pending_bytes_ <= max_bytes) || !refused_.ok() ||
           !sticky_.ok() || abandoned_;
  };
  if (ready()) return OkStatus();
  Waiter waiter(wait, [&] { return Describe(/*ask=*/true, wait); });
  ++waiting_;
  Status status = waiter.Until(&mu_, &changed_, ready);
  --waiting_;
  return status;
}

Status ItemSender::WaitForAll(const WaitOptions& wait, int max_failures, bool ask) {
  const int64_t last_failure = failures_ + max_failures;
  const auto ready = [&]() REQUIRES(mu_) {
    return pending_items_ == 0 || !sticky_.ok() || failures_ >= last_failure || abandoned_;
  };
  if (ready()) return OkStatus();
  if (max_failures < std::numeric_limits<int>::max()) {
    // Who counts failures wants to know now, not after the backoff.
    retry_at_ = Clock::System()->Now();
    thread_wake_.Signal();
  }
  Waiter waiter(wait, [&] { return Describe(ask, wait); });
  ++waiting_;
  Status status = waiter.Until(&mu_, &changed_, ready);
  --waiting_;
  if (status.ok() && pending_items_ > 0 && sticky_.ok()) return connection_error_;
  return status;
}

void ItemSender::Fail(Status status) {
  if (sticky_.ok()) {
    sticky_ = Status(status.code(), role_ + " to " + address_ + ": " + status.message());
  }
  changed_.SignalAll();
}

std::string ItemSender::Describe(bool ask, const WaitOptions& wait) {
  std::string text = role_ + " to " + address_ + ": ";
  std::string oldest_table;
  {
    MutexLock lock(&mu_);
    ask |= local_;  // costs nothing
    text += std::to_string(pending_items_) + " items unconfirmed";
    const char* separator = " (table '";
    uint64_t oldest = 0;
    for (const auto& queue : queues_) {
      if (queue->pending == 0) continue;
      text += separator + queue->name + "': " + std::to_string(queue->pending);
      separator = ", '";
      const uint64_t sequence = queue->items.front().sequence;
      if (!oldest_table.empty() && sequence > oldest) continue;
      oldest = sequence;
      oldest_table = queue->name;
    }
    if (pending_items_ > 0) text += ")";
    if (!sticky_.ok()) return text + "; " + sticky_.message();
    if (!connection_error_.ok()) return text + "; " + connection_error_.message();
  }
  if (oldest_table.empty()) return text;
  if (ask) {
    WaitOptions bounded = wait;
    bounded.timeout = std::clamp(wait.timeout, kShortestAsk, kLongestAsk);
    const Result<ServerInfo> info = cache_->Refresh(bounded);
    if (!info.ok()) return text + "; " + info.status().message();
  }
  const auto table = cache_->Known(oldest_table);
  if (!table || table->explain.empty()) return text;
  return text + (ask ? "; " : "; last heard: ") + table->explain;
}

// ---- Messages -------------------------------------------------------------------

bool ItemSender::HasRoom(const TableQueue& queue) const {
  const int64_t share =
      std::max<int64_t>(1, kStreamItems / static_cast<int64_t>(queues_.size()));
  return queue.in_flight < std::min(kWindowItems, share) &&
         (queue.in_flight == 0 || queue.in_flight_bytes < kWindowBytes);
}

ItemSender::TableQueue* ItemSender::NextQueue() {
  TableQueue* next = nullptr;
  for (const auto& queue : queues_) {
    if (queue->sent == queue->items.size() || !HasRoom(*queue)) continue;
    if (!next || queue->items[queue->sent].sequence < next->items[next->sent].sequence) {
      next = queue.get();
    }
  }
  return next;
}

bool ItemSender::BuildRequest(InsertRequest* request) {
  int64_t bytes = 0;
  while (request->items.size() < kMessageItems && bytes < kMessageBytes) {
    TableQueue* const queue = NextQueue();
    if (queue == nullptr) break;
    Result<bool> fits = AddChunks(&queue->items[queue->sent], request, &bytes);
    if (!fits.ok()) {
      Fail(fits.status());
      return false;
    }
    if (!*fits) break;
    AddItem(queue, request);
  }
  if (!local_ && !request->items.empty()) ListKeptChunks(request);
  return !request->items.empty() || !request->chunks.empty();
}

Result<bool> ItemSender::AddChunks(PendingItem* item, InsertRequest* request,
                                   int64_t* bytes) {
  for (const HandleSlice& slice : item->item.slices) {
    ChunkHandle& handle = *slice.chunk;
    if (!handle.chunk) {
      RTF_RETURN_IF_ERROR(handle.filler->Seal());
      pending_bytes_ += handle.bytes - handle.counted_bytes;
      handle.counted_bytes = handle.bytes;
    }
    // In this process items carry the references themselves.
    if (local_ || handle.held_by_stream == stream_number_) continue;
    if (*bytes > 0 && *bytes + handle.bytes > kMaxMessageBytes) return false;
    request->chunks.push_back(handle.chunk);
    handle.held_by_stream = stream_number_;
    held_.push_back(slice.chunk);
    *bytes += handle.bytes;
    item->sent_bytes += handle.bytes;
  }
  return true;
}

void ItemSender::AddItem(TableQueue* queue, InsertRequest* request) {
  const PendingItem& item = queue->items[queue->sent];
  request->items.emplace_back();
  InsertItem& out = request->items.back();
  out.key = key_base_ + item.sequence;
  out.table = queue->name;
  out.priority = item.item.priority;
  out.columns = item.item.columns;
  out.written_as_steps = item.item.written_as_steps;
  out.writer_id = writer_id_;
  out.sequence = item.sequence;
  out.slices.reserve(item.item.slices.size());
  for (const HandleSlice& slice : item.item.slices) {
    --slice.chunk->unsent_slices;
    out.slices.push_back({slice.chunk->key, slice.offset, slice.length,
                          local_ ? slice.chunk->chunk : nullptr});
  }
  ++queue->sent;
  ++queue->in_flight;
  queue->in_flight_bytes += item.sent_bytes;
}

void ItemSender::ListKeptChunks(InsertRequest* request) {
  const auto end = std::remove_if(held_.begin(), held_.end(), [](const auto& handle) {
    if (handle->in_column || handle->unsent_slices > 0) return false;
    handle->held_by_stream = 0;
    return true;
  });
  held_.erase(end, held_.end());
  request->keep_chunk_keys.reserve(held_.size());
  for (const ChunkHandlePtr& handle : held_) {
    request->keep_chunk_keys.push_back(handle->key);
  }
}

// ---- The stream -----------------------------------------------------------------

void ItemSender::Kick() {
  MutexLock lock(&mu_);
  if (pending_items_ == 0 || !can_be_sent()) return;
  if (local_ && !broken_ && (stream_ || stream_number_ == 0)) {
    Pump();
  } else {
    WakeThread();
  }
}

void ItemSender::OnReady() {
  ++events_;
  MutexLock lock(&mu_);
  if (pumping_ || stopping_) return;  // who pumps looks at events_ before it ends
  if (local_ && stream_ && !broken_) {
    Pump();
  } else if (pending_items_ > 0 || !local_) {
    WakeThread();
  }
}

void ItemSender::Pump() {
  if (pumping_) {
    pump_again_ = true;
    return;
  }
  pumping_ = true;
  do {
    pump_again_ = false;
    while (can_be_sent() && PumpOnce()) {
    }
  } while (pump_again_ && can_be_sent() && !broken_);
  pumping_ = false;
  if (pump_waiters_ > 0) pump_free_.SignalAll();
}

bool ItemSender::PumpOnce() {
  if (!stream_) {
    if (pending_items_ == 0) return false;
    OpenStream();
  }
  if (broken_) return false;
  InsertRequest request;
  const bool send = can_send_ && BuildRequest(&request);
  InsertStream* const stream = stream_.get();
  mu_.Unlock();
  if (send) stream->Send(std::move(request));
  const uint64_t seen = events_.load();
  InsertReply first;
  std::vector<InsertReply> others;
  const bool got = stream->Take(&first);
  for (InsertReply reply; got && stream->Take(&reply);) others.push_back(std::move(reply));
  const std::optional<Status> over = stream->finished();
  const bool can_send = stream->can_send();
  mu_.Lock();
  can_send_ = can_send;
  if (got) Apply(first);
  for (const InsertReply& reply : others) Apply(reply);
  if (over) {
    OnStreamOver(*over);
    return false;
  }
  return events_.load() != seen || (can_send_ && NextQueue() != nullptr);
}

void ItemSender::OpenStream() {
  mu_.Unlock();
  const bool local = transport_->is_local();  // once true it stays true
  std::unique_ptr<InsertStream> stream = transport_->OpenInsert([this] { OnReady(); });
  const bool can_send = stream->can_send();
  mu_.Lock();
  stream_ = std::move(stream);
  local_ = local;
  can_send_ = can_send;
  ++stream_number_;
}

void ItemSender::Apply(const InsertReply& reply) {
  TableQueue* queue = nullptr;
  for (const uint64_t key : reply.confirmed) {
    if (PendingItem* item = FindSent(key, &queue)) Settle(queue, item);
  }
  for (const RefusedItem& refused : reply.refused) {
    PendingItem* const item = FindSent(refused.key, &queue);
    if (item == nullptr) continue;
    ++rejected_items_;
    if (refused_.ok()) {
      refused_ = Status(refused.status.ok() ? StatusCode::kInternal : refused.status.code(),
                        "item " + std::to_string(refused.key) + " for table '" +
                            queue->name + "' was refused: " + refused.status.message());
    } else {
      ++more_refused_;
    }
    Settle(queue, item);
  }
  connection_error_ = OkStatus();
  backoff_ = kFirstBackoff;
  if (waiting_ > 0) changed_.SignalAll();
}

void ItemSender::OnStreamOver(const Status& status) {
  broken_ = true;
  held_.clear();
  if (!IsRetryable(status)) return Fail(status);
  if (status.ok() && pending_items_ == 0) return;
  connection_error_ = UnavailableError(
      status.ok() ? "the server at " + address_ + " ended the stream" : status.message());
  ++failures_;
  ResendAll();
  retry_at_ = Clock::System()->Now() + backoff_;
  backoff_ = std::min(backoff_ * 2, kLongestBackoff);
  if (pending_items_ > 0) WakeThread();
  if (waiting_ > 0) changed_.SignalAll();
}

void ItemSender::ResendAll() {
  for (const auto& queue : queues_) {
    auto& items = queue->items;
    items.erase(std::remove_if(items.begin(), items.end(),
                               [](const PendingItem& item) { return item.done; }),
                items.end());
    for (size_t i = 0; i < static_cast<size_t>(queue->in_flight); ++i) {
      items[i].sent_bytes = 0;
      for (const HandleSlice& slice : items[i].item.slices) ++slice.chunk->unsent_slices;
    }
    queue->sent = 0;
    queue->in_flight = 0;
    queue->in_flight_bytes = 0;
  }
}

// ---- The thread -----------------------------------------------------------------

void ItemSender::WakeThread() {
  if (stopping_) return;
  thread_event_ = true;
  if (thread_started_) {
    if (thread_asleep_) thread_wake_.Signal();
    return;
  }
  thread_started_ = true;
  try {
    thread_ = std::thread([this] { RunThread(); });
  } catch (const std::system_error& error) {
    Fail(
        ResourceExhaustedError(std::string("no thread could be started: ") + error.what()));
  }
}

void ItemSender::RunThread() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    thread_event_ = false;
    if (broken_) DropStream();
    if (pending_items_ > 0 && sticky_.ok() && !stream_ &&
        Clock::System()->Now() < retry_at_) {
      thread_wake_.WaitUntil(&mu_, retry_at_);
      continue;
    }
    Pump();
    thread_asleep_ = true;
    while (!thread_event_ && !stopping_ && !(broken_ && pending_items_ > 0)) {
      thread_wake_.Wait(&mu_);
    }
    thread_asleep_ = false;
  }
}

void ItemSender::WaitForPump() {
  ++pump_waiters_;
  while (pumping_) pump_free_.Wait(&mu_);
  --pump_waiters_;
  pumping_ = true;
}

void ItemSender::DropStream() {
  WaitForPump();
  std::unique_ptr<InsertStream> stream = std::move(stream_);
  mu_.Unlock();
  stream.reset();
  mu_.Lock();
  broken_ = false;
  pumping_ = false;
  if (pump_waiters_ > 0) pump_free_.SignalAll();
}

void ItemSender::StopThread() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    thread_wake_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

std::vector<std::pair<std::string, int64_t>> ItemSender::Abandon() {
  StopThread();
  std::unique_ptr<InsertStream> stream;
  {
    MutexLock lock(&mu_);
    if (!abandoned_) WaitForPump();  // and never give it back
    abandoned_ = true;
    stream = std::move(stream_);
  }
  std::vector<InsertReply> replies;
  if (stream) {
    stream->Cancel();
    for (InsertReply reply; stream->Take(&reply);) replies.push_back(std::move(reply));
    stream.reset();
  }
  std::vector<std::pair<std::string, int64_t>> left;
  MutexLock lock(&mu_);
  for (const InsertReply& reply : replies) Apply(reply);
  for (const auto& queue : queues_) {
    if (queue->pending > 0) left.emplace_back(queue->name, queue->pending);
  }
  held_.clear();
  changed_.SignalAll();
  return left;
}

}  // namespace reverb_tf
