// The kernel behind TrajectoryDataset and TimestepDataset.
#ifndef REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_DATASET_OP_H_
#define REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_DATASET_OP_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tensorflow/core/framework/dataset.h"

namespace reverb_tf {

// The op's attrs and inputs, in the units of its documentation.
struct TrajectoryDatasetOptions {
  bool timesteps = false;  // elements are steps of items
  std::string server_address;
  std::string table;
  int64_t seed = -1;
  // Five of the info, then those of the data, of one sample.
  tensorflow::DataTypeVector dtypes;
  std::vector<tensorflow::PartialTensorShape> shapes;
  std::vector<std::string> paths;  // of the data
  int64_t max_in_flight_samples_per_worker = -1;
  int64_t num_workers_per_iterator = -1;
  int64_t max_samples_per_stream = -1;
  int64_t rate_limiter_timeout_ms = -1;
  int64_t max_samples = -1;
  int64_t batch_size = 0;
  bool drop_remainder = false;
  bool pad_to_longest = false;
  std::string on_timeout;
  int64_t consume_ahead = 0;
  int64_t max_age_ms = -1;
  int64_t reconnect_timeout_ms = -1;
};

// Makes datasets of a table's samples, or of their steps. All sampling is done by Sampler
// (cc/api); here attrs become its options and its batches tensors.
class TrajectoryDatasetOp : public tensorflow::data::DatasetOpKernel {
 public:
  static constexpr char kDatasetType[] = "ReverbTfTrajectory";
  static constexpr char kServerAddress[] = "server_address";
  static constexpr char kTable[] = "table";
  static constexpr char kSeed[] = "seed";
  static constexpr char kDtypes[] = "dtypes";
  static constexpr char kShapes[] = "shapes";
  static constexpr char kPaths[] = "paths";
  static constexpr char kMaxInFlight[] = "max_in_flight_samples_per_worker";
  static constexpr char kNumWorkers[] = "num_workers_per_iterator";
  static constexpr char kMaxSamplesPerStream[] = "max_samples_per_stream";
  static constexpr char kRateLimiterTimeoutMs[] = "rate_limiter_timeout_ms";
  static constexpr char kMaxSamples[] = "max_samples";
  static constexpr char kBatchSize[] = "batch_size";
  static constexpr char kDropRemainder[] = "drop_remainder";
  static constexpr char kPadToLongest[] = "pad_to_longest";
  static constexpr char kOnTimeout[] = "on_timeout";
  static constexpr char kConsumeAhead[] = "consume_ahead";
  static constexpr char kMaxAgeMs[] = "max_age_ms";
  static constexpr char kReconnectTimeoutMs[] = "reconnect_timeout_ms";

  explicit TrajectoryDatasetOp(tensorflow::OpKernelConstruction* ctx);

 protected:
  void MakeDataset(tensorflow::OpKernelContext* ctx,
                   tensorflow::data::DatasetBase** output) override;

 private:
  class Dataset;

  TrajectoryDatasetOptions attrs_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_DATASET_OP_H_
