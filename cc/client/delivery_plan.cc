#include "cc/client/delivery_plan.h"

#include <utility>

namespace reverb_tf {
namespace {

// The spec of a whole trajectory of steps of `leaf`.
TensorSpec WithTime(TensorSpec leaf) {
  if (!leaf.unknown_rank) leaf.shape.insert(leaf.shape.begin(), -1);
  return leaf;
}

// A trajectory of `leaf` could be cut into steps.
bool HasTime(const TensorSpec& leaf) { return leaf.unknown_rank || !leaf.shape.empty(); }

// The spec of a step of trajectories of `leaf`. REQUIRES: HasTime(leaf)
TensorSpec WithoutTime(TensorSpec leaf) {
  if (!leaf.unknown_rank) leaf.shape.erase(leaf.shape.begin());
  return leaf;
}

// Some tensor is an instance of both.
bool AreCompatible(const TensorSpec& a, const TensorSpec& b) {
  if (a.dtype != b.dtype) return false;
  if (a.unknown_rank || b.unknown_rank) return true;
  if (a.shape.size() != b.shape.size()) return false;
  for (size_t i = 0; i < a.shape.size(); ++i) {
    if (a.shape[i] >= 0 && b.shape[i] >= 0 && a.shape[i] != b.shape[i]) return false;
  }
  return true;
}

std::string Hint(DType a, DType b) {
  const auto mixed_up = [&](DType wide, DType narrow) {
    return (a == wide && b == narrow) || (a == narrow && b == wide);
  };
  if (mixed_up(DType::kFloat64, DType::kFloat32)) return " (hint: float64 or float32?)";
  if (mixed_up(DType::kInt64, DType::kInt32)) return " (hint: int64 or int32?)";
  return "";
}

std::string Quoted(const std::string& path) {
  return path.empty() ? "(bare)" : "'" + path + "'";
}

// The column is an instance of `spec`.
bool IsInstance(const TensorSpec& spec, const DeliveredColumn& column) {
  const TensorSpec& cell = column.view.cell();
  if (spec.dtype != cell.dtype) return false;
  if (spec.unknown_rank) return true;
  const size_t time = column.squeeze ? 0 : 1;
  if (spec.shape.size() != cell.shape.size() + time) return false;
  if (time == 1 && spec.shape[0] >= 0 && spec.shape[0] != column.length()) return false;
  for (size_t i = 0; i < cell.shape.size(); ++i) {
    if (spec.shape[i + time] >= 0 && spec.shape[i + time] != cell.shape[i]) return false;
  }
  return true;
}

std::string ColumnText(DType dtype, const Shape& shape) {
  return DTypeName(dtype) + ShapeString(shape);
}

}  // namespace

Shape DeliveredColumn::shape() const {
  const Shape& cell = view.cell().shape;
  if (squeeze) return cell;
  Shape shape;
  shape.reserve(cell.size() + 1);
  shape.push_back(view.length());
  shape.insert(shape.end(), cell.begin(), cell.end());
  return shape;
}

Result<DeliveryPlan> DeliveryPlan::Make(const SamplerOptions& options,
                                        const TableConfig& table) {
  DeliveryPlan plan;
  plan.table_ = table.name;
  plan.require_steps_ = options.require_steps || options.emit_steps;
  plan.single_steps_ = options.single_steps;
  plan.emit_steps_ = options.emit_steps;
  plan.without_time_ = options.single_steps || options.emit_steps;
  if (!table.signature) plan.wrong_dtype_ = options.wrong_dtype;
  plan.adapt_all_ = table.signature.has_value() || options.require_steps;
  if (options.specs) {
    for (const TensorSpec& spec : *options.specs) {
      Column column;
      column.source = static_cast<int>(plan.columns_.size());
      column.path = spec.path;
      if (!spec.unknown_rank) column.rank = spec.shape.size();
      column.spec = spec;
      plan.columns_.push_back(std::move(column));
    }
    if (table.signature) RTF_RETURN_IF_ERROR(plan.MatchSignature(*options.specs, table));
    return plan;
  }
  if (!table.signature) return plan;
  for (const TensorSpec& leaf : table.signature->leaves) {
    Column column;
    column.source = static_cast<int>(plan.columns_.size());
    column.path = leaf.path;
    const bool steps =
        table.signature_scope == SignatureScope::kStep || options.require_steps;
    if (!steps && !leaf.unknown_rank) column.rank = leaf.shape.size();
    plan.columns_.push_back(std::move(column));
  }
  return plan;
}

Status DeliveryPlan::MatchSignature(const std::vector<TensorSpec>& specs,
                                    const TableConfig& table) {
  const std::vector<TensorSpec>& leaves = table.signature->leaves;
  std::vector<std::string> paths;
  paths.reserve(specs.size());
  for (const TensorSpec& spec : specs) paths.push_back(spec.path);
  const Result<std::vector<int>> match = MatchPaths(leaves, paths);
  if (!match.ok()) {
    return InvalidArgumentError("dtypes and shapes declared for table '" + table_ +
                                "': " + match.status().message());
  }
  for (size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    Column& column = columns_[static_cast<size_t>((*match)[leaf])];
    column.source = static_cast<int>(leaf);
    // A rank that wasn't declared is the signature's.
    if (!column.rank && !leaves[leaf].unknown_rank &&
        table.signature_scope != SignatureScope::kStep) {
      column.rank = leaves[leaf].shape.size();
    }
  }
  return DecideScope(leaves, table);
}

std::string DeliveryPlan::Expected(const TensorSpec& leaf, bool as_steps) const {
  if (!emit_steps_) return (as_steps && !single_steps_ ? WithTime(leaf) : leaf).ToString();
  if (as_steps) return leaf.ToString();
  if (HasTime(leaf)) return WithoutTime(leaf).ToString();
  return "a time dimension in the signature, which has " + leaf.ToString() +
         " (use TrajectoryDataset)";
}

Status DeliveryPlan::DecideScope(const std::vector<TensorSpec>& leaves,
                                 const TableConfig& table) {
  bool fits_trajectory = table.signature_scope != SignatureScope::kStep;
  bool fits_step = table.signature_scope != SignatureScope::kTrajectory;
  const bool expect_steps = !fits_trajectory || (emit_steps_ && fits_step);
  std::string differs;
  for (const Column& column : columns_) {
    const TensorSpec& leaf = leaves[static_cast<size_t>(column.source)];
    bool fits_leaf = AreCompatible(*column.spec, leaf);
    bool fits_steps = AreCompatible(*column.spec, WithTime(leaf));
    if (single_steps_) {
      fits_steps = fits_leaf;
      fits_leaf |= AreCompatible(WithTime(*column.spec), leaf);
    } else if (emit_steps_) {
      fits_steps = fits_leaf;
      fits_leaf = HasTime(leaf) && AreCompatible(WithTime(*column.spec), leaf);
    }
    fits_trajectory &= fits_leaf;
    fits_step &= fits_steps;
    if (expect_steps ? fits_steps : fits_leaf) continue;
    differs += (differs.empty() ? "" : ", ") + Quoted(leaf.path) + " got " +
               column.spec->ToString() + " expected " + Expected(leaf, expect_steps) +
               Hint(column.spec->dtype, leaf.dtype);
  }
  if (!fits_trajectory && !fits_step) {
    return InvalidArgumentError(
        "dtypes and shapes declared for table '" + table_ +
        "' don't match its signature (signature_scope " +
        SignatureScopeName(table.signature_scope) + "): differs: " + differs +
        "; declare what the signature says, or use from_table_signature");
  }
  if (fits_trajectory != fits_step) {
    scope_ = fits_step ? SignatureScope::kStep : SignatureScope::kTrajectory;
  }
  return OkStatus();
}

DeliveredColumn DeliveryPlan::column(const Item& item, int i) const {
  if (columns_.empty()) {
    const ColumnView view = item.column(i);
    return {view, view.squeeze || without_time_};
  }
  const Column& column = columns_[static_cast<size_t>(i)];
  DeliveredColumn out;
  out.view = item.column(column.source);
  out.squeeze = out.view.squeeze || without_time_;
  if (without_time_ || !column.rank || !(adapt_all_ || item.written_as_steps())) return out;
  const size_t cell_rank = out.view.cell().shape.size();
  if (*column.rank == cell_rank) {
    out.squeeze = out.view.length() == 1;
  } else if (*column.rank == cell_rank + 1) {
    out.squeeze = false;
  }
  return out;
}

std::string DeliveryPlan::Name(int i) const {
  const auto at = static_cast<size_t>(i);
  if (at >= columns_.size()) return "column [" + std::to_string(i) + "]";
  return columns_[at].path.empty() ? "the column" : "'" + columns_[at].path + "'";
}

Status DeliveryPlan::CheckSteps(const Item& item) const {
  bool has_steps = true;
  const ColumnView first = item.column(0);
  for (int i = 1; i < item.num_columns(); ++i) {
    const ColumnView column = item.column(i);
    has_steps &= column.squeeze == first.squeeze && column.length() == first.length();
  }
  if (has_steps) return OkStatus();
  std::string columns;
  for (int i = 0; i < num_columns(item); ++i) {
    const ColumnView column =
        item.column(columns_.empty() ? i : columns_[static_cast<size_t>(i)].source);
    columns += (i > 0 ? ", " : "") + Name(i) +
               (column.squeeze ? " has no time dimension"
                               : " has length " + std::to_string(column.length()));
  }
  return InvalidArgumentError("item " + std::to_string(item.key()) + " of table '" +
                              table_ + "' can't be split into steps: " + columns +
                              "; use emit_timesteps=False (TrajectoryDataset) to get its "
                              "columns whole");
}

Status DeliveryPlan::CheckSingleStep(const Item& item) const {
  std::string columns;
  for (int i = 0; i < num_columns(item); ++i) {
    const int64_t length = column(item, i).length();
    if (length == 1) continue;
    columns +=
        (columns.empty() ? "" : ", ") + Name(i) + " has length " + std::to_string(length);
  }
  if (columns.empty()) return OkStatus();
  return InvalidArgumentError("item " + std::to_string(item.key()) + " of table '" +
                              table_ + "' is not one step: " + columns +
                              "; use emit_trajectory=True to get its columns whole");
}

Status DeliveryPlan::Check(const Item& item) const {
  if (!columns_.empty() && item.num_columns() != static_cast<int>(columns_.size())) {
    const std::string key = std::to_string(item.key());
    return InvalidArgumentError("item " + key + " of table '" + table_ + "' has " +
                                std::to_string(item.num_columns()) + " columns, expected " +
                                std::to_string(columns_.size()) +
                                "; delete it with mutate_priorities('" + table_ +
                                "', deletes=[" + key + "])");
  }
  if (require_steps_) RTF_RETURN_IF_ERROR(CheckSteps(item));
  if (single_steps_) RTF_RETURN_IF_ERROR(CheckSingleStep(item));
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (!columns_[i].spec) continue;
    const TensorSpec& spec = *columns_[i].spec;
    const DeliveredColumn got = column(item, static_cast<int>(i));
    if (IsInstance(spec, got)) continue;
    const DType dtype = got.view.cell().dtype;
    const std::string key = std::to_string(item.key());
    return Status(dtype == spec.dtype ? StatusCode::kInvalidArgument : wrong_dtype_,
                  "item " + key + " of table '" + table_ +
                      "' doesn't match the declared specs: " + Name(static_cast<int>(i)) +
                      " got " + ColumnText(dtype, got.shape()) + " expected " +
                      spec.ToString() + Hint(dtype, spec.dtype) +
                      "; delete it with mutate_priorities('" + table_ + "', deletes=[" +
                      key + "]), or give the table a signature, which refuses such items");
  }
  return OkStatus();
}

}  // namespace reverb_tf
