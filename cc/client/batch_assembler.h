// Samples into tensors: every row is copied or decoded once, straight to its place.
#ifndef REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_
#define REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/api/sampler.h"
#include "cc/base/status.h"
#include "cc/client/delivery_plan.h"
#include "cc/core/table.h"

namespace reverb_tf {

// Steps [first, first + count) of a sample.
struct StepRun {
  const SampledItem* sample = nullptr;
  int32_t first = 0;
  int32_t count = 0;
};

// Plain copies of chunks whose rows go into several batches, so that each is decoded once.
// Keeps what the last batch used. Thread-compatible.
class PlainChunks {
 public:
  // Forgets what the last batch didn't use.
  void BeginBatch();
  Result<ChunkPtr> Get(const ChunkPtr& chunk);

 private:
  struct Entry {
    ChunkPtr chunk;  // keeps the map's key
    ChunkPtr plain;
  };
  using Map = std::unordered_map<const Chunk*, Entry>;
  Map current_;
  Map last_;
};

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

  // The steps as [B, …], or (not `batched`) the only one without batch dimension; each has
  // its item's info. Errors as of the others.
  // REQUIRES: runs is not empty; the plan is of emit_steps, Check() of each item is OK.
  Status AssembleSteps(const std::vector<StepRun>& runs, bool batched, PlainChunks* plain,
                       SampleBatch* out) const;

 private:
  using Columns = std::vector<DeliveredColumn>;

  // The tensor of column `index` of all samples.
  Status FillColumn(int index, const Columns& columns, SampleBatch* out) const;
  Status CheckAlike(int index, const Columns& columns) const;
  // The same of steps. `slices` is scratch.
  Status FillSteps(int index, const std::vector<StepRun>& runs, bool batched,
                   PlainChunks* plain, std::vector<ChunkSlice>* slices,
                   SampleBatch* out) const;
  Status CheckCell(int index, const StepRun& run, const TensorSpec& cell) const;

  const DeliveryPlan plan_;
  const bool pad_to_longest_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_BATCH_ASSEMBLER_H_
