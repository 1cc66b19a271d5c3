// Samples into tensors: every row is copied or decoded once, straight to its place.
#ifndef REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_
#define REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_

#include <utility>
#include <vector>

#include "cc/api/sampler.h"
#include "cc/base/status.h"
#include "cc/client/delivery_plan.h"
#include "cc/core/table.h"

namespace reverb_tf {

// Fills SampleBatches. One copy a row (none for a column that can share its chunk's
// buffer); a compressed chunk that several slices of a column use is decoded once.
// One allocation a column; `out` is reused, so that a caller who gives the same one
// again saves those of its vectors. Immutable and thread-safe.
class BatchAssembler {
 public:
  BatchAssembler(DeliveryPlan plan, bool pad_to_longest)
      : plan_(std::move(plan)), pad_to_longest_(pad_to_longest) {}

  const DeliveryPlan& plan() const { return plan_; }

  // One sample, columns as they are. A column that is one whole plain chunk with a
  // 64-byte aligned buffer of its own shares it (writable = false).
  // DATA_LOSS for a damaged chunk, RESOURCE_EXHAUSTED without memory; then `out` is
  // unspecified. REQUIRES: plan().Check() of the item is OK.
  Status AssembleOne(const SampledItem& sample, SampleBatch* out) const;

  // The samples as [B, …]. Also INVALID_ARGUMENT for columns that differ in dtype, cell or
  // (without padding) length: names the path, both shapes and the cures.
  // REQUIRES: samples is not empty, plan().Check() of each is OK.
  Status AssembleBatch(const std::vector<const SampledItem*>& samples,
                       SampleBatch* out) const;

 private:
  using Columns = std::vector<DeliveredColumn>;

  // The tensor of column `index` of all samples.
  Status FillColumn(int index, const Columns& columns, SampleBatch* out) const;
  Status CheckAlike(int index, const Columns& columns) const;

  const DeliveryPlan plan_;
  const bool pad_to_longest_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_
