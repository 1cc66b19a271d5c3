#include "reverb_tf/kernels/trajectory_dataset_op.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/api/client.h"
#include "cc/api/sampler.h"
#include "cc/base/mutex.h"
#include "reverb_tf/kernels/bridge.h"
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
using tensorflow::data::DatasetBase;
using tensorflow::data::DatasetContext;
using tensorflow::data::DatasetIterator;
using tensorflow::data::IteratorBase;
using tensorflow::data::IteratorContext;
using tensorflow::data::IteratorStateReader;
using tensorflow::data::IteratorStateWriter;
using tensorflow::data::SerializationContext;

constexpr size_t kInfoFields = 5;
constexpr char kTimestepOp[] = "ReverbTfTimestepDataset";
constexpr char kEnd[] = "end";
constexpr char kError[] = "error";
// Keys of an iterator's checkpoint.
constexpr char kDelivered[] = "delivered";
constexpr char kIteratorNumber[] = "iterator_number";

bool IsBatched(const TrajectoryDatasetOptions& o) { return o.batch_size > 0; }

// Milliseconds, with -1 for ever.
Duration ToDuration(int64_t ms) {
  constexpr int64_t kMost = Duration::max().count() / 1'000'000;
  return ms < 0 || ms >= kMost ? kForever : Duration(ms * 1'000'000);
}

SamplerOptions ToSamplerOptions(const TrajectoryDatasetOptions& o, uint64_t iterator) {
  SamplerOptions s;
  s.table = o.table;
  s.max_in_flight = o.max_in_flight_samples_per_worker > 0
                        ? o.max_in_flight_samples_per_worker
                        : std::max<int64_t>(2 * o.batch_size, 16);
  if (o.num_workers_per_iterator > 0) s.num_workers = o.num_workers_per_iterator;
  if (o.max_samples_per_stream > 0) s.max_samples_per_stream = o.max_samples_per_stream;
  s.rate_limiter_timeout = ToDuration(o.rate_limiter_timeout_ms);
  if (o.max_samples > 0) s.max_samples = o.max_samples;
  if (IsBatched(o)) s.batch_size = o.batch_size;
  s.drop_remainder = o.drop_remainder;
  s.pad_to_longest = o.pad_to_longest;
  s.consume_ahead = o.consume_ahead;
  if (o.max_age_ms >= 0) s.max_age = ToDuration(o.max_age_ms);
  if (o.seed >= 0) s.seed = o.seed;
  s.seed_iterator = iterator;
  s.reconnect_timeout = ToDuration(o.reconnect_timeout_ms);
  s.end_on_timeout = o.on_timeout == kEnd;
  s.emit_steps = o.timesteps;
  s.specs.emplace();
  for (size_t i = 0; i < o.paths.size(); ++i) {
    s.specs->push_back(
        ToTensorSpec(o.paths[i], o.dtypes[kInfoFields + i], o.shapes[kInfoFields + i]));
  }
  return s;
}

// The components of an element, in TensorFlow's flattened order.
absl::Status ToElement(SampleBatch batch, const TrajectoryDatasetOptions& o,
                       std::vector<tensorflow::Tensor>* out) {
  const bool batched = IsBatched(o);
  if (batch.columns.size() != o.paths.size()) {
    return absl::InternalError(absl::StrCat("a sample of ", batch.columns.size(),
                                            " columns, expected ", o.paths.size()));
  }
  out->reserve(kInfoFields + (o.pad_to_longest ? 2 : 1) * batch.columns.size());
  out->push_back(ToTfNumbers<uint64_t>(batch.keys, batched));
  out->push_back(ToTfNumbers<double>(batch.probabilities, batched));
  out->push_back(ToTfNumbers<int64_t>(batch.table_sizes, batched));
  out->push_back(ToTfNumbers<double>(batch.priorities, batched));
  out->push_back(ToTfNumbers<int32_t>(batch.times_sampled, batched));
  for (size_t i = 0; i < batch.columns.size(); ++i) {
    tensorflow::Tensor column;
    TF_RETURN_IF_ERROR(ToTfTensor(std::move(batch.columns[i]), &column));
    if (column.dtype() != o.dtypes[kInfoFields + i]) {
      return absl::InternalError(absl::StrCat("column '", o.paths[i], "' came as ",
                                              tensorflow::DataTypeString(column.dtype())));
    }
    out->push_back(std::move(column));
  }
  if (!o.pad_to_longest) return absl::OkStatus();
  for (const std::vector<int32_t>& lengths : batch.lengths) {
    out->push_back(ToTfNumbers<int32_t>(lengths, /*batched=*/true));
  }
  return absl::OkStatus();
}

}  // namespace

// Immutable but for the count of its iterators. Thread-safe.
class TrajectoryDatasetOp::Dataset : public DatasetBase {
 public:
  Dataset(OpKernelContext* ctx, TrajectoryDatasetOptions options)
      : DatasetBase(DatasetContext(ctx)), options_(std::move(options)) {
    const PartialTensorShape batch({options_.drop_remainder ? options_.batch_size : -1});
    for (size_t i = 0; i < options_.dtypes.size(); ++i) {
      dtypes_.push_back(options_.dtypes[i]);
      shapes_.push_back(IsBatched(options_) ? batch.Concatenate(options_.shapes[i])
                                            : options_.shapes[i]);
    }
    if (!options_.pad_to_longest) return;
    for (size_t i = 0; i < options_.paths.size(); ++i) {
      dtypes_.push_back(tensorflow::DT_INT32);
      shapes_.push_back(batch);
    }
  }

  const DataTypeVector& output_dtypes() const override { return dtypes_; }
  const std::vector<PartialTensorShape>& output_shapes() const override { return shapes_; }
  std::string DebugString() const override {
    return type_string() + "('" + options_.table + "' at " + options_.server_address + ")";
  }

  int64_t CardinalityInternal(tensorflow::data::CardinalityOptions options) const override {
    const TrajectoryDatasetOptions& o = options_;
    if (o.rate_limiter_timeout_ms >= 0 && o.on_timeout == kEnd) {
      return tensorflow::data::kUnknownCardinality;
    }
    if (o.max_samples <= 0) return tensorflow::data::kInfiniteCardinality;
    if (o.timesteps) return tensorflow::data::kUnknownCardinality;
    if (!IsBatched(o)) return o.max_samples;
    const bool partial = o.max_samples % o.batch_size != 0 && !o.drop_remainder;
    return o.max_samples / o.batch_size + (partial ? 1 : 0);
  }

  absl::Status InputDatasets(std::vector<const DatasetBase*>* inputs) const override {
    inputs->clear();
    return absl::OkStatus();
  }

  absl::Status CheckExternalState() const override {
    return absl::FailedPreconditionError(absl::StrCat(
        DebugString(), " depends on the content of a table outside the graph."));
  }

  std::unique_ptr<IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override;

 protected:
  absl::Status AsGraphDefInternal(SerializationContext* ctx, DatasetGraphDefBuilder* b,
                                  tensorflow::Node** output) const override;

 private:
  class Iterator;

  const TrajectoryDatasetOptions options_;
  DataTypeVector dtypes_;
  std::vector<PartialTensorShape> shapes_;
  mutable std::atomic<int64_t> num_iterators_{0};
};

// A client and its sampler, made when the first element is asked for. Thread-safe.
class TrajectoryDatasetOp::Dataset::Iterator : public DatasetIterator<Dataset> {
 public:
  Iterator(const Params& params, int64_t number)
      : DatasetIterator<Dataset>(params), number_(number) {}

  ~Iterator() override {
    Cancel();
    if (deregister_) deregister_();
  }

  absl::Status Initialize(IteratorContext* ctx) override {
    return tensorflow::RegisterCancellationCallback(
        ctx->cancellation_manager(), [this] { Cancel(); }, &deregister_);
  }

  absl::Status GetNextInternal(IteratorContext* ctx, std::vector<tensorflow::Tensor>* out,
                               bool* end_of_sequence) override {
    *end_of_sequence = false;
    MutexLock next_lock(&next_mu_);
    Sampler* sampler = nullptr;
    TF_RETURN_IF_ERROR(GetSampler(&sampler));
    WaitOptions wait;
    wait.interrupted = [this] { return Interrupted(); };
    SampleBatch batch;
    const Status status = sampler->Next(wait, &batch);
    if (status.code() == StatusCode::kOutOfRange) {
      *end_of_sequence = true;
      return absl::OkStatus();
    }
    TF_RETURN_IF_ERROR(ToTfStatus(status));
    return ToElement(std::move(batch), dataset()->options_, out);
  }

 protected:
  std::shared_ptr<tensorflow::data::model::Node> CreateNode(
      IteratorContext* ctx, tensorflow::data::model::Node::Args args) const override {
    return tensorflow::data::model::MakeSourceNode(std::move(args));
  }

  // The content is the server's: only what this iterator has taken of it is kept.
  absl::Status SaveInternal(SerializationContext* ctx,
                            IteratorStateWriter* writer) override {
    MutexLock lock(&mu_);
    const int64_t delivered = sampler_ ? sampler_->delivered() : delivered_;
    TF_RETURN_IF_ERROR(writer->WriteScalar(prefix(), kDelivered, delivered));
    return writer->WriteScalar(prefix(), kIteratorNumber, number_);
  }

  absl::Status RestoreInternal(IteratorContext* ctx, IteratorStateReader* reader) override {
    MutexLock lock(&mu_);
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kDelivered, &delivered_));
    TF_RETURN_IF_ERROR(reader->ReadScalar(prefix(), kIteratorNumber, &number_));
    sampler_.reset();
    return absl::OkStatus();
  }

 private:
  absl::Status GetSampler(Sampler** sampler) {
    MutexLock lock(&mu_);
    if (cancelled_) return absl::CancelledError("the iterator was cancelled");
    if (!sampler_) {
      const TrajectoryDatasetOptions& options = dataset()->options_;
      TF_RETURN_IF_ERROR(MakeClient(options.server_address, /*in_process=*/true, &client_));
      Result<std::unique_ptr<Sampler>> made =
          client_->NewSampler(ToSamplerOptions(options, number_));
      if (!made.ok()) return ToTfStatus(made.status());
      sampler_ = std::move(made).value();
      sampler_->set_delivered(delivered_);
    }
    *sampler = sampler_.get();
    return absl::OkStatus();
  }

  Status Interrupted() const {
    if (cancelled_) return CancelledError("the iterator was cancelled");
    if (IsInterrupted()) return CancelledError("interrupted (SIGINT)");
    return OkStatus();
  }

  // The sampler lives until the destructor, which waits for this.
  void Cancel() {
    Sampler* sampler = nullptr;
    {
      MutexLock lock(&mu_);
      cancelled_ = true;
      sampler = sampler_.get();
    }
    if (sampler != nullptr) sampler->Close();
  }

  std::function<void()> deregister_;
  std::atomic<bool> cancelled_{false};
  // Samplers have one caller at a time. Held while waiting, hence apart from mu_.
  Mutex next_mu_ ACQUIRED_BEFORE(mu_);
  Mutex mu_;
  int64_t number_ GUARDED_BY(mu_);
  int64_t delivered_ GUARDED_BY(mu_) = 0;
  std::unique_ptr<ReverbClient> client_ GUARDED_BY(mu_);
  std::unique_ptr<Sampler> sampler_ GUARDED_BY(mu_);
};

std::unique_ptr<IteratorBase> TrajectoryDatasetOp::Dataset::MakeIteratorInternal(
    const std::string& prefix) const {
  return std::make_unique<Iterator>(Iterator::Params{this, prefix + "::" + kDatasetType},
                                    num_iterators_++);
}

absl::Status TrajectoryDatasetOp::Dataset::AsGraphDefInternal(
    SerializationContext* ctx, DatasetGraphDefBuilder* b, tensorflow::Node** output) const {
  const TrajectoryDatasetOptions& o = options_;
  tensorflow::Node* address = nullptr;
  tensorflow::Node* table = nullptr;
  tensorflow::Node* seed = nullptr;
  TF_RETURN_IF_ERROR(b->AddScalar(tensorflow::tstring(o.server_address), &address));
  TF_RETURN_IF_ERROR(b->AddScalar(tensorflow::tstring(o.table), &table));
  TF_RETURN_IF_ERROR(b->AddScalar(o.seed, &seed));
  std::vector<std::pair<absl::string_view, AttrValue>> attrs;
  const auto add = [&attrs](absl::string_view name, const auto& value) {
    AttrValue attr;
    tensorflow::SetAttrValue(value, &attr);
    attrs.emplace_back(name, std::move(attr));
  };
  add(kDtypes, tensorflow::DataTypeSlice(o.dtypes));
  add(kShapes, absl::Span<const PartialTensorShape>(o.shapes));
  add(kPaths, absl::Span<const std::string>(o.paths));
  add(kMaxInFlight, o.max_in_flight_samples_per_worker);
  add(kNumWorkers, o.num_workers_per_iterator);
  add(kMaxSamplesPerStream, o.max_samples_per_stream);
  add(kRateLimiterTimeoutMs, o.rate_limiter_timeout_ms);
  add(kMaxSamples, o.max_samples);
  add(kBatchSize, o.batch_size);
  add(kDropRemainder, o.drop_remainder);
  if (!o.timesteps) add(kPadToLongest, o.pad_to_longest);
  add(kOnTimeout, o.on_timeout);
  add(kConsumeAhead, o.consume_ahead);
  add(kMaxAgeMs, o.max_age_ms);
  add(kReconnectTimeoutMs, o.reconnect_timeout_ms);
  return b->AddDataset(this, {address, table, seed}, attrs, output);
}

TrajectoryDatasetOp::TrajectoryDatasetOp(OpKernelConstruction* ctx) : DatasetOpKernel(ctx) {
  TrajectoryDatasetOptions& o = attrs_;
  o.timesteps = type_string() == kTimestepOp;
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kDtypes, &o.dtypes));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kShapes, &o.shapes));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kPaths, &o.paths));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kMaxInFlight, &o.max_in_flight_samples_per_worker));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kNumWorkers, &o.num_workers_per_iterator));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kMaxSamplesPerStream, &o.max_samples_per_stream));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kRateLimiterTimeoutMs, &o.rate_limiter_timeout_ms));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kMaxSamples, &o.max_samples));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kBatchSize, &o.batch_size));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kDropRemainder, &o.drop_remainder));
  if (!o.timesteps) OP_REQUIRES_OK(ctx, ctx->GetAttr(kPadToLongest, &o.pad_to_longest));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kOnTimeout, &o.on_timeout));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kConsumeAhead, &o.consume_ahead));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kMaxAgeMs, &o.max_age_ms));
  OP_REQUIRES_OK(ctx, ctx->GetAttr(kReconnectTimeoutMs, &o.reconnect_timeout_ms));
  const size_t expected = kInfoFields + o.paths.size();
  OP_REQUIRES(ctx, o.dtypes.size() == expected && o.shapes.size() == expected,
              absl::InvalidArgumentError(
                  absl::StrCat(kDtypes, " and ", kShapes, " must have 5 + ", o.paths.size(),
                               " entries (info, then data as ", kPaths, "), got ",
                               o.dtypes.size(), " and ", o.shapes.size())));
  OP_REQUIRES(ctx, o.on_timeout == kEnd || o.on_timeout == kError,
              absl::InvalidArgumentError(absl::StrCat(
                  kOnTimeout, " must be 'end' or 'error', got '", o.on_timeout, "'")));
  OP_REQUIRES(
      ctx, o.batch_size > 0 || !o.pad_to_longest,
      absl::InvalidArgumentError(absl::StrCat(kPadToLongest, " needs ", kBatchSize)));
}

void TrajectoryDatasetOp::MakeDataset(OpKernelContext* ctx, DatasetBase** output) {
  TrajectoryDatasetOptions options = attrs_;
  tensorflow::tstring address;
  tensorflow::tstring table;
  OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument(ctx, kServerAddress, &address));
  OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument(ctx, kTable, &table));
  OP_REQUIRES_OK(ctx, tensorflow::data::ParseScalarArgument(ctx, kSeed, &options.seed));
  OP_REQUIRES(ctx, !table.empty(),
              absl::InvalidArgumentError(absl::StrCat(kTable, " must not be empty")));
  OP_REQUIRES(ctx, options.seed >= -1,
              absl::InvalidArgumentError(absl::StrCat(
                  kSeed, " must be >= 0, or -1 for none, got ", options.seed)));
  options.server_address = address;
  options.table = table;
  // Clients connect when they are first used, so this only checks the address.
  std::unique_ptr<ReverbClient> client;
  OP_REQUIRES_OK(ctx, MakeClient(options.server_address, /*in_process=*/true, &client));
  *output = new Dataset(ctx, std::move(options));
}

REGISTER_KERNEL_BUILDER(Name("ReverbTfTrajectoryDataset").Device(::tensorflow::DEVICE_CPU),
                        TrajectoryDatasetOp);
REGISTER_KERNEL_BUILDER(Name(kTimestepOp).Device(::tensorflow::DEVICE_CPU),
                        TrajectoryDatasetOp);

}  // namespace reverb_tf
