#include "cc/client/step_inserter.h"

#include <limits>
#include <optional>

#include "cc/core/random.h"

namespace reverb_tf {
namespace {

// A server of this process that is gone stays gone; the first failure may only be
// that of an old stream.
constexpr int kLocalFailures = 2;

Status AtLeaf(const std::string& path, const Status& status) {
  return InvalidArgumentError("insert: column '" + path + "': " + status.message());
}

}  // namespace

StepInserter::StepInserter(std::shared_ptr<Transport> transport,
                           std::shared_ptr<TableCache> cache, const std::string& address)
    : transport_(std::move(transport)),
      cache_(std::move(cache)),
      sender_(std::make_shared<ItemSender>(transport_, cache_, "insert", address)),
      random_(RandomSeed()),
      episode_id_(random_.Next()) {}

Result<std::vector<uint64_t>> StepInserter::Insert(const std::vector<StepLeaf>& step,
                                                   const Priorities& priorities,
                                                   const WaitOptions& wait) {
  if (step.empty()) return InvalidArgumentError("insert: the data have no leaf");
  if (priorities.empty()) {
    return InvalidArgumentError("insert: priorities is empty, expected a table");
  }
  OutlineStep(step);
  std::vector<std::vector<int>> orders(priorities.size());
  for (size_t i = 0; i < priorities.size(); ++i) {
    RTF_RETURN_IF_ERROR(
        CheckTable(priorities[i].first, priorities[i].second, wait, &orders[i]));
  }
  RTF_ASSIGN_OR_RETURN(const std::vector<ChunkHandlePtr> chunks, MakeChunks(step));
  const std::vector<uint64_t> keys = PushAll(chunks, priorities, orders);
  sender_->Kick();
  Status status;
  {
    MutexLock lock(sender_->mu());
    status = sender_->WaitForAll(
        wait, transport_->is_local() ? kLocalFailures : std::numeric_limits<int>::max(),
        /*ask=*/true);
    if (status.ok()) {
      usable_ = !sender_->failed();
      RTF_RETURN_IF_ERROR(sender_->TakeError());
      return keys;
    }
  }
  RTF_RETURN_IF_ERROR(Withdraw(status, keys, priorities));
  return keys;
}

void StepInserter::OutlineStep(const std::vector<StepLeaf>& step) {
  if (leaves_.size() < step.size()) leaves_.resize(step.size());
  outlines_.resize(step.size());
  for (size_t i = 0; i < step.size(); ++i) {
    const StepLeaf& leaf = step[i];
    CellSpecPtr& cell = leaves_[i].cell;
    if (!cell || cell->dtype != leaf.value.dtype || cell->shape != leaf.value.shape ||
        cell->path != leaf.path) {
      auto spec = std::make_shared<TensorSpec>();
      spec->path = leaf.path;
      spec->dtype = leaf.value.dtype;
      spec->shape = leaf.value.shape;
      cell = std::move(spec);
    }
    outlines_[i] = {leaf.path, cell, /*length=*/1, /*squeeze=*/false};
  }
}

Status StepInserter::CheckTable(const std::string& table, double priority,
                                const WaitOptions& wait, std::vector<int>* order) {
  RTF_ASSIGN_OR_RETURN(const TableInfoPtr info, FindTable(cache_.get(), table, wait));
  const Status status = CheckOnce(info, priority, order);
  if (status.ok()) return status;
  // Tables change: a reset, a new server.
  const TableInfoPtr fresh = FreshInfo(cache_.get(), table, wait);
  return fresh ? CheckOnce(fresh, priority, order) : status;
}

Status StepInserter::CheckOnce(const TableInfoPtr& info, double priority,
                               std::vector<int>* order) {
  RTF_RETURN_IF_ERROR(CheckItemPriority(info.get(), priority));
  RTF_ASSIGN_OR_RETURN(const std::vector<int>* const found,
                       checker_.Check(info, /*written_as_steps=*/true, outlines_));
  *order = *found;
  return OkStatus();
}

Result<std::vector<ChunkHandlePtr>> StepInserter::MakeChunks(
    const std::vector<StepLeaf>& step) {
  std::vector<ChunkHandlePtr> chunks;
  chunks.reserve(step.size());
  for (size_t i = 0; i < step.size(); ++i) {
    const Tensor& value = step[i].value;
    if (!value.buffer) return InvalidArgumentError("insert: a value has no data");
    auto handle = ChunkHandlePtr::Adopt(new ChunkHandle);
    handle->key = random_.Next() | 1;
    ChunkOptions options;
    options.key = handle->key;
    options.cell = leaves_[i].cell;
    options.num_rows = 1;
    options.episode_id = episode_id_;
    // Memory of others may change after the call; only what is ours alone is kept.
    Result<ChunkPtr> chunk = leaves_[i].encoder.Encode(
        options, value.buffer->view(), value.writable ? value.buffer : nullptr);
    if (!chunk.ok()) return AtLeaf(step[i].path, chunk.status());
    handle->bytes = static_cast<int64_t>((*chunk)->payload().size());
    handle->chunk = *std::move(chunk);
    chunks.push_back(std::move(handle));
  }
  return chunks;
}

std::vector<uint64_t> StepInserter::PushAll(const std::vector<ChunkHandlePtr>& chunks,
                                            const Priorities& priorities,
                                            const std::vector<std::vector<int>>& orders) {
  std::vector<uint64_t> keys;
  keys.reserve(priorities.size());
  MutexLock lock(sender_->mu());
  for (size_t i = 0; i < priorities.size(); ++i) {
    ItemSender::NewItem item;
    item.priority = priorities[i].second;
    item.written_as_steps = true;
    item.columns.reserve(orders[i].size());
    item.slices.reserve(orders[i].size());
    for (const int column : orders[i]) {
      item.columns.push_back({/*num_slices=*/1, /*squeeze=*/false});
      item.slices.push_back({chunks[static_cast<size_t>(column)], 0, 1});
    }
    keys.push_back(sender_->Push(priorities[i].first, std::move(item)));
  }
  return keys;
}

Status StepInserter::Withdraw(const Status& why, const std::vector<uint64_t>& keys,
                              const Priorities& priorities) {
  usable_ = false;
  sender_->Abandon();
  std::string in, out;
  MutexLock lock(sender_->mu());
  for (size_t i = 0; i < keys.size(); ++i) {
    std::string& list = sender_->is_pending(keys[i]) ? out : in;
    list += (list.empty() ? "'" : ", '") + priorities[i].first + "'";
  }
  if (out.empty()) return sender_->TakeError();
  return Status(why.code(), why.message() + "; inserted into " +
                                (in.empty() ? "none" : in) + ", withdrawn from " + out);
}

}  // namespace reverb_tf
