// The kernel behind PatternDataset.
#ifndef REVERB_TF_REVERB_TF_KERNELS_PATTERN_DATASET_OP_H_
#define REVERB_TF_REVERB_TF_KERNELS_PATTERN_DATASET_OP_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/api/structured_writer.h"
#include "tensorflow/core/data/captured_function.h"
#include "tensorflow/core/framework/dataset.h"

namespace reverb_tf {

// Makes datasets of the trajectories that a structured writer would insert, given the
// elements of another dataset as steps. All deciding is done by PatternEvaluator (cc/api).
class PatternDatasetOp : public tensorflow::data::UnaryDatasetOpKernel {
 public:
  static constexpr char kDatasetType[] = "ReverbTfPattern";
  static constexpr char kOtherArguments[] = "other_arguments";
  static constexpr char kIsEndOfEpisode[] = "is_end_of_episode";
  static constexpr char kTarguments[] = "Targuments";
  static constexpr char kConfigs[] = "configs";
  static constexpr char kClearAfterEpisode[] = "clear_after_episode";
  static constexpr char kDtypes[] = "dtypes";
  static constexpr char kShapes[] = "shapes";

  explicit PatternDatasetOp(tensorflow::OpKernelConstruction* ctx);

 protected:
  void MakeDataset(tensorflow::OpKernelContext* ctx, tensorflow::data::DatasetBase* input,
                   tensorflow::data::DatasetBase** output) override;

 private:
  class Dataset;

  // The op's attrs.
  struct Attrs {
    std::vector<std::string> serialized;    // the configs
    std::vector<StructuredConfig> configs;  // and decoded
    bool clear_after_episode = false;
    tensorflow::DataTypeVector dtypes;  // of a trajectory
    std::vector<tensorflow::PartialTensorShape> shapes;
  };

  // Whether every config makes trajectories of the attrs' dtypes and shapes from such
  // steps; INVALID_ARGUMENT naming position and column.
  absl::Status CheckConfigs(const tensorflow::data::DatasetBase& input) const;
  absl::Status CheckColumn(size_t column, tensorflow::DataType dtype,
                           const tensorflow::PartialTensorShape& shape) const;

  Attrs attrs_;
  std::shared_ptr<tensorflow::data::FunctionMetadata> is_end_of_episode_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_PATTERN_DATASET_OP_H_
