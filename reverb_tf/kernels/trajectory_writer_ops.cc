// The kernels of a trajectory writer's ops. Those of one handle run in program order, since
// all take it and are stateful.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/base/mutex.h"
#include "cc/base/varint.h"
#include "reverb_tf/kernels/bridge.h"
#include "reverb_tf/kernels/client_resource.h"
#include "reverb_tf/kernels/inputs.h"
#include "reverb_tf/kernels/trajectory_writer_resource.h"
#include "reverb_tf/kernels/waiting_op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace reverb_tf {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::ResourceHandle;
using tensorflow::core::RefCountPtr;

constexpr char kData[] = "data";
constexpr char kIndices[] = "indices";
constexpr int64_t kMaxEnvs = 1 << 16;

// Results of one number for each environment; without environments a scalar.
template <typename T>
absl::Status AllocateNumbers(OpKernelContext* ctx, const TrajectoryWriterResource& writer,
                             T** numbers) {
  tensorflow::TensorShape shape;
  if (writer.is_vector()) shape.AddDim(writer.setup().num_envs);
  tensorflow::Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, shape, &out));
  *numbers = out->flat<T>().data();
  return absl::OkStatus();
}

absl::Status SetNumber(OpKernelContext* ctx, int64_t value) {
  tensorflow::Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {}, &out));
  out->scalar<int64_t>()() = value;
  return absl::OkStatus();
}

// The optional input "mask": null if it isn't there.
absl::Status GetMask(OpKernelContext* ctx, const TrajectoryWriterResource& writer,
                     const bool** mask) {
  OpInputList list;
  TF_RETURN_IF_ERROR(ctx->input_list("mask", &list));
  *mask = nullptr;
  if (list.size() == 0) return absl::OkStatus();
  if (!writer.is_vector() || list.size() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("mask: got ", list.size(), " tensors, expected ",
                     writer.is_vector() ? "at most 1"
                                        : "none, since the writer has no "
                                          "environments (num_envs)"));
  }
  const int64_t num_envs = writer.setup().num_envs;
  if (list[0].dims() != 1 || list[0].dim_size(0) != num_envs) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mask: got shape ", list[0].shape().DebugString(), ", expected [", num_envs, "]"));
  }
  *mask = list[0].flat<bool>().data();
  return absl::OkStatus();
}

// ---- the handle ----

absl::Status GetColumns(OpKernelConstruction* ctx, std::vector<TensorSpec>* columns) {
  tensorflow::DataTypeVector types;
  std::vector<PartialTensorShape> shapes;
  std::vector<std::string> paths;
  TF_RETURN_IF_ERROR(ctx->GetAttr("step_dtypes", &types));
  TF_RETURN_IF_ERROR(ctx->GetAttr("step_shapes", &shapes));
  TF_RETURN_IF_ERROR(ctx->GetAttr("step_paths", &paths));
  TF_RETURN_IF_ERROR(CheckTypes("step_dtypes", types));
  if (types.size() != shapes.size() || types.size() != paths.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "step_dtypes, step_shapes and step_paths must have the same length, got ",
        types.size(), ", ", shapes.size(), " and ", paths.size()));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    if (std::count(paths.begin(), paths.end(), paths[i]) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("step_paths has '", paths[i], "' twice"));
    }
    columns->push_back(ToTensorSpec(paths[i], types[i], shapes[i]));
  }
  return absl::OkStatus();
}

// A writer of its own at every execution, or one by name, or one that dies with the kernel.
class WriterHandleOp : public WaitingOp<ClientResource> {
 public:
  explicit WriterHandleOp(OpKernelConstruction* ctx) : WaitingOp(ctx) {
    OP_REQUIRES_OK(ctx, GetColumns(ctx, &setup_.columns));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_keep_alive_refs", &setup_.num_keep_alive_refs));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("validate_items", &setup_.validate_items));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_in_flight_items", &setup_.max_in_flight_items));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("configs", &setup_.configs));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_envs", &setup_.num_envs));
    OP_REQUIRES(ctx, setup_.num_envs <= kMaxEnvs,
                absl::InvalidArgumentError(absl::StrCat("num_envs must be at most ",
                                                        kMaxEnvs, ", got ", setup_.num_envs,
                                                        "; use several writers")));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shared_name", &shared_name_));
  }

  ~WriterHandleOp() override {
    MutexLock lock(&mu_);
    for (const ResourceHandle& handle : own_) {
      // It may be gone, with its container.
      info_.resource_manager()->Delete(handle).IgnoreError();
    }
  }

 protected:
  absl::Status Call(OpKernelContext* ctx, ClientResource* client,
                    const WaitOptions& wait) override {
    tensorflow::Tensor out(tensorflow::DT_RESOURCE, {});
    ResourceHandle* const handle = &out.scalar<ResourceHandle>()();
    if (shared_name_ == ResourceHandle::ANONYMOUS_NAME) {
      RefCountPtr<TrajectoryWriterResource> writer;
      TF_RETURN_IF_ERROR(Make(client, wait, &writer));
      *handle =
          ResourceHandle::MakeRefCountingHandle(writer.release(), ctx->device()->name());
    } else {
      TF_RETURN_IF_ERROR(FindOrMake(ctx, client, wait, handle));
    }
    ctx->set_output(0, out);
    return absl::OkStatus();
  }

 private:
  WriterSetup SetupOf(const ClientResource& client) const {
    WriterSetup setup = setup_;
    setup.address = client.address();
    return setup;
  }

  absl::Status Make(ClientResource* client, const WaitOptions& wait,
                    RefCountPtr<TrajectoryWriterResource>* writer) const {
    return TrajectoryWriterResource::Make(client->client(), SetupOf(*client), wait, writer);
  }

  absl::Status FindOrMake(OpKernelContext* ctx, ClientResource* client,
                          const WaitOptions& wait, ResourceHandle* handle) {
    MutexLock lock(&mu_);
    tensorflow::ResourceMgr* const manager = ctx->resource_manager();
    if (info_.resource_manager() == nullptr) {
      TF_RETURN_IF_ERROR(info_.Init(manager, def()));
    }
    const bool is_own = info_.resource_is_private_to_kernel();
    const std::string name = is_own ? info_.name() + "/" + client->address() : info_.name();
    RefCountPtr<TrajectoryWriterResource> writer;
    TrajectoryWriterResource* found = nullptr;
    if (!manager->Lookup(info_.container(), name, &found).ok()) {
      // Made without the manager's lock, since this may wait; another kernel may be faster.
      TF_RETURN_IF_ERROR(Make(client, wait, &writer));
      TF_RETURN_IF_ERROR(manager->LookupOrCreate<TrajectoryWriterResource>(
          info_.container(), name, &found, [&](TrajectoryWriterResource** made) {
            *made = writer.release();
            if (is_own) {
              own_.push_back(tensorflow::MakeResourceHandle<TrajectoryWriterResource>(
                  ctx, info_.container(), name));
            }
            return absl::OkStatus();
          }));
    }
    writer.reset(found);
    if (!(writer->setup() == SetupOf(*client))) {
      return absl::InvalidArgumentError(
          absl::StrCat("shared_name '", name, "' is of a writer to ",
                       writer->setup().address, " with other attrs"));
    }
    *handle = tensorflow::MakeResourceHandle<TrajectoryWriterResource>(
        ctx, info_.container(), name);
    return absl::OkStatus();
  }

  WriterSetup setup_;
  std::string shared_name_;
  Mutex mu_;
  tensorflow::ContainerInfo info_ GUARDED_BY(mu_);
  std::vector<ResourceHandle> own_ GUARDED_BY(mu_);
};

// ---- appending ----

// The cells of one append, by environment. Read in place, but strings, which are copied in
// content form.
class Cells {
 public:
  // Without environments `num_envs` is 0, and all cells are of 0.
  Cells(int64_t num_envs, bool is_batch)
      : num_envs_(num_envs), is_batch_(is_batch), outer_dims_(num_envs > 0 ? 1 : 0) {}

  // INVALID_ARGUMENT naming the path if the tensor isn't a cell of the column for each
  // environment, or T of them.
  absl::Status Add(int source, const TensorSpec& spec, const tensorflow::Tensor& tensor) {
    TF_RETURN_IF_ERROR(Check(spec, tensor));
    CellView view;
    view.column = source;
    view.dtype = spec.dtype;
    view.rank = tensor.dims() - outer_dims_;
    for (int i = outer_dims_; i < tensor.dims(); ++i) dims_.push_back(tensor.dim_size(i));
    if (spec.dtype == DType::kString) {
      bases_.push_back(nullptr);
      AddStrings(tensor);
    } else {
      bases_.push_back(static_cast<const char*>(tensor.data()));
      view.bytes = tensor.tensor_data().size() / rows();
    }
    views_.push_back(view);
    return absl::OkStatus();
  }

  size_t size() const { return views_.size(); }
  // All cells of the environment; valid until the next call.
  const CellView* Of(size_t env) {
    const int64_t* dims = dims_.data();
    const size_t* ends = string_ends_.data();
    size_t begin = 0;  // of the column's strings
    for (size_t i = 0; i < views_.size(); ++i) {
      CellView& view = views_[i];
      view.dims = dims;
      dims += view.rank;
      if (view.dtype != DType::kString) {
        view.data = bases_[i] + env * view.bytes;
        continue;
      }
      const size_t first = env == 0 ? begin : ends[env - 1];
      view.data = strings_.data() + first;
      view.bytes = ends[env] - first;
      begin = ends[rows() - 1];
      ends += rows();
    }
    return views_.data();
  }

 private:
  size_t rows() const { return num_envs_ > 0 ? static_cast<size_t>(num_envs_) : 1; }

  bool AreCells(const TensorSpec& spec, const tensorflow::Tensor& tensor) const {
    const int first = outer_dims_ + (is_batch_ ? 1 : 0);
    if (tensor.dims() < first) return false;
    if (num_envs_ > 0 && tensor.dim_size(0) != num_envs_) return false;
    if (spec.unknown_rank) return true;
    if (static_cast<size_t>(tensor.dims() - first) != spec.shape.size()) return false;
    for (int i = first; i < tensor.dims(); ++i) {
      const int64_t expected = spec.shape[static_cast<size_t>(i - first)];
      if (expected >= 0 && tensor.dim_size(i) != expected) return false;
    }
    return true;
  }

  absl::Status Check(const TensorSpec& spec, const tensorflow::Tensor& tensor) const {
    if (static_cast<DType>(tensor.dtype()) == spec.dtype && AreCells(spec, tensor)) {
      return absl::OkStatus();
    }
    std::string outer = is_batch_ ? "[T, ...] cells of " : "";
    if (num_envs_ > 0) {
      outer = absl::StrCat("[", num_envs_, is_batch_ ? ", T" : "", ", ...] cells of ");
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "column '", spec.path, "': got ", tensorflow::DataTypeString(tensor.dtype()),
        " of shape ", tensor.shape().DebugString(), ", expected ", outer, spec.ToString()));
  }

  void AddStrings(const tensorflow::Tensor& tensor) {
    const auto flat = tensor.flat<tensorflow::tstring>();
    const int64_t n = flat.size() / static_cast<int64_t>(rows());
    for (size_t row = 0; row < rows(); ++row) {
      const int64_t begin = static_cast<int64_t>(row) * n;
      for (int64_t i = begin; i < begin + n; ++i) AppendVarint(&strings_, flat(i).size());
      for (int64_t i = begin; i < begin + n; ++i) {
        strings_.append(flat(i).data(), flat(i).size());
      }
      string_ends_.push_back(strings_.size());
    }
  }

  const int64_t num_envs_;
  const bool is_batch_;
  const int outer_dims_;
  absl::InlinedVector<CellView, 16> views_;
  absl::InlinedVector<const char*, 16> bases_;  // of the first environment's cells
  absl::InlinedVector<int64_t, 64> dims_;
  std::string strings_;
  std::vector<size_t> string_ends_;  // of each column of strings, by environment
};

// Its attr num_envs is the writer's, so that the shapes are what the graph was told.
class WriterOp : public WaitingOp<TrajectoryWriterResource> {
 public:
  explicit WriterOp(OpKernelConstruction* ctx) : WaitingOp(ctx) {
    has_num_envs_ = ctx->HasAttr("num_envs");
    if (has_num_envs_) OP_REQUIRES_OK(ctx, ctx->GetAttr("num_envs", &num_envs_));
  }

 protected:
  virtual absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                                  const WaitOptions& wait) = 0;

  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) final {
    if (!has_num_envs_ || num_envs_ == writer->setup().num_envs) {
      return CallWriter(ctx, writer, wait);
    }
    return absl::InvalidArgumentError(absl::StrCat("num_envs: got ", num_envs_,
                                                   ", expected the handle's, ",
                                                   writer->setup().num_envs));
  }

 private:
  int64_t num_envs_ = 0;
  bool has_num_envs_ = false;
};

class AppendOp : public WriterOp {
 public:
  explicit AppendOp(OpKernelConstruction* ctx) : WriterOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("columns", &columns_));
    is_batch_ = !ctx->HasAttr("partial_step");
    if (!is_batch_) OP_REQUIRES_OK(ctx, ctx->GetAttr("partial_step", &partial_step_));
  }

 protected:
  bool MayWait(const TrajectoryWriterResource& writer) const override {
    return writer.has_bound() && (writer.creates_items_itself() || writer.is_vector());
  }

  absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                          const WaitOptions& wait) override {
    Cells cells(writer->setup().num_envs, is_batch_);
    const bool* mask = nullptr;
    int64_t* steps = nullptr;
    TF_RETURN_IF_ERROR(Gather(ctx, *writer, &cells));
    TF_RETURN_IF_ERROR(GetMask(ctx, *writer, &mask));
    TF_RETURN_IF_ERROR(AllocateNumbers(ctx, *writer, &steps));
    const AppendKind kind = is_batch_       ? AppendKind::kBatch
                            : partial_step_ ? AppendKind::kPartialStep
                                            : AppendKind::kStep;
    const EnvCells by_env{[&cells](size_t env) { return cells.Of(env); }, cells.size()};
    return ToTfStatus(writer->Append(by_env, kind, mask, wait, steps));
  }

 private:
  absl::Status Gather(OpKernelContext* ctx, const TrajectoryWriterResource& writer,
                      Cells* cells) const {
    OpInputList data;
    TF_RETURN_IF_ERROR(ctx->input_list(kData, &data));
    const auto n = static_cast<size_t>(data.size());
    const std::vector<TensorSpec>& specs = writer.setup().columns;
    const size_t expected = columns_.empty() && n > 0 ? specs.size() : columns_.size();
    if (n != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat("data must have ", expected, " tensors, got ", n));
    }
    for (size_t i = 0; i < n; ++i) {
      const size_t k = columns_.empty() ? i : static_cast<size_t>(columns_[i]);
      if (k >= specs.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("columns must be below ", specs.size(), ", got ", columns_[i]));
      }
      TF_RETURN_IF_ERROR(cells->Add(writer.source(k), specs[k], data[i]));
    }
    return absl::OkStatus();
  }

  std::vector<int32_t> columns_;
  bool is_batch_ = false;
  bool partial_step_ = false;
};

// ---- items and history ----

// A vector of cells' indices.
absl::Status ReadIndices(const tensorflow::Tensor& indices, HistorySlice* slice) {
  if (indices.dims() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        kIndices, " must be of rank 1, got shape ", indices.shape().DebugString()));
  }
  const int32_t* const first = indices.flat<int32_t>().data();
  slice->indices.emplace(first, first + indices.NumElements());
  return absl::OkStatus();
}

class CreateItemOp : public WriterOp {
 public:
  explicit CreateItemOp(OpKernelConstruction* ctx) : WriterOp(ctx) {
    std::vector<int32_t> sources;
    std::vector<bool> squeeze;
    std::vector<std::string> paths;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sources", &sources));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("squeeze", &squeeze));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("paths", &paths));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_start", &has_start_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_stop", &has_stop_));
    const size_t n = sources.size();
    OP_REQUIRES(
        ctx,
        squeeze.size() == n && paths.size() == n && has_start_.size() == n &&
            has_stop_.size() == n,
        absl::InvalidArgumentError("sources, squeeze, paths, has_start and has_stop "
                                   "must have the same length"));
    for (size_t i = 0; i < n; ++i) {
      HistorySlice slice;
      slice.source = sources[i];
      slice.squeeze = squeeze[i];
      slice.path = paths[i];
      slices_.push_back(std::move(slice));
    }
    OP_REQUIRES_OK(ctx, ctx->GetAttr("listed", &listed_));
    for (const int32_t k : listed_) {
      OP_REQUIRES(
          ctx, k >= 0 && static_cast<size_t>(k) < n && !squeeze[Index(k)],
          absl::InvalidArgumentError(absl::StrCat(
              "listed must be of the ", n, " columns that are not squeezed, got ", k)));
    }
  }

 protected:
  bool MayWait(const TrajectoryWriterResource& writer) const override {
    return writer.has_bound();
  }

  absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                          const WaitOptions& wait) override {
    std::string table;
    const tensorflow::Tensor* priority = nullptr;
    std::vector<HistorySlice> slices = slices_;
    const bool* mask = nullptr;
    uint64_t* keys = nullptr;
    TF_RETURN_IF_ERROR(GetString(ctx, "table", &table));
    TF_RETURN_IF_ERROR(GetPriority(ctx, *writer, &priority));
    TF_RETURN_IF_ERROR(GetBounds(ctx, &slices));
    TF_RETURN_IF_ERROR(GetIndices(ctx, &slices));
    TF_RETURN_IF_ERROR(GetMask(ctx, *writer, &mask));
    TF_RETURN_IF_ERROR(AllocateNumbers(ctx, *writer, &keys));
    return ToTfStatus(writer->CreateItem(table, priority->flat<double>().data(),
                                         priority->dims() == 0, slices, mask, wait, keys));
  }

 private:
  static size_t Index(int32_t k) { return static_cast<size_t>(k); }

  static absl::Status GetPriority(OpKernelContext* ctx,
                                  const TrajectoryWriterResource& writer,
                                  const tensorflow::Tensor** priority) {
    if (!writer.is_vector()) return GetInput(ctx, "priority", 0, priority);
    TF_RETURN_IF_ERROR(ctx->input("priority", priority));
    const int64_t num_envs = writer.setup().num_envs;
    if ((*priority)->dims() == 0 ||
        ((*priority)->dims() == 1 && (*priority)->dim_size(0) == num_envs)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat("priority: got shape ",
                                                   (*priority)->shape().DebugString(),
                                                   ", expected [] or [", num_envs, "]"));
  }

  absl::Status GetIndices(OpKernelContext* ctx, std::vector<HistorySlice>* slices) const {
    OpInputList lists;
    TF_RETURN_IF_ERROR(ctx->input_list(kIndices, &lists));
    if (static_cast<size_t>(lists.size()) != listed_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("listed must have an entry for each of the ", lists.size(),
                       " indices, got ", listed_.size()));
    }
    for (size_t i = 0; i < listed_.size(); ++i) {
      TF_RETURN_IF_ERROR(
          ReadIndices(lists[static_cast<int>(i)], &(*slices)[Index(listed_[i])]));
    }
    return absl::OkStatus();
  }

  absl::Status GetBounds(OpKernelContext* ctx, std::vector<HistorySlice>* slices) const {
    const tensorflow::Tensor *start = nullptr, *stop = nullptr, *step = nullptr;
    TF_RETURN_IF_ERROR(GetVector(ctx, "start", &start));
    TF_RETURN_IF_ERROR(GetVector(ctx, "stop", &stop));
    TF_RETURN_IF_ERROR(GetVector(ctx, "step", &step));
    for (size_t i = 0; i < slices->size(); ++i) {
      HistorySlice& slice = (*slices)[i];
      const auto k = static_cast<int64_t>(i);
      if (has_start_[i]) slice.start = start->vec<int32_t>()(k);
      if (has_stop_[i]) slice.stop = stop->vec<int32_t>()(k);
      slice.step = step->vec<int32_t>()(k);
    }
    return absl::OkStatus();
  }

  absl::Status GetVector(OpKernelContext* ctx, const char* name,
                         const tensorflow::Tensor** tensor) const {
    TF_RETURN_IF_ERROR(GetInput(ctx, name, 1, tensor));
    if ((*tensor)->NumElements() == static_cast<int64_t>(slices_.size())) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must have an entry for each of the ", slices_.size(),
                     " columns, got ", (*tensor)->NumElements()));
  }

  std::vector<HistorySlice> slices_;  // without bounds
  std::vector<bool> has_start_;
  std::vector<bool> has_stop_;
  std::vector<int32_t> listed_;  // columns that are chosen by `indices`
};

// An op that never waits.
class InstantOp : public WriterOp {
 public:
  using WriterOp::WriterOp;

 protected:
  bool MayWait(const TrajectoryWriterResource& writer) const override { return false; }
};

class ColumnOp : public InstantOp {
 public:
  explicit ColumnOp(OpKernelConstruction* ctx) : InstantOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("source", &slice_.source));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("squeeze", &slice_.squeeze));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_start", &has_start_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("has_stop", &has_stop_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dtype", &dtype_));
  }

 protected:
  absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                          const WaitOptions& wait) override {
    HistorySlice slice = slice_;
    int32_t start = 0, stop = 0;
    TF_RETURN_IF_ERROR(GetScalar(ctx, "start", &start));
    TF_RETURN_IF_ERROR(GetScalar(ctx, "stop", &stop));
    TF_RETURN_IF_ERROR(GetScalar(ctx, "step", &slice.step));
    if (has_start_) slice.start = start;
    if (has_stop_) slice.stop = stop;
    OpInputList indices;
    TF_RETURN_IF_ERROR(ctx->input_list(kIndices, &indices));
    if (indices.size() > 0) TF_RETURN_IF_ERROR(ReadIndices(indices[0], &slice));
    size_t env = 0;
    TF_RETURN_IF_ERROR(GetEnvironment(ctx, *writer, &env));
    const std::vector<TensorSpec>& columns = writer->setup().columns;
    const auto source = static_cast<size_t>(slice.source);
    if (source < columns.size()) slice.path = columns[source].path;
    Result<Tensor> values = writer->Read(slice, env);
    if (!values.ok()) return ToTfStatus(values.status());
    tensorflow::Tensor out;
    TF_RETURN_IF_ERROR(ToTfTensor(std::move(values).value(), &out));
    if (out.dtype() != dtype_) {
      return absl::InvalidArgumentError(
          absl::StrCat("column '", slice.path, "': its cells are ",
                       tensorflow::DataTypeString(out.dtype()), ", but the attr dtype is ",
                       tensorflow::DataTypeString(dtype_)));
    }
    ctx->set_output(0, out);
    return absl::OkStatus();
  }

 private:
  static absl::Status GetEnvironment(OpKernelContext* ctx,
                                     const TrajectoryWriterResource& writer, size_t* env) {
    OpInputList list;
    TF_RETURN_IF_ERROR(ctx->input_list("environment", &list));
    if (list.size() != (writer.is_vector() ? 1 : 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment: got ", list.size(), " tensors, expected ",
                       writer.is_vector() ? "one: its index"
                                          : "none, since the writer has no environments"));
    }
    if (!writer.is_vector()) return absl::OkStatus();
    const int64_t num_envs = writer.setup().num_envs;
    if (list[0].dims() != 0 || list[0].scalar<int32_t>()() < 0 ||
        list[0].scalar<int32_t>()() >= num_envs) {
      return absl::InvalidArgumentError(absl::StrCat(
          "environment: got ", list[0].SummarizeValue(4), " of shape ",
          list[0].shape().DebugString(), ", expected a scalar from 0 to ", num_envs - 1));
    }
    *env = static_cast<size_t>(list[0].scalar<int32_t>()());
    return absl::OkStatus();
  }

  HistorySlice slice_;  // without bounds
  bool has_start_ = false;
  bool has_stop_ = false;
  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;
};

class EpisodeStepsOp : public InstantOp {
 public:
  using InstantOp::InstantOp;

 protected:
  absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                          const WaitOptions& wait) override {
    int64_t* steps = nullptr;
    TF_RETURN_IF_ERROR(AllocateNumbers(ctx, *writer, &steps));
    for (size_t env = 0; env < writer->num_writers(); ++env) {
      steps[env] = writer->episode_steps(env);
    }
    return absl::OkStatus();
  }
};

class PendingOp : public InstantOp {
 public:
  using InstantOp::InstantOp;

 protected:
  absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                          const WaitOptions& wait) override {
    return SetNumber(ctx, writer->pending_items());
  }
};

// ---- flush, end, close ----

class FlushOp : public WriterOp {
 public:
  using WriterOp::WriterOp;

 protected:
  absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                          const WaitOptions& wait) override {
    int32_t ignore_last = 0;
    TF_RETURN_IF_ERROR(GetScalar(ctx, "block_until_num_items", &ignore_last));
    return ToTfStatus(writer->Flush(ignore_last, wait));
  }
};

class EndEpisodeOp : public WriterOp {
 public:
  using WriterOp::WriterOp;

 protected:
  absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                          const WaitOptions& wait) override {
    bool clear_buffers = true;
    TF_RETURN_IF_ERROR(GetScalar(ctx, "clear_buffers", &clear_buffers));
    const bool* mask = nullptr;
    TF_RETURN_IF_ERROR(GetMask(ctx, *writer, &mask));
    return ToTfStatus(writer->EndEpisode(clear_buffers, mask, wait));
  }
};

class CloseOp : public WriterOp {
 public:
  using WriterOp::WriterOp;

 protected:
  absl::Status CallWriter(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                          const WaitOptions& wait) override {
    const Result<int64_t> dropped = writer->Close(wait);
    if (!dropped.ok()) return ToTfStatus(dropped.status());
    return SetNumber(ctx, *dropped);
  }
};

#define RTF_REGISTER_WRITER(op, kernel) \
  REGISTER_KERNEL_BUILDER(              \
      Name("ReverbTfTrajectoryWriter" op).Device(::tensorflow::DEVICE_CPU), kernel)
RTF_REGISTER_WRITER("Handle", WriterHandleOp);
RTF_REGISTER_WRITER("Append", AppendOp);
RTF_REGISTER_WRITER("AppendBatch", AppendOp);
RTF_REGISTER_WRITER("CreateItem", CreateItemOp);
RTF_REGISTER_WRITER("Column", ColumnOp);
RTF_REGISTER_WRITER("Flush", FlushOp);
RTF_REGISTER_WRITER("EndEpisode", EndEpisodeOp);
RTF_REGISTER_WRITER("Close", CloseOp);
RTF_REGISTER_WRITER("EpisodeSteps", EpisodeStepsOp);
RTF_REGISTER_WRITER("Pending", PendingOp);
#undef RTF_REGISTER_WRITER

}  // namespace
}  // namespace reverb_tf
