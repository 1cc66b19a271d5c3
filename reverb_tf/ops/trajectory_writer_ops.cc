// A trajectory writer in a graph. All ops are stateful, so that those of one handle keep
// their order in a tf.function.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reverb_tf/ops/shape_checks.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace reverb_tf {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status CheckRanks(InferenceContext* c, const std::vector<const char*>& scalars) {
  for (const char* name : scalars) TF_RETURN_IF_ERROR(CheckRank(c, name, 0));
  return absl::OkStatus();
}

template <typename T>
absl::Status CheckLength(InferenceContext* c, const char* name, size_t expected) {
  std::vector<T> list;
  TF_RETURN_IF_ERROR(c->GetAttr(name, &list));
  if (list.size() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name,
                                                 " must have an entry for each of the ",
                                                 expected, " columns, got ", list.size()));
}

absl::Status HandleShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"client"}));
  tensorflow::DataTypeVector types;
  TF_RETURN_IF_ERROR(c->GetAttr("step_dtypes", &types));
  TF_RETURN_IF_ERROR(
      CheckLength<tensorflow::PartialTensorShape>(c, "step_shapes", types.size()));
  TF_RETURN_IF_ERROR(CheckLength<std::string>(c, "step_paths", types.size()));
  return tensorflow::shape_inference::ScalarShape(c);
}

absl::Status AppendShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle"}));
  tensorflow::DataTypeVector types;
  std::vector<int32_t> columns;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &types));
  TF_RETURN_IF_ERROR(c->GetAttr("columns", &columns));
  if (!columns.empty() && columns.size() != types.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("columns must be empty or have an entry for each of the ",
                     types.size(), " tensors, got ", columns.size()));
  }
  return tensorflow::shape_inference::ScalarShape(c);
}

absl::Status AppendBatchShape(InferenceContext* c) {
  std::vector<ShapeHandle> data;
  TF_RETURN_IF_ERROR(c->input("data", &data));
  ShapeHandle unused;
  for (const ShapeHandle leaf : data) {
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(leaf, 1, &unused));
  }
  return AppendShape(c);
}

absl::Status CreateItemShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle", "table", "priority"}));
  std::vector<int32_t> sources;
  TF_RETURN_IF_ERROR(c->GetAttr("sources", &sources));
  TF_RETURN_IF_ERROR(CheckLength<bool>(c, "squeeze", sources.size()));
  TF_RETURN_IF_ERROR(CheckLength<std::string>(c, "paths", sources.size()));
  TF_RETURN_IF_ERROR(CheckLength<bool>(c, "has_start", sources.size()));
  TF_RETURN_IF_ERROR(CheckLength<bool>(c, "has_stop", sources.size()));
  const ShapeHandle bounds = c->Vector(static_cast<int64_t>(sources.size()));
  for (const char* name : {"start", "stop", "step"}) {
    std::vector<ShapeHandle> shape;
    TF_RETURN_IF_ERROR(CheckRank(c, name, 1));
    TF_RETURN_IF_ERROR(c->input(name, &shape));
    TF_RETURN_IF_ERROR(c->Merge(shape[0], bounds, &shape[0]));
  }
  return tensorflow::shape_inference::ScalarShape(c);
}

absl::Status ColumnShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle", "start", "stop", "step"}));
  return tensorflow::shape_inference::UnknownShape(c);
}

absl::Status FlushShape(InferenceContext* c) {
  return CheckRanks(c, {"handle", "block_until_num_items"});
}

absl::Status EndEpisodeShape(InferenceContext* c) {
  return CheckRanks(c, {"handle", "clear_buffers"});
}

absl::Status NumberShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle"}));
  return tensorflow::shape_inference::ScalarShape(c);
}

REGISTER_OP("ReverbTfTrajectoryWriterHandle")
    .Input("client: resource")
    .Output("handle: resource")
    .Attr("step_dtypes: list(type) >= 1")
    .Attr("step_shapes: list(shape)")
    .Attr("step_paths: list(string)")
    .Attr("num_keep_alive_refs: int >= 1")
    .Attr("validate_items: bool = true")
    .Attr("max_in_flight_items: int >= 0 = 0")
    .Attr("configs: list(string) = []")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(HandleShape)
    .Doc(R"doc(
A writer of trajectories: steps are appended, and items made of them.

When nothing refers to the writer any more it flushes for at most two seconds, and drops
what is not in then.

client: Handle of the client that it writes through.
handle: Of the writer.
step_dtypes: Of a step's leaves, the columns.
step_shapes: Of a step's leaves; unknown dimensions are fixed by the first cell.
step_paths: Of the leaves in the step's nest: names joined by '/', positions as '[i]'.
num_keep_alive_refs: Newest cells of each column that items may refer to.
validate_items: Items are checked against the tables' signatures when they are created.
  The signatures are fetched when the writer is made, which waits for the server.
max_in_flight_items: Creating an item waits while so many are unconfirmed; 0 for no bound.
configs: Serialised configs of patterns. With any, the writer creates items itself as they
  say, from the steps that are appended, and has no history.
container: The resource container of a writer with a name.
shared_name: Writers of one name are one, and must be alike; it lives as long as its
  container. Without a name the writer is the node's own and lives as long as that.
  TensorFlow's name of anonymous resources makes a writer of its own at every execution,
  which lives as long as the handle.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterAppend")
    .Input("handle: resource")
    .Input("data: T")
    .Output("step: int64")
    .Attr("T: list(type) >= 0")
    .Attr("columns: list(int) = []")
    .Attr("partial_step: bool = false")
    .SetIsStateful()
    .SetShapeFn(AppendShape)
    .Doc(R"doc(
Appends one step, or a part of it. All or nothing.

handle: Of a writer.
data: A cell for each column named; the others get a hole.
step: Index of the step in its episode.
T: Of the cells.
columns: Positions of the cells' columns in the step; empty: all in order. No cells at all
  close a step that is open.
partial_step: The step stays open, for cells of other columns.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterAppendBatch")
    .Input("handle: resource")
    .Input("data: T")
    .Output("first_step: int64")
    .Attr("T: list(type) >= 1")
    .Attr("columns: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(AppendBatchShape)
    .Doc(R"doc(
Appends T steps at once.

handle: Of a writer.
data: For each column named its cells, [T, ...] with one T >= 1; the others get holes.
first_step: Index of the first step in its episode.
T: Of the cells.
columns: Positions of the cells' columns in the step; empty: all in order.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterCreateItem")
    .Input("handle: resource")
    .Input("table: string")
    .Input("priority: double")
    .Input("start: int32")
    .Input("stop: int32")
    .Input("step: int32")
    .Output("key: uint64")
    .Attr("sources: list(int) >= 1")
    .Attr("squeeze: list(bool) >= 1")
    .Attr("paths: list(string) >= 1")
    .Attr("has_start: list(bool) >= 1")
    .Attr("has_stop: list(bool) >= 1")
    .SetIsStateful()
    .SetShapeFn(CreateItemShape)
    .Doc(R"doc(
Creates an item of K columns, each a slice of one column's cells in the episode so far.

The item is sent in the background. If the server refuses it, the next op on the handle
tells.

handle: Of a writer.
table: Scalar, name of the table.
priority: Scalar.
start: [K], first cell of each column, negative to count from the newest.
stop: [K], the cell before which each column ends, negative to count from the newest.
step: [K], distance of the cells; negative to go backwards, not 0.
key: Of the item.
sources: The cells' columns, as positions in a step.
squeeze: The column is the cell `start` alone, without a dimension of time.
paths: Of the columns in the item's nest: names joined by '/', positions as '[i]'.
has_start: False: from the beginning of the history, as an absent bound of Python's.
has_stop: False: to the end of the history, as an absent bound of Python's.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterColumn")
    .Input("handle: resource")
    .Input("start: int32")
    .Input("stop: int32")
    .Input("step: int32")
    .Output("values: dtype")
    .Attr("source: int >= 0")
    .Attr("squeeze: bool")
    .Attr("has_start: bool")
    .Attr("has_stop: bool")
    .Attr("dtype: type")
    .SetIsStateful()
    .SetShapeFn(ColumnShape)
    .Doc(R"doc(
The values of a slice of one column's cells in the episode so far.

handle: Of a writer.
start: Scalar, the first cell, negative to count from the newest.
stop: Scalar, the cell before which the slice ends, negative to count from the newest.
step: Scalar, distance of the cells; negative to go backwards, not 0.
values: [T, ...], or of a cell's shape if squeezed.
source: The cells' column, as a position in a step.
squeeze: The cell `start` alone, without a dimension of time.
has_start: False: from the beginning of the history, as an absent bound of Python's.
has_stop: False: to the end of the history, as an absent bound of Python's.
dtype: Of the column.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterFlush")
    .Input("handle: resource")
    .Input("block_until_num_items: int32")
    .Attr("timeout_ms: int >= -1 = -1")
    .SetIsStateful()
    .SetShapeFn(FlushShape)
    .Doc(R"doc(
Waits until the tables have inserted all items but so many. On a timeout the work goes on.

handle: Of a writer.
block_until_num_items: Scalar, items that may stay unconfirmed.
timeout_ms: Longest wait; -1 for ever, 0 for none.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterEndEpisode")
    .Input("handle: resource")
    .Input("clear_buffers: bool")
    .Attr("timeout_ms: int >= -1 = -1")
    .SetIsStateful()
    .SetShapeFn(EndEpisodeShape)
    .Doc(R"doc(
Closes an open step, flushes and begins an episode. It has begun also if this fails.

handle: Of a writer.
clear_buffers: Scalar. False keeps the cells, for items that span episodes.
timeout_ms: Longest wait of the flush; -1 for ever, 0 for none.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterClose")
    .Input("handle: resource")
    .Output("dropped: int64")
    .Attr("timeout_ms: int >= -1 = 5000")
    .SetIsStateful()
    .SetShapeFn(NumberShape)
    .Doc(R"doc(
Flushes and ends the writer. Closing it again does nothing; other ops fail from then on.

handle: Of a writer.
dropped: Number of items that were not inserted in time.
timeout_ms: Longest wait; -1 for ever, 0 for none.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterEpisodeSteps")
    .Input("handle: resource")
    .Output("steps: int64")
    .SetIsStateful()
    .SetShapeFn(NumberShape)
    .Doc(R"doc(
Closed steps since the episode began.

handle: Of a writer.
steps: Number of steps.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterPending")
    .Input("handle: resource")
    .Output("items: int64")
    .SetIsStateful()
    .SetShapeFn(NumberShape)
    .Doc(R"doc(
Items created and not yet inserted.

handle: Of a writer.
items: Number of items.
)doc");

}  // namespace
}  // namespace reverb_tf
