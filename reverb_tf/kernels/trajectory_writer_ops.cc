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

template <typename T>
absl::Status SetNumber(OpKernelContext* ctx, T value) {
  tensorflow::Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {}, &out));
  out->scalar<T>()() = value;
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

// The cells of one append. Read in place, but strings, which are copied in content form.
class Cells {
 public:
  // INVALID_ARGUMENT naming the path if the tensor isn't a cell (or with is_batch cells) of
  // the column.
  absl::Status Add(int source, const TensorSpec& spec, const tensorflow::Tensor& tensor,
                   bool is_batch) {
    TF_RETURN_IF_ERROR(Check(spec, tensor, is_batch));
    CellView view;
    view.column = source;
    view.dtype = spec.dtype;
    view.rank = tensor.dims();
    for (int i = 0; i < view.rank; ++i) dims_.push_back(tensor.dim_size(i));
    if (spec.dtype == DType::kString) {
      view.bytes = AddStrings(tensor);
    } else {
      view.data = tensor.data();
      view.bytes = tensor.tensor_data().size();
    }
    views_.push_back(view);
    return absl::OkStatus();
  }

  size_t size() const { return views_.size(); }
  // All cells; valid until the next Add.
  const CellView* views() {
    const int64_t* dims = dims_.data();
    const char* strings = strings_.data();
    for (CellView& view : views_) {
      view.dims = dims;
      dims += view.rank;
      if (view.dtype != DType::kString) continue;
      view.data = strings;
      strings += view.bytes;
    }
    return views_.data();
  }

 private:
  static bool IsCell(const TensorSpec& spec, const tensorflow::Tensor& tensor,
                     bool is_batch) {
    const int first = is_batch ? 1 : 0;
    if (tensor.dims() < first) return false;
    if (spec.unknown_rank) return true;
    if (static_cast<size_t>(tensor.dims() - first) != spec.shape.size()) return false;
    for (int i = first; i < tensor.dims(); ++i) {
      const int64_t expected = spec.shape[static_cast<size_t>(i - first)];
      if (expected >= 0 && tensor.dim_size(i) != expected) return false;
    }
    return true;
  }

  static absl::Status Check(const TensorSpec& spec, const tensorflow::Tensor& tensor,
                            bool is_batch) {
    if (static_cast<DType>(tensor.dtype()) == spec.dtype &&
        IsCell(spec, tensor, is_batch)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "column '", spec.path, "': got ", tensorflow::DataTypeString(tensor.dtype()),
        " of shape ", tensor.shape().DebugString(), ", expected ",
        is_batch ? "[T, ...] cells of " : "", spec.ToString()));
  }

  size_t AddStrings(const tensorflow::Tensor& tensor) {
    const size_t before = strings_.size();
    const auto flat = tensor.flat<tensorflow::tstring>();
    for (int64_t i = 0; i < flat.size(); ++i) AppendVarint(&strings_, flat(i).size());
    for (int64_t i = 0; i < flat.size(); ++i) {
      strings_.append(flat(i).data(), flat(i).size());
    }
    return strings_.size() - before;
  }

  absl::InlinedVector<CellView, 16> views_;
  absl::InlinedVector<int64_t, 64> dims_;
  std::string strings_;
};

using WriterOp = WaitingOp<TrajectoryWriterResource>;

class AppendOp : public WriterOp {
 public:
  explicit AppendOp(OpKernelConstruction* ctx) : WriterOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("columns", &columns_));
    is_batch_ = !ctx->HasAttr("partial_step");
    if (!is_batch_) OP_REQUIRES_OK(ctx, ctx->GetAttr("partial_step", &partial_step_));
  }

 protected:
  bool MayWait(const TrajectoryWriterResource& writer) const override {
    return writer.creates_items_itself() && writer.has_bound();
  }

  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) override {
    Cells cells;
    TF_RETURN_IF_ERROR(Gather(ctx, *writer, &cells));
    const Status status =
        is_batch_ ? writer->AppendBatch(cells.views(), cells.size(), wait)
                  : writer->Append(cells.views(), cells.size(), partial_step_, wait);
    TF_RETURN_IF_ERROR(ToTfStatus(status));
    const int64_t added = is_batch_ ? cells.views()[0].dims[0] : partial_step_ ? 0 : 1;
    return SetNumber<int64_t>(ctx, writer->episode_steps() - added);
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
      TF_RETURN_IF_ERROR(cells->Add(writer.source(k), specs[k], data[i], is_batch_));
    }
    return absl::OkStatus();
  }

  std::vector<int32_t> columns_;
  bool is_batch_ = false;
  bool partial_step_ = false;
};

// ---- items and history ----

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
  }

 protected:
  bool MayWait(const TrajectoryWriterResource& writer) const override {
    return writer.has_bound();
  }

  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) override {
    std::string table;
    double priority = 0;
    std::vector<HistorySlice> slices = slices_;
    TF_RETURN_IF_ERROR(GetString(ctx, "table", &table));
    TF_RETURN_IF_ERROR(GetScalar(ctx, "priority", &priority));
    TF_RETURN_IF_ERROR(GetBounds(ctx, &slices));
    const Result<uint64_t> key = writer->CreateItem(table, priority, slices, wait);
    if (!key.ok()) return ToTfStatus(key.status());
    return SetNumber<uint64_t>(ctx, *key);
  }

 private:
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
};

// An op that never waits.
class InstantOp : public WriterOp {
 public:
  using WriterOp::WaitingOp;

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
  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) override {
    HistorySlice slice = slice_;
    int32_t start = 0, stop = 0;
    TF_RETURN_IF_ERROR(GetScalar(ctx, "start", &start));
    TF_RETURN_IF_ERROR(GetScalar(ctx, "stop", &stop));
    TF_RETURN_IF_ERROR(GetScalar(ctx, "step", &slice.step));
    if (has_start_) slice.start = start;
    if (has_stop_) slice.stop = stop;
    const std::vector<TensorSpec>& columns = writer->setup().columns;
    const auto source = static_cast<size_t>(slice.source);
    if (source < columns.size()) slice.path = columns[source].path;
    Result<Tensor> values = writer->Read(slice);
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
  HistorySlice slice_;  // without bounds
  bool has_start_ = false;
  bool has_stop_ = false;
  tensorflow::DataType dtype_ = tensorflow::DT_INVALID;
};

class EpisodeStepsOp : public InstantOp {
 public:
  using InstantOp::InstantOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) override {
    return SetNumber<int64_t>(ctx, writer->episode_steps());
  }
};

class PendingOp : public InstantOp {
 public:
  using InstantOp::InstantOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) override {
    return SetNumber<int64_t>(ctx, writer->pending_items());
  }
};

// ---- flush, end, close ----

class FlushOp : public WriterOp {
 public:
  using WriterOp::WaitingOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) override {
    int32_t ignore_last = 0;
    TF_RETURN_IF_ERROR(GetScalar(ctx, "block_until_num_items", &ignore_last));
    return ToTfStatus(writer->Flush(ignore_last, wait));
  }
};

class EndEpisodeOp : public WriterOp {
 public:
  using WriterOp::WaitingOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) override {
    bool clear_buffers = true;
    TF_RETURN_IF_ERROR(GetScalar(ctx, "clear_buffers", &clear_buffers));
    return ToTfStatus(writer->EndEpisode(clear_buffers, wait));
  }
};

class CloseOp : public WriterOp {
 public:
  using WriterOp::WaitingOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, TrajectoryWriterResource* writer,
                    const WaitOptions& wait) override {
    const Result<int64_t> dropped = writer->Close(wait);
    if (!dropped.ok()) return ToTfStatus(dropped.status());
    return SetNumber<int64_t>(ctx, *dropped);
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
