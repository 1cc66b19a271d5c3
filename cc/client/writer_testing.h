// A small language for tests of writers and clients over a real Service.
#ifndef REVERB_TF_CC_CLIENT_WRITER_TESTING_H_
#define REVERB_TF_CC_CLIENT_WRITER_TESTING_H_

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/api/trajectory_writer.h"
#include "cc/client/local_transport.h"
#include "cc/client/table_cache.h"
#include "cc/client/trajectory_writer_impl.h"
#include "cc/service/service.h"

namespace reverb_tf {

inline constexpr char kTestAddress[] = "localhost:7";

// A Fifo table of up to `max_size` items that any number may enter and leave.
inline TableConfig OpenTable(const std::string& name, int64_t max_size = 1'000'000) {
  TableConfig config;
  config.name = name;
  config.sampler.kind = SelectorKind::kFifo;
  config.remover.kind = SelectorKind::kFifo;
  config.max_size = max_size;
  config.rate_limiter.min_diff = -1e18;
  config.rate_limiter.max_diff = 1e18;
  return config;
}

// A table that takes `room` items and then blocks until they are sampled.
inline TableConfig QueueTable(const std::string& name, int64_t room) {
  TableConfig config = OpenTable(name);
  config.max_times_sampled = 1;
  config.rate_limiter.min_diff = 0;
  config.rate_limiter.max_diff = static_cast<double>(room);
  return config;
}

inline std::shared_ptr<Service> MakeTestService(const std::vector<TableConfig>& tables) {
  TableRunners runners;
  for (const TableConfig& config : tables) {
    runners.push_back(std::make_shared<TableRunner>(config));
  }
  return std::make_shared<Service>(Store::Create(std::move(runners), kTestAddress).value());
}

inline WaitOptions Within(Duration timeout) {
  WaitOptions wait;
  wait.timeout = timeout;
  return wait;
}
// Long enough for anything that does happen.
inline WaitOptions Soon() { return Within(std::chrono::seconds(20)); }

// A contiguous value that CellViews point at.
struct TestCell {
  int column;
  std::vector<int64_t> dims;
  std::vector<float> values;

  CellView view() const {
    CellView view;
    view.column = column;
    view.dtype = DType::kFloat32;
    view.dims = dims.data();
    view.rank = static_cast<int>(dims.size());
    view.data = values.data();
    view.bytes = values.size() * sizeof(float);
    return view;
  }
};

// Appends one float to one column as a whole step.
inline Status AppendFloat(TrajectoryWriter* writer, int column, float value) {
  const TestCell cell{column, {}, {value}};
  const CellView view = cell.view();
  return writer->Append(&view, 1, /*partial_step=*/false);
}

inline ItemColumn Cells(const std::string& path, int column, int64_t first, int64_t count,
                        int64_t stride = 1) {
  ItemColumn out;
  out.path = path;
  out.runs.push_back({column, first, stride, count});
  return out;
}

inline Result<uint64_t> CreateItem(TrajectoryWriter* writer, const std::string& table,
                                   std::vector<ItemColumn> columns) {
  return writer->CreateItem(table, 1.0, columns, Soon());
}

// The items of a table, in insertion order, taken without disturbing it.
inline std::vector<ItemPtr> ItemsOf(Service* service, const std::string& table, int64_t n) {
  const auto session = service->OpenSample(Peer::kOwn, nullptr);
  SampleRequest request;
  request.table = table;
  request.num_samples = n;
  request.timeout = Duration::zero();
  std::vector<ItemPtr> items;
  if (session->Handle(request).ok()) {
    SampleReply reply;
    while (session->Take(n, int64_t{1} << 60, &reply).value()) {
      for (SampledItem& item : reply.items) items.push_back(std::move(item.item));
    }
  }
  session->Close();
  return items;
}

// The floats of one column of an item.
inline std::vector<float> Floats(const ColumnView& column) {
  std::vector<float> out;
  for (const ChunkSlice& slice : column) {
    const size_t n =
        static_cast<size_t>(slice.length) * slice.chunk->row_bytes() / sizeof(float);
    out.resize(out.size() + n);
    const Status status =
        slice.chunk->CopyRows(slice.offset, slice.length,
                              reinterpret_cast<uint8_t*>(out.data() + out.size() - n));
    RTF_CHECK(status.ok()) << status.ToString();
  }
  return out;
}

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_WRITER_TESTING_H_
