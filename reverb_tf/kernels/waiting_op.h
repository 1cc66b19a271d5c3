// Kernels whose calls may wait.
#ifndef REVERB_TF_REVERB_TF_KERNELS_WAITING_OP_H_
#define REVERB_TF_REVERB_TF_KERNELS_WAITING_OP_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "cc/base/wait.h"
#include "reverb_tf/kernels/bridge.h"
#include "reverb_tf/kernels/wait_threads.h"
#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/platform/errors.h"

namespace reverb_tf {

// Milliseconds, with -1 for ever.
inline Duration Milliseconds(int64_t ms) {
  constexpr int64_t kMost = Duration::max().count() / 1'000'000;
  return ms < 0 || ms >= kMost ? kForever : Duration(ms * 1'000'000);
}

// Whether a call has to end: what WaitOptions::interrupted answers.
inline Status Interruption(bool is_cancelled) {
  if (is_cancelled) return CancelledError("the step was cancelled");
  if (IsInterrupted()) return CancelledError("interrupted (SIGINT)");
  return OkStatus();
}

// Runs Call, with the Resource of the first input, on a thread that may wait. It waits no
// longer than the attr timeout_ms, if the op has it, and ends when the step is cancelled or
// SIGINT comes.
template <typename Resource>
class WaitingOp : public tensorflow::AsyncOpKernel {
 public:
  using Context = tensorflow::OpKernelContext;

  explicit WaitingOp(tensorflow::OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    constexpr char kTimeoutMs[] = "timeout_ms";
    int64_t timeout_ms = -1;
    if (ctx->HasAttr(kTimeoutMs)) {
      OP_REQUIRES_OK(ctx, ctx->GetAttr(kTimeoutMs, &timeout_ms));
    }
    timeout_ = Milliseconds(timeout_ms);
  }

  void ComputeAsync(Context* ctx, DoneCallback done) final {
    const tensorflow::Tensor& handle = ctx->input(0);
    OP_REQUIRES_ASYNC(ctx, handle.NumElements() == 1,
                      absl::InvalidArgumentError("the handle must be a scalar"), done);
    ResourcePtr resource;
    OP_REQUIRES_OK_ASYNC(ctx,
                         tensorflow::LookupResource(
                             ctx, handle.flat<tensorflow::ResourceHandle>()(0), &resource),
                         done);
    if (MayWait(*resource)) return ComputeOnThread(ctx, std::move(resource), done);
    ctx->SetStatus(Call(ctx, resource.get(), WaitHere(ctx)));
    resource.reset();
    done();
  }

 protected:
  virtual absl::Status Call(Context* ctx, Resource* resource, const WaitOptions& wait) = 0;
  // False: Call waits at most in rare cases, and is not worth a thread.
  virtual bool MayWait(const Resource& resource) const { return true; }

 private:
  using ResourcePtr = tensorflow::core::RefCountPtr<Resource>;
  using CancellationManager = tensorflow::CancellationManager;

  struct CallState {
    ResourcePtr resource;
    tensorflow::CancellationToken token = CancellationManager::kInvalidToken;
    std::atomic<bool> is_cancelled{false};
  };

  WaitOptions WaitHere(Context* ctx) const {
    WaitOptions wait;
    wait.timeout = timeout_;
    wait.interrupted = [manager = ctx->cancellation_manager()] {
      return Interruption(manager != nullptr && manager->IsCancelled());
    };
    return wait;
  }

  void ComputeOnThread(Context* ctx, ResourcePtr resource, const DoneCallback& done) {
    const auto state = std::make_shared<CallState>();
    state->resource = std::move(resource);
    CancellationManager* const manager = ctx->cancellation_manager();
    if (manager != nullptr) {
      state->token = manager->get_cancellation_token();
      OP_REQUIRES_ASYNC(
          ctx,
          manager->RegisterCallback(state->token, [state] { state->is_cancelled = true; }),
          absl::CancelledError("the step was cancelled"), done);
    }
    const Status started = WaitThreads::Get()->Run([this, ctx, manager, state, done] {
      WaitOptions wait;
      wait.timeout = timeout_;
      wait.interrupted = [state] { return Interruption(state->is_cancelled); };
      ctx->SetStatus(Call(ctx, state->resource.get(), wait));
      Finish(manager, state.get(), done);
    });
    if (started.ok()) return;
    ctx->SetStatus(ToTfStatus(started));
    Finish(manager, state.get(), done);
  }

  static void Finish(CancellationManager* manager, CallState* state,
                     const DoneCallback& done) {
    if (manager != nullptr) manager->DeregisterCallback(state->token);
    // Before `done`: whoever waits for that may expect the last handle's end to be it.
    state->resource.reset();
    done();
  }

  Duration timeout_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_KERNELS_WAITING_OP_H_
