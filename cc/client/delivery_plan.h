// What a reader gets of a table's items: which columns, in which order and rank; and
// which items it doesn't get.
#ifndef REVERB_TF_CC_CLIENT_DELIVERY_PLAN_H_
#define REVERB_TF_CC_CLIENT_DELIVERY_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "cc/api/sampler.h"
#include "cc/base/status.h"
#include "cc/core/table.h"

namespace reverb_tf {

// A column as it is delivered: the item's, with or without its time dimension.
struct DeliveredColumn {
  ColumnView view;
  bool squeeze = false;

  // Cells along time: 1 if squeezed.
  int64_t length() const { return view.length(); }
  Shape shape() const;
};

// Immutable once made; thread-safe.
class DeliveryPlan {
 public:
  // Matches what the reader declared (options.specs, by path) with the table's signature
  // (api: §9.2). INVALID_ARGUMENT with both sides by path if they don't fit.
  static Result<DeliveryPlan> Make(const SamplerOptions& options, const TableConfig& table);

  // The scope that the declared specs ask for; kUndecided when they fit both or there
  // are none.
  SignatureScope scope() const { return scope_; }

  // OK if the sample may be delivered. INVALID_ARGUMENT (or options.wrong_dtype) names its
  // key, the path, what was got and expected, and how to get rid of the item.
  Status Check(const Item& item) const;

  int num_columns(const Item& item) const {
    return columns_.empty() ? item.num_columns() : static_cast<int>(columns_.size());
  }
  // Delivered column `i`. REQUIRES: Check(item).ok()
  DeliveredColumn column(const Item& item, int i) const;
  // Its name in texts: "'obs'", "column [1]".
  std::string Name(int i) const;

 private:
  struct Column {
    int source = 0;  // column of the item
    std::string path;
    // Where known, the rank to deliver in if it can be had by adding or dropping a time
    // dimension of 1.
    std::optional<size_t> rank;
    std::optional<TensorSpec> spec;  // what the reader declared
  };

  Status MatchSignature(const std::vector<TensorSpec>& specs, const TableConfig& table);
  Status DecideScope(const std::vector<TensorSpec>& leaves, const TableConfig& table);
  // What a reader should have declared for `leaf`.
  std::string Expected(const TensorSpec& leaf, bool as_steps) const;
  Status CheckSteps(const Item& item) const;
  Status CheckSingleStep(const Item& item) const;

  std::string table_;
  std::vector<Column> columns_;  // empty: all of the item, as they are
  SignatureScope scope_ = SignatureScope::kUndecided;
  bool require_steps_ = false;
  bool single_steps_ = false;
  bool emit_steps_ = false;
  bool without_time_ = false;  // columns are delivered so
  StatusCode wrong_dtype_ = StatusCode::kInvalidArgument;
  // Without a signature only items written as steps change their rank, unless steps
  // are asked for.
  bool adapt_all_ = false;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_DELIVERY_PLAN_H_
