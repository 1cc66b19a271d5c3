#include "cc/client/step_inserter.h"

#include <algorithm>
#include <limits>

#include "cc/core/random.h"

namespace reverb_tf {
namespace {

// A server of this process that is gone stays gone; the first failure may only be
// that of an old stream.
constexpr int kLocalFailures = 2;

Status AtLeaf(const std::string& path, const std::string& what) {
  return InvalidArgumentError("insert: column '" + path + "': " + what);
}

// Cuts the payload of a batch into those of runs of its rows.
class RowCutter {
 public:
  static Result<RowCutter> Make(const Tensor& value, int64_t rows) {
    RowCutter cutter;
    cutter.rest_ = value.buffer->view();
    const int64_t elements = NumElements(value.shape);
    cutter.row_elements_ = static_cast<size_t>(elements / rows);
    if (value.dtype == DType::kString) {
      RTF_ASSIGN_OR_RETURN(cutter.strings_, ParseStringContent(cutter.rest_, elements));
      cutter.rest_ = cutter.strings_.bytes;
      return cutter;
    }
    cutter.element_size_ = ElementSize(value.dtype);
    if (cutter.rest_.size() != static_cast<size_t>(elements) * cutter.element_size_) {
      return InvalidArgumentError("got " + std::to_string(cutter.rest_.size()) +
                                  " bytes for " + DTypeName(value.dtype) +
                                  ShapeString(value.shape));
    }
    return cutter;
  }

  // The payload of the next rows; valid until the next call.
  std::string_view Next(int64_t rows) {
    const size_t elements = static_cast<size_t>(rows) * row_elements_;
    if (element_size_ > 0) return Take(elements * element_size_);
    std::vector<std::string_view> run(elements);
    for (std::string_view& element : run) element = Take(strings_.lengths[string_++]);
    content_ = MakeStringContent(run);
    return content_;
  }

 private:
  std::string_view Take(size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
  size_t row_elements_ = 0;
  size_t element_size_ = 0;  // 0 for strings
  StringContent strings_;
  size_t string_ = 0;
  std::string content_;
};

// Adds "'t'" to the list, or "'t' (2 of 3)" when only some of its items are meant.
void AddTable(const std::string& table, int64_t count, int64_t of, std::string* list) {
  if (count == 0) return;
  *list += (list->empty() ? "'" : ", '") + table + "'";
  if (count < of) {
    *list += " (" + std::to_string(count) + " of " + std::to_string(of) + ")";
  }
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
  Request request;
  request.leaves = &step;
  for (const auto& [table, priority] : priorities) {
    request.tables.push_back(table);
    request.priorities.push_back(priority);
  }
  return InsertAll(request, wait);
}

Result<std::vector<uint64_t>> StepInserter::InsertBatch(
    const std::vector<StepLeaf>& steps, const std::vector<std::string>& tables,
    const std::vector<double>& priorities, const WaitOptions& wait) {
  Request request{&steps, /*batched=*/true, /*size=*/0, tables, priorities};
  for (const StepLeaf& leaf : steps) {
    const Shape& shape = leaf.value.shape;
    if (shape.empty()) return AtLeaf(leaf.path, "got a scalar, expected a batch dimension");
    if (&leaf == &steps[0]) request.size = shape[0];
    if (shape[0] != request.size) {
      return AtLeaf(leaf.path, "got a batch of " + std::to_string(shape[0]) +
                                   ", expected " + std::to_string(request.size) +
                                   " as in column '" + steps[0].path + "'");
    }
  }
  if (priorities.size() != static_cast<size_t>(request.size) * tables.size()) {
    return InvalidArgumentError("insert: got " + std::to_string(priorities.size()) +
                                " priorities, expected " + std::to_string(request.size) +
                                " for each of " + std::to_string(tables.size()) +
                                " tables");
  }
  return InsertAll(request, wait);
}

Result<std::vector<uint64_t>> StepInserter::InsertAll(const Request& request,
                                                      const WaitOptions& wait) {
  if (request.leaves->empty()) return InvalidArgumentError("insert: the data have no leaf");
  if (request.tables.empty()) {
    return InvalidArgumentError("insert: priorities is empty, expected a table");
  }
  OutlineStep(request);
  std::vector<std::vector<int>> orders(request.tables.size());
  for (size_t i = 0; i < orders.size(); ++i) {
    RTF_RETURN_IF_ERROR(CheckTable(request, i, wait, &orders[i]));
  }
  RTF_ASSIGN_OR_RETURN(const std::vector<Column> columns, MakeColumns(request));
  const std::vector<uint64_t> keys = PushAll(request, columns, orders);
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
  RTF_RETURN_IF_ERROR(Withdraw(status, request, keys));
  return keys;
}

void StepInserter::OutlineStep(const Request& request) {
  const std::vector<StepLeaf>& step = *request.leaves;
  if (leaves_.size() < step.size()) leaves_.resize(step.size());
  outlines_.resize(step.size());
  for (size_t i = 0; i < step.size(); ++i) {
    const StepLeaf& leaf = step[i];
    const auto begin = leaf.value.shape.begin() + (request.batched ? 1 : 0);
    const auto end = leaf.value.shape.end();
    CellSpecPtr& cell = leaves_[i].cell;
    if (!cell || cell->dtype != leaf.value.dtype || cell->path != leaf.path ||
        !std::equal(begin, end, cell->shape.begin(), cell->shape.end())) {
      auto spec = std::make_shared<TensorSpec>();
      spec->path = leaf.path;
      spec->dtype = leaf.value.dtype;
      spec->shape.assign(begin, end);
      cell = std::move(spec);
    }
    outlines_[i] = {leaf.path, cell, /*length=*/1, /*squeeze=*/false};
  }
}

Status StepInserter::CheckTable(const Request& request, size_t table,
                                const WaitOptions& wait, std::vector<int>* order) {
  const std::string& name = request.tables[table];
  RTF_ASSIGN_OR_RETURN(const TableInfoPtr info, FindTable(cache_.get(), name, wait));
  const Status status = CheckOnce(info, request, table, order);
  if (status.ok()) return status;
  // Tables change: a reset, a new server.
  const TableInfoPtr fresh = FreshInfo(cache_.get(), name, wait);
  return fresh ? CheckOnce(fresh, request, table, order) : status;
}

Status StepInserter::CheckOnce(const TableInfoPtr& info, const Request& request,
                               size_t table, std::vector<int>* order) {
  for (size_t i = table; i < request.priorities.size(); i += request.tables.size()) {
    RTF_RETURN_IF_ERROR(CheckItemPriority(info.get(), request.priorities[i]));
  }
  RTF_ASSIGN_OR_RETURN(const std::vector<int>* const found,
                       checker_.Check(info, /*written_as_steps=*/true, outlines_));
  *order = *found;
  return OkStatus();
}

Result<std::vector<StepInserter::Column>> StepInserter::MakeColumns(
    const Request& request) {
  std::vector<Column> columns(request.leaves->size());
  for (size_t i = 0; i < columns.size(); ++i) {
    const StepLeaf& leaf = (*request.leaves)[i];
    const Status status = MakeColumn(leaf.value, request.size, &leaves_[i], &columns[i]);
    if (!status.ok()) return AtLeaf(leaf.path, status.message());
  }
  return columns;
}

Status StepInserter::MakeColumn(const Tensor& value, int64_t size, Leaf* leaf,
                                Column* column) {
  if (!value.buffer) return InvalidArgumentError("the value has no data");
  const std::string_view payload = value.buffer->view();
  const int64_t bytes = static_cast<int64_t>(payload.size());
  // Memory of others may change after the call; only what is ours alone is kept.
  const BufferPtr ours = value.writable ? value.buffer : nullptr;
  if (size <= 1 || bytes <= kChunkBytes) {
    column->rows_per_chunk = static_cast<int32_t>(std::max<int64_t>(size, 1));
    return size > 0 ? AddChunk(payload, size, ours, leaf, column) : OkStatus();
  }
  const int64_t per_chunk = std::max<int64_t>(1, kChunkBytes / (bytes / size + 1));
  column->rows_per_chunk = static_cast<int32_t>(per_chunk);
  RTF_ASSIGN_OR_RETURN(RowCutter cutter, RowCutter::Make(value, size));
  for (int64_t row = 0; row < size; row += per_chunk) {
    const int64_t rows = std::min(per_chunk, size - row);
    RTF_RETURN_IF_ERROR(AddChunk(cutter.Next(rows), rows, nullptr, leaf, column));
  }
  return OkStatus();
}

Status StepInserter::AddChunk(std::string_view payload, int64_t rows,
                              const BufferPtr& buffer, Leaf* leaf, Column* column) {
  auto handle = ChunkHandlePtr::Adopt(new ChunkHandle);
  handle->key = random_.Next() | 1;
  ChunkOptions options;
  options.key = handle->key;
  options.cell = leaf->cell;
  options.num_rows = static_cast<int32_t>(rows);
  options.episode_id = episode_id_;
  RTF_ASSIGN_OR_RETURN(handle->chunk, leaf->encoder.Encode(options, payload, buffer));
  handle->bytes = static_cast<int64_t>(handle->chunk->payload().size());
  column->chunks.push_back(std::move(handle));
  return OkStatus();
}

std::vector<uint64_t> StepInserter::PushAll(const Request& request,
                                            const std::vector<Column>& columns,
                                            const std::vector<std::vector<int>>& orders) {
  std::vector<uint64_t> keys;
  keys.reserve(request.priorities.size());
  MutexLock lock(sender_->mu());
  for (int64_t row = 0; row < request.size; ++row) {
    for (size_t i = 0; i < orders.size(); ++i) {
      ItemSender::NewItem item;
      item.priority = request.priorities[keys.size()];
      item.written_as_steps = true;
      item.columns.reserve(orders[i].size());
      item.slices.reserve(orders[i].size());
      for (const int c : orders[i]) {
        const Column& column = columns[static_cast<size_t>(c)];
        const int64_t chunk = row / column.rows_per_chunk;
        item.columns.push_back({/*num_slices=*/1, /*squeeze=*/false});
        item.slices.push_back({column.chunks[static_cast<size_t>(chunk)],
                               static_cast<int32_t>(row % column.rows_per_chunk), 1});
      }
      keys.push_back(sender_->Push(request.tables[i], std::move(item)));
    }
  }
  return keys;
}

Status StepInserter::Withdraw(const Status& why, const Request& request,
                              const std::vector<uint64_t>& keys) {
  usable_ = false;
  sender_->Abandon();
  std::string in, out;
  MutexLock lock(sender_->mu());
  for (size_t i = 0; i < request.tables.size(); ++i) {
    int64_t pending = 0;
    for (size_t k = i; k < keys.size(); k += request.tables.size()) {
      pending += sender_->is_pending(keys[k]) ? 1 : 0;
    }
    AddTable(request.tables[i], request.size - pending, request.size, &in);
    AddTable(request.tables[i], pending, request.size, &out);
  }
  if (out.empty()) return sender_->TakeError();
  return Status(why.code(), why.message() + "; inserted into " +
                                (in.empty() ? "none" : in) + ", withdrawn from " + out);
}

}  // namespace reverb_tf
