#include "reverb_tf/kernels/trajectory_writer_resource.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cc/core/signature.h"
#include "reverb_tf/kernels/bridge.h"
#include "tensorflow/core/platform/errors.h"

namespace reverb_tf {
namespace {

// The cells of a slice that chooses `count` of them; Python's rules.
CellRun Slice(const HistorySlice& slice, int64_t begin, int64_t length) {
  const int64_t step = slice.step;
  const int64_t low = step < 0 ? -1 : 0;
  const int64_t high = step < 0 ? length - 1 : length;
  const auto bound = [&](std::optional<int32_t> index, int64_t absent) {
    if (!index) return absent;
    const int64_t i = *index < 0 ? *index + length : *index;
    return std::clamp(i, low, high);
  };
  const int64_t start = bound(slice.start, step < 0 ? high : low);
  const int64_t stop = bound(slice.stop, step < 0 ? low : high);
  const int64_t count =
      step > 0 ? (stop - start + step - 1) / step : (start - stop - step - 1) / -step;
  CellRun run;
  run.stride = step;
  run.count = std::max<int64_t>(count, 0);
  run.first = run.count == 0 ? begin : begin + start;
  return run;
}

Status BadSlice(const HistorySlice& slice, const std::string& what) {
  return InvalidArgumentError("column '" + slice.path + "': " + what);
}

Result<std::vector<StructuredConfig>> Decode(const ReverbApi& api,
                                             const std::vector<std::string>& configs) {
  std::vector<StructuredConfig> decoded;
  for (const std::string& bytes : configs) {
    Result<StructuredConfig> config = api.DecodeStructuredConfig(bytes);
    if (!config.ok()) {
      return Status(config.status().code(), "configs: invalid at position " +
                                                std::to_string(decoded.size()) + ": " +
                                                config.status().message());
    }
    decoded.push_back(std::move(config).value());
  }
  return decoded;
}

}  // namespace

bool WriterSetup::operator==(const WriterSetup& o) const {
  return address == o.address && columns == o.columns &&
         num_keep_alive_refs == o.num_keep_alive_refs &&
         validate_items == o.validate_items &&
         max_in_flight_items == o.max_in_flight_items && configs == o.configs;
}

// ---- Making one -------------------------------------------------------------------

absl::Status TrajectoryWriterResource::Make(
    ReverbClient* client, WriterSetup setup, const WaitOptions& wait,
    tensorflow::core::RefCountPtr<TrajectoryWriterResource>* resource) {
  const ReverbApi* api = nullptr;
  TF_RETURN_IF_ERROR(GetReverbApi(&api));
  Result<std::vector<StructuredConfig>> configs = Decode(*api, setup.configs);
  if (!configs.ok()) return ToTfStatus(configs.status());
  Result<Writer> writer = MakeWriter(client, setup, std::move(configs).value(), wait);
  if (!writer.ok()) return ToTfStatus(writer.status());
  Result<std::vector<int>> sources = MapColumns(setup, *writer);
  if (!sources.ok()) return ToTfStatus(sources.status());
  resource->reset(new TrajectoryWriterResource(std::move(setup), std::move(writer).value(),
                                               std::move(sources).value()));
  return absl::OkStatus();
}

Result<TrajectoryWriterResource::Writer> TrajectoryWriterResource::MakeWriter(
    ReverbClient* client, const WriterSetup& setup, std::vector<StructuredConfig> configs,
    const WaitOptions& wait) {
  if (!configs.empty()) {
    StructuredWriterOptions options;
    options.validate_items = setup.validate_items;
    options.max_in_flight_items = setup.max_in_flight_items;
    options.step_spec = setup.columns;
    RTF_ASSIGN_OR_RETURN(auto writer,
                         client->NewStructuredWriter(std::move(configs), options, wait));
    return Writer(std::move(writer));
  }
  TrajectoryWriterOptions options;
  options.num_keep_alive_refs = setup.num_keep_alive_refs;
  options.validate_items = setup.validate_items;
  options.max_in_flight_items = setup.max_in_flight_items;
  RTF_ASSIGN_OR_RETURN(auto writer, client->NewTrajectoryWriter(options, wait));
  return Writer(std::move(writer));
}

Result<std::vector<int>> TrajectoryWriterResource::MapColumns(const WriterSetup& setup,
                                                              const Writer& writer) {
  std::vector<int> sources;
  if (const auto* trajectory = std::get_if<std::unique_ptr<TrajectoryWriter>>(&writer)) {
    for (const TensorSpec& column : setup.columns) {
      sources.push_back((*trajectory)->Column(column.path));
    }
    return sources;
  }
  const StructuredWriter& structured = *std::get<1>(writer);
  if (!structured.source_paths().empty()) {
    return MatchPaths(setup.columns, structured.source_paths());
  }
  if (static_cast<int>(setup.columns.size()) < structured.num_sources()) {
    return InvalidArgumentError(
        "configs refer to " + std::to_string(structured.num_sources()) +
        " leaves of a step, but the step has " + std::to_string(setup.columns.size()));
  }
  for (size_t i = 0; i < setup.columns.size(); ++i) sources.push_back(static_cast<int>(i));
  return sources;
}

std::string TrajectoryWriterResource::DebugString() const {
  return absl::StrCat("writer to ", setup_.address, " with ", pending_items(),
                      " items pending");
}

// ---- Calls ------------------------------------------------------------------------

Status TrajectoryWriterResource::Append(const CellView* cells, size_t n, bool partial_step,
                                        const WaitOptions& wait) {
  if (creates_items_itself()) {
    return std::get<1>(writer_)->Append(cells, n, partial_step, wait);
  }
  return std::get<0>(writer_)->Append(cells, n, partial_step);
}

Status TrajectoryWriterResource::AppendBatch(const CellView* cells, size_t n,
                                             const WaitOptions& wait) {
  if (creates_items_itself()) return std::get<1>(writer_)->AppendBatch(cells, n, wait);
  return std::get<0>(writer_)->AppendBatch(cells, n);
}

Status TrajectoryWriterResource::Flush(int64_t ignore_last, const WaitOptions& wait) {
  return std::visit([&](const auto& w) { return w->Flush(ignore_last, wait); }, writer_);
}

Status TrajectoryWriterResource::EndEpisode(bool clear_buffers, const WaitOptions& wait) {
  return std::visit([&](const auto& w) { return w->EndEpisode(clear_buffers, wait); },
                    writer_);
}

Result<int64_t> TrajectoryWriterResource::Close(const WaitOptions& wait) {
  return std::visit([&](const auto& w) { return w->Close(wait); }, writer_);
}

int64_t TrajectoryWriterResource::episode_steps() const {
  return std::visit([](const auto& w) { return w->episode_steps(); }, writer_);
}

int64_t TrajectoryWriterResource::pending_items() const {
  return std::visit([](const auto& w) { return w->pending_items(); }, writer_);
}

// ---- History ----------------------------------------------------------------------

Result<TrajectoryWriter*> TrajectoryWriterResource::WithHistory() const {
  if (!creates_items_itself()) return std::get<0>(writer_).get();
  return InvalidArgumentError(
      "a writer with configs has no history, and creates its items itself");
}

Result<ItemColumn> TrajectoryWriterResource::Resolve(const TrajectoryWriter& writer,
                                                     const HistorySlice& slice) const {
  if (slice.source < 0 || static_cast<size_t>(slice.source) >= sources_.size()) {
    return BadSlice(slice, "source must be one of the " + std::to_string(sources_.size()) +
                               " columns, got " + std::to_string(slice.source));
  }
  // Both of one moment: an episode may end on another thread.
  int64_t begin = 0, length = 0;
  do {
    begin = writer.history_begin();
    length = writer.history_end() - begin;
  } while (begin != writer.history_begin());
  ItemColumn column{slice.path, slice.squeeze, {}};
  if (slice.squeeze) {
    const int64_t index = slice.start.value_or(0);
    const int64_t cell = index < 0 ? index + length : index;
    if (!slice.start || cell < 0 || cell >= length) {
      return BadSlice(slice, "index " + std::to_string(index) +
                                 " is out of range for a history of " +
                                 std::to_string(length) + " steps");
    }
    column.runs.push_back({0, begin + cell, 1, 1});
  } else {
    if (slice.step == 0) return BadSlice(slice, "slice step cannot be zero");
    column.runs.push_back(Slice(slice, begin, length));
  }
  column.runs[0].column = sources_[static_cast<size_t>(slice.source)];
  return column;
}

Result<uint64_t> TrajectoryWriterResource::CreateItem(
    const std::string& table, double priority, const std::vector<HistorySlice>& slices,
    const WaitOptions& wait) {
  RTF_ASSIGN_OR_RETURN(TrajectoryWriter * writer, WithHistory());
  std::vector<ItemColumn> columns;
  columns.reserve(slices.size());
  for (const HistorySlice& slice : slices) {
    RTF_ASSIGN_OR_RETURN(ItemColumn column, Resolve(*writer, slice));
    columns.push_back(std::move(column));
  }
  return writer->CreateItem(table, priority, columns, wait);
}

Result<Tensor> TrajectoryWriterResource::Read(const HistorySlice& slice) const {
  RTF_ASSIGN_OR_RETURN(TrajectoryWriter * writer, WithHistory());
  RTF_ASSIGN_OR_RETURN(const ItemColumn column, Resolve(*writer, slice));
  if (column.runs[0].count == 0) return Empty(*writer, slice);
  Result<Tensor> values = writer->Read(column);
  if (values.ok()) return values;
  // A cell that expired is the slice's fault here.
  return InvalidArgumentError(values.status().message());
}

Result<Tensor> TrajectoryWriterResource::Empty(const TrajectoryWriter& writer,
                                               const HistorySlice& slice) const {
  const auto i = static_cast<size_t>(slice.source);
  TensorSpec spec = writer.column_spec(sources_[i]);
  if (spec.dtype == DType::kInvalid) spec = setup_.columns[i];
  Tensor empty;
  empty.dtype = spec.dtype;
  empty.shape = std::move(spec.shape);
  // Dimensions that no cell has told yet.
  for (int64_t& d : empty.shape) d = std::max<int64_t>(d, 0);
  empty.shape.insert(empty.shape.begin(), 0);
  empty.buffer = Buffer::Allocate(0);
  return empty;
}

}  // namespace reverb_tf
