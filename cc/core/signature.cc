#include "cc/core/signature.h"

#include <algorithm>
#include <unordered_map>

namespace reverb_tf {
namespace {

constexpr size_t kMaxListed = 20;

// "a, b, c", cut off after kMaxListed; a bare leaf shows as "(bare)".
class PathList {
 public:
  void Add(const std::string& text) {
    if (++count_ > kMaxListed) return;
    text_ += (count_ == 1 ? "" : ", ") + (text.empty() ? "(bare)" : text);
  }
  bool empty() const { return count_ == 0; }
  std::string text() const {
    return count_ <= kMaxListed
               ? text_
               : text_ + " and " + std::to_string(count_ - kMaxListed) + " more";
  }

 private:
  size_t count_ = 0;
  std::string text_;
};

std::string LeafPaths(const std::vector<TensorSpec>& leaves) {
  PathList list;
  for (const TensorSpec& leaf : leaves) list.Add(leaf.path);
  return list.text();
}

Status PathsDiffer(const PathList& missing, const PathList& extra) {
  std::string message = "the structure does not match the signature: ";
  if (!missing.empty()) message += "missing: " + missing.text();
  if (!extra.empty()) message += (missing.empty() ? "extra: " : "; extra: ") + extra.text();
  return InvalidArgumentError(std::move(message));
}

Result<std::vector<int>> MatchByPosition(const std::vector<TensorSpec>& signature,
                                         const std::vector<std::string>& paths) {
  std::vector<int> columns;
  PathList missing;
  PathList extra;
  for (size_t i = 0; i < std::max(signature.size(), paths.size()); ++i) {
    if (i >= paths.size()) {
      missing.Add(signature[i].path);
    } else if (i >= signature.size()) {
      extra.Add(paths[i]);
    } else {
      columns.push_back(static_cast<int>(i));
    }
  }
  if (!missing.empty() || !extra.empty()) return PathsDiffer(missing, extra);
  return columns;
}

Result<std::vector<int>> MatchByPath(const std::vector<TensorSpec>& signature,
                                     const std::vector<std::string>& paths) {
  std::unordered_map<std::string_view, int> unmatched;
  PathList missing;
  PathList extra;
  for (size_t i = 0; i < paths.size(); ++i) {
    if (!unmatched.emplace(paths[i], static_cast<int>(i)).second) extra.Add(paths[i]);
  }
  std::vector<int> columns;
  for (const TensorSpec& leaf : signature) {
    const auto it = unmatched.find(leaf.path);
    if (it == unmatched.end()) {
      missing.Add(leaf.path);
    } else {
      columns.push_back(it->second);
      unmatched.erase(it);
    }
  }
  for (const std::string& path : paths) {
    if (unmatched.count(path)) extra.Add(path);
  }
  if (!missing.empty() || !extra.empty()) return PathsDiffer(missing, extra);
  return columns;
}

// ---- the two views of an item ----

bool IsCompatible(const TensorSpec& spec, const ColumnShapeRef& column, bool with_length) {
  if (spec.dtype != column.dtype) return false;
  if (spec.unknown_rank) return true;
  const Shape& cell = *column.cell;
  const size_t extra = with_length ? 1 : 0;
  if (spec.shape.size() != cell.size() + extra) return false;
  if (with_length && spec.shape[0] >= 0 && spec.shape[0] != column.length) return false;
  for (size_t i = 0; i < cell.size(); ++i) {
    const int64_t expected = spec.shape[i + extra];
    if (expected >= 0 && expected != cell[i]) return false;
  }
  return true;
}

// Rows of the step view; 0 if there is none.
int64_t NumSteps(const std::vector<ColumnShapeRef>& columns) {
  if (columns.empty()) return 0;
  const bool squeezed = columns[0].squeeze;
  for (const ColumnShapeRef& column : columns) {
    if (column.squeeze != squeezed || column.length != columns[0].length) return 0;
  }
  return columns[0].length;
}

enum class View { kTrajectory, kStep };

bool HasLength(View view, const ColumnShapeRef& column) {
  return view == View::kTrajectory && !column.squeeze;
}

bool Matches(const Signature& signature, const std::vector<ColumnShapeRef>& columns,
             View view) {
  if (view == View::kStep && NumSteps(columns) == 0) return false;
  for (size_t i = 0; i < columns.size(); ++i) {
    if (!IsCompatible(signature.leaves[i], columns[i], HasLength(view, columns[i]))) {
      return false;
    }
  }
  return true;
}

std::string Hint(DType got, DType expected) {
  const bool mixed_up = (got == DType::kFloat64 && expected == DType::kFloat32) ||
                        (got == DType::kFloat32 && expected == DType::kFloat64) ||
                        (got == DType::kInt64 && expected == DType::kInt32) ||
                        (got == DType::kInt32 && expected == DType::kInt64);
  if (!mixed_up) return "";
  const std::string name = DTypeName(expected);
  return " (hint: Python and numpy numbers are 64 bits wide unless told otherwise; "
         "convert with np." +
         name + "(…) or give the writer a step_spec)";
}

Status Differs(const Signature& signature, const std::vector<ColumnShapeRef>& columns,
               View view) {
  PathList list;
  std::string hint;
  for (size_t i = 0; i < columns.size(); ++i) {
    const TensorSpec& leaf = signature.leaves[i];
    const ColumnShapeRef& column = columns[i];
    const bool with_length = HasLength(view, column);
    if (IsCompatible(leaf, column, with_length)) continue;
    TensorSpec got;
    got.dtype = column.dtype;
    if (with_length) got.shape.push_back(column.length);
    got.shape.insert(got.shape.end(), column.cell->begin(), column.cell->end());
    list.Add((leaf.path.empty() ? "(bare)" : leaf.path) + " got " + got.ToString() +
             " expected " + leaf.ToString());
    if (hint.empty()) hint = Hint(column.dtype, leaf.dtype);
  }
  if (list.empty()) {
    return InvalidArgumentError(
        "the item does not match the signature: its columns differ in length, so it "
        "has no steps, which a table with signature_scope='step' needs");
  }
  return InvalidArgumentError(
      "the item does not match the signature: differs: " + list.text() + hint);
}

Status Contradicts(SignatureScope scope) {
  const bool trajectory = scope == SignatureScope::kTrajectory;
  const std::string whole = "whole trajectories (with their leading dimension)";
  const std::string steps = "single steps";
  return InvalidArgumentError(
      "the table's signature describes " + (trajectory ? whole : steps) +
      ", as earlier items, a reader or signature_scope='" + SignatureScopeName(scope) +
      "' decided; this item matches it only as one of " + (trajectory ? steps : whole) +
      ". Use one kind of item a table, and give the table signature_scope= to say which");
}

// The answer for an item that matches in neither of the ways that `scope` permits.
Status Refuse(const Signature& signature, const std::vector<ColumnShapeRef>& columns,
              bool written_as_steps, SignatureScope scope) {
  const bool steps_wanted =
      scope == SignatureScope::kStep ||
      (scope == SignatureScope::kUndecided && written_as_steps && NumSteps(columns) > 0);
  const View other = scope == SignatureScope::kStep ? View::kTrajectory : View::kStep;
  if (scope != SignatureScope::kUndecided && Matches(signature, columns, other)) {
    return Contradicts(scope);
  }
  Status status =
      Differs(signature, columns, steps_wanted ? View::kStep : View::kTrajectory);
  if (scope != SignatureScope::kUndecided || written_as_steps ||
      !Matches(signature, columns, View::kStep)) {
    return status;
  }
  return InvalidArgumentError(status.message() +
                              " (hint: the signature fits the item's single steps; give "
                              "the table signature_scope='step', or the signature a "
                              "leading dimension)");
}

Status CheckColumnCount(const Signature& signature, size_t columns) {
  if (columns == signature.leaves.size()) return OkStatus();
  return InvalidArgumentError(
      "the item has " + std::to_string(columns) + " columns, the signature " +
      std::to_string(signature.leaves.size()) + ": " + LeafPaths(signature.leaves));
}

}  // namespace

bool PathHasName(std::string_view path) {
  // Positions are "[digits]"; anything else is a name.
  size_t i = 0;
  while (i < path.size() && path[i] == '[') {
    const size_t close = path.find_first_not_of("0123456789", i + 1);
    if (close == i + 1 || close == std::string_view::npos || path[close] != ']') break;
    i = close + 1;
  }
  return i < path.size();
}

const char* SignatureScopeName(SignatureScope scope) {
  switch (scope) {
    case SignatureScope::kTrajectory:
      return "trajectory";
    case SignatureScope::kStep:
      return "step";
    case SignatureScope::kUndecided:
      break;
  }
  return "undecided";
}

Result<std::vector<int>> MatchPaths(const std::vector<TensorSpec>& signature,
                                    const std::vector<std::string>& paths) {
  const bool signature_named =
      std::any_of(signature.begin(), signature.end(),
                  [](const TensorSpec& leaf) { return PathHasName(leaf.path); });
  const bool paths_named =
      std::any_of(paths.begin(), paths.end(),
                  [](const std::string& path) { return PathHasName(path); });
  return signature_named && paths_named ? MatchByPath(signature, paths)
                                        : MatchByPosition(signature, paths);
}

Status CheckSignature(const Signature& signature,
                      const std::vector<ColumnShapeRef>& columns, bool written_as_steps,
                      SignatureScope* scope) {
  RTF_RETURN_IF_ERROR(CheckColumnCount(signature, columns.size()));
  if (*scope == SignatureScope::kStep) {
    if (Matches(signature, columns, View::kStep)) return OkStatus();
    return Refuse(signature, columns, written_as_steps, *scope);
  }
  const bool undecided = *scope == SignatureScope::kUndecided;
  if (Matches(signature, columns, View::kTrajectory)) {
    // An item that fits both scopes decides nothing.
    if (undecided && !Matches(signature, columns, View::kStep)) {
      *scope = SignatureScope::kTrajectory;
    }
    return OkStatus();
  }
  if (!written_as_steps || !Matches(signature, columns, View::kStep)) {
    return Refuse(signature, columns, written_as_steps, *scope);
  }
  if (NumSteps(columns) == 1) return OkStatus();
  if (!undecided) return Contradicts(*scope);
  *scope = SignatureScope::kStep;
  return OkStatus();
}

Status CheckSignature(const Signature& signature, const std::vector<ColumnShape>& columns,
                      bool written_as_steps, SignatureScope* scope) {
  std::vector<ColumnShapeRef> refs;
  refs.reserve(columns.size());
  for (const ColumnShape& c : columns) {
    refs.push_back({c.dtype, &c.cell, c.length, c.squeeze});
  }
  return CheckSignature(signature, refs, written_as_steps, scope);
}

}  // namespace reverb_tf
