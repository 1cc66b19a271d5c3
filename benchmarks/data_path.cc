// What one item costs on its way in and out, counted: copies, allocations, locks, thread
// switches and CPU time of client and server together, in process and over gRPC.
//
//     bazel run //benchmarks:data_path
//
// One column of float32 steps, each step one item. Written by a trajectory writer that
// keeps 1,000 items in flight, read in batches of 256 from a uniform table. Python and
// TensorFlow play no part. The table printed is Markdown; figures are per item.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/counters.h"
#include "cc/api/entry.h"

namespace reverb_tf {
namespace {

constexpr char kTable[] = "t";
constexpr int64_t kBatch = 256;
constexpr int64_t kInFlight = 1'000;

template <typename T>
T Must(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
  std::exit(1);
}

void Must(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}

TableConfig UniformTable(int64_t max_size) {
  TableConfig config;
  config.name = kTable;
  config.sampler.kind = SelectorKind::kUniform;
  config.remover.kind = SelectorKind::kFifo;
  config.max_size = max_size;
  config.rate_limiter.min_diff = -1e300;
  config.rate_limiter.max_diff = 1e300;
  return config;
}

// Appends `steps` steps of `size` bytes, and makes each an item.
void Write(TrajectoryWriter* writer, const std::vector<float>& values, int64_t size,
           int64_t steps) {
  const int64_t dims[] = {size / 4};
  const int column = writer->Column("x");
  for (int64_t i = 0; i < steps; ++i) {
    const CellView cell{column, DType::kFloat32, dims,
                        1,      &values[i % 97], static_cast<size_t>(size)};
    Must(writer->Append(&cell, 1, /*partial_step=*/false));
    const int64_t last = writer->history_end() - 1;
    Must(writer->CreateItem(kTable, 1.0, {{"x", true, {{column, last, 1, 1}}}}, {}));
    if (i % (kInFlight / 4) == 0) Must(writer->Flush(kInFlight, {}));
  }
  Must(writer->Flush(0, {}));
}

void Read(Sampler* sampler, int64_t batches) {
  SampleBatch batch;
  for (int64_t i = 0; i < batches; ++i) Must(sampler->Next({}, &batch));
}

void Print(const char* road, const char* what, int64_t size, int64_t items,
           const Counters& used) {
  const auto each = [items](int64_t n) { return static_cast<double>(n) / items; };
  std::printf("| %s | %s | %lld | %.2f | %.3f | %.3f | %.4f | %.2f |\n", road, what,
              static_cast<long long>(size), each(used.copied_bytes) / size,
              each(used.allocations), each(used.locks), each(used.thread_switches),
              each(used.cpu_ns) / 1e3);
}

template <typename F>
Counters Count(const F& work) {
  work();  // warms up: connections, pools, buffers
  const Counters before = Counters::Now();
  work();
  return Counters::Now() - before;
}

void Measure(const ReverbApi& api, bool in_process, int64_t size) {
  const int64_t items =
      std::min<int64_t>(40 * kBatch, 200'000'000 / size / kBatch * kBatch);
  const char* road = in_process ? "in process" : "gRPC";
  std::shared_ptr<ReverbTable> table = Must(api.MakeTable(UniformTable(items)));
  std::unique_ptr<ReverbServer> server = Must(api.MakeServer({}, {table}));
  std::unique_ptr<ReverbClient> client =
      Must(api.MakeClient({server->address(), in_process}));
  std::vector<float> values(static_cast<size_t>(size / 4 + 97));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = 1.0f / static_cast<float>(i * i + 1);

  std::unique_ptr<TrajectoryWriter> writer = Must(client->NewTrajectoryWriter({}, {}));
  Print(road, "insert", size, items,
        Count([&] { Write(writer.get(), values, size, items); }));
  Must(writer->Close({}));

  SamplerOptions options;
  options.table = kTable;
  options.batch_size = kBatch;
  options.max_in_flight = 2 * kBatch;
  std::unique_ptr<Sampler> sampler = Must(client->NewSampler(options));
  Print(road, "sample", size, items, Count([&] { Read(sampler.get(), items / kBatch); }));
}

}  // namespace
}  // namespace reverb_tf

int main() {
  const reverb_tf::ReverbApi& api = *reverb_tf_api(reverb_tf::kReverbApiVersion);
  std::printf(
      "| road | operation | bytes | copies | allocations | locks | thread switches | CPU "
      "us |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const bool in_process : {true, false}) {
    for (const int64_t size : {400, 4'000, 40'000})
      reverb_tf::Measure(api, in_process, size);
  }
}
