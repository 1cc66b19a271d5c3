// The kernels of a client's ops: inputs become the arguments of ReverbClient and
// ClientResource, their results outputs.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/api/client.h"
#include "cc/base/mutex.h"
#include "reverb_tf/kernels/bridge.h"
#include "reverb_tf/kernels/client_resource.h"
#include "reverb_tf/kernels/inputs.h"
#include "reverb_tf/kernels/waiting_op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/tstring.h"

namespace reverb_tf {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::ResourceHandle;
using tensorflow::core::RefCountPtr;

constexpr char kSharedName[] = "shared_name";
constexpr char kServerAddress[] = "server_address";
constexpr char kInProcess[] = "in_process";
constexpr char kTable[] = "table";
constexpr char kTables[] = "tables";
constexpr char kData[] = "data";
constexpr char kKeys[] = "keys";
constexpr char kPriorities[] = "priorities";
constexpr char kNumSamples[] = "num_samples";
constexpr char kPaths[] = "paths";
constexpr char kInputTypes[] = "T";
constexpr char kOutputTypes[] = "Toutput_list";
constexpr char kOutputShapes[] = "output_shapes";
constexpr char kEmitTrajectory[] = "emit_trajectory";
constexpr char kRateLimiterTimeoutMs[] = "rate_limiter_timeout_ms";

// ---- inputs ----

absl::Status GetStrings(OpKernelContext* ctx, const char* name,
                        std::vector<std::string>* values) {
  const tensorflow::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(GetInput(ctx, name, 1, &tensor));
  const auto flat = tensor->flat<tensorflow::tstring>();
  for (int64_t i = 0; i < flat.size(); ++i) values->push_back(flat(i));
  return absl::OkStatus();
}

absl::Status GetPriorities(OpKernelContext* ctx, int rank, std::vector<double>* values) {
  const tensorflow::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(GetInput(ctx, kPriorities, rank, &tensor));
  const auto flat = tensor->flat<double>();
  values->assign(flat.data(), flat.data() + flat.size());
  return absl::OkStatus();
}

// Keys of both types have the same 64 bits.
absl::Status GetKeys(OpKernelContext* ctx, std::vector<uint64_t>* keys) {
  const tensorflow::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(GetInput(ctx, kKeys, 1, &tensor));
  const auto* const data = static_cast<const uint64_t*>(tensor->data());
  keys->assign(data, data + tensor->NumElements());
  return absl::OkStatus();
}

Tensor FromTfTensor(const tensorflow::Tensor& tensor) {
  Tensor out;
  out.dtype = static_cast<DType>(tensor.dtype());
  for (int i = 0; i < tensor.dims(); ++i) out.shape.push_back(tensor.dim_size(i));
  if (tensor.dtype() == tensorflow::DT_STRING) {
    const auto flat = tensor.flat<tensorflow::tstring>();
    std::vector<std::string_view> elements(static_cast<size_t>(flat.size()));
    for (int64_t i = 0; i < flat.size(); ++i)
      elements[i] = {flat(i).data(), flat(i).size()};
    out.buffer = Buffer::CopyOf(MakeStringContent(elements));
  } else {
    const auto bytes = tensor.tensor_data();
    out.buffer = Buffer::CopyOf({bytes.data(), bytes.size()});
  }
  out.writable = true;
  return out;
}

// ---- attrs ----

// A path for each of `count` tensors: the given ones, or positions if there are none.
absl::Status GetPaths(OpKernelConstruction* ctx, size_t count,
                      std::vector<std::string>* paths) {
  TF_RETURN_IF_ERROR(ctx->GetAttr(kPaths, paths));
  if (paths->empty()) {
    for (size_t i = 0; i < count; ++i) paths->push_back(absl::StrCat("[", i, "]"));
  }
  if (paths->size() == count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(kPaths, " must be empty or have an entry for each of the ", count,
                   " tensors, got ", paths->size()));
}

absl::Status GetSpecs(OpKernelConstruction* ctx, std::vector<TensorSpec>* specs) {
  tensorflow::DataTypeVector types;
  std::vector<PartialTensorShape> shapes;
  std::vector<std::string> paths;
  TF_RETURN_IF_ERROR(ctx->GetAttr(kOutputTypes, &types));
  TF_RETURN_IF_ERROR(ctx->GetAttr(kOutputShapes, &shapes));
  TF_RETURN_IF_ERROR(GetPaths(ctx, types.size(), &paths));
  TF_RETURN_IF_ERROR(CheckTypes(kOutputTypes, types));
  if (shapes.empty()) shapes.resize(types.size());
  if (shapes.size() != types.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOutputShapes, " must be empty or have an entry for each of the ",
                     types.size(), " outputs, got ", shapes.size()));
  }
  for (size_t i = 0; i < types.size(); ++i) {
    specs->push_back(ToTensorSpec(paths[i], types[i], shapes[i]));
  }
  return absl::OkStatus();
}

// ---- the handle ----

// A resource of its own at every execution, or one by name, or one that dies with the
// kernel.
class ClientHandleOp : public OpKernel {
 public:
  explicit ClientHandleOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kSharedName, &shared_name_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kInProcess, &in_process_));
  }

  ~ClientHandleOp() override {
    MutexLock lock(&mu_);
    for (const ResourceHandle& handle : own_) {
      // It may be gone, with its container.
      info_.resource_manager()->Delete(handle).IgnoreError();
    }
  }

  void Compute(OpKernelContext* ctx) override {
    const tensorflow::Tensor* address = nullptr;
    OP_REQUIRES_OK(ctx, ctx->input(kServerAddress, &address));
    OP_REQUIRES(ctx, address->dims() <= 1,
                absl::InvalidArgumentError(absl::StrCat(
                    kServerAddress, " must be a scalar or a vector, got shape ",
                    address->shape().DebugString())));
    OP_REQUIRES(ctx, address->NumElements() == 1,
                absl::UnimplementedError(absl::StrCat(
                    kServerAddress, " must be one address, got ", address->NumElements(),
                    "; clients of several servers are not part of this version")));
    const std::string target = address->flat<tensorflow::tstring>()(0);
    tensorflow::Tensor out(tensorflow::DT_RESOURCE, {});
    ResourceHandle* const handle = &out.scalar<ResourceHandle>()();
    OP_REQUIRES_OK(ctx, shared_name_ == ResourceHandle::ANONYMOUS_NAME
                            ? MakeAnonymous(ctx, target, handle)
                            : FindOrMake(ctx, target, handle));
    ctx->set_output(0, out);
  }

 private:
  absl::Status Make(const std::string& address, ClientResource** resource) const {
    std::unique_ptr<ReverbClient> client;
    TF_RETURN_IF_ERROR(MakeClient(address, in_process_, &client));
    *resource = new ClientResource(address, in_process_, std::move(client));
    return absl::OkStatus();
  }

  absl::Status MakeAnonymous(OpKernelContext* ctx, const std::string& address,
                             ResourceHandle* handle) const {
    ClientResource* resource = nullptr;
    TF_RETURN_IF_ERROR(Make(address, &resource));
    *handle = ResourceHandle::MakeRefCountingHandle(resource, ctx->device()->name());
    return absl::OkStatus();
  }

  absl::Status FindOrMake(OpKernelContext* ctx, const std::string& address,
                          ResourceHandle* handle) {
    MutexLock lock(&mu_);
    if (info_.resource_manager() == nullptr) {
      TF_RETURN_IF_ERROR(info_.Init(ctx->resource_manager(), def()));
    }
    const bool is_own = info_.resource_is_private_to_kernel();
    const std::string name = is_own ? info_.name() + "/" + address : info_.name();
    ClientResource* found = nullptr;
    bool made = false;
    TF_RETURN_IF_ERROR(ctx->resource_manager()->LookupOrCreate<ClientResource>(
        info_.container(), name, &found, [&](ClientResource** resource) {
          made = true;
          return Make(address, resource);
        }));
    const RefCountPtr<ClientResource> resource(found);
    if (resource->address() != address) {
      return absl::InvalidArgumentError(
          absl::StrCat(kSharedName, " '", shared_name_, "' is of a client of ",
                       resource->address(), ", got ", kServerAddress, " ", address));
    }
    if (resource->in_process() != in_process_) {
      return absl::InvalidArgumentError(
          absl::StrCat(kSharedName, " '", shared_name_, "' is of a client with ",
                       kInProcess, "=", resource->in_process(), ", got ", in_process_));
    }
    *handle = tensorflow::MakeResourceHandle<ClientResource>(ctx, info_.container(), name);
    if (is_own && made) own_.push_back(*handle);
    return absl::OkStatus();
  }

  std::string shared_name_;
  bool in_process_ = true;
  Mutex mu_;
  tensorflow::ContainerInfo info_ GUARDED_BY(mu_);
  std::vector<ResourceHandle> own_ GUARDED_BY(mu_);
};

// ---- calls ----

using ClientCallOp = WaitingOp<ClientResource>;

class InsertOp : public ClientCallOp {
 public:
  explicit InsertOp(OpKernelConstruction* ctx) : ClientCallOp(ctx) {
    tensorflow::DataTypeVector types;
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kInputTypes, &types));
    OP_REQUIRES_OK(ctx, CheckTypes(kInputTypes, types));
    OP_REQUIRES_OK(ctx, GetPaths(ctx, types.size(), &paths_));
  }

 protected:
  absl::Status Call(OpKernelContext* ctx, ClientResource* resource,
                    const WaitOptions& wait) override {
    std::vector<StepLeaf> step;
    std::vector<std::string> tables;
    std::vector<double> priorities;
    TF_RETURN_IF_ERROR(GetLeaves(ctx, &step));
    TF_RETURN_IF_ERROR(GetStrings(ctx, kTables, &tables));
    TF_RETURN_IF_ERROR(GetPriorities(ctx, /*rank=*/1, &priorities));
    if (tables.size() != priorities.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kTables, " and ", kPriorities, " must have the same length, got ",
                       tables.size(), " and ", priorities.size()));
    }
    std::vector<std::pair<std::string, double>> pairs;
    for (size_t i = 0; i < tables.size(); ++i) pairs.emplace_back(tables[i], priorities[i]);
    const auto keys = resource->client()->Insert(step, pairs, wait);
    if (!keys.ok()) return ToTfStatus(keys.status());
    ctx->set_output(0, ToTfNumbers<uint64_t>(*keys, /*batched=*/true));
    return absl::OkStatus();
  }

  absl::Status GetLeaves(OpKernelContext* ctx, std::vector<StepLeaf>* leaves) const {
    OpInputList data;
    TF_RETURN_IF_ERROR(ctx->input_list(kData, &data));
    for (int i = 0; i < data.size(); ++i) {
      leaves->push_back({paths_[static_cast<size_t>(i)], FromTfTensor(data[i])});
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::string> paths_;
};

class InsertBatchOp : public InsertOp {
 public:
  using InsertOp::InsertOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, ClientResource* resource,
                    const WaitOptions& wait) override {
    std::vector<StepLeaf> steps;
    std::vector<std::string> tables;
    std::vector<double> priorities;
    const tensorflow::Tensor* shape = nullptr;
    TF_RETURN_IF_ERROR(GetLeaves(ctx, &steps));
    TF_RETURN_IF_ERROR(GetStrings(ctx, kTables, &tables));
    TF_RETURN_IF_ERROR(GetPriorities(ctx, /*rank=*/2, &priorities));
    TF_RETURN_IF_ERROR(ctx->input(kPriorities, &shape));
    TF_RETURN_IF_ERROR(CheckBatch(steps, tables, *shape));
    const auto keys = resource->client()->InsertBatch(steps, tables, priorities, wait);
    if (!keys.ok()) return ToTfStatus(keys.status());
    tensorflow::Tensor out = ToTfNumbers<uint64_t>(*keys, /*batched=*/true);
    tensorflow::Tensor rows;
    if (!rows.CopyFrom(out, shape->shape())) return absl::InternalError("number of keys");
    ctx->set_output(0, rows);
    return absl::OkStatus();
  }

 private:
  static absl::Status CheckBatch(const std::vector<StepLeaf>& steps,
                                 const std::vector<std::string>& tables,
                                 const tensorflow::Tensor& priorities) {
    const Shape& first = steps[0].value.shape;
    const int64_t batch = first.empty() ? -1 : first[0];
    const auto num_tables = static_cast<int64_t>(tables.size());
    if (batch < 0 ||
        (priorities.dim_size(0) == batch && priorities.dim_size(1) == num_tables)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat(kPriorities, " must have a row for each of the ", batch,
                     " steps and a column for each of the ", num_tables,
                     " tables, got shape ", priorities.shape().DebugString()));
  }
};

class SampleOp : public ClientCallOp {
 public:
  explicit SampleOp(OpKernelConstruction* ctx) : ClientCallOp(ctx) {
    int64_t limiter_ms = -1;
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kRateLimiterTimeoutMs, &limiter_ms));
    OP_REQUIRES_OK(ctx, GetSpecs(ctx, &call_.specs));
    call_.rate_limiter_timeout = Milliseconds(limiter_ms);
    is_batch_ = !ctx->HasAttr(kEmitTrajectory);
    if (is_batch_) return;
    bool emit_trajectory = false;
    OP_REQUIRES_OK(ctx, ctx->GetAttr(kEmitTrajectory, &emit_trajectory));
    call_.single_steps = !emit_trajectory;
  }

 protected:
  absl::Status Call(OpKernelContext* ctx, ClientResource* resource,
                    const WaitOptions& wait) override {
    SampleCall call = call_;
    TF_RETURN_IF_ERROR(GetString(ctx, kTable, &call.table));
    if (is_batch_) TF_RETURN_IF_ERROR(GetBatchSize(ctx, &call.batch_size));
    SampleBatch batch;
    TF_RETURN_IF_ERROR(ToTfStatus(resource->Sample(call, wait, &batch)));
    return SetOutputs(ctx, std::move(batch));
  }

 private:
  static absl::Status GetBatchSize(OpKernelContext* ctx, std::optional<int64_t>* size) {
    const tensorflow::Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(GetInput(ctx, kNumSamples, 0, &tensor));
    *size = tensor->scalar<int32_t>()();
    if (**size >= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(kNumSamples, " must be at least 1, got ", **size));
  }

  absl::Status SetOutputs(OpKernelContext* ctx, SampleBatch batch) const {
    if (batch.columns.size() != call_.specs.size()) {
      return absl::InternalError(absl::StrCat("a sample of ", batch.columns.size(),
                                              " columns, expected ", call_.specs.size()));
    }
    int i = 0;
    ctx->set_output(i++, ToTfNumbers<uint64_t>(batch.keys, is_batch_));
    ctx->set_output(i++, ToTfNumbers<double>(batch.probabilities, is_batch_));
    ctx->set_output(i++, ToTfNumbers<int64_t>(batch.table_sizes, is_batch_));
    ctx->set_output(i++, ToTfNumbers<double>(batch.priorities, is_batch_));
    ctx->set_output(i++, ToTfNumbers<int32_t>(batch.times_sampled, is_batch_));
    for (Tensor& column : batch.columns) {
      tensorflow::Tensor out;
      TF_RETURN_IF_ERROR(ToTfTensor(std::move(column), &out));
      if (out.dtype() != ctx->expected_output_dtype(i)) {
        return absl::InternalError(
            absl::StrCat("an output came as ", tensorflow::DataTypeString(out.dtype())));
      }
      ctx->set_output(i++, out);
    }
    return absl::OkStatus();
  }

  SampleCall call_;
  bool is_batch_ = false;
};

class UpdatePrioritiesOp : public ClientCallOp {
 public:
  using ClientCallOp::ClientCallOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, ClientResource* resource,
                    const WaitOptions& wait) override {
    std::string table;
    std::vector<uint64_t> keys;
    std::vector<double> priorities;
    TF_RETURN_IF_ERROR(GetString(ctx, kTable, &table));
    TF_RETURN_IF_ERROR(GetKeys(ctx, &keys));
    TF_RETURN_IF_ERROR(GetPriorities(ctx, /*rank=*/1, &priorities));
    if (keys.size() != priorities.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(kKeys, " and ", kPriorities, " must have the same length, got ",
                       keys.size(), " and ", priorities.size()));
    }
    std::vector<KeyPriority> updates(keys.size());
    for (size_t i = 0; i < keys.size(); ++i) updates[i] = {keys[i], priorities[i]};
    const auto reply = resource->client()->Mutate(table, updates, {}, wait);
    if (!reply.ok()) return ToTfStatus(reply.status());
    ctx->set_output(0, ToTfNumbers<int64_t, int64_t>({reply->updated}, /*batched=*/false));
    ctx->set_output(1,
                    ToTfNumbers<int64_t, int64_t>({reply->not_found}, /*batched=*/false));
    return absl::OkStatus();
  }
};

class DeleteOp : public ClientCallOp {
 public:
  using ClientCallOp::ClientCallOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, ClientResource* resource,
                    const WaitOptions& wait) override {
    std::string table;
    std::vector<uint64_t> keys;
    TF_RETURN_IF_ERROR(GetString(ctx, kTable, &table));
    TF_RETURN_IF_ERROR(GetKeys(ctx, &keys));
    const auto reply = resource->client()->Mutate(table, {}, keys, wait);
    if (!reply.ok()) return ToTfStatus(reply.status());
    ctx->set_output(0, ToTfNumbers<int64_t, int64_t>({reply->deleted}, /*batched=*/false));
    ctx->set_output(1,
                    ToTfNumbers<int64_t, int64_t>({reply->not_found}, /*batched=*/false));
    return absl::OkStatus();
  }
};

class ResetOp : public ClientCallOp {
 public:
  using ClientCallOp::ClientCallOp;

 protected:
  absl::Status Call(OpKernelContext* ctx, ClientResource* resource,
                    const WaitOptions& wait) override {
    std::string table;
    TF_RETURN_IF_ERROR(GetString(ctx, kTable, &table));
    return ToTfStatus(resource->client()->Reset(table, wait));
  }
};

REGISTER_KERNEL_BUILDER(Name("ReverbTfClientHandle").Device(::tensorflow::DEVICE_CPU),
                        ClientHandleOp);
REGISTER_KERNEL_BUILDER(Name("ReverbTfClientInsert").Device(::tensorflow::DEVICE_CPU),
                        InsertOp);
REGISTER_KERNEL_BUILDER(Name("ReverbTfClientInsertBatch").Device(::tensorflow::DEVICE_CPU),
                        InsertBatchOp);
REGISTER_KERNEL_BUILDER(Name("ReverbTfClientSample").Device(::tensorflow::DEVICE_CPU),
                        SampleOp);
REGISTER_KERNEL_BUILDER(Name("ReverbTfClientSampleBatch").Device(::tensorflow::DEVICE_CPU),
                        SampleOp);
REGISTER_KERNEL_BUILDER(
    Name("ReverbTfClientUpdatePriorities").Device(::tensorflow::DEVICE_CPU),
    UpdatePrioritiesOp);
REGISTER_KERNEL_BUILDER(Name("ReverbTfClientDelete").Device(::tensorflow::DEVICE_CPU),
                        DeleteOp);
REGISTER_KERNEL_BUILDER(Name("ReverbTfClientReset").Device(::tensorflow::DEVICE_CPU),
                        ResetOp);

}  // namespace
}  // namespace reverb_tf
