#include "reverb_tf/kernels/pattern_stream.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/api/entry.h"
#include "cc/base/tensor.h"
#include "reverb_tf/kernels/bridge.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/util/batch_util.h"

namespace reverb_tf {
namespace {

using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;

// Keys of a checkpoint.
constexpr char kEvaluator[] = "evaluator";
constexpr char kPendingConfigs[] = "pending_configs";
constexpr char kPendingPriorities[] = "pending_priorities";

std::string CountKey(size_t source) { return absl::StrCat("cells[", source, "]_count"); }
std::string CellKey(size_t source, size_t i) {
  return absl::StrCat("cells[", source, "][", i, "]");
}

template <typename T>
absl::Status WriteVector(const std::string& name, const char* key,
                         const std::vector<T>& values, IteratorStateWriter* writer) {
  return writer->WriteTensor(name, key, ToTfNumbers<T>(values, /*batched=*/true));
}

template <typename T>
absl::Status ReadVector(const std::string& name, const char* key,
                        IteratorStateReader* reader, std::vector<T>* values) {
  tensorflow::Tensor tensor;
  TF_RETURN_IF_ERROR(reader->ReadTensor(name, key, &tensor));
  if (tensor.dtype() != tensorflow::DataTypeToEnum<T>::value || tensor.dims() != 1) {
    return absl::DataLossError(absl::StrCat("the checkpoint's '", key, "' is a ",
                                            tensor.DebugString(0), ", expected a vector"));
  }
  const auto flat = tensor.flat<T>();
  values->assign(flat.data(), flat.data() + flat.size());
  return absl::OkStatus();
}

absl::Status SeveralShapes(const std::string& path, const tensorflow::Tensor& first,
                           const tensorflow::Tensor& other) {
  return absl::InvalidArgumentError(absl::StrCat(
      "column '", path, "': its cells must be of one dtype and shape, got ",
      tensorflow::DataTypeString(first.dtype()), first.shape().DebugString(), " and ",
      tensorflow::DataTypeString(other.dtype()), other.shape().DebugString(),
      "; make them equal by Dataset.map, or take one cell, as [-1]"));
}

}  // namespace

absl::Status PatternStream::Make(const std::vector<StructuredConfig>& configs,
                                 bool clear_after_episode,
                                 std::unique_ptr<PatternStream>* stream) {
  const ReverbApi* api = nullptr;
  TF_RETURN_IF_ERROR(GetReverbApi(&api));
  Result<std::unique_ptr<PatternEvaluator>> evaluator = api->MakePatternEvaluator(configs);
  if (!evaluator.ok()) return ToTfStatus(evaluator.status());
  stream->reset(new PatternStream(std::move(evaluator).value(), clear_after_episode));
  return absl::OkStatus();
}

PatternStream::PatternStream(std::unique_ptr<PatternEvaluator> evaluator,
                             bool clear_after_episode)
    : evaluator_(std::move(evaluator)),
      clear_after_episode_(clear_after_episode),
      cells_(static_cast<size_t>(evaluator_->num_sources())),
      dims_(cells_.size()),
      views_(cells_.size()) {}

// ---- Steps ----------------------------------------------------------------------

void PatternStream::FillViews(const std::vector<tensorflow::Tensor>& step) {
  for (size_t i = 0; i < views_.size(); ++i) {
    const tensorflow::Tensor& cell = step[i];
    const auto dims = cell.shape().dim_sizes();
    dims_[i].assign(dims.begin(), dims.end());
    CellView& view = views_[i];
    view.column = static_cast<int>(i);
    view.dtype = static_cast<DType>(cell.dtype());
    view.dims = dims_[i].data();
    view.rank = cell.dims();
    view.data = cell.data();
    view.bytes = static_cast<size_t>(cell.NumElements()) * ElementSize(view.dtype);
  }
}

void PatternStream::Keep(const std::vector<tensorflow::Tensor>& step) {
  for (size_t i = 0; i < cells_.size(); ++i) {
    const auto most = static_cast<size_t>(evaluator_->history(static_cast<int>(i)));
    if (most == 0) continue;
    if (cells_[i].size() == most) cells_[i].pop_front();
    cells_[i].push_back(step[i]);
  }
}

void PatternStream::AddPending() {
  for (const PatternEvaluator::Firing& firing : firings_) {
    pending_.push_back({firing.config, firing.priority});
  }
}

absl::Status PatternStream::Append(const std::vector<tensorflow::Tensor>& step,
                                   bool ends_episode) {
  if (step.size() < views_.size()) {
    return absl::InternalError(
        absl::StrCat("a step of ", step.size(), " components, expected ", views_.size()));
  }
  FillViews(step);
  const Status status =
      evaluator_->Evaluate(views_.data(), views_.size(), /*closes=*/true, &firings_);
  if (status.ok()) {
    evaluator_->Commit();
    Keep(step);
    AddPending();
  }
  if (ends_episode) {
    evaluator_->EvaluateEnd(&firings_);
    AddPending();
    evaluator_->EndEpisode(clear_after_episode_);
  }
  return ToTfStatus(status);
}

// ---- Trajectories ---------------------------------------------------------------

absl::Status PatternStream::CheckPriority(int64_t config, double priority) const {
  const StructuredConfig& fired = evaluator_->configs()[static_cast<size_t>(config)];
  if (!fired.priority.td_source || std::isfinite(priority)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("config ", config, ", table '", fired.table,
                   "': the priority by td_error must be finite, got ", priority,
                   "; filter such steps out, or give the config a constant priority"));
}

absl::Status PatternStream::MakeColumn(const PatternNode& node, const ItemColumn& column,
                                       tensorflow::Allocator* allocator,
                                       tensorflow::Tensor* out) const {
  const std::deque<tensorflow::Tensor>& cells = cells_[static_cast<size_t>(node.source)];
  const int64_t first = static_cast<int64_t>(cells.size()) +
                        (column.squeeze ? node.stop.value_or(0) : node.start.value_or(0));
  if (first < 0 || cells.empty()) {
    return absl::DataLossError(
        absl::StrCat("column '", node.path, "': the restored history is too short"));
  }
  const CellRun& run = column.runs[0];
  const tensorflow::Tensor& oldest = cells[static_cast<size_t>(first)];
  if (column.squeeze) {
    *out = oldest;
    return absl::OkStatus();
  }
  tensorflow::TensorShape shape = oldest.shape();
  TF_RETURN_IF_ERROR(shape.InsertDimWithStatus(0, run.count));
  *out = tensorflow::Tensor(allocator, oldest.dtype(), shape);
  if (!out->IsInitialized()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "column '", node.path, "': no memory for a tensor of shape ", shape.DebugString()));
  }
  for (int64_t i = 0; i < run.count; ++i) {
    const tensorflow::Tensor& cell = cells[static_cast<size_t>(first + i * run.stride)];
    if (cell.dtype() != oldest.dtype() || cell.shape() != oldest.shape()) {
      return SeveralShapes(node.path, oldest, cell);
    }
    TF_RETURN_IF_ERROR(tensorflow::batch_util::CopyElementToSlice(cell, out, i));
  }
  return absl::OkStatus();
}

absl::Status PatternStream::Take(tensorflow::Allocator* allocator,
                                 std::vector<tensorflow::Tensor>* trajectory) {
  const Pending taken = pending_.front();
  pending_.pop_front();
  TF_RETURN_IF_ERROR(CheckPriority(taken.config, taken.priority));
  const StructuredConfig& config = evaluator_->configs()[static_cast<size_t>(taken.config)];
  const std::vector<ItemColumn>& columns =
      evaluator_->columns(static_cast<int>(taken.config));
  trajectory->clear();
  trajectory->resize(columns.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    TF_RETURN_IF_ERROR(
        MakeColumn(config.nodes[i], columns[i], allocator, &(*trajectory)[i]));
  }
  return absl::OkStatus();
}

// ---- Checkpoints ----------------------------------------------------------------

absl::Status PatternStream::SaveCells(const std::string& name,
                                      IteratorStateWriter* writer) const {
  for (size_t source = 0; source < cells_.size(); ++source) {
    const std::deque<tensorflow::Tensor>& cells = cells_[source];
    TF_RETURN_IF_ERROR(
        writer->WriteScalar(name, CountKey(source), static_cast<int64_t>(cells.size())));
    for (size_t i = 0; i < cells.size(); ++i) {
      TF_RETURN_IF_ERROR(writer->WriteTensor(name, CellKey(source, i), cells[i]));
    }
  }
  return absl::OkStatus();
}

absl::Status PatternStream::RestoreCells(const std::string& name,
                                         IteratorStateReader* reader) {
  for (size_t source = 0; source < cells_.size(); ++source) {
    int64_t count = 0;
    TF_RETURN_IF_ERROR(reader->ReadScalar(name, CountKey(source), &count));
    const int64_t most = evaluator_->history(static_cast<int>(source));
    if (count < 0 || count > most) {
      return absl::DataLossError(absl::StrCat("the checkpoint has ", count,
                                              " cells of component ", source,
                                              ", expected at most ", most));
    }
    cells_[source].clear();
    for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
      tensorflow::Tensor cell;
      TF_RETURN_IF_ERROR(reader->ReadTensor(name, CellKey(source, i), &cell));
      cells_[source].push_back(std::move(cell));
    }
  }
  return absl::OkStatus();
}

absl::Status PatternStream::Save(const std::string& name,
                                 IteratorStateWriter* writer) const {
  std::vector<int64_t> configs;
  std::vector<double> priorities;
  for (const Pending& pending : pending_) {
    configs.push_back(pending.config);
    priorities.push_back(pending.priority);
  }
  TF_RETURN_IF_ERROR(WriteVector(name, kEvaluator, evaluator_->Save(), writer));
  TF_RETURN_IF_ERROR(WriteVector(name, kPendingConfigs, configs, writer));
  TF_RETURN_IF_ERROR(WriteVector(name, kPendingPriorities, priorities, writer));
  return SaveCells(name, writer);
}

absl::Status PatternStream::RestorePending(const std::string& name,
                                           IteratorStateReader* reader) {
  std::vector<int64_t> configs;
  std::vector<double> priorities;
  TF_RETURN_IF_ERROR(ReadVector(name, kPendingConfigs, reader, &configs));
  TF_RETURN_IF_ERROR(ReadVector(name, kPendingPriorities, reader, &priorities));
  const auto most = static_cast<int64_t>(evaluator_->configs().size());
  const bool is_good = configs.size() == priorities.size() &&
                       std::all_of(configs.begin(), configs.end(), [most](int64_t config) {
                         return config >= 0 && config < most;
                       });
  if (!is_good) {
    return absl::DataLossError("the checkpoint's trajectories are of other configs");
  }
  pending_.clear();
  for (size_t i = 0; i < configs.size(); ++i) {
    pending_.push_back({configs[i], priorities[i]});
  }
  return absl::OkStatus();
}

absl::Status PatternStream::Restore(const std::string& name, IteratorStateReader* reader) {
  std::vector<int64_t> state;
  TF_RETURN_IF_ERROR(ReadVector(name, kEvaluator, reader, &state));
  TF_RETURN_IF_ERROR(ToTfStatus(evaluator_->Restore(state)));
  TF_RETURN_IF_ERROR(RestorePending(name, reader));
  return RestoreCells(name, reader);
}

}  // namespace reverb_tf
