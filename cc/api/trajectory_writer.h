// Writing trajectories: append steps, create items that refer to them.
#ifndef REVERB_TF_CC_API_TRAJECTORY_WRITER_H_
#define REVERB_TF_CC_API_TRAJECTORY_WRITER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/tensor.h"
#include "cc/base/wait.h"

namespace reverb_tf {

struct TrajectoryWriterOptions {
  // Newest cells of each column that items may refer to; >= 1.
  int64_t num_keep_alive_refs = 1;
  bool validate_items = true;
  // CreateItem waits while so much is created and unconfirmed; 0: no bound.
  int64_t max_in_flight_items = 0;
  int64_t max_in_flight_bytes = 0;
  // Items are steps, not trajectories (api: "written as"). For the row writer, whose
  // columns may change dtype and shape: cells of before have expired then.
  bool writes_steps = false;
};

enum class Codec : uint8_t { kAuto = 0, kNone = 1, kSnappy = 2 };

struct ColumnOptions {
  std::optional<int64_t> num_keep_alive_refs;
  std::optional<int64_t> max_chunk_length;  // 1 … num_keep_alive_refs; else automatic
  std::optional<Codec> codec;
  std::optional<bool> delta_encode;
};

// One cell, or [T, …] cells, of a column; contiguous row-major little-endian bytes
// (strings: content form). Read during the call only.
struct CellView {
  int column = 0;
  DType dtype = DType::kInvalid;
  const int64_t* dims = nullptr;
  int rank = 0;
  const void* data = nullptr;
  size_t bytes = 0;
};

// Cells first, first + stride, …, `count` of them, of one column. Cells are
// numbered from 0 over the writer's whole life, also across episodes.
struct CellRun {
  int column = 0;
  int64_t first = 0;
  int64_t stride = 1;
  int64_t count = 0;
};

// What an append appends: a step, a part of one that stays open, or T steps.
enum class AppendKind { kStep, kPartialStep, kBatch };

// A column of an item: cells of one or several source columns, in this order.
struct ItemColumn {
  std::string path;  // in the item's own structure
  bool squeeze = false;
  std::vector<CellRun> runs;
};

// An item that is checked and not queued. It keeps the data that it refers to.
class PreparedItem {
 public:
  virtual ~PreparedItem() = default;
};

// Order of use: ((Append* | CreateItem | Flush)* EndEpisode)* Close. Each call is
// atomic; calls of several threads interleave whole. An error that the server
// reported for an item is returned once by the next call, before it does anything.
class TrajectoryWriter {
 public:
  // Flushes for at most 2 s, then drops what is left with a warning.
  virtual ~TrajectoryWriter() = default;

  // A writer of steps of its own, without columns yet, whose items go the same way. What
  // is of items is common to siblings: order, bounds, waits, errors of before, counts; so
  // is Close, and the end of one closes all.
  virtual std::unique_ptr<TrajectoryWriter> NewSibling() const = 0;

  // The index of the column of this path; made if new. Its earlier cells of this
  // episode are holes.
  virtual int Column(const std::string& path) = 0;
  virtual Status Configure(const std::string& path, const ColumnOptions& options) = 0;

  // One step: one cell for each given column, holes for the others. All or
  // nothing. INVALID_ARGUMENT naming the path: dtype or shape differs from the
  // column's first cell, or the column is set already in this (partial) step.
  virtual Status Append(const CellView* cells, size_t n, bool partial_step) = 0;
  // T steps at once; every view is [T, …]. INVALID_ARGUMENT also while a step is open.
  virtual Status AppendBatch(const CellView* cells, size_t n) = 0;
  // The halves of an append, for callers that append to several writers or to none.
  // CheckAppend refuses what the append would, and changes nothing.
  virtual Status CheckAppend(const CellView* cells, size_t n, AppendKind kind) = 0;
  // The rest; errors of before wait for the next call. REQUIRES: CheckAppend was OK,
  // and no call but Flush and Close came since.
  virtual Status AppendChecked(const CellView* cells, size_t n, AppendKind kind) = 0;

  // Closed steps since the episode began; and whether a partial step is open.
  virtual int64_t episode_steps() const = 0;
  virtual bool step_is_open() const = 0;
  // The episode's cells are [history_begin, history_end), the open step included.
  virtual int64_t history_begin() const = 0;
  virtual int64_t history_end() const = 0;
  // First cell of the column that items may still refer to.
  virtual int64_t oldest_cell(int column) const = 0;
  virtual bool is_hole(int column, int64_t cell) const = 0;
  // Dtype and cell shape; kInvalid before its first cell. path is the column's.
  virtual TensorSpec column_spec(int column) const = 0;
  // The cells' values, squeezed or [n, …]. FAILED_PRECONDITION if one expired.
  virtual Result<Tensor> Read(const ItemColumn& column) const = 0;

  // Queues an item; returns its key (non-zero, < 2^63). INVALID_ARGUMENT: no
  // column, an empty one, holes, expired cells (names num_keep_alive_refs and the
  // oldest index), mixed dtype or shape, bad priority, and with validate_items an
  // unknown table or a trajectory that doesn't match its signature.
  virtual Result<uint64_t> CreateItem(const std::string& table, double priority,
                                      const std::vector<ItemColumn>& trajectory,
                                      const WaitOptions& wait) = 0;
  // The halves of CreateItem, for callers that create items of several writers or none.
  // PrepareItem refuses what CreateItem would, and waits as it does.
  virtual Result<std::unique_ptr<PreparedItem>> PrepareItem(
      const std::string& table, double priority, const std::vector<ItemColumn>& trajectory,
      const WaitOptions& wait) = 0;
  // Queues items that this writer and its siblings prepared, in this order; returns their
  // keys. FAILED_PRECONDITION, and none is queued, if it was closed since.
  virtual Result<std::vector<uint64_t>> Queue(
      std::vector<std::unique_ptr<PreparedItem>> items) = 0;

  // Waits until at most `ignore_last` items are unconfirmed. On DEADLINE_EXCEEDED
  // (text: counts and why) the work goes on.
  virtual Status Flush(int64_t ignore_last, const WaitOptions& wait) = 0;
  // Closes an open step, flushes, begins a new episode. The episode has ended
  // also when an error is returned.
  virtual Status EndEpisode(bool clear_buffers, const WaitOptions& wait) = 0;
  // Flushes for as long as `wait` allows, then drops the rest: returns how many.
  // Idempotent; later calls of others are FAILED_PRECONDITION.
  virtual Result<int64_t> Close(const WaitOptions& wait) = 0;
  // Close for callers that must know: OK only if every item was confirmed. Else the
  // error of a refused item, or why the dropped ones could not be confirmed in time:
  // UNAVAILABLE, unless `retry`, as soon as the server can't be reached.
  virtual Status Finish(bool retry, const WaitOptions& wait) = 0;

  virtual int64_t pending_items() const = 0;
  virtual int64_t pending_bytes() const = 0;
  virtual int64_t rejected_items() const = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_API_TRAJECTORY_WRITER_H_
