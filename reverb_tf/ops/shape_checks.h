// What the shape functions of several files check alike.
#ifndef REVERB_TF_REVERB_TF_OPS_SHAPE_CHECKS_H_
#define REVERB_TF_REVERB_TF_OPS_SHAPE_CHECKS_H_

#include <vector>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace reverb_tf {

// INVALID_ARGUMENT naming the input if it, or a tensor of its list, isn't of this rank.
inline absl::Status CheckRank(tensorflow::shape_inference::InferenceContext* c,
                              const char* name, int rank) {
  std::vector<tensorflow::shape_inference::ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(c->input(name, &shapes));
  tensorflow::shape_inference::ShapeHandle unused;
  for (const auto shape : shapes) {
    const absl::Status status = c->WithRank(shape, rank, &unused);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_OPS_SHAPE_CHECKS_H_
