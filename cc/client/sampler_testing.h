// A small language for tests of samplers: items of any columns, and a transport that
// can lose its connection or play a server of another project.
#ifndef REVERB_TF_CC_CLIENT_SAMPLER_TESTING_H_
#define REVERB_TF_CC_CLIENT_SAMPLER_TESTING_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/client/local_transport.h"
#include "cc/client/transport.h"
#include "cc/compress/snappy.h"
#include "cc/service/service.h"
#include "cc/store/testing.h"

namespace reverb_tf {

inline TensorSpec Spec(std::string path, DType dtype, Shape shape) {
  TensorSpec spec;
  spec.path = std::move(path);
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  return spec;
}

inline uint64_t NewChunkKey() {
  static std::atomic<uint64_t> next{1};
  return next++;
}

// A chunk of int32 cells of `cell` shape that hold `values`.
inline ChunkPtr Int32Chunk(const std::vector<int32_t>& values, const Shape& cell = {},
                           Encoding encoding = Encoding::kRaw) {
  ChunkOptions options;
  options.key = NewChunkKey();
  options.cell = std::make_shared<TensorSpec>(Spec("", DType::kInt32, cell));
  options.num_rows = static_cast<int32_t>(static_cast<int64_t>(values.size()) /
                                          std::max<int64_t>(1, NumElements(cell)));
  options.end = options.num_rows;
  options.encoding = encoding;
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(int32_t));
  if (encoding == Encoding::kRaw) return Chunk::Copy(options, bytes).value();
  return Chunk::Copy(options, SnappyCompress(bytes)).value();
}

inline ChunkPtr StringChunk(const std::vector<std::string_view>& values) {
  ChunkOptions options;
  options.key = NewChunkKey();
  options.cell = std::make_shared<TensorSpec>(Spec("", DType::kString, {}));
  options.num_rows = static_cast<int32_t>(values.size());
  options.end = options.num_rows;
  return Chunk::Copy(options, MakeStringContent(values)).value();
}

struct TestColumn {
  std::vector<ChunkSlice> slices;
  bool squeeze = false;
};
// All rows of `chunk`.
inline TestColumn Whole(const ChunkPtr& chunk, bool squeeze = false) {
  return {{{chunk, 0, chunk->num_rows()}}, squeeze};
}

inline ItemPtr MakeItem(uint64_t key, const std::vector<TestColumn>& columns,
                        bool written_as_steps = false) {
  std::vector<ColumnView> views;
  for (const TestColumn& column : columns) {
    views.push_back(
        {column.slices.data(), static_cast<int32_t>(column.slices.size()), column.squeeze});
  }
  return Item::Create(key, written_as_steps, views).value();
}

inline SampledItem Sampled(ItemPtr item) {
  SampledItem sample;
  sample.item = std::move(item);
  sample.priority = 2;
  sample.probability = 0.5;
  sample.table_size = 3;
  sample.times_sampled = 4;
  return sample;
}

inline std::vector<int32_t> Int32s(const Tensor& tensor) {
  std::vector<int32_t> values(tensor.buffer->size() / sizeof(int32_t));
  if (!values.empty())
    std::memcpy(values.data(), tensor.buffer->data(), tensor.buffer->size());
  return values;
}

inline std::vector<std::string> Strings(const Tensor& tensor) {
  const StringContent content =
      ParseStringContent(tensor.buffer->view(), NumElements(tensor.shape)).value();
  std::vector<std::string> values;
  size_t at = 0;
  for (const uint64_t length : content.lengths) {
    values.emplace_back(content.bytes.substr(at, length));
    at += length;
  }
  return values;
}

// A stream to a server that knows nothing of this project's extensions.
class ForeignSampleStream : public SampleStream {
 public:
  ForeignSampleStream(Service* service, std::function<void()> on_ready)
      : session_(service->OpenSample(Peer::kForeign, std::move(on_ready))) {}
  ~ForeignSampleStream() override { session_->Close(); }

  bool can_send() const override { return !finished(); }
  void Send(SampleRequest request) override {
    const Status status = session_->Handle(request);
    if (!status.ok()) Finish(status);
  }
  bool Take(int64_t max_items, SampleReply* reply) override {
    const Result<bool> any =
        session_->Take(max_items, std::numeric_limits<int64_t>::max(), reply);
    if (!any.ok()) Finish(any.status());
    reply->request_done.reset();
    reply->generation = 0;
    for (SampledItem& item : reply->items) item.generation = 0;
    return any.ok() && *any && !reply->items.empty();
  }
  uint64_t generation() const override { return 0; }
  void HalfClose() override {
    half_closed_ = true;
    Finish(OkStatus());
  }
  void Cancel() override { session_->Close(); }
  std::optional<Status> finished() const override {
    MutexLock lock(&mu_);
    return finished_;
  }

 private:
  void Finish(const Status& status) {
    MutexLock lock(&mu_);
    if (!finished_) finished_ = status;
  }
  const std::shared_ptr<SampleSession> session_;
  bool half_closed_ = false;
  mutable Mutex mu_;
  std::optional<Status> finished_ GUARDED_BY(mu_);
};

// In-process transport that claims to be remote. Thread-safe.
class RelayTransport : public Transport {
 public:
  explicit RelayTransport(std::shared_ptr<Service> service)
      : state_(std::make_shared<State>()),
        service_(service),
        base_(MakeLocalTransport(std::move(service))) {}

  bool local = false;
  bool own_peer = true;

  // From now on (until it is OK again) streams and calls fail with `status`.
  void SetError(const Status& status) {
    std::vector<std::function<void()>> wake;
    {
      MutexLock lock(&state_->mu);
      state_->error = status;
      ++state_->breaks;
      wake = state_->wake;
    }
    for (const auto& w : wake) w();
  }
  std::vector<SampleRequest> requests() const {
    MutexLock lock(&state_->mu);
    return state_->requests;
  }
  int num_streams() const {
    MutexLock lock(&state_->mu);
    return state_->streams;
  }
  // Blocks until `n` streams were opened.
  void WaitForStreams(int n) const {
    MutexLock lock(&state_->mu);
    while (state_->streams < n) state_->changed.Wait(&state_->mu);
  }
  // Blocks until a request was sent for which `wanted` is true.
  void WaitForRequest(const std::function<bool(const SampleRequest&)>& wanted) const {
    MutexLock lock(&state_->mu);
    while (true) {
      for (const SampleRequest& request : state_->requests) {
        if (wanted(request)) return;
      }
      state_->changed.Wait(&state_->mu);
    }
  }

  std::unique_ptr<Call> GetServerInfo(Done<ServerInfo> done) override {
    const Status status = error();
    if (status.ok()) return base_->GetServerInfo(std::move(done));
    done(status);
    return std::make_unique<Call>();
  }
  std::unique_ptr<Call> Mutate(MutateRequest request, Done<MutateCounts> done) override {
    return base_->Mutate(std::move(request), std::move(done));
  }
  std::unique_ptr<Call> Reset(std::string table, Done<bool> done) override {
    return base_->Reset(std::move(table), std::move(done));
  }
  std::unique_ptr<Call> Checkpoint(Done<std::string> done) override {
    return base_->Checkpoint(std::move(done));
  }
  std::unique_ptr<InsertStream> OpenInsert(std::function<void()> on_ready) override {
    return base_->OpenInsert(std::move(on_ready));
  }
  std::unique_ptr<SampleStream> OpenSample(std::function<void()> on_ready) override {
    {
      MutexLock lock(&state_->mu);
      ++state_->streams;
      state_->changed.SignalAll();
    }
    if (!own_peer) {
      return std::make_unique<ForeignSampleStream>(service_.get(), std::move(on_ready));
    }
    return std::make_unique<Stream>(state_, base_.get(), std::move(on_ready));
  }
  bool is_local() const override { return local; }
  bool is_own_peer() const override { return own_peer; }

 private:
  struct State {
    mutable Mutex mu;
    mutable CondVar changed;
    Status error GUARDED_BY(mu);
    int breaks GUARDED_BY(mu) = 0;
    int streams GUARDED_BY(mu) = 0;
    std::vector<SampleRequest> requests GUARDED_BY(mu);
    std::vector<std::function<void()>> wake GUARDED_BY(mu);
  };

  class Stream : public SampleStream {
   public:
    Stream(std::shared_ptr<State> state, Transport* base, std::function<void()> on_ready)
        : state_(std::move(state)), gate_(std::make_shared<Gate>()) {
      gate_->on_ready = std::move(on_ready);
      base_ = base->OpenSample([gate = gate_] { gate->Call(); });
      MutexLock lock(&state_->mu);
      error_ = state_->error;
      breaks_ = state_->breaks;
      state_->wake.push_back([gate = gate_] { gate->Call(); });
    }
    ~Stream() override {
      base_.reset();
      MutexLock lock(&gate_->mu);
      gate_->on_ready = nullptr;
    }

    bool can_send() const override { return error().ok() && base_->can_send(); }
    void Send(SampleRequest request) override {
      {
        MutexLock lock(&state_->mu);
        state_->requests.push_back(request);
        state_->changed.SignalAll();
      }
      if (error().ok()) base_->Send(std::move(request));
    }
    bool Take(int64_t max_items, SampleReply* reply) override {
      return error().ok() && base_->Take(max_items, reply);
    }
    uint64_t generation() const override { return base_->generation(); }
    void HalfClose() override { base_->HalfClose(); }
    void Cancel() override { base_->Cancel(); }
    std::optional<Status> finished() const override {
      const Status status = error();
      return status.ok() ? base_->finished() : status;
    }

   private:
    // The callback runs under this lock, which nothing else takes but the destructor.
    struct Gate {
      void Call() {
        MutexLock lock(&mu);
        if (on_ready) on_ready();
      }
      Mutex mu;
      std::function<void()> on_ready;
    };
    Status error() const {
      MutexLock lock(&state_->mu);
      if (error_.ok() && breaks_ != state_->breaks) error_ = state_->error;
      return error_;
    }

    const std::shared_ptr<State> state_;
    const std::shared_ptr<Gate> gate_;
    std::unique_ptr<SampleStream> base_;
    int breaks_ = 0;
    mutable Status error_;  // guarded by state_->mu
  };

  Status error() const {
    MutexLock lock(&state_->mu);
    return state_->error;
  }

  const std::shared_ptr<State> state_;
  const std::shared_ptr<Service> service_;
  const std::shared_ptr<Transport> base_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_SAMPLER_TESTING_H_
