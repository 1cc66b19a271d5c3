// The Python side of a TrajectoryWriter: nests in, columns out.
#ifndef REVERB_TF_REVERB_TF_NATIVE_WRITER_H_
#define REVERB_TF_REVERB_TF_NATIVE_WRITER_H_

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cc/api/trajectory_writer.h"
#include "reverb_tf/native/interop.h"
#include "reverb_tf/native/nest.h"

namespace reverb_tf {

class Cells;

// Shared by a writer and all columns taken from it.
struct WriterState {
  Owned<TrajectoryWriter> writer;
};

// One call at a time. A thread that has to wait lets other Python threads go on.
class CallGate {
 public:
  // RuntimeError if this thread is inside already (a leaf's conversion calls append).
  class Hold {
   public:
    explicit Hold(CallGate* gate);
    ~Hold();
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

   private:
    CallGate* const gate_;
  };

 private:
  std::mutex mu_;
  std::thread::id holder_;  // guarded by the GIL
};

// Cells chosen for an item.
struct Column {
  std::shared_ptr<WriterState> state;
  std::string path;
  bool squeeze = false;
  std::vector<CellRun> runs;

  int64_t Length() const;
  CellRun Cell(int64_t index) const;
  Column Get(nb::object index) const;
  TensorSpec Spec() const;
  nb::object Numpy() const;
};

// The cells of one column in the episode, like a Python list. A live view.
class ColumnHistory {
 public:
  ColumnHistory(std::shared_ptr<WriterState> state, int column, std::string path)
      : state_(std::move(state)), column_(column), path_(std::move(path)) {}

  int64_t Length() const;
  Column Get(nb::object index) const;
  int64_t OldestIndex() const {
    return std::max<int64_t>(
        state_->writer->oldest_cell(column_) - state_->writer->history_begin(), 0);
  }
  const std::string& path() const { return path_; }

 private:
  // Appends the cell of a (possibly negative) index.
  void Add(int64_t index, Column* column) const;
  // The absolute number of a cell; IndexError if out of range.
  int64_t Resolve(int64_t index) const;
  // ValueError if the cell is a hole or has expired.
  void Check(int64_t cell) const;

  std::shared_ptr<WriterState> state_;
  int column_;
  std::string path_;
};

// The indices of a list, tuple or 1-d int array; TypeError for anything else.
nb::object IndexList(nb::object index, const std::string& path);

class NativeWriter {
 public:
  explicit NativeWriter(std::shared_ptr<WriterState> state) : state_(std::move(state)) {}
  NativeWriter(const NativeWriter&) = delete;
  NativeWriter& operator=(const NativeWriter&) = delete;

  void Append(nb::object data, bool partial_step);
  void AppendBatch(nb::object data);
  nb::object History();
  // Makes the structure known before the first append, and all there will be.
  void SetStructure(nb::object structure);
  // `cast`(value, path, is_batch) -> value, applied to every value of this path.
  void SetCast(const std::string& path, nb::object cast);
  // The dtype of the cells of this path, kInvalid if there are none.
  DType DTypeOf(const std::string& path);
  uint64_t CreateItem(const std::string& table, double priority, nb::object trajectory,
                      double timeout);
  void Flush(int64_t ignore_last, double timeout);
  void EndEpisode(bool clear_buffers, double timeout);
  int64_t Close(double timeout);
  void Configure(const std::string& path, std::optional<int64_t> keep,
                 std::optional<int64_t> max_chunk_length, std::optional<int> codec,
                 std::optional<bool> delta_encode);
  const TrajectoryWriter& writer() const { return *state_->writer; }

 private:
  void Gather(nb::object data, bool is_batch, Cells* cells);
  // Forgets the columns of leaves that were undone: their numbers are given anew.
  void DropUndone();

  std::shared_ptr<WriterState> state_;
  Nest nest_;
  std::vector<int> columns_;  // of the writer, by leaf of the nest
  std::map<std::string, nb::object> casts_;
  CallGate gate_;  // guards what the GIL can't: conversions run Python code
  nb::object history_;
  int history_leaves_ = -1;
};

void BindWriter(nb::module_& m);

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_WRITER_H_
