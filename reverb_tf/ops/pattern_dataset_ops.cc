// Datasets made of datasets. Not stateful: what they yield depends on their inputs alone.

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace reverb_tf {
namespace {

REGISTER_OP("ReverbTfPatternDataset")
    .Input("dataset: variant")
    .Input("other_arguments: Targuments")
    .Output("handle: variant")
    .Attr("is_end_of_episode: func")
    .Attr("Targuments: list(type) >= 0")
    .Attr("configs: list(string) >= 1")
    .Attr("clear_after_episode: bool")
    .Attr("dtypes: list(type) >= 1")
    .Attr("shapes: list(shape) >= 1")
    .Attr("metadata: string = ''")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      return tensorflow::shape_inference::ScalarShape(c);
    })
    .Doc(R"doc(
Trajectories that a structured writer would insert, given a dataset's elements as steps.

Component i of an element is source i of the configs. After each step the trajectories of
the configs whose conditions hold follow one another in the configs' order; after the last
step of an episode those of the configs conditioned on its end. Tables don't matter. A
trajectory that a writer would refuse, since its td_error isn't finite, is an error in its
place, after which the sequence goes on.

dataset: Of the steps.
other_arguments: What `is_end_of_episode` captures.
handle: The dataset.
is_end_of_episode: Of a step's components: whether an episode ends with it, a bool scalar.
configs: Serialised patterns, as many columns each as `dtypes`.
clear_after_episode: Patterns don't reach back over the end of an episode.
dtypes: Of the columns.
shapes: Of the columns.
metadata: Of tf.data.
)doc");

}  // namespace
}  // namespace reverb_tf
