// Writing by patterns: steps go in, and every config whose conditions hold makes an
// item of the newest steps.
//
// A stream of steps has sources: the leaves of a step, numbered in their order.
// Steps are counted from 0 over the stream's whole life, also across episodes.
#ifndef REVERB_TF_CC_API_STRUCTURED_WRITER_H_
#define REVERB_TF_CC_API_STRUCTURED_WRITER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/api/trajectory_writer.h"
#include "cc/base/status.h"
#include "cc/base/tensor.h"
#include "cc/base/wait.h"

namespace reverb_tf {

// One column of an item: cells of one source, counted back from the newest step,
// which is -1. With `stop` alone: the one cell `stop`, squeezed. Else the slice
// [start:stop:step], start < 0, stop <= 0 (absent: 0), step > 0 (absent: 1).
struct PatternNode {
  std::string path;  // in the item's structure
  int32_t source = 0;
  std::optional<int32_t> start;
  std::optional<int32_t> stop;
  std::optional<int32_t> step;
};

// [not] left % mod == value, or [not] left % mod >= value; in int64, the remainder
// with the sign of `mod`, as Python's.
struct PatternCondition {
  enum class Left {
    kStepIndex,          // of the newest step in its episode, from 0
    kStepsSinceApplied,  // 1 in the step after the config made an item; counted from
                         // the beginning of the stream before it ever did
    kBufferLength,       // steps of the history, at most as many as the patterns need
    kIsEndEpisode,       // holds at the end of an episode only; value 1
    kData,               // the newest cell of `source`: a bool or integer scalar. With a
                         // hole there the condition doesn't hold, inverse or not
  };
  enum class Compare { kEqual, kAtLeast };

  Left left = Left::kStepIndex;
  int32_t source = 0;
  std::optional<int32_t> mod;
  Compare compare = Compare::kEqual;
  int32_t value = 0;
  bool inverse = false;
};

// A number; or, of the td_source column, weight * max|x| + (1 - weight) * mean|x|.
struct PatternPriority {
  double value = 1;  // the number or the weight
  std::optional<int32_t> td_source;
};

struct StructuredConfig {
  std::string table;
  std::vector<PatternNode> nodes;
  std::vector<PatternCondition> conditions;  // all must hold
  PatternPriority priority;
  // The sources by path, in order; empty: not known.
  std::vector<std::string> source_paths;
};

// Tells which configs make items of a stream of steps. Calls, for each step:
// (Evaluate (Commit | Rollback))+; at the end of an episode EvaluateEnd EndEpisode.
// Cells of steps count as holes where they were not given.
//
// Thread-compatible.
class PatternEvaluator {
 public:
  struct Firing {
    int config = 0;
    double priority = 1;
    // CellRun::column is the source, or what SetColumns says. Valid until the config
    // fires again.
    const std::vector<ItemColumn>* columns = nullptr;
  };

  virtual ~PatternEvaluator() = default;

  virtual const std::vector<StructuredConfig>& configs() const = 0;
  // By source, empty if the configs don't tell; and one more than the largest source
  // that they refer to.
  virtual const std::vector<std::string>& source_paths() const = 0;
  virtual int num_sources() const = 0;
  // How many of the newest cells of the source the patterns reach; 0: none.
  virtual int64_t history(int source) const = 0;
  // The columns of a config's items: paths, squeeze, and one run each of the right count
  // and stride.
  virtual const std::vector<ItemColumn>& columns(int config) const = 0;
  // `columns[source]` is the CellRun::column of the source.
  virtual void SetColumns(const std::vector<int>& columns) = 0;

  // Cells (CellView::column is the source) of the step that is open or else begins;
  // the other sources' come later, or never if the step `closes` now. Fills *firings,
  // in the order of the configs: each fires at most once a step, as soon as its
  // conditions hold and its cells are there. Counts until Commit().
  // INVALID_ARGUMENT, which changes nothing: a source that the step has already, or
  // conditions and priorities that can't read the cell.
  virtual Status Evaluate(const CellView* cells, size_t n, bool closes,
                          std::vector<Firing>* firings) = 0;
  // Takes the last Evaluate for good, or undoes it.
  virtual void Commit() = 0;
  virtual void Rollback() = 0;

  // What fires since the episode ends, of the configs conditioned on it; nothing when
  // it has no step. REQUIRES: no step is open. Needs no Commit.
  virtual void EvaluateEnd(std::vector<Firing>* firings) = 0;
  // Begins an episode; `clear` puts the history out of the patterns' reach.
  virtual void EndEpisode(bool clear) = 0;

  // Items that were not made since the pattern met a hole.
  virtual int64_t skipped_items() const = 0;

  // What it knows of the stream, for another evaluator of the same configs to go on.
  // REQUIRES: no step is open, nothing is to be committed.
  virtual std::vector<int64_t> Save() const = 0;
  // DATA_LOSS, which changes nothing: evaluators of these configs don't save that.
  virtual Status Restore(const std::vector<int64_t>& state) = 0;
};

struct StructuredWriterOptions {
  // Checks configs at once, and items, against the tables' signatures.
  bool validate_items = true;
  // Appends wait, before they do anything, while their items would exceed it; 0: no
  // bound.
  int64_t max_in_flight_items = 0;
  int64_t max_in_flight_bytes = 0;
  // The leaves of a step in order, if known: then dtypes and shapes are checked at
  // once too.
  std::optional<std::vector<TensorSpec>> step_spec;
};

// Order of use: ((Append* | Flush)* EndEpisode)* Close. Each call is atomic; calls of
// several threads interleave whole. An error that the server reported for an item is
// returned once by the next call, before it does anything; an error of an item that
// could not be made, by the call that should have made it, after it did the rest.
class StructuredWriter {
 public:
  // Flushes for at most 2 s, then drops what is left with a warning.
  virtual ~StructuredWriter() = default;

  // As TrajectoryWriter's, with the same configs.
  virtual std::unique_ptr<StructuredWriter> NewSibling() const = 0;

  // As PatternEvaluator has them.
  virtual const std::vector<std::string>& source_paths() const = 0;
  virtual int num_sources() const = 0;

  // One step or a part of it; CellView::column is the source. Sources that no pattern
  // uses are not stored. INVALID_ARGUMENT as TrajectoryWriter::Append and
  // PatternEvaluator::Evaluate.
  virtual Status Append(const CellView* cells, size_t n, bool partial_step,
                        const WaitOptions& wait) = 0;
  // T steps, one after the other; every view is [T, ...].
  virtual Status AppendBatch(const CellView* cells, size_t n, const WaitOptions& wait) = 0;
  // The halves of Append, as TrajectoryWriter's. CheckAppend counts the coming items in
  // *items and waits for nothing; AppendChecked returns the errors of items that could
  // not be made.
  virtual Status CheckAppend(const CellView* cells, size_t n, bool partial_step,
                             int64_t* items) = 0;
  virtual Status AppendChecked(const CellView* cells, size_t n, bool partial_step) = 0;

  // As TrajectoryWriter's; EndEpisode creates the items conditioned on it first.
  virtual Status Flush(int64_t ignore_last, const WaitOptions& wait) = 0;
  virtual Status EndEpisode(bool clear_buffers, const WaitOptions& wait) = 0;
  virtual Result<int64_t> Close(const WaitOptions& wait) = 0;

  virtual int64_t episode_steps() const = 0;
  virtual bool step_is_open() const = 0;
  virtual int64_t pending_items() const = 0;
  virtual int64_t pending_bytes() const = 0;
  // Items refused by the server or, as not valid, by this writer.
  virtual int64_t rejected_items() const = 0;
  // Items not made since their pattern met a hole.
  virtual int64_t skipped_items() const = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_API_STRUCTURED_WRITER_H_
