// What a trajectory writer's handle of a graph stands for.
#ifndef REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_WRITER_RESOURCE_H_
#define REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_WRITER_RESOURCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "cc/api/client.h"
#include "cc/api/structured_writer.h"
#include "cc/api/trajectory_writer.h"
#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/base/tensor.h"
#include "cc/base/wait.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/platform/refcount.h"

namespace reverb_tf {

// What a handle op asks for.
struct WriterSetup {
  std::string address;              // of the client, for texts
  std::vector<TensorSpec> columns;  // a step's leaves, in order
  int64_t num_keep_alive_refs = 1;
  bool validate_items = true;
  int64_t max_in_flight_items = 0;   // 0: no bound
  std::vector<std::string> configs;  // serialised; none: items are created by ops
  int64_t num_envs = 0;              // 0: not vectorised

  bool operator==(const WriterSetup& o) const;
};

// history[start:stop:step] of a column, with Python's rules; squeezed: the cell `start`;
// with indices: those cells.
struct HistorySlice {
  std::string path;  // in the item
  int source = 0;    // position in WriterSetup::columns
  bool squeeze = false;
  std::optional<int32_t> start;
  std::optional<int32_t> stop;
  int32_t step = 1;
  std::optional<std::vector<int32_t>> indices;
};

// Cells that are appended, `n` to each environment. Of what isn't vectorised: of 0.
struct EnvCells {
  std::function<const CellView*(size_t env)> of;
  size_t n = 0;
};

// A TrajectoryWriter, or with configs a StructuredWriter; of several environments one each,
// siblings. The last reference's end flushes for at most 2 s. Thread-safe. Columns are
// numbered as in WriterSetup::columns.
//
// A call on several environments is checked for all before it is done for any; errors say
// which it is. `mask` tells the environments that a call is about; null: all. Their results
// go into arrays of as many numbers as there are writers.
class TrajectoryWriterResource : public tensorflow::ResourceBase {
 public:
  // INVALID_ARGUMENT for bad configs or columns. With validate_items the signatures are
  // fetched now, hence `wait`.
  static absl::Status Make(
      ReverbClient* client, WriterSetup setup, const WaitOptions& wait,
      tensorflow::core::RefCountPtr<TrajectoryWriterResource>* resource);

  const WriterSetup& setup() const { return setup_; }
  std::string DebugString() const override;

  // CellView::column of a column's cells.
  int source(size_t column) const { return sources_[column]; }
  bool creates_items_itself() const { return !setup_.configs.empty(); }
  // Whether new items may have to wait for those of before.
  bool has_bound() const { return setup_.max_in_flight_items > 0; }

  bool is_vector() const { return setup_.num_envs > 0; }
  size_t num_writers() const { return writers_.size(); }

  // As the writers'. The first step's index in the episode goes to *steps; -1: not meant.
  Status Append(const EnvCells& cells, AppendKind kind, const bool* mask,
                const WaitOptions& wait, int64_t* steps);
  Status Flush(int64_t ignore_last, const WaitOptions& wait);
  // Of no environment: doesn't flush.
  Status EndEpisode(bool clear_buffers, const bool* mask, const WaitOptions& wait);
  Result<int64_t> Close(const WaitOptions& wait);
  int64_t episode_steps(size_t env) const;
  int64_t pending_items() const;

  // Slices are of the history at the time of the call. INVALID_ARGUMENT naming the path:
  // an index out of range, a step of 0, and as TrajectoryWriter::CreateItem; also for a
  // writer with configs. `priorities` are one for each environment, or with
  // `one_priority` one for all. Keys of environments that are not meant are 0.
  Status CreateItem(const std::string& table, const double* priorities, bool one_priority,
                    const std::vector<HistorySlice>& slices, const bool* mask,
                    const WaitOptions& wait, uint64_t* keys);
  // The cells' values. REQUIRES: env < num_writers()
  Result<Tensor> Read(const HistorySlice& slice, size_t env) const;

 private:
  using Writer =
      std::variant<std::unique_ptr<TrajectoryWriter>, std::unique_ptr<StructuredWriter>>;

  // The right to call the writers of several environments as one, from Take on.
  class Turn;

  TrajectoryWriterResource(WriterSetup setup, std::vector<Writer> writers,
                           std::vector<int> sources)
      : setup_(std::move(setup)),
        sources_(std::move(sources)),
        writers_(std::move(writers)) {}

  static Result<Writer> MakeWriter(ReverbClient* client, const WriterSetup& setup,
                                   std::vector<StructuredConfig> configs,
                                   const WaitOptions& wait);
  static Result<std::vector<int>> MapColumns(const WriterSetup& setup,
                                             const Writer& writer);
  TrajectoryWriter* trajectory_writer(size_t env) const {
    return std::get<0>(writers_[env]).get();
  }
  StructuredWriter* structured_writer(size_t env) const {
    return std::get<1>(writers_[env]).get();
  }
  // The status, naming the environment if there are several.
  Status At(size_t env, const Status& status) const;
  // Calls call(env) for those meant, until one fails.
  template <typename Call>
  Status ForEach(const bool* mask, const Call& call) const;

  Status AppendOne(const CellView* cells, size_t n, AppendKind kind,
                   const WaitOptions& wait);
  Status CheckAppend(const EnvCells& cells, size_t env, AppendKind kind, int64_t* items);
  Status AppendChecked(const EnvCells& cells, size_t env, AppendKind kind);
  int64_t FirstStep(const CellView* cells, size_t env, AppendKind kind) const;
  // Errors of before; and waits for room for so many items, if there is a bound.
  Status WaitForRoom(int64_t items, const WaitOptions& wait);
  Status EndEpisodeOf(size_t env, bool clear_buffers);

  Status CheckHistory() const;
  Result<std::vector<ItemColumn>> ResolveAll(const std::vector<HistorySlice>& slices,
                                             size_t env) const;
  Result<ItemColumn> Resolve(const TrajectoryWriter& writer,
                             const HistorySlice& slice) const;
  Result<Tensor> Empty(const TrajectoryWriter& writer, const HistorySlice& slice) const;

  const WriterSetup setup_;
  const std::vector<int> sources_;
  const std::vector<Writer> writers_;
  Mutex mu_;
  CondVar turn_free_;
  bool turn_taken_ GUARDED_BY(mu_) = false;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_WRITER_RESOURCE_H_
