// Steps in, trajectories out: a PatternEvaluator (cc/api) and the cells that it speaks of.
#ifndef REVERB_TF_REVERB_TF_KERNELS_PATTERN_STREAM_H_
#define REVERB_TF_REVERB_TF_KERNELS_PATTERN_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "cc/api/structured_writer.h"
#include "cc/base/tensor.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/dataset.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace reverb_tf {

// A stream of steps, whose sources are the components in their order. Holds as many of the
// newest cells as the patterns reach. Thread-compatible.
class PatternStream {
 public:
  // `clear_after_episode`: patterns don't reach back over the end of an episode.
  // INVALID_ARGUMENT naming the position of a bad config.
  static absl::Status Make(const std::vector<StructuredConfig>& configs,
                           bool clear_after_episode,
                           std::unique_ptr<PatternStream>* stream);

  // Whether trajectories that end in the newest step are left to take.
  bool has_trajectory() const { return !pending_.empty(); }

  // The next step; with `ends_episode` the last of its episode. INVALID_ARGUMENT: a
  // condition or a priority can't read its component; then it is as if the step had not
  // been, but the episode ends. REQUIRES: !has_trajectory().
  absl::Status Append(const std::vector<tensorflow::Tensor>& step, bool ends_episode);

  // The columns of the next trajectory. INVALID_ARGUMENT naming the column, after which the
  // others can be taken: its cells are of several shapes, or the priority of td_error isn't
  // finite, for which a table would refuse the trajectory. REQUIRES: has_trajectory().
  absl::Status Take(tensorflow::Allocator* allocator,
                    std::vector<tensorflow::Tensor>* trajectory);

  // All of it, under `name` in an iterator's checkpoint.
  absl::Status Save(const std::string& name,
                    tensorflow::data::IteratorStateWriter* writer) const;
  absl::Status Restore(const std::string& name,
                       tensorflow::data::IteratorStateReader* reader);

 private:
  PatternStream(std::unique_ptr<PatternEvaluator> evaluator, bool clear_after_episode);

  // Cells of a step as the evaluator reads them.
  void FillViews(const std::vector<tensorflow::Tensor>& step);
  void Keep(const std::vector<tensorflow::Tensor>& step);
  void AddPending();
  absl::Status CheckPriority(int64_t config, double priority) const;
  absl::Status MakeColumn(const PatternNode& node, const ItemColumn& column,
                          tensorflow::Allocator* allocator, tensorflow::Tensor* out) const;
  absl::Status SaveCells(const std::string& name,
                         tensorflow::data::IteratorStateWriter* writer) const;
  absl::Status RestoreCells(const std::string& name,
                            tensorflow::data::IteratorStateReader* reader);
  absl::Status RestorePending(const std::string& name,
                              tensorflow::data::IteratorStateReader* reader);

  struct Pending {
    int64_t config;
    double priority;
  };

  const std::unique_ptr<PatternEvaluator> evaluator_;
  const bool clear_after_episode_;
  // The newest cells of each source, at most as many as patterns reach.
  std::vector<std::deque<tensorflow::Tensor>> cells_;
  std::deque<Pending> pending_;
  // Of the step at hand.
  std::vector<Shape> dims_;
  std::vector<CellView> views_;
  std::vector<PatternEvaluator::Firing> firings_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_PATTERN_STREAM_H_
