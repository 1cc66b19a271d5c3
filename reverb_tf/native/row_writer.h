// The Python side of the row writer: steps in, items of the newest steps out.
#ifndef REVERB_TF_REVERB_TF_NATIVE_ROW_WRITER_H_
#define REVERB_TF_REVERB_TF_NATIVE_ROW_WRITER_H_

#include <nanobind/nanobind.h>

#include <memory>
#include <string>
#include <vector>

#include "cc/api/trajectory_writer.h"
#include "reverb_tf/native/nest.h"
#include "reverb_tf/native/writer.h"

namespace reverb_tf {

class Cells;

struct RowWriterOptions {
  int64_t max_sequence_length = 1;  // newest steps that items may hold
  int64_t max_in_flight_items = 0;  // unconfirmed ones; 0: no bound
  ColumnOptions column;             // of every leaf
};

// A TrajectoryWriter that writes steps: a column a leaf, which every step has. The
// first step fixes the paths of the leaves, nothing fixes their dtypes and shapes.
// Calls of several threads interleave whole.
class NativeRowWriter {
 public:
  // `writer` writes steps and sets no bound to what is in flight.
  NativeRowWriter(std::unique_ptr<TrajectoryWriter> writer, RowWriterOptions options);
  NativeRowWriter(const NativeRowWriter&) = delete;
  NativeRowWriter& operator=(const NativeRowWriter&) = delete;

  void Append(nb::object step);
  // Leaves [T, ...]: T steps.
  void AppendSequence(nb::object sequence);
  uint64_t CreateItem(const std::string& table, int64_t num_timesteps, double priority,
                      double timeout);
  void Flush(double timeout);
  void Close(bool retry_on_unavailable, double timeout);
  int64_t pending_items() const { return state_.writer->pending_items(); }

 private:
  void Gather(nb::object step, Cells* cells);
  void CheckLeaves(const Cells& cells) const;
  // After an append: its error, or the paths of the leaves are what they are.
  void Settle(const Status& status);
  bool IsFull() const;
  // Points the columns at the newest `num_timesteps` steps.
  void Select(int64_t num_timesteps);

  const RowWriterOptions options_;
  WriterState state_;
  CallGate gate_;  // guards what follows: conversions run Python code
  Nest nest_;
  bool fixed_ = false;               // there was a step
  std::vector<ItemColumn> columns_;  // by leaf, of one run each
};

void BindRowWriter(nb::module_& m);

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_ROW_WRITER_H_
