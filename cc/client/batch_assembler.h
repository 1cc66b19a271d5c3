// Samples into tensors: every row is copied or decoded once, straight to its place.
#ifndef REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_
#define REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_

#include <optional>
#include <string>
#include <vector>

#include "cc/api/sampler.h"
#include "cc/base/status.h"
#include "cc/core/table.h"

namespace reverb_tf {

// How a reader wants the columns of its samples.
struct ColumnLayout {
  // Item column of each delivered column; empty: all, in their order.
  std::vector<int> order;
  // What the reader declared, in delivered order (paths for texts; empty: anything).
  std::vector<TensorSpec> specs;
  bool check_specs = false;
  bool require_steps = false;
  bool pad_to_longest = false;
};

// Thread-compatible.
class BatchAssembler {
 public:
  explicit BatchAssembler(ColumnLayout layout) : layout_(std::move(layout)) {}

  // OK if the sample may be delivered. INVALID_ARGUMENT names key, path, what was got
  // and expected, and the way out.
  Status Check(const SampledItem& sample) const;

  // Tensors of one sample. A column that is one whole plain chunk with a buffer of its
  // own, 64-byte aligned, shares it.
  Status AssembleOne(const SampledItem& sample, SampleBatch* out) const;
  // Tensors of `samples`, [B, …]. INVALID_ARGUMENT for columns of unequal dtype, cell or
  // (without pad_to_longest) length, naming the path, both and the cures.
  Status AssembleBatch(const std::vector<SampledItem>& samples, SampleBatch* out) const;

 private:
  struct View;

  int NumColumns(const Item& item) const;
  View ColumnOf(const Item& item, int i) const;
  std::string PathOf(int i) const;
  Status CheckSteps(const SampledItem& sample) const;
  Status Batch(const std::vector<SampledItem>& samples, int i, SampleBatch* out) const;

  const ColumnLayout layout_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_
