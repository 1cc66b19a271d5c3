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

// A number for each environment; without environments a scalar.
absl::Status NumbersShape(InferenceContext* c) {
  int64_t num_envs = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_envs", &num_envs));
  c->set_output(0, num_envs > 0 ? c->Vector(num_envs) : c->Scalar());
  return absl::OkStatus();
}

// The tensors of a list have the environments' dimension, if there are any, and then at
// least `rank` more.
absl::Status CheckOuterDims(InferenceContext* c, const char* name, int rank) {
  int64_t num_envs = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_envs", &num_envs));
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(c->input(name, &shapes));
  for (ShapeHandle shape : shapes) {
    absl::Status status = c->WithRankAtLeast(shape, rank + (num_envs > 0 ? 1 : 0), &shape);
    tensorflow::shape_inference::DimensionHandle unused;
    if (status.ok() && num_envs > 0 && c->RankKnown(shape)) {
      status = c->WithValue(c->Dim(shape, 0), num_envs, &unused);
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMask(InferenceContext* c) {
  int64_t num_envs = 0, num_masks = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_envs", &num_envs));
  TF_RETURN_IF_ERROR(c->GetAttr("num_masks", &num_masks));
  if (num_masks > (num_envs > 0 ? 1 : 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("mask: got ", num_masks, " tensors, expected ",
                     num_envs > 0 ? "at most 1" : "none without environments (num_envs)"));
  }
  TF_RETURN_IF_ERROR(CheckRank(c, "mask", 1));
  return CheckOuterDims(c, "mask", 0);
}

absl::Status AppendShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle"}));
  TF_RETURN_IF_ERROR(CheckOuterDims(c, "data", 0));
  TF_RETURN_IF_ERROR(CheckMask(c));
  tensorflow::DataTypeVector types;
  std::vector<int32_t> columns;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &types));
  TF_RETURN_IF_ERROR(c->GetAttr("columns", &columns));
  if (!columns.empty() && columns.size() != types.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("columns must be empty or have an entry for each of the ",
                     types.size(), " tensors, got ", columns.size()));
  }
  return NumbersShape(c);
}

absl::Status AppendBatchShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckOuterDims(c, "data", 1));
  return AppendShape(c);
}

// A scalar, or with environments one number for each.
absl::Status CheckPriority(InferenceContext* c) {
  int64_t num_envs = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_envs", &num_envs));
  std::vector<ShapeHandle> priority;
  TF_RETURN_IF_ERROR(c->input("priority", &priority));
  if (num_envs == 0) return CheckRank(c, "priority", 0);
  if (!c->RankKnown(priority[0]) || c->Rank(priority[0]) == 0) return absl::OkStatus();
  TF_RETURN_IF_ERROR(CheckRank(c, "priority", 1));
  return CheckOuterDims(c, "priority", 0);
}

absl::Status CreateItemShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle", "table"}));
  TF_RETURN_IF_ERROR(CheckPriority(c));
  TF_RETURN_IF_ERROR(CheckMask(c));
  TF_RETURN_IF_ERROR(CheckRank(c, "indices", 1));
  int64_t num_lists = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("num_lists", &num_lists));
  TF_RETURN_IF_ERROR(CheckLength<int32_t>(c, "listed", static_cast<size_t>(num_lists)));
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
  return NumbersShape(c);
}

absl::Status ColumnShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle", "start", "stop", "step", "environment"}));
  TF_RETURN_IF_ERROR(CheckRank(c, "indices", 1));
  return tensorflow::shape_inference::UnknownShape(c);
}

absl::Status FlushShape(InferenceContext* c) {
  return CheckRanks(c, {"handle", "block_until_num_items"});
}

absl::Status EndEpisodeShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle", "clear_buffers"}));
  return CheckMask(c);
}

absl::Status EpisodeStepsShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRanks(c, {"handle"}));
  return NumbersShape(c);
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
    .Attr("num_envs: int >= 0 = 0")
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
num_envs: The writer is of so many environments, each with an episode and a history of its
  own: the other ops' data are [N, ...], and an error in one environment leaves all as they
  were. Items and what is of them are common. 0: of one, without the dimension.
container: The resource container of a writer with a name.
shared_name: Writers of one name are one, and must be alike; it lives as long as its
  container. Without a name the writer is the node's own and lives as long as that.
  TensorFlow's name of anonymous resources makes a writer of its own at every execution,
  which lives as long as the handle.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterAppend")
    .Input("handle: resource")
    .Input("data: T")
    .Input("mask: num_masks * bool")
    .Output("step: int64")
    .Attr("T: list(type) >= 0")
    .Attr("columns: list(int) = []")
    .Attr("partial_step: bool = false")
    .Attr("num_envs: int >= 0 = 0")
    .Attr("num_masks: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(AppendShape)
    .Doc(R"doc(
Appends one step, or a part of it. All or nothing.

handle: Of a writer.
data: A cell for each column named; the others get a hole. Vectorised: [N, ...], a cell for
  each environment.
mask: At most one, of a vectorised writer: [N], the environments that have a step now; the
  data of the others are not looked at.
step: Index of the step in its episode. Vectorised: [N], -1 where the mask is false.
T: Of the cells.
columns: Positions of the cells' columns in the step; empty: all in order. No cells at all
  close a step that is open.
partial_step: The step stays open, for cells of other columns.
num_envs: N of a vectorised writer, as its handle says; else 0.
num_masks: 1 with a mask, else 0.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterAppendBatch")
    .Input("handle: resource")
    .Input("data: T")
    .Input("mask: num_masks * bool")
    .Output("first_step: int64")
    .Attr("T: list(type) >= 1")
    .Attr("columns: list(int) = []")
    .Attr("num_envs: int >= 0 = 0")
    .Attr("num_masks: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(AppendBatchShape)
    .Doc(R"doc(
Appends T steps at once.

handle: Of a writer.
data: For each column named its cells, [T, ...] with one T >= 1; the others get holes.
  Vectorised, which is for writers without configs: [N, T, ...].
mask: At most one, of a vectorised writer: [N], the environments that have steps now; the
  data of the others are not looked at.
first_step: Index of the first step in its episode. Vectorised: [N], -1 where the mask is
  false.
T: Of the cells.
columns: Positions of the cells' columns in the step; empty: all in order.
num_envs: N of a vectorised writer, as its handle says; else 0.
num_masks: 1 with a mask, else 0.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterCreateItem")
    .Input("handle: resource")
    .Input("table: string")
    .Input("priority: double")
    .Input("start: int32")
    .Input("stop: int32")
    .Input("step: int32")
    .Input("indices: num_lists * int32")
    .Input("mask: num_masks * bool")
    .Output("key: uint64")
    .Attr("sources: list(int) >= 1")
    .Attr("squeeze: list(bool) >= 1")
    .Attr("paths: list(string) >= 1")
    .Attr("has_start: list(bool) >= 1")
    .Attr("has_stop: list(bool) >= 1")
    .Attr("listed: list(int) = []")
    .Attr("num_lists: int >= 0 = 0")
    .Attr("num_envs: int >= 0 = 0")
    .Attr("num_masks: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(CreateItemShape)
    .Doc(R"doc(
Creates an item of K columns, each a slice of one column's cells in the episode so far.

The item is sent in the background. If the server refuses it, the next op on the handle
tells.

handle: Of a writer.
table: Scalar, name of the table.
priority: Scalar. Vectorised: that or [N].
start: [K], first cell of each column, negative to count from the newest.
stop: [K], the cell before which each column ends, negative to count from the newest.
step: [K], distance of the cells; negative to go backwards, not 0.
indices: For each of the columns in `listed` a vector of its cells, negative to count from
  the newest.
mask: At most one, of a vectorised writer: [N], the environments that an item is made of.
key: Of the item. Vectorised: [N], of an item for each environment, of its own history; 0
  where the mask is false.
sources: The cells' columns, as positions in a step.
squeeze: The column is the cell `start` alone, without a dimension of time.
paths: Of the columns in the item's nest: names joined by '/', positions as '[i]'.
has_start: False: from the beginning of the history, as an absent bound of Python's.
has_stop: False: to the end of the history, as an absent bound of Python's.
listed: Columns, of the K, that are the cells at `indices`, not a slice.
num_lists: Of `indices`.
num_envs: N of a vectorised writer, as its handle says; else 0.
num_masks: 1 with a mask, else 0.
)doc");

REGISTER_OP("ReverbTfTrajectoryWriterColumn")
    .Input("handle: resource")
    .Input("start: int32")
    .Input("stop: int32")
    .Input("step: int32")
    .Input("indices: num_lists * int32")
    .Input("environment: num_environments * int32")
    .Output("values: dtype")
    .Attr("source: int >= 0")
    .Attr("squeeze: bool")
    .Attr("has_start: bool")
    .Attr("has_stop: bool")
    .Attr("dtype: type")
    .Attr("num_lists: int >= 0 = 0")
    .Attr("num_environments: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(ColumnShape)
    .Doc(R"doc(
The values of a slice of one column's cells in the episode so far.

handle: Of a writer.
start: Scalar, the first cell, negative to count from the newest.
stop: Scalar, the cell before which the slice ends, negative to count from the newest.
step: Scalar, distance of the cells; negative to go backwards, not 0.
indices: If there is one: a vector of the cells, instead of the slice.
environment: One scalar, of a vectorised writer: whose history is read.
values: [T, ...], or of a cell's shape if squeezed.
source: The cells' column, as a position in a step.
squeeze: The cell `start` alone, without a dimension of time.
has_start: False: from the beginning of the history, as an absent bound of Python's.
has_stop: False: to the end of the history, as an absent bound of Python's.
dtype: Of the column.
num_lists: 1 with indices, else 0.
num_environments: 1 for a vectorised writer, else 0.
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
    .Input("mask: num_masks * bool")
    .Attr("timeout_ms: int >= -1 = -1")
    .Attr("num_envs: int >= 0 = 0")
    .Attr("num_masks: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(EndEpisodeShape)
    .Doc(R"doc(
Closes an open step, flushes and begins an episode. It has begun also if this fails.

handle: Of a writer.
clear_buffers: Scalar. False keeps the cells, for items that span episodes.
mask: At most one, of a vectorised writer: [N], the environments whose episode ends. If
  any does, the items of all are flushed; else nothing is done.
timeout_ms: Longest wait of the flush; -1 for ever, 0 for none.
num_envs: N of a vectorised writer, as its handle says; else 0.
num_masks: 1 with a mask, else 0.
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
    .Attr("num_envs: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(EpisodeStepsShape)
    .Doc(R"doc(
Closed steps since the episode began.

handle: Of a writer.
steps: Number of steps. Vectorised: [N].
num_envs: N of a vectorised writer, as its handle says; else 0.
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
