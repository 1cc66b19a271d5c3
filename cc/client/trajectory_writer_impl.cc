#include "cc/client/trajectory_writer_impl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "cc/base/logging.h"
#include "cc/base/varint.h"
#include "cc/client/column_buffer.h"
#include "cc/client/item_check.h"
#include "cc/core/random.h"

namespace reverb_tf {
namespace {

constexpr Duration kDestructorTimeout = std::chrono::seconds(2);
constexpr Duration kWarnInterval = std::chrono::minutes(1);
constexpr Duration kWarnAge = std::chrono::seconds(60);
constexpr int64_t kWarnBytes = 256 << 20;
constexpr size_t kMaxSlices = 1 << 24;  // of one item
constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();
constexpr int kAnyFailures = std::numeric_limits<int>::max();

std::string Quoted(const std::string& path) { return "'" + path + "'"; }

class PreparedItemImpl : public PreparedItem {
 public:
  std::string table;
  ItemSender::NewItem item;
};

// The first and the last cell of a run, checked against overflow.
bool LastCell(const CellRun& run, int64_t* last) {
  int64_t span = 0;
  return !__builtin_mul_overflow(run.stride, run.count - 1, &span) &&
         !__builtin_add_overflow(run.first, span, last);
}

// Everything but the sender is guarded by the sender's lock, which is taken once a
// call.
class TrajectoryWriterImpl : public TrajectoryWriter {
 public:
  TrajectoryWriterImpl(std::shared_ptr<ItemSender> sender,
                       std::shared_ptr<TableCache> cache, std::string address,
                       const TrajectoryWriterOptions& options)
      : options_(options),
        address_(std::move(address)),
        cache_(std::move(cache)),
        sender_(std::move(sender)),
        mu_(*sender_->mu()),
        random_(RandomSeed()) {
    episode_.id = random_.Next();
  }

  ~TrajectoryWriterImpl() override {
    WaitOptions wait;
    wait.timeout = kDestructorTimeout;
    const Result<int64_t> dropped = Close(wait);
    if (!dropped.ok()) Log(LogLevel::kWarning, dropped.status().message());
  }

  std::unique_ptr<TrajectoryWriter> NewSibling() const override {
    return std::make_unique<TrajectoryWriterImpl>(sender_, cache_, address_, options_);
  }

  int Column(const std::string& path) override {
    MutexLock lock(&mu_);
    return ColumnOf(path);
  }
  Status Configure(const std::string& path, const ColumnOptions& options) override;
  Status Append(const CellView* cells, size_t n, bool partial_step) override;
  Status AppendBatch(const CellView* cells, size_t n) override;
  Status CheckAppend(const CellView* cells, size_t n, AppendKind kind) override;
  Status AppendChecked(const CellView* cells, size_t n, AppendKind kind) override;

  int64_t episode_steps() const override {
    MutexLock lock(&mu_);
    return next_step_ - episode_.first_step;
  }
  bool step_is_open() const override {
    MutexLock lock(&mu_);
    return step_is_open_;
  }
  int64_t history_begin() const override {
    MutexLock lock(&mu_);
    return history_begin_;
  }
  int64_t history_end() const override {
    MutexLock lock(&mu_);
    return HistoryEnd();
  }
  int64_t oldest_cell(int column) const override {
    MutexLock lock(&mu_);
    return IsColumn(column) ? columns_[Index(column)]->OldestStep(HistoryEnd())
                            : HistoryEnd();
  }
  bool is_hole(int column, int64_t cell) const override;
  TensorSpec column_spec(int column) const override;
  Result<Tensor> Read(const ItemColumn& column) const override;

  Result<uint64_t> CreateItem(const std::string& table, double priority,
                              const std::vector<ItemColumn>& trajectory,
                              const WaitOptions& wait) override;
  Result<std::unique_ptr<PreparedItem>> PrepareItem(
      const std::string& table, double priority, const std::vector<ItemColumn>& trajectory,
      const WaitOptions& wait) override;
  Result<std::vector<uint64_t>> Queue(
      std::vector<std::unique_ptr<PreparedItem>> items) override;
  Status Flush(int64_t ignore_last, const WaitOptions& wait) override;
  Status EndEpisode(bool clear_buffers, const WaitOptions& wait) override;
  Result<int64_t> Close(const WaitOptions& wait) override;
  Status Finish(bool retry, const WaitOptions& wait) override;

  int64_t pending_items() const override {
    MutexLock lock(&mu_);
    return is_closed() ? 0 : sender_->pending_items();
  }
  int64_t pending_bytes() const override {
    MutexLock lock(&mu_);
    return is_closed() ? 0 : sender_->pending_bytes();
  }
  int64_t rejected_items() const override {
    MutexLock lock(&mu_);
    return sender_->rejected_items();
  }

 private:
  static size_t Index(int column) { return static_cast<size_t>(column); }
  bool IsColumn(int column) const { return column >= 0 && Index(column) < columns_.size(); }
  int64_t HistoryEnd() const { return next_step_ + (step_is_open_ ? 1 : 0); }
  int ColumnOf(const std::string& path);

  // By itself or by a sibling.
  bool is_closed() const { return closed_ || sender_->abandoned(); }
  // What every call begins with: errors of before, and the end.
  Status CheckUsable();
  Status CheckOpen() const;
  // Steps 1 (check all) and 2 of an append.
  Status Check(const CellView* cells, size_t n, AppendKind kind);
  Status CheckCells(const CellView* cells, size_t n, bool batch);
  Status AppendAll(const CellView* cells, size_t n, AppendKind kind);

  Status CheckRun(const std::string& path, const CellRun& run) const;
  Status Missing(const ColumnBuffer& column, int64_t step, ColumnBuffer::Found why) const;
  // Calls add(column buffer, row, count) for the rows of `column`, in order.
  template <typename Add>
  Status ForRows(const ItemColumn& column, const Add& add) const;
  // Checks the column's runs: the dtype and shape they agree in, and their cells.
  Status Outline(const ItemColumn& column, ColumnOutline* outline) const;
  Status ReadStringCells(const ItemColumn& column, Tensor* out) const;

  // Makes an item that passes and hands it to `take`, under the lock.
  template <typename Take>
  Status MakeItem(const std::string& table, double priority,
                  const std::vector<ItemColumn>& trajectory, const WaitOptions& wait,
                  const Take& take);
  Status TryMake(const TableInfoPtr& info, double priority,
                 const std::vector<ItemColumn>& trajectory, const WaitOptions& wait,
                 ItemSender::NewItem* item, bool* table_refused);
  // The order of the columns in the item, if `info` lets it pass.
  Result<const std::vector<int>*> CheckTable(const TableInfoPtr& info, double priority);
  Status FillItem(const std::vector<ItemColumn>& trajectory, const std::vector<int>& order,
                  ItemSender::NewItem* item) const;
  Status WaitForRoom(const WaitOptions& wait);
  void WarnIfMuchIsPending();

  Status EndEpisodeNow(bool clear_buffers);
  // How a writer that is closed went: the error of items or of before, how the wait for
  // confirmations ended, and how many items were dropped after it.
  struct Ending {
    Status error;
    Status waited;
    int64_t dropped = 0;
  };
  Ending End(const WaitOptions& wait, int max_failures);
  // Abandons what is pending; returns how many, with a warning.
  int64_t Drop();

  const TrajectoryWriterOptions options_;
  const std::string address_;
  const std::shared_ptr<TableCache> cache_;
  const std::shared_ptr<ItemSender> sender_;
  Mutex& mu_;

  Random random_;
  std::vector<std::unique_ptr<ColumnBuffer>> columns_;
  int64_t next_step_ = 0;
  bool step_is_open_ = false;
  int64_t history_begin_ = 0;
  Episode episode_;
  Status broken_;  // an invariant that failed
  bool closed_ = false;

  ItemChecker checker_;
  std::vector<ColumnOutline> outlines_;  // of the item at hand
  std::vector<bool> in_call_;            // columns that the append at hand has
  TimePoint next_warning_{};
};

int TrajectoryWriterImpl::ColumnOf(const std::string& path) {
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i]->path() == path) return static_cast<int>(i);
  }
  columns_.push_back(
      std::make_unique<ColumnBuffer>(path, options_.num_keep_alive_refs, &random_));
  if (options_.writes_steps) columns_.back()->set_may_change();
  return static_cast<int>(columns_.size() - 1);
}

Status TrajectoryWriterImpl::CheckOpen() const {
  if (!is_closed()) return OkStatus();
  return FailedPreconditionError("the writer to " + address_ +
                                 " is closed; make a new one");
}

Status TrajectoryWriterImpl::CheckUsable() {
  RTF_RETURN_IF_ERROR(CheckOpen());
  RTF_RETURN_IF_ERROR(sender_->TakeError());
  return broken_;
}

Status TrajectoryWriterImpl::Configure(const std::string& path,
                                       const ColumnOptions& options) {
  MutexLock lock(&mu_);
  if (is_closed()) return CheckUsable();
  return columns_[Index(ColumnOf(path))]->Configure(options);
}

// ---- Appending ------------------------------------------------------------------

Status TrajectoryWriterImpl::CheckCells(const CellView* cells, size_t n, bool batch) {
  in_call_.assign(columns_.size(), false);
  for (size_t i = 0; i < n; ++i) {
    const CellView& cell = cells[i];
    if (!IsColumn(cell.column)) {
      return InvalidArgumentError("append: there is no column " +
                                  std::to_string(cell.column));
    }
    const ColumnBuffer& column = *columns_[Index(cell.column)];
    if (in_call_[Index(cell.column)] ||
        (step_is_open_ && column.last_step() == next_step_)) {
      return InvalidArgumentError("column " + Quoted(column.path()) +
                                  " is set already in this step; close the step first "
                                  "(append without partial_step)");
    }
    in_call_[Index(cell.column)] = true;
    RTF_RETURN_IF_ERROR(column.Check(cell, batch));
    if (!batch || (cell.dims[0] == cells[0].dims[0] && cell.dims[0] >= 1)) continue;
    return InvalidArgumentError(
        "append_batch: column " + Quoted(column.path()) + " has " +
        std::to_string(cell.dims[0]) + " steps, expected " +
        (cell.dims[0] < 1 ? "at least 1"
                          : std::to_string(cells[0].dims[0]) + " as column " +
                                Quoted(columns_[Index(cells[0].column)]->path())));
  }
  return OkStatus();
}

Status TrajectoryWriterImpl::Check(const CellView* cells, size_t n, AppendKind kind) {
  RTF_RETURN_IF_ERROR(CheckUsable());
  if (kind != AppendKind::kBatch) return CheckCells(cells, n, /*batch=*/false);
  if (step_is_open_) {
    return InvalidArgumentError(
        "append_batch: a partial step is open; close it with append first");
  }
  if (n == 0) return InvalidArgumentError("append_batch: got no column");
  return CheckCells(cells, n, /*batch=*/true);
}

Status TrajectoryWriterImpl::AppendAll(const CellView* cells, size_t n, AppendKind kind) {
  const bool batch = kind == AppendKind::kBatch;
  for (size_t i = 0; i < n; ++i) {
    broken_ =
        columns_[Index(cells[i].column)]->Append(cells[i], batch, next_step_, episode_);
    RTF_RETURN_IF_ERROR(broken_);
  }
  step_is_open_ = kind == AppendKind::kPartialStep;
  if (!step_is_open_) next_step_ += batch ? cells[0].dims[0] : 1;
  return OkStatus();
}

Status TrajectoryWriterImpl::Append(const CellView* cells, size_t n, bool partial_step) {
  const AppendKind kind = partial_step ? AppendKind::kPartialStep : AppendKind::kStep;
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(Check(cells, n, kind));
  return AppendAll(cells, n, kind);
}

Status TrajectoryWriterImpl::AppendBatch(const CellView* cells, size_t n) {
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(Check(cells, n, AppendKind::kBatch));
  return AppendAll(cells, n, AppendKind::kBatch);
}

Status TrajectoryWriterImpl::CheckAppend(const CellView* cells, size_t n, AppendKind kind) {
  MutexLock lock(&mu_);
  return Check(cells, n, kind);
}

Status TrajectoryWriterImpl::AppendChecked(const CellView* cells, size_t n,
                                           AppendKind kind) {
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(CheckOpen());
  RTF_RETURN_IF_ERROR(broken_);
  return AppendAll(cells, n, kind);
}

// ---- History --------------------------------------------------------------------

bool TrajectoryWriterImpl::is_hole(int column, int64_t cell) const {
  MutexLock lock(&mu_);
  int64_t row = 0, run = 0;
  return !IsColumn(column) ||
         columns_[Index(column)]->Find(cell, &row, &run) == ColumnBuffer::Found::kHole;
}

TensorSpec TrajectoryWriterImpl::column_spec(int column) const {
  MutexLock lock(&mu_);
  TensorSpec spec;
  if (!IsColumn(column)) return spec;
  if (columns_[Index(column)]->spec()) return *columns_[Index(column)]->spec();
  spec.path = columns_[Index(column)]->path();
  return spec;
}

Status TrajectoryWriterImpl::CheckRun(const std::string& path, const CellRun& run) const {
  int64_t last = 0;
  if (!IsColumn(run.column) || run.count < 0 || (run.count > 0 && !LastCell(run, &last))) {
    return InvalidArgumentError("column " + Quoted(path) + ": bad run of cells");
  }
  if (run.count == 0) return OkStatus();
  if (run.stride == 0 && run.count > static_cast<int64_t>(kMaxSlices)) {
    return InvalidArgumentError("column " + Quoted(path) + ": a cell is repeated " +
                                std::to_string(run.count) + " times, expected at most " +
                                std::to_string(kMaxSlices));
  }
  if (std::min(run.first, last) < 0 || std::max(run.first, last) >= HistoryEnd()) {
    return InvalidArgumentError(
        "column " + Quoted(path) + ": cells " + std::to_string(run.first - history_begin_) +
        " to " + std::to_string(last - history_begin_) + " are not all in the history of " +
        std::to_string(HistoryEnd() - history_begin_) + " steps");
  }
  return OkStatus();
}

Status TrajectoryWriterImpl::Missing(const ColumnBuffer& column, int64_t step,
                                     ColumnBuffer::Found why) const {
  const std::string at = "step " + std::to_string(step - history_begin_);
  if (why == ColumnBuffer::Found::kHole && step >= history_begin_) {
    return InvalidArgumentError("column " + Quoted(column.path()) +
                                ": a trajectory cannot contain any None data references, "
                                "nothing was appended at " +
                                at);
  }
  const int64_t oldest = column.OldestStep(HistoryEnd());
  return InvalidArgumentError(
      "column " + Quoted(column.path()) + ": " + at +
      " has expired: num_keep_alive_refs is " +
      std::to_string(column.num_keep_alive_refs()) + ", the oldest usable index is " +
      std::to_string(oldest - history_begin_) + "; raise num_keep_alive_refs");
}

template <typename Add>
Status TrajectoryWriterImpl::ForRows(const ItemColumn& column, const Add& add) const {
  for (const CellRun& run : column.runs) {
    RTF_RETURN_IF_ERROR(CheckRun(column.path, run));
    const ColumnBuffer& buffer = *columns_[Index(run.column)];
    for (int64_t i = 0; i < run.count;) {
      int64_t row = 0, available = 0;
      const int64_t step = run.first + run.stride * i;
      const auto found = step < history_begin_ ? ColumnBuffer::Found::kExpired
                                               : buffer.Find(step, &row, &available);
      if (found != ColumnBuffer::Found::kRow) return Missing(buffer, step, found);
      const int64_t n = run.stride == 1 ? std::min(available, run.count - i) : 1;
      RTF_RETURN_IF_ERROR(add(buffer, row, n));
      i += n;
    }
  }
  return OkStatus();
}

Status TrajectoryWriterImpl::Outline(const ItemColumn& column,
                                     ColumnOutline* outline) const {
  outline->path = column.path;
  outline->squeeze = column.squeeze;
  outline->length = 0;
  outline->cell = nullptr;
  for (const CellRun& run : column.runs) {
    RTF_RETURN_IF_ERROR(CheckRun(column.path, run));
    if (run.count == 0) continue;
    const ColumnBuffer& source = *columns_[Index(run.column)];
    const CellSpecPtr& cell = source.spec();
    if (!cell) return Missing(source, run.first, ColumnBuffer::Found::kHole);
    if (!outline->cell) outline->cell = cell;
    if (outline->cell != cell &&
        (outline->cell->dtype != cell->dtype || outline->cell->shape != cell->shape)) {
      return InvalidArgumentError("column " + Quoted(column.path) + " mixes cells of " +
                                  outline->cell->ToString() + " and " + cell->ToString());
    }
    if (__builtin_add_overflow(outline->length, run.count, &outline->length)) {
      return InvalidArgumentError("column " + Quoted(column.path) + " is too long");
    }
  }
  if (outline->length == 0) {
    return InvalidArgumentError("column " + Quoted(column.path) +
                                " is empty, expected at least one cell");
  }
  if (column.squeeze && outline->length != 1) {
    return InvalidArgumentError("column " + Quoted(column.path) + " is squeezed and has " +
                                std::to_string(outline->length) + " cells, expected 1");
  }
  return OkStatus();
}

Result<Tensor> TrajectoryWriterImpl::Read(const ItemColumn& column) const {
  MutexLock lock(&mu_);
  ColumnOutline outline;
  const auto precondition = [](const Status& status) {  // expired: RuntimeError there
    return Status(StatusCode::kFailedPrecondition, status.message());
  };
  const Status status = Outline(column, &outline);
  if (!status.ok()) return precondition(status);
  Tensor out;
  out.dtype = outline.cell->dtype;
  if (!column.squeeze) out.shape.push_back(outline.length);
  out.shape.insert(out.shape.end(), outline.cell->shape.begin(), outline.cell->shape.end());
  out.writable = true;
  if (out.dtype == DType::kString) {
    const Status read = ReadStringCells(column, &out);
    if (!read.ok()) return precondition(read);
    return out;
  }
  // Cells first, so that a bad column allocates nothing.
  const auto skip = [](const ColumnBuffer&, int64_t, int64_t) { return OkStatus(); };
  const Status found = ForRows(column, skip);
  if (!found.ok()) return precondition(found);
  const size_t row_bytes =
      static_cast<size_t>(NumElements(outline.cell->shape)) * ElementSize(out.dtype);
  size_t bytes = 0;
  if (__builtin_mul_overflow(row_bytes, static_cast<size_t>(outline.length), &bytes)) {
    return InvalidArgumentError("column " + Quoted(column.path) + " is too large");
  }
  out.buffer = Buffer::Allocate(bytes);
  uint8_t* dest = out.buffer->mutable_data();
  RTF_RETURN_IF_ERROR(
      ForRows(column, [&](const ColumnBuffer& buffer, int64_t row, int64_t n) {
        uint8_t* const to = dest;
        dest += static_cast<size_t>(n) * row_bytes;
        return buffer.ReadRows(row, n, to);
      }));
  return out;
}

Status TrajectoryWriterImpl::ReadStringCells(const ItemColumn& column, Tensor* out) const {
  std::vector<uint64_t> lengths;
  std::string bytes;
  RTF_RETURN_IF_ERROR(
      ForRows(column, [&](const ColumnBuffer& buffer, int64_t row, int64_t n) {
        for (int64_t i = 0; i < n; ++i) {
          RTF_RETURN_IF_ERROR(buffer.ReadStrings(row + i, &lengths, &bytes));
        }
        return OkStatus();
      }));
  std::string content;
  for (const uint64_t length : lengths) AppendVarint(&content, length);
  content += bytes;
  out->buffer = Buffer::CopyOf(content);
  return OkStatus();
}

// ---- Items ----------------------------------------------------------------------

Result<uint64_t> TrajectoryWriterImpl::CreateItem(const std::string& table, double priority,
                                                  const std::vector<ItemColumn>& trajectory,
                                                  const WaitOptions& wait) {
  uint64_t key = 0;
  RTF_RETURN_IF_ERROR(MakeItem(
      table, priority, trajectory, wait,
      [&](ItemSender::NewItem item) { key = sender_->Push(table, std::move(item)); }));
  sender_->Kick();
  WarnIfMuchIsPending();
  return key;
}

Result<std::unique_ptr<PreparedItem>> TrajectoryWriterImpl::PrepareItem(
    const std::string& table, double priority, const std::vector<ItemColumn>& trajectory,
    const WaitOptions& wait) {
  auto prepared = std::make_unique<PreparedItemImpl>();
  prepared->table = table;
  RTF_RETURN_IF_ERROR(
      MakeItem(table, priority, trajectory, wait,
               [&](ItemSender::NewItem item) { prepared->item = std::move(item); }));
  return std::unique_ptr<PreparedItem>(std::move(prepared));
}

Result<std::vector<uint64_t>> TrajectoryWriterImpl::Queue(
    std::vector<std::unique_ptr<PreparedItem>> items) {
  std::vector<uint64_t> keys;
  {
    MutexLock lock(&mu_);
    RTF_RETURN_IF_ERROR(CheckOpen());
    for (const auto& item : items) {
      auto* const prepared = static_cast<PreparedItemImpl*>(item.get());
      keys.push_back(sender_->Push(prepared->table, std::move(prepared->item)));
    }
  }
  sender_->Kick();
  WarnIfMuchIsPending();
  return keys;
}

template <typename Take>
Status TrajectoryWriterImpl::MakeItem(const std::string& table, double priority,
                                      const std::vector<ItemColumn>& trajectory,
                                      const WaitOptions& wait, const Take& take) {
  TableInfoPtr info = cache_->Known(table);
  if (!info && options_.validate_items) {
    {
      MutexLock lock(&mu_);
      RTF_RETURN_IF_ERROR(CheckUsable());
    }
    RTF_ASSIGN_OR_RETURN(info, FindTable(cache_.get(), table, wait));
  }
  bool table_refused = false;
  const auto try_with = [&](const TableInfoPtr& known) {
    ItemSender::NewItem item;
    MutexLock lock(&mu_);
    RTF_RETURN_IF_ERROR(TryMake(known, priority, trajectory, wait, &item, &table_refused));
    take(std::move(item));
    return OkStatus();
  };
  const Status status = try_with(info);
  if (!table_refused) return status;
  // Tables change: a reset, a new server.
  const TableInfoPtr fresh = FreshInfo(cache_.get(), table, wait);
  return fresh ? try_with(fresh) : status;
}

Status TrajectoryWriterImpl::TryMake(const TableInfoPtr& info, double priority,
                                     const std::vector<ItemColumn>& trajectory,
                                     const WaitOptions& wait, ItemSender::NewItem* item,
                                     bool* table_refused) {
  RTF_RETURN_IF_ERROR(WaitForRoom(wait));
  RTF_RETURN_IF_ERROR(CheckUsable());
  if (trajectory.empty()) {
    return InvalidArgumentError("create_item: the trajectory has no column");
  }
  outlines_.resize(trajectory.size());
  for (size_t i = 0; i < trajectory.size(); ++i) {
    RTF_RETURN_IF_ERROR(Outline(trajectory[i], &outlines_[i]));
  }
  const Result<const std::vector<int>*> order = CheckTable(info, priority);
  if (!order.ok()) {
    *table_refused = options_.validate_items;
    return order.status();
  }
  item->priority = priority;
  item->written_as_steps = options_.writes_steps;
  return FillItem(trajectory, **order, item);
}

Result<const std::vector<int>*> TrajectoryWriterImpl::CheckTable(const TableInfoPtr& info,
                                                                 double priority) {
  if (!options_.validate_items) {
    RTF_RETURN_IF_ERROR(CheckItemPriority(nullptr, priority));
    return checker_.Order(info, outlines_);
  }
  RTF_RETURN_IF_ERROR(CheckItemPriority(info.get(), priority));
  return checker_.Check(info, options_.writes_steps, outlines_);
}

Status TrajectoryWriterImpl::FillItem(const std::vector<ItemColumn>& trajectory,
                                      const std::vector<int>& order,
                                      ItemSender::NewItem* item) const {
  item->columns.reserve(order.size());
  item->slices.reserve(order.size());
  for (const int i : order) {
    const ItemColumn& column = trajectory[Index(i)];
    const size_t first = item->slices.size();
    RTF_RETURN_IF_ERROR(
        ForRows(column, [&](const ColumnBuffer& buffer, int64_t row, int64_t n) {
          if (item->slices.size() > kMaxSlices) {
            return InvalidArgumentError("column " + Quoted(column.path) +
                                        ": the item has more than " +
                                        std::to_string(kMaxSlices) + " separate runs");
          }
          buffer.AppendSlices(row, n, first, &item->slices);
          return OkStatus();
        }));
    item->columns.push_back(
        {static_cast<int32_t>(item->slices.size() - first), column.squeeze});
  }
  return OkStatus();
}

Status TrajectoryWriterImpl::WaitForRoom(const WaitOptions& wait) {
  const int64_t items = options_.max_in_flight_items;
  const int64_t bytes = options_.max_in_flight_bytes;
  if (items == 0 && bytes == 0) return OkStatus();
  return sender_->Wait(wait, items > 0 ? items - 1 : kNoBound,
                       bytes > 0 ? bytes - 1 : kNoBound);
}

void TrajectoryWriterImpl::WarnIfMuchIsPending() {
  {
    MutexLock lock(&mu_);
    if (sender_->pending_items() == 0) return;
    const TimePoint now = Clock::System()->Now();
    if (now < next_warning_) return;
    const std::optional<TimePoint> oldest = sender_->oldest();
    const bool old = oldest && now - *oldest > kWarnAge;
    if (!old && sender_->pending_bytes() <= kWarnBytes) return;
    next_warning_ = now + kWarnInterval;
  }
  Log(LogLevel::kWarning, sender_->Describe(/*ask=*/false));
}

// ---- Flush, end, close ----------------------------------------------------------

Status TrajectoryWriterImpl::Flush(int64_t ignore_last, const WaitOptions& wait) {
  if (ignore_last < 0) {
    return InvalidArgumentError("flush: block_until_num_items: got " +
                                std::to_string(ignore_last) + ", expected at least 0");
  }
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(CheckUsable());
  const Status status = sender_->Wait(wait, ignore_last, kNoBound);
  if (!status.ok()) return status;
  return CheckUsable();
}

Status TrajectoryWriterImpl::EndEpisode(bool clear_buffers, const WaitOptions& wait) {
  {
    MutexLock lock(&mu_);
    const Status before = CheckUsable();
    if (is_closed()) return before;
    const Status ended = EndEpisodeNow(clear_buffers);
    RTF_RETURN_IF_ERROR(before);
    RTF_RETURN_IF_ERROR(ended);
  }
  return Flush(0, wait);
}

Status TrajectoryWriterImpl::EndEpisodeNow(bool clear_buffers) {
  next_step_ = HistoryEnd();
  step_is_open_ = false;
  for (const auto& column : columns_) {
    Status status = column->EndEpisode(clear_buffers);
    if (broken_.ok()) broken_ = std::move(status);
  }
  episode_.id = random_.Next();
  episode_.first_step = next_step_;
  if (clear_buffers) history_begin_ = next_step_;
  return broken_;
}

TrajectoryWriterImpl::Ending TrajectoryWriterImpl::End(const WaitOptions& wait,
                                                       int max_failures) {
  Ending ending;
  {
    MutexLock lock(&mu_);
    if (is_closed()) return ending;
    ending.error = CheckUsable();
    closed_ = true;
    ending.waited = sender_->WaitForAll(wait, max_failures, /*ask=*/false);
    const Status refused = sender_->TakeError();
    if (ending.error.ok()) ending.error = refused;
  }
  ending.dropped = Drop();
  return ending;
}

Result<int64_t> TrajectoryWriterImpl::Close(const WaitOptions& wait) {
  const Ending ending = End(wait, kAnyFailures);
  if (!ending.error.ok()) return ending.error;
  if (ending.waited.ok() || ending.waited.code() == StatusCode::kDeadlineExceeded) {
    return ending.dropped;
  }
  return ending.waited;
}

Status TrajectoryWriterImpl::Finish(bool retry, const WaitOptions& wait) {
  const Ending ending = End(wait, retry ? kAnyFailures : 1);
  if (!ending.error.ok() || ending.waited.ok()) return ending.error;
  return Status(ending.waited.code(), "closed with " + std::to_string(ending.dropped) +
                                          " items dropped; " + ending.waited.message());
}

int64_t TrajectoryWriterImpl::Drop() {
  int64_t dropped = 0;
  std::string tables;
  const std::string why = sender_->Describe(/*ask=*/false);
  for (const auto& [table, count] : sender_->Abandon()) {
    dropped += count;
    tables += (tables.empty() ? "table '" : ", '") + table + "': " + std::to_string(count);
  }
  if (dropped == 0) return 0;
  Log(LogLevel::kWarning,
      "closed with " + std::to_string(dropped) + " items dropped (" + tables + "); " + why);
  return dropped;
}

Status CheckOptions(const TrajectoryWriterOptions& options) {
  if (options.num_keep_alive_refs < 1) {
    return InvalidArgumentError("num_keep_alive_refs: got " +
                                std::to_string(options.num_keep_alive_refs) +
                                ", expected at least 1");
  }
  if (options.max_in_flight_items < 0 || options.max_in_flight_bytes < 0) {
    return InvalidArgumentError(
        "max_in_flight_items and max_in_flight_bytes must be at least 0 (0: no bound)");
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<TrajectoryWriter>> MakeTrajectoryWriter(
    std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
    std::string address, const TrajectoryWriterOptions& options,
    std::weak_ptr<ItemSender>* sender) {
  RTF_RETURN_IF_ERROR(CheckOptions(options));
  auto own = std::make_shared<ItemSender>(std::move(transport), cache, "writer", address);
  if (sender != nullptr) *sender = own;
  return std::unique_ptr<TrajectoryWriter>(std::make_unique<TrajectoryWriterImpl>(
      std::move(own), std::move(cache), std::move(address), options));
}

}  // namespace reverb_tf
