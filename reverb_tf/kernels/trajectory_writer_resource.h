// What a trajectory writer's handle of a graph stands for.
#ifndef REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_WRITER_RESOURCE_H_
#define REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_WRITER_RESOURCE_H_

#include <cstdint>
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

  bool operator==(const WriterSetup& o) const;
};

// history[start:stop:step] of a column, with Python's rules; squeezed: the cell `start`.
struct HistorySlice {
  std::string path;  // in the item
  int source = 0;    // position in WriterSetup::columns
  bool squeeze = false;
  std::optional<int32_t> start;
  std::optional<int32_t> stop;
  int32_t step = 1;
};

// A TrajectoryWriter, or with configs a StructuredWriter. The last reference's end
// flushes for at most 2 s. Thread-safe. Columns are numbered as in WriterSetup::columns.
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

  // As the writers'.
  Status Append(const CellView* cells, size_t n, bool partial_step,
                const WaitOptions& wait);
  Status AppendBatch(const CellView* cells, size_t n, const WaitOptions& wait);
  Status Flush(int64_t ignore_last, const WaitOptions& wait);
  Status EndEpisode(bool clear_buffers, const WaitOptions& wait);
  Result<int64_t> Close(const WaitOptions& wait);
  int64_t episode_steps() const;
  int64_t pending_items() const;

  // Slices are of the history at the time of the call. INVALID_ARGUMENT naming the path:
  // an index out of range, a step of 0, and as TrajectoryWriter::CreateItem; also for a
  // writer with configs.
  Result<uint64_t> CreateItem(const std::string& table, double priority,
                              const std::vector<HistorySlice>& slices,
                              const WaitOptions& wait);
  // The cells' values.
  Result<Tensor> Read(const HistorySlice& slice) const;

 private:
  using Writer =
      std::variant<std::unique_ptr<TrajectoryWriter>, std::unique_ptr<StructuredWriter>>;

  TrajectoryWriterResource(WriterSetup setup, Writer writer, std::vector<int> sources)
      : setup_(std::move(setup)),
        sources_(std::move(sources)),
        writer_(std::move(writer)) {}

  static Result<Writer> MakeWriter(ReverbClient* client, const WriterSetup& setup,
                                   std::vector<StructuredConfig> configs,
                                   const WaitOptions& wait);
  static Result<std::vector<int>> MapColumns(const WriterSetup& setup,
                                             const Writer& writer);
  // The trajectory writer; INVALID_ARGUMENT with configs.
  Result<TrajectoryWriter*> WithHistory() const;
  Result<ItemColumn> Resolve(const TrajectoryWriter& writer,
                             const HistorySlice& slice) const;
  Result<Tensor> Empty(const TrajectoryWriter& writer, const HistorySlice& slice) const;

  const WriterSetup setup_;
  const std::vector<int> sources_;
  const Writer writer_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_TRAJECTORY_WRITER_RESOURCE_H_
