// Datasets of samples. Stateful, because what they yield depends on a table that changes:
// they may be neither folded into constants nor merged with their likes.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace reverb_tf {
namespace {

absl::Status ScalarsToScalar(tensorflow::shape_inference::InferenceContext* c) {
  tensorflow::shape_inference::ShapeHandle unused;
  for (int i = 0; i < c->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  }
  return tensorflow::shape_inference::ScalarShape(c);
}

REGISTER_OP("ReverbTfTrajectoryDataset")
    .Input("server_address: string")
    .Input("table: string")
    .Input("seed: int64")
    .Output("handle: variant")
    .Attr("dtypes: list(type) >= 6")
    .Attr("shapes: list(shape) >= 6")
    .Attr("paths: list(string) >= 1")
    .Attr("max_in_flight_samples_per_worker: int = -1")
    .Attr("num_workers_per_iterator: int = -1")
    .Attr("max_samples_per_stream: int = -1")
    .Attr("rate_limiter_timeout_ms: int = -1")
    .Attr("max_samples: int = -1")
    .Attr("batch_size: int = 0")
    .Attr("drop_remainder: bool = false")
    .Attr("pad_to_longest: bool = false")
    .Attr("on_timeout: {'end', 'error'} = 'end'")
    .Attr("consume_ahead: int = 0")
    .Attr("max_age_ms: int = -1")
    .Attr("reconnect_timeout_ms: int = -1")
    .Attr("metadata: string = ''")
    .SetIsStateful()
    .SetShapeFn(ScalarsToScalar)
    .Doc(R"doc(
Samples of a table, as whole trajectories.

An element is the sample's info (key uint64, probability float64, table_size int64,
priority float64, times_sampled int32), then its columns in the order of `paths`. With
`batch_size` all of them have a batch dimension in front; with `pad_to_longest` one int32
vector for each column follows: the number of rows of each sample.

server_address: Scalar, host:port or another gRPC target.
table: Scalar, name of the table.
seed: Scalar; >= 0 makes the picks repeatable, -1 leaves them to the table.
handle: The dataset.
dtypes: Of the five info fields, then of the columns.
shapes: Of one sample, without batch dimension.
paths: Of the columns in the data's nest: names joined by '/', positions as '[i]'.
max_in_flight_samples_per_worker: Samples asked for per round and worker; -1 for
  max(2 * batch_size, 16).
num_workers_per_iterator: Streams of an iterator; -1 for 1.
max_samples_per_stream: Samples after which a stream is opened anew; -1 for 10000.
rate_limiter_timeout_ms: Longest wait of an element for the table; -1 for ever.
max_samples: Samples delivered in all; -1 for no bound.
batch_size: Samples of an element; 0 for one without batch dimension.
drop_remainder: Give a short last batch back.
pad_to_longest: Pad the columns of a batch with zeros to the longest.
on_timeout: 'end' ends the sequence, 'error' fails with DEADLINE_EXCEEDED.
consume_ahead: Samples held beyond those asked for, of tables that use items up.
max_age_ms: Buffered samples older than this are replaced; -1 for never.
reconnect_timeout_ms: How long a lost server is tried again; -1 for ever.
metadata: Of tf.data.
)doc");

REGISTER_OP("ReverbTfTimestepDataset")
    .Input("server_address: string")
    .Input("table: string")
    .Input("seed: int64")
    .Output("handle: variant")
    .Attr("dtypes: list(type) >= 6")
    .Attr("shapes: list(shape) >= 6")
    .Attr("paths: list(string) >= 1")
    .Attr("max_in_flight_samples_per_worker: int = -1")
    .Attr("num_workers_per_iterator: int = -1")
    .Attr("max_samples_per_stream: int = -1")
    .Attr("rate_limiter_timeout_ms: int = -1")
    .Attr("max_samples: int = -1")
    .Attr("batch_size: int = 0")
    .Attr("drop_remainder: bool = false")
    .Attr("on_timeout: {'end', 'error'} = 'end'")
    .Attr("consume_ahead: int = 0")
    .Attr("max_age_ms: int = -1")
    .Attr("reconnect_timeout_ms: int = -1")
    .Attr("metadata: string = ''")
    .SetIsStateful()
    .SetShapeFn(ScalarsToScalar)
    .Doc(R"doc(
Samples of a table, step by step.

An element is a step: its item's info (key uint64, probability float64, table_size int64,
priority float64, times_sampled int32), then the step's cells in the order of `paths`. With
`batch_size` all of them have a batch dimension in front; a batch goes on with the next
item's steps where an item ends. Inputs and attrs that aren't listed are those of
ReverbTfTrajectoryDataset.

handle: The dataset.
shapes: Of one step, without batch dimension.
max_in_flight_samples_per_worker: Items asked for per round and worker; -1 for
  max(2 * batch_size, 16).
max_samples: Items delivered in all; -1 for no bound.
batch_size: Steps of an element; 0 for one without batch dimension.
drop_remainder: Drop a short last batch: items of which no step was delivered are given
  back.
consume_ahead: Items held beyond those asked for, of tables that use items up.
)doc");

}  // namespace
}  // namespace reverb_tf
