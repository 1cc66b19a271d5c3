// A client in a graph. All ops are stateful: what they do and give depends on tables
// outside of the graph, and those of one handle keep their order in a tf.function.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "reverb_tf/ops/shape_checks.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace reverb_tf {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// A list attr that describes the tensors of another one may be left empty.
absl::Status CheckPerTensor(const char* name, size_t got, size_t tensors) {
  if (got == 0 || got == tensors) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be empty or have an entry for each of the ", tensors,
                   " tensors, got ", got));
}

absl::Status HandleShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRankAtMost(c->input(0), 1, &unused));
  return tensorflow::shape_inference::ScalarShape(c);
}

absl::Status CheckInsert(InferenceContext* c) {
  std::vector<std::string> paths;
  tensorflow::DataTypeVector types;
  TF_RETURN_IF_ERROR(c->GetAttr("paths", &paths));
  TF_RETURN_IF_ERROR(c->GetAttr("T", &types));
  TF_RETURN_IF_ERROR(CheckPerTensor("paths", paths.size(), types.size()));
  TF_RETURN_IF_ERROR(CheckRank(c, "handle", 0));
  return CheckRank(c, "tables", 1);
}

absl::Status InsertShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckInsert(c));
  TF_RETURN_IF_ERROR(CheckRank(c, "priorities", 1));
  std::vector<ShapeHandle> tables;
  TF_RETURN_IF_ERROR(c->input("tables", &tables));
  ShapeHandle vector;
  TF_RETURN_IF_ERROR(c->WithRank(tables[0], 1, &vector));
  c->set_output(0, vector);
  return absl::OkStatus();
}

absl::Status InsertBatchShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckInsert(c));
  TF_RETURN_IF_ERROR(CheckRank(c, "priorities", 2));
  std::vector<ShapeHandle> data;
  TF_RETURN_IF_ERROR(c->input("data", &data));
  ShapeHandle shape;
  for (const ShapeHandle leaf : data) {
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(leaf, 1, &shape));
  }
  std::vector<ShapeHandle> priorities;
  TF_RETURN_IF_ERROR(c->input("priorities", &priorities));
  TF_RETURN_IF_ERROR(c->WithRank(priorities[0], 2, &shape));
  c->set_output(0, shape);
  return absl::OkStatus();
}

// Five of the info, then the outputs, all behind `batch`.
absl::Status SetSample(InferenceContext* c, ShapeHandle batch) {
  TF_RETURN_IF_ERROR(CheckRank(c, "handle", 0));
  TF_RETURN_IF_ERROR(CheckRank(c, "table", 0));
  std::vector<tensorflow::PartialTensorShape> shapes;
  std::vector<std::string> paths;
  tensorflow::DataTypeVector types;
  TF_RETURN_IF_ERROR(c->GetAttr("output_shapes", &shapes));
  TF_RETURN_IF_ERROR(c->GetAttr("paths", &paths));
  TF_RETURN_IF_ERROR(c->GetAttr("Toutput_list", &types));
  TF_RETURN_IF_ERROR(CheckPerTensor("output_shapes", shapes.size(), types.size()));
  TF_RETURN_IF_ERROR(CheckPerTensor("paths", paths.size(), types.size()));
  const int info = c->num_outputs() - static_cast<int>(types.size());
  for (int i = 0; i < info; ++i) c->set_output(i, batch);
  for (size_t i = 0; i < types.size(); ++i) {
    ShapeHandle shape = c->UnknownShape();
    if (!shapes.empty()) {
      TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
      TF_RETURN_IF_ERROR(c->Concatenate(batch, shape, &shape));
    }
    c->set_output(info + static_cast<int>(i), shape);
  }
  return absl::OkStatus();
}

absl::Status SampleShape(InferenceContext* c) { return SetSample(c, c->Scalar()); }

absl::Status SampleBatchShape(InferenceContext* c) {
  DimensionHandle batch;
  TF_RETURN_IF_ERROR(CheckRank(c, "num_samples", 0));
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(2, &batch));
  return SetSample(c, c->Vector(batch));
}

absl::Status TableShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRank(c, "handle", 0));
  return CheckRank(c, "table", 0);
}

absl::Status DeleteShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(TableShape(c));
  TF_RETURN_IF_ERROR(CheckRank(c, "keys", 1));
  c->set_output(0, c->Scalar());
  c->set_output(1, c->Scalar());
  return absl::OkStatus();
}

absl::Status UpdatePrioritiesShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckRank(c, "priorities", 1));
  return DeleteShape(c);
}

REGISTER_OP("ReverbTfClientHandle")
    .Input("server_address: string")
    .Output("handle: resource")
    .Attr("in_process: bool = true")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(HandleShape)
    .Doc(R"doc(
A client of a server. Nothing is connected before the first call.

server_address: Scalar or vector of one, host:port or another gRPC target.
handle: Of the client, which closes when nothing refers to it any more.
in_process: A server of this process is used directly, without the network.
container: The resource container of a client with a name.
shared_name: Clients of one name are one, and must be alike; it lives as long as its
  container. Without a name the client is the node's own and lives as long as that.
  TensorFlow's name of anonymous resources makes a client of its own at every execution,
  which lives as long as the handle.
)doc");

REGISTER_OP("ReverbTfClientInsert")
    .Input("handle: resource")
    .Input("data: T")
    .Input("tables: string")
    .Input("priorities: double")
    .Output("keys: uint64")
    .Attr("T: list(type) >= 1")
    .Attr("paths: list(string) = []")
    .Attr("timeout_ms: int >= -1 = -1")
    .SetIsStateful()
    .SetShapeFn(InsertShape)
    .Doc(R"doc(
Inserts one step as one item into each of N tables, and waits until all are in.

The data are sent once. All tables are checked before anything is sent. On a timeout, or
when the step is cancelled, what is not yet in is withdrawn.

handle: Of a client.
data: The step's tensors.
tables: Names [N].
priorities: [N], of the items.
keys: [N], of the items.
T: Of the tensors.
paths: Of the tensors in the step's nest: names joined by '/', positions as '[i]'. Empty
  for tensors without names, which are matched by position.
timeout_ms: Longest wait; -1 for ever, 0 for none.
)doc");

REGISTER_OP("ReverbTfClientInsertBatch")
    .Input("handle: resource")
    .Input("data: T")
    .Input("tables: string")
    .Input("priorities: double")
    .Output("keys: uint64")
    .Attr("T: list(type) >= 1")
    .Attr("paths: list(string) = []")
    .Attr("timeout_ms: int >= -1 = -1")
    .SetIsStateful()
    .SetShapeFn(InsertBatchShape)
    .Doc(R"doc(
Inserts B steps, each as one item into each of N tables, and waits until all are in.

Everything is checked before anything is sent. On a timeout, or when the step is
cancelled, what is not yet in is withdrawn; the error says how many are in.

handle: Of a client.
data: The steps' tensors, each [B, ...].
tables: Names [N].
priorities: [B, N], of the items.
keys: [B, N], of the items.
T: Of the tensors.
paths: Of the tensors in the step's nest: names joined by '/', positions as '[i]'. Empty
  for tensors without names, which are matched by position.
timeout_ms: Longest wait; -1 for ever, 0 for none.
)doc");

REGISTER_OP("ReverbTfClientSample")
    .Input("handle: resource")
    .Input("table: string")
    .Output("key: uint64")
    .Output("probability: double")
    .Output("table_size: int64")
    .Output("priority: double")
    .Output("times_sampled: int32")
    .Output("outputs: Toutput_list")
    .Attr("Toutput_list: list(type) >= 1")
    .Attr("output_shapes: list(shape) = []")
    .Attr("emit_trajectory: bool = false")
    .Attr("rate_limiter_timeout_ms: int >= -1 = -1")
    .Attr("timeout_ms: int >= -1 = -1")
    .Attr("paths: list(string) = []")
    .SetIsStateful()
    .SetShapeFn(SampleShape)
    .Doc(R"doc(
Samples one item of a table, and waits until there is one.

Nothing is taken of the table when this fails, times out or is cancelled: an item that
doesn't fit is given back.

handle: Of a client.
table: Scalar, name of the table.
key: Of the item.
probability: With which it was picked.
table_size: Items in the table.
priority: Of the item.
times_sampled: This sample included.
outputs: The step of an item of one step; with `emit_trajectory` its columns, [T, ...] or
  without T where the item's column has none.
Toutput_list: Of the outputs. Other than the signature's: INVALID_ARGUMENT; other than the
  item's in a table without signature: INTERNAL.
output_shapes: Of the outputs; empty if they are not known.
emit_trajectory: Whole items, of any length. Without, an item of several steps is
  INVALID_ARGUMENT.
rate_limiter_timeout_ms: Longest wait for the table; -1 for ever, 0 for only what can be
  granted now.
timeout_ms: Longest wait in all, for the server too; -1 for ever.
paths: Of the outputs in their nest: names joined by '/', positions as '[i]'. Empty for
  outputs without names, which are matched by position.
)doc");

REGISTER_OP("ReverbTfClientSampleBatch")
    .Input("handle: resource")
    .Input("table: string")
    .Input("num_samples: int32")
    .Output("key: uint64")
    .Output("probability: double")
    .Output("table_size: int64")
    .Output("priority: double")
    .Output("times_sampled: int32")
    .Output("outputs: Toutput_list")
    .Attr("Toutput_list: list(type) >= 1")
    .Attr("output_shapes: list(shape) = []")
    .Attr("rate_limiter_timeout_ms: int >= -1 = -1")
    .Attr("timeout_ms: int >= -1 = -1")
    .Attr("paths: list(string) = []")
    .SetIsStateful()
    .SetShapeFn(SampleBatchShape)
    .Doc(R"doc(
Samples N whole items of a table, and waits until there are so many.

Nothing is taken of the table when this fails, times out or is cancelled: items that don't
fit are given back.

handle: Of a client.
table: Scalar, name of the table.
num_samples: Scalar, N >= 1.
key: [N], of the items.
probability: [N], with which they were picked.
table_size: [N], items in the table.
priority: [N], of the items.
times_sampled: [N], these samples included.
outputs: The items' columns, [N, T, ...], or without T where they have none.
Toutput_list: Of the outputs. Other than the signature's: INVALID_ARGUMENT; other than the
  item's in a table without signature: INTERNAL.
output_shapes: Of one item's columns, without N; empty if they are not known.
rate_limiter_timeout_ms: Longest wait for the table; -1 for ever, 0 for only what can be
  granted now.
timeout_ms: Longest wait in all, for the server too; -1 for ever.
paths: Of the outputs in their nest: names joined by '/', positions as '[i]'. Empty for
  outputs without names, which are matched by position.
)doc");

REGISTER_OP("ReverbTfClientUpdatePriorities")
    .Input("handle: resource")
    .Input("table: string")
    .Input("keys: Tkey")
    .Input("priorities: double")
    .Output("updated: int64")
    .Output("not_found: int64")
    .Attr("Tkey: {uint64, int64}")
    .Attr("timeout_ms: int >= -1 = -1")
    .SetIsStateful()
    .SetShapeFn(UpdatePrioritiesShape)
    .Doc(R"doc(
Gives items of a table new priorities: all of them, or none if one is refused.

handle: Of a client.
table: Scalar, name of the table.
keys: [N], of the items.
priorities: [N].
updated: Number of items that were there; -1 if the server doesn't tell.
not_found: Number of keys without an item; -1 if the server doesn't tell.
Tkey: Of the keys.
timeout_ms: Longest wait for the server; -1 for ever.
)doc");

REGISTER_OP("ReverbTfClientDelete")
    .Input("handle: resource")
    .Input("table: string")
    .Input("keys: Tkey")
    .Output("deleted: int64")
    .Output("not_found: int64")
    .Attr("Tkey: {uint64, int64}")
    .Attr("timeout_ms: int >= -1 = -1")
    .SetIsStateful()
    .SetShapeFn(DeleteShape)
    .Doc(R"doc(
Deletes items of a table.

handle: Of a client.
table: Scalar, name of the table.
keys: [N], of the items.
deleted: Number of items that were there; -1 if the server doesn't tell.
not_found: Number of keys without an item; -1 if the server doesn't tell.
Tkey: Of the keys.
timeout_ms: Longest wait for the server; -1 for ever.
)doc");

REGISTER_OP("ReverbTfClientReset")
    .Input("handle: resource")
    .Input("table: string")
    .Attr("timeout_ms: int >= -1 = -1")
    .SetIsStateful()
    .SetShapeFn(TableShape)
    .Doc(R"doc(
Empties a table; its counters start anew.

handle: Of a client.
table: Scalar, name of the table.
timeout_ms: Longest wait for the server; -1 for ever.
)doc");

}  // namespace
}  // namespace reverb_tf
