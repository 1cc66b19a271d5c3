#include "reverb_tf/kernels/pattern_dataset_op.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/api/entry.h"
#include "cc/base/mutex.h"
#include "reverb_tf/kernels/bridge.h"
#include "reverb_tf/kernels/pattern_stream.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/platform/errors.h"

namespace reverb_tf {
namespace {

using tensorflow::AttrValue;
using tensorflow::DataTypeVector;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::data::CapturedFunction;
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetContext;
using tensorflow::data::DatasetIterator;
using tensorflow::data::FunctionMetadata;
using tensorflow::data::InstantiatedCapturedFunction;
using tensorflow::data::IteratorBase;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::SerializationContext;

// Key of an iterator's checkpoint.
constexpr char kInputIsAtEnd[] = "input_is_at_end";

absl::Status At(size_t config, const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("config ", config, ", column '", path,
                                                  "': ", status.message()));
}

absl::Status DecodeConfigs(const std::vector<std::string>& serialized,
                           std::vector<StructuredConfig>* configs) {
  const ReverbApi* api = nullptr;
  TF_RETURN_IF_ERROR(GetReverbApi(&api));
  for (size_t i = 0; i < serialized.size(); ++i) {
    Result<StructuredConfig> config = api->DecodeStructuredConfig(serialized[i]);
    if (!config.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("Invalid configuration at position ",
                                                     i, ": ", config.status().message()));
    }
    configs->push_back(std::move(config).value());
  }
  return absl::OkStatus();
}

// A column of the cells that the item's column says, or the one cell.
PartialTensorShape ShapeOf(const ItemColumn& column, const PartialTensorShape& cell) {
  if (column.squeeze) return cell;
  return PartialTensorShape({column.runs[0].count}).Concatenate(cell);
}

std::string Text(tensorflow::DataType dtype, const PartialTensorShape& shape) {
  return tensorflow::DataTypeString(dtype) + shape.DebugString();
}

}  // namespace

// Immutable, thread-safe.
class PatternDatasetOp::Dataset : public DatasetBase {
 public:
  Dataset(OpKernelContext* ctx, Attrs attrs, const DatasetBase* input,
          std::unique_ptr<CapturedFunction> is_end_of_episode)
      : DatasetBase(DatasetContext(ctx)),
        attrs_(std::move(attrs)),
        input_(input),
        is_end_of_episode_(std::move(is_end_of_episode)) {
    input_->Ref();
  }
  ~Dataset() override { input_->Unref(); }

  const DataTypeVector& output_dtypes() const override { return attrs_.dtypes; }
  const std::vector<PartialTensorShape>& output_shapes() const override {
    return attrs_.shapes;
  }
  std::string DebugString() const override {
    return absl::StrCat(type_string(), "(", attrs_.configs.size(), " configs)");
  }

  int64_t CardinalityInternal(tensorflow::data::CardinalityOptions options) const override {
    const int64_t n = input_->Cardinality(options);
    return n == tensorflow::data::kInfiniteCardinality
               ? n
               : tensorflow::data::kUnknownCardinality;
  }

  absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
    inputs->push_back(input_);
    return absl::OkStatus();
  }

  absl::Status CheckExternalState() const override {
    TF_RETURN_IF_ERROR(is_end_of_episode_->CheckExternalState());
    return input_->CheckExternalState();
  }

  std::unique_ptr<IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override;

 protected:
  absl::Status AsGraphDefInternal(SerializationContext* ctx, DatasetGraphDefBuilder* b,
                                  tensorflow::Node** output) const override;

 private:
  class Iterator;

  const Attrs attrs_;
  const DatasetBase* const input_;
  const std::unique_ptr<CapturedFunction> is_end_of_episode_;
};

// Reads no further than the step that the next trajectory ends in. Thread-safe.
class PatternDatasetOp::Dataset::Iterator : public DatasetIterator<Dataset> {
 public:
  explicit Iterator(const Params& params) : DatasetIterator<Dataset>(params) {}

  absl::Status Initialize(IteratorContext* ctx) override {
    MutexLock lock(&mu_);
    const Attrs& attrs = dataset()->attrs_;
    TF_RETURN_IF_ERROR(
        PatternStream::Make(attrs.configs, attrs.clear_after_episode, &stream_));
    TF_RETURN_IF_ERROR(dataset()->input_->MakeIterator(ctx, this, prefix(), &input_));
    return dataset()->is_end_of_episode_->Instantiate(ctx, &is_end_of_episode_);
  }

  absl::Status GetNextInternal(IteratorContext* ctx, std::vector<tensorflow::Tensor>* out,
                               bool* end_of_sequence) override {
    MutexLock lock(&mu_);
    while (!stream_->has_trajectory()) {
      *end_of_sequence = input_ == nullptr;
      if (*end_of_sequence) return absl::OkStatus();
      TF_RETURN_IF_ERROR(CheckCancelled(ctx));
      TF_RETURN_IF_ERROR(ReadStep(ctx));
    }
    *end_of_sequence = false;
    TF_RETURN_IF_ERROR(stream_->Take(ctx->allocator({}), out));
    return CheckElement(*out);
  }

 protected:
  std::shared_ptr<tensorflow::data::model::Node> CreateNode(
      IteratorContext* ctx, tensorflow::data::model::Node::Args args) const override {
    return tensorflow::data::model::MakeUnknownRatioNode(std::move(args));
  }

  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override {
    TF_RETURN_IF_ERROR(ctx->HandleCheckExternalStateStatus(
        dataset()->is_end_of_episode_->CheckExternalState()));
    MutexLock lock(&mu_);
    const int64_t is_at_end = input_ == nullptr ? 1 : 0;
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kInputIsAtEnd, is_at_end));
    if (input_ != nullptr) TF_RETURN_IF_ERROR(SaveInput(ctx, writer, input_));
    return stream_->Save(prefix(), writer);
  }

  absl::Status RestoreInternal(IteratorContext* ctx, IteratorStateReader* reader) override {
    MutexLock lock(&mu_);
    int64_t is_at_end = 0;
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kInputIsAtEnd, &is_at_end));
    if (is_at_end != 0) {
      input_.reset();
    } else {
      TF_RETURN_IF_ERROR(RestoreInput(ctx, reader, input_));
    }
    return stream_->Restore(prefix(), reader);
  }

 private:
  // A stream that makes no trajectory would go on for ever.
  absl::Status CheckCancelled(IteratorContext* ctx) const {
    tensorflow::CancellationManager* const manager = ctx->cancellation_manager();
    if (manager != nullptr && manager->IsCancelled()) {
      return absl::CancelledError("the iterator was cancelled");
    }
    if (IsInterrupted()) return absl::CancelledError("interrupted (SIGINT)");
    return absl::OkStatus();
  }

  // Appends the input's next element, if there is one. A step that fails is left out.
  absl::Status ReadStep(IteratorContext* ctx) REQUIRES(mu_) {
    std::vector<tensorflow::Tensor> step;
    bool is_at_end = false;
    TF_RETURN_IF_ERROR(input_->GetNext(ctx, &step, &is_at_end));
    if (is_at_end) {
      input_.reset();
      return absl::OkStatus();
    }
    bool ends_episode = false;
    TF_RETURN_IF_ERROR(AskForEnd(ctx, step, &ends_episode));
    return stream_->Append(step, ends_episode);
  }

  absl::Status AskForEnd(IteratorContext* ctx, const std::vector<tensorflow::Tensor>& step,
                         bool* ends_episode) REQUIRES(mu_) {
    std::vector<tensorflow::Tensor> result;
    TF_RETURN_IF_ERROR(
        is_end_of_episode_->RunWithBorrowedArgs(ctx, step, &result, model_node()));
    if (result.size() != 1 || result[0].dtype() != tensorflow::DT_BOOL ||
        result[0].dims() != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          kIsEndOfEpisode, " must return one bool scalar, got ",
          result.empty() ? "nothing" : result[0].DebugString(0), "; reduce it to one"));
    }
    *ends_episode = result[0].scalar<bool>()();
    return absl::OkStatus();
  }

  // Inputs may give shapes that their specs don't promise.
  absl::Status CheckElement(const std::vector<tensorflow::Tensor>& element) const {
    const Attrs& attrs = dataset()->attrs_;
    for (size_t i = 0; i < element.size(); ++i) {
      if (element[i].dtype() == attrs.dtypes[i] &&
          attrs.shapes[i].IsCompatibleWith(element[i].shape())) {
        continue;
      }
      return absl::InvalidArgumentError(absl::StrCat(
          "column '", attrs.configs[0].nodes[i].path, "': got ",
          Text(element[i].dtype(), PartialTensorShape(element[i].shape().dim_sizes())),
          ", expected ", Text(attrs.dtypes[i], attrs.shapes[i]),
          "; declare what the input's elements are"));
    }
    return absl::OkStatus();
  }

  // One step is read after the other. Held while the input is waited for.
  Mutex mu_;
  std::unique_ptr<IteratorBase> input_ GUARDED_BY(mu_);  // null at its end
  std::unique_ptr<InstantiatedCapturedFunction> is_end_of_episode_;
  std::unique_ptr<PatternStream> stream_ GUARDED_BY(mu_);
};

std::unique_ptr<IteratorBase> PatternDatasetOp::Dataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::" + kDatasetType});
}

absl::Status PatternDatasetOp::Dataset::AsGraphDefInternal(
    SerializationContext* ctx, DatasetGraphDefBuilder* b, tensorflow::Node** output) const {
  tensorflow::Node* input = nullptr;
  TF_RETURN_IF_ERROR(b->AddInputDataset(ctx, input_, &input));
  std::vector<tensorflow::Node*> other_arguments;
  DataTypeVector other_dtypes;
  TF_RETURN_IF_ERROR(
      is_end_of_episode_->AddToGraph(ctx, b, &other_arguments, &other_dtypes));
  std::vector<std::pair<absl::string_view, AttrValue>> attrs;
  const auto add = [&attrs, b](absl::string_view name, const auto& value) {
    AttrValue attr;
    b->BuildAttrValue(value, &attr);
    attrs.emplace_back(name, std::move(attr));
  };
  add(kIsEndOfEpisode, is_end_of_episode_->func());
  add(kTarguments, other_dtypes);
  add(kConfigs, attrs_.serialized);
  add(kClearAfterEpisode, attrs_.clear_after_episode);
  add(kDtypes, attrs_.dtypes);
  add(kShapes, attrs_.shapes);
  return b->AddDataset(this, {{0, input}}, {{1, other_arguments}}, attrs, output);
}

PatternDatasetOp::PatternDatasetOp(OpKernelConstruction* ctx) : UnaryDatasetOpKernel(ctx) {
  OP_REQUIRES_OK(ctx, FunctionMetadata::Create(ctx, kIsEndOfEpisode, /*params=*/{},
                                               &is_end_of_episode_));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kConfigs, &attrs_.serialized));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kClearAfterEpisode, &attrs_.clear_after_episode));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kDtypes, &attrs_.dtypes));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kShapes, &attrs_.shapes));
  OP_REQUIRES(ctx, attrs_.dtypes.size() == attrs_.shapes.size(),
              absl::InvalidArgumentError(absl::StrCat(
                  kDtypes, " and ", kShapes, " must have an entry a column, got ",
                  attrs_.dtypes.size(), " and ", attrs_.shapes.size())));
  OP_REQUIRES_OK(ctx, DecodeConfigs(attrs_.serialized, &attrs_.configs));
}

absl::Status PatternDatasetOp::CheckColumn(size_t column, tensorflow::DataType dtype,
                                           const PartialTensorShape& shape) const {
  if (!IsSupported(static_cast<DType>(dtype))) {
    return absl::InvalidArgumentError(
        absl::StrCat("no table can hold ", tensorflow::DataTypeString(dtype), "; cast it"));
  }
  if (dtype == attrs_.dtypes[column] && attrs_.shapes[column].IsCompatibleWith(shape)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("it is ", Text(dtype, shape), ", but ", kDtypes, " and ", kShapes,
                   " declare ", Text(attrs_.dtypes[column], attrs_.shapes[column])));
}

absl::Status PatternDatasetOp::CheckConfigs(const DatasetBase& input) const {
  const ReverbApi* api = nullptr;
  TF_RETURN_IF_ERROR(GetReverbApi(&api));
  const Result<std::unique_ptr<PatternEvaluator>> made =
      api->MakePatternEvaluator(attrs_.configs);
  if (!made.ok()) return ToTfStatus(made.status());
  const PatternEvaluator& evaluator = **made;
  const size_t components = input.output_dtypes().size();
  if (static_cast<size_t>(evaluator.num_sources()) > components) {
    return absl::InvalidArgumentError(
        absl::StrCat("the configs are of steps of ", evaluator.num_sources(),
                     " leaves, but the dataset's elements have ", components));
  }
  for (size_t i = 0; i < attrs_.configs.size(); ++i) {
    const std::vector<PatternNode>& nodes = attrs_.configs[i].nodes;
    if (nodes.size() != attrs_.dtypes.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("config ", i, " has ", nodes.size(), " columns, expected ",
                       attrs_.dtypes.size(), " as ", kDtypes));
    }
    const std::vector<ItemColumn>& columns = evaluator.columns(static_cast<int>(i));
    for (size_t k = 0; k < nodes.size(); ++k) {
      const auto source = static_cast<size_t>(nodes[k].source);
      const absl::Status status =
          CheckColumn(k, input.output_dtypes()[source],
                      ShapeOf(columns[k], input.output_shapes()[source]));
      if (!status.ok()) return At(i, nodes[k].path, status);
    }
  }
  return absl::OkStatus();
}

void PatternDatasetOp::MakeDataset(OpKernelContext* ctx, DatasetBase* input,
                                   DatasetBase** output) {
  OP_REQUIRES_OK(ctx, CheckConfigs(*input));
  std::unique_ptr<CapturedFunction> is_end_of_episode;
  OP_REQUIRES_OK(ctx, CapturedFunction::Create(ctx, is_end_of_episode_, kOtherArguments,
                                               &is_end_of_episode));
  *output = new Dataset(ctx, attrs_, input, std::move(is_end_of_episode));
}

REGISTER_KERNEL_BUILDER(Name("ReverbTfPatternDataset").Device(::tensorflow::DEVICE_CPU),
                        PatternDatasetOp);

}  // namespace reverb_tf
