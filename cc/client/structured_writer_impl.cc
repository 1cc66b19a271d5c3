#include "cc/client/structured_writer_impl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/client/batch_column.h"
#include "cc/client/item_check.h"
#include "cc/client/pattern_check.h"
#include "cc/client/pattern_evaluator.h"
#include "cc/client/trajectory_writer_impl.h"
#include "cc/core/signature.h"

namespace reverb_tf {
namespace {

// What an item may wait for a table's current signature.
constexpr Duration kLookupTimeout = std::chrono::seconds(1);

// The end of a wait before it begins.
WaitOptions NoWait() {
  WaitOptions wait;
  wait.interrupted = [] { return CancelledError("not waited for"); };
  return wait;
}

class StructuredWriterImpl : public StructuredWriter {
 public:
  StructuredWriterImpl(std::unique_ptr<PatternEvaluator> evaluator,
                       std::unique_ptr<TrajectoryWriter> writer,
                       const StructuredWriterOptions& options);

  std::unique_ptr<StructuredWriter> NewSibling() const override;

  const std::vector<std::string>& source_paths() const override {
    return evaluator_->source_paths();
  }
  int num_sources() const override { return evaluator_->num_sources(); }

  Status Append(const CellView* cells, size_t n, bool partial_step,
                const WaitOptions& wait) override;
  Status AppendBatch(const CellView* cells, size_t n, const WaitOptions& wait) override;
  Status CheckAppend(const CellView* cells, size_t n, bool partial_step,
                     int64_t* items) override;
  Status AppendChecked(const CellView* cells, size_t n, bool partial_step) override;
  Status Flush(int64_t ignore_last, const WaitOptions& wait) override;
  Status EndEpisode(bool clear_buffers, const WaitOptions& wait) override;
  Result<int64_t> Close(const WaitOptions& wait) override;

  int64_t episode_steps() const override { return writer_->episode_steps(); }
  bool step_is_open() const override { return writer_->step_is_open(); }
  int64_t pending_items() const override { return writer_->pending_items(); }
  int64_t pending_bytes() const override { return writer_->pending_bytes(); }
  int64_t rejected_items() const override { return writer_->rejected_items() + rejected_; }
  int64_t skipped_items() const override { return skipped_; }

 private:
  std::string NameOf(int source) const;
  // The error of an earlier call, if there is one to tell.
  Status TakeDeferred() REQUIRES(mu_);
  // One step or part of it. *appended: the cells are in, whatever is returned.
  Status AppendStep(const CellView* cells, size_t n, bool closes, const WaitOptions& wait,
                    bool* appended) REQUIRES(mu_);
  // Evaluates the step, and fills firings_ and stored_.
  Status Evaluate(const CellView* cells, size_t n, bool closes) REQUIRES(mu_);
  // Counts what was evaluated, which is in, and creates its items.
  Status Commit() REQUIRES(mu_);
  Status WaitForRoom(const WaitOptions& wait) REQUIRES(mu_);
  // Creates the items of firings_; the first error.
  Status CreateItems() REQUIRES(mu_);
  Status CreateItem(const PatternEvaluator::Firing& firing) REQUIRES(mu_);
  Status ReadBatch(const CellView* cells, size_t n) REQUIRES(mu_);

  const StructuredWriterOptions options_;
  const std::unique_ptr<PatternEvaluator> evaluator_;  // guarded by mu_, but for constants
  const std::unique_ptr<TrajectoryWriter> writer_;
  std::vector<int> columns_;  // of the writer, by source; -1: not stored

  Mutex mu_;
  std::vector<CellView> stored_ GUARDED_BY(mu_);  // cells of the append at hand
  std::vector<PatternEvaluator::Firing> firings_ GUARDED_BY(mu_);
  std::vector<BatchColumn> batch_ GUARDED_BY(mu_);
  Status deferred_ GUARDED_BY(mu_);
  std::atomic<int64_t> rejected_{0};
  std::atomic<int64_t> skipped_{0};
};

StructuredWriterImpl::StructuredWriterImpl(std::unique_ptr<PatternEvaluator> evaluator,
                                           std::unique_ptr<TrajectoryWriter> writer,
                                           const StructuredWriterOptions& options)
    : options_(options), evaluator_(std::move(evaluator)), writer_(std::move(writer)) {
  for (int source = 0; source < evaluator_->num_sources(); ++source) {
    const bool is_stored = evaluator_->history(source) > 0;
    columns_.push_back(is_stored ? writer_->Column(NameOf(source)) : -1);
  }
  evaluator_->SetColumns(columns_);
}

std::unique_ptr<StructuredWriter> StructuredWriterImpl::NewSibling() const {
  // The configs have been compiled once.
  return std::make_unique<StructuredWriterImpl>(
      MakePatternEvaluator(evaluator_->configs()).value(), writer_->NewSibling(), options_);
}

std::string StructuredWriterImpl::NameOf(int source) const {
  const std::vector<std::string>& paths = source_paths();
  const auto i = static_cast<size_t>(source);
  return i < paths.size() ? paths[i] : "[" + std::to_string(source) + "]";
}

Status StructuredWriterImpl::TakeDeferred() { return std::exchange(deferred_, OkStatus()); }

// ---- Appending ------------------------------------------------------------------

Status StructuredWriterImpl::Append(const CellView* cells, size_t n, bool partial_step,
                                    const WaitOptions& wait) {
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(TakeDeferred());
  bool appended = false;
  return AppendStep(cells, n, !partial_step, wait, &appended);
}

Status StructuredWriterImpl::Evaluate(const CellView* cells, size_t n, bool closes) {
  RTF_RETURN_IF_ERROR(evaluator_->Evaluate(cells, n, closes, &firings_));
  stored_.clear();
  for (size_t i = 0; i < n; ++i) {
    const auto source = static_cast<size_t>(cells[i].column);
    if (source >= columns_.size() || columns_[source] < 0) continue;
    stored_.push_back(cells[i]);
    stored_.back().column = columns_[source];
  }
  return OkStatus();
}

Status StructuredWriterImpl::Commit() {
  evaluator_->Commit();
  skipped_ = evaluator_->skipped_items();
  return CreateItems();
}

Status StructuredWriterImpl::AppendStep(const CellView* cells, size_t n, bool closes,
                                        const WaitOptions& wait, bool* appended) {
  RTF_RETURN_IF_ERROR(Evaluate(cells, n, closes));
  Status status = WaitForRoom(wait);
  if (status.ok()) {
    status = writer_->Append(stored_.data(), stored_.size(), /*partial_step=*/!closes);
  }
  if (!status.ok()) {
    evaluator_->Rollback();
    return status;
  }
  *appended = true;
  return Commit();
}

Status StructuredWriterImpl::CheckAppend(const CellView* cells, size_t n, bool partial_step,
                                         int64_t* items) {
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(TakeDeferred());
  RTF_RETURN_IF_ERROR(Evaluate(cells, n, /*closes=*/!partial_step));
  *items += static_cast<int64_t>(firings_.size());
  const Status status =
      writer_->CheckAppend(stored_.data(), stored_.size(),
                           partial_step ? AppendKind::kPartialStep : AppendKind::kStep);
  evaluator_->Rollback();
  return status;
}

Status StructuredWriterImpl::AppendChecked(const CellView* cells, size_t n,
                                           bool partial_step) {
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(Evaluate(cells, n, /*closes=*/!partial_step));
  const Status status =
      writer_->AppendChecked(stored_.data(), stored_.size(),
                             partial_step ? AppendKind::kPartialStep : AppendKind::kStep);
  if (status.ok()) return Commit();
  evaluator_->Rollback();
  return status;
}

Status StructuredWriterImpl::WaitForRoom(const WaitOptions& wait) {
  if (firings_.empty()) return OkStatus();
  const auto coming = static_cast<int64_t>(firings_.size());
  if (options_.max_in_flight_items > 0) {
    const int64_t room = std::max<int64_t>(options_.max_in_flight_items - coming, 0);
    RTF_RETURN_IF_ERROR(writer_->Flush(room, wait));
  }
  const TimePoint deadline = DeadlineAfter(Clock::System()->Now(), wait.timeout);
  while (options_.max_in_flight_bytes > 0 &&
         writer_->pending_bytes() >= options_.max_in_flight_bytes) {
    const int64_t pending = writer_->pending_items();
    if (pending == 0) break;
    WaitOptions rest = wait;
    if (wait.timeout < kForever) {
      rest.timeout = std::max(Duration::zero(), deadline - Clock::System()->Now());
    }
    RTF_RETURN_IF_ERROR(writer_->Flush(pending - 1, rest));
  }
  return OkStatus();
}

Status StructuredWriterImpl::CreateItems() {
  Status first;
  for (const PatternEvaluator::Firing& firing : firings_) {
    Status status = CreateItem(firing);
    if (status.ok()) continue;
    ++rejected_;
    if (first.ok()) first = std::move(status);
  }
  return first;
}

Status StructuredWriterImpl::CreateItem(const PatternEvaluator::Firing& firing) {
  const StructuredConfig& config =
      evaluator_->configs()[static_cast<size_t>(firing.config)];
  if (config.priority.td_source && !std::isfinite(firing.priority)) {
    return InvalidArgumentError("config " + std::to_string(firing.config) + ", table '" +
                                config.table +
                                "': the priority by td_error must be finite, got " +
                                std::to_string(firing.priority));
  }
  WaitOptions wait;
  wait.timeout = kLookupTimeout;
  const auto create = [&] {
    return writer_->CreateItem(config.table, firing.priority, *firing.columns, wait)
        .status();
  };
  Status status = create();
  if (status.ok()) return status;
  // It may be an earlier item's, which the server refused just now.
  Status again = create();
  if (again.ok()) deferred_ = std::move(status);
  return again;
}

Status StructuredWriterImpl::ReadBatch(const CellView* cells, size_t n) {
  if (n == 0) return InvalidArgumentError("append_batch: got no leaf");
  batch_.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const std::string path = "'" + NameOf(cells[i].column) + "' ";
    const Status status = batch_[i].Reset(cells[i]);
    if (!status.ok()) {
      return InvalidArgumentError("append_batch: " + path + status.message());
    }
    if (batch_[i].rows() == batch_[0].rows()) continue;
    return InvalidArgumentError("append_batch: " + path + "has " +
                                std::to_string(batch_[i].rows()) + " steps, expected " +
                                std::to_string(batch_[0].rows()) + " as '" +
                                NameOf(cells[0].column) + "'");
  }
  return OkStatus();
}

Status StructuredWriterImpl::AppendBatch(const CellView* cells, size_t n,
                                         const WaitOptions& wait) {
  MutexLock lock(&mu_);
  RTF_RETURN_IF_ERROR(TakeDeferred());
  if (writer_->step_is_open()) {
    return InvalidArgumentError(
        "append_batch: a partial step is open; close it with append first");
  }
  RTF_RETURN_IF_ERROR(ReadBatch(cells, n));
  std::vector<CellView> step(n);
  Status first;
  for (int64_t row = 0; row < batch_[0].rows(); ++row) {
    for (size_t i = 0; i < n; ++i) step[i] = batch_[i].Row(row);
    bool appended = false;
    Status status = AppendStep(step.data(), n, /*closes=*/true, wait, &appended);
    if (!appended) {
      if (row == 0 || !first.ok()) return first.ok() ? status : first;
      return Status(status.code(), "append_batch: " + std::to_string(row) + " of " +
                                       std::to_string(batch_[0].rows()) +
                                       " steps are in: " + status.message());
    }
    if (first.ok()) first = std::move(status);
  }
  return first;
}

// ---- The rest -------------------------------------------------------------------

Status StructuredWriterImpl::Flush(int64_t ignore_last, const WaitOptions& wait) {
  {
    MutexLock lock(&mu_);
    RTF_RETURN_IF_ERROR(TakeDeferred());
  }
  return writer_->Flush(ignore_last, wait);
}

Status StructuredWriterImpl::EndEpisode(bool clear_buffers, const WaitOptions& wait) {
  Status first;
  const auto keep = [&first](Status status) {
    if (first.ok()) first = std::move(status);
  };
  {
    MutexLock lock(&mu_);
    keep(TakeDeferred());
    // Errors of before, without a wait; they must not end what follows.
    keep(writer_->Flush(std::numeric_limits<int64_t>::max(), NoWait()));
    bool is_closed = !writer_->step_is_open();
    if (!is_closed) keep(AppendStep(nullptr, 0, /*closes=*/true, NoWait(), &is_closed));
    if (!is_closed) keep(AppendStep(nullptr, 0, /*closes=*/true, NoWait(), &is_closed));
    if (!is_closed) return first;  // the writer is of no use any more
    evaluator_->EvaluateEnd(&firings_);
    skipped_ = evaluator_->skipped_items();
    keep(CreateItems());
    evaluator_->EndEpisode(clear_buffers);
    const Status ended = writer_->EndEpisode(clear_buffers, NoWait());
    if (ended.code() != StatusCode::kCancelled) keep(ended);
  }
  RTF_RETURN_IF_ERROR(first);
  return Flush(0, wait);
}

Result<int64_t> StructuredWriterImpl::Close(const WaitOptions& wait) {
  Status deferred;
  {
    MutexLock lock(&mu_);
    deferred = TakeDeferred();
  }
  Result<int64_t> dropped = writer_->Close(wait);
  if (dropped.ok() && !deferred.ok()) return deferred;
  return dropped;
}

// ---- Making one -----------------------------------------------------------------

// The spec of each source, in order.
Result<std::vector<TensorSpec>> MatchSteps(const PatternEvaluator& evaluator,
                                           const std::vector<TensorSpec>& step_spec) {
  std::vector<std::string> paths = evaluator.source_paths();
  if (paths.empty()) {
    for (size_t i = 0; i < step_spec.size(); ++i) {
      paths.push_back("[" + std::to_string(i) + "]");
    }
  }
  const Result<std::vector<int>> order = MatchPaths(step_spec, paths);
  if (!order.ok() || static_cast<int>(step_spec.size()) < evaluator.num_sources()) {
    return InvalidArgumentError(
        "step_spec must be what the reference step of the configs was made for: " +
        (order.ok() ? "it has " + std::to_string(step_spec.size()) + " leaves, expected " +
                          std::to_string(evaluator.num_sources()) + " or more"
                    : order.status().message()));
  }
  std::vector<TensorSpec> specs(step_spec.size());
  for (size_t i = 0; i < step_spec.size(); ++i) {
    specs[static_cast<size_t>((*order)[i])] = step_spec[i];
  }
  return specs;
}

// A shape of the spec; where it leaves something open, what `leaf` has there.
Shape LikelyShape(const TensorSpec& spec, const TensorSpec& leaf, bool squeeze) {
  const size_t skipped = squeeze ? 0 : 1;
  const auto dimension = [&](size_t i) {
    const size_t at = i + skipped;
    return at < leaf.shape.size() && leaf.shape[at] >= 0 ? leaf.shape[at] : 1;
  };
  Shape shape = spec.shape;
  if (spec.unknown_rank) shape.assign(std::max(leaf.shape.size(), skipped) - skipped, -1);
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] < 0) shape[i] = dimension(i);
  }
  return shape;
}

// What a config's items are, against its table's signature.
Status CheckAgainst(const StructuredConfig& config, const std::vector<ItemColumn>& columns,
                    const std::optional<std::vector<TensorSpec>>& specs,
                    const TableInfo& info) {
  if (!config.priority.td_source) {
    RTF_RETURN_IF_ERROR(CheckItemPriority(&info, config.priority.value));
  }
  if (!info.config.signature) return OkStatus();
  const Signature& signature = *info.config.signature;
  std::vector<std::string> paths;
  for (const PatternNode& node : config.nodes) paths.push_back(node.path);
  RTF_ASSIGN_OR_RETURN(const std::vector<int> order, MatchPaths(signature.leaves, paths));
  if (!specs) return OkStatus();
  std::vector<ColumnShape> shapes;
  for (size_t leaf = 0; leaf < order.size(); ++leaf) {
    const auto i = static_cast<size_t>(order[leaf]);
    const TensorSpec& spec = (*specs)[static_cast<size_t>(config.nodes[i].source)];
    const bool squeeze = columns[i].squeeze;
    shapes.push_back({spec.dtype, LikelyShape(spec, signature.leaves[leaf], squeeze),
                      columns[i].runs[0].count, squeeze});
  }
  SignatureScope scope = info.config.signature_scope;
  return CheckSignature(signature, shapes, /*written_as_steps=*/false, &scope);
}

Status CheckTables(const PatternEvaluator& evaluator,
                   const std::optional<std::vector<TensorSpec>>& specs, TableCache* cache,
                   const WaitOptions& wait) {
  for (size_t i = 0; i < evaluator.configs().size(); ++i) {
    const StructuredConfig& config = evaluator.configs()[i];
    Result<TableInfoPtr> info = FindTable(cache, config.table, wait);
    if (!info.ok() && info.status().code() != StatusCode::kInvalidArgument) {
      return info.status();
    }
    Status status = info.status();
    if (status.ok()) {
      status = CheckAgainst(config, evaluator.columns(static_cast<int>(i)), specs, **info);
      status = status.ok() ? status
                           : Status(status.code(),
                                    "table '" + config.table + "': " + status.message());
    }
    if (!status.ok()) return AtPosition(i, status);
  }
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<StructuredWriter>> MakeStructuredWriter(
    std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
    std::string address, std::vector<StructuredConfig> configs,
    const StructuredWriterOptions& options, const WaitOptions& wait,
    std::weak_ptr<ItemSender>* sender) {
  RTF_ASSIGN_OR_RETURN(std::unique_ptr<PatternEvaluator> evaluator,
                       MakePatternEvaluator(std::move(configs)));
  std::optional<std::vector<TensorSpec>> specs;
  if (options.step_spec) {
    RTF_ASSIGN_OR_RETURN(specs, MatchSteps(*evaluator, *options.step_spec));
  }
  if (options.validate_items) {
    RTF_RETURN_IF_ERROR(CheckTables(*evaluator, specs, cache.get(), wait));
  }
  TrajectoryWriterOptions own;
  own.validate_items = options.validate_items;
  for (int source = 0; source < evaluator->num_sources(); ++source) {
    own.num_keep_alive_refs = std::max(own.num_keep_alive_refs, evaluator->history(source));
  }
  RTF_ASSIGN_OR_RETURN(std::unique_ptr<TrajectoryWriter> writer,
                       MakeTrajectoryWriter(std::move(transport), std::move(cache),
                                            std::move(address), own, sender));
  return std::unique_ptr<StructuredWriter>(std::make_unique<StructuredWriterImpl>(
      std::move(evaluator), std::move(writer), options));
}

}  // namespace reverb_tf
