#include "reverb_tf/kernels/trajectory_writer_resource.h"

#include <algorithm>
#include <limits>

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

// Cells at so many indices of the history, which are checked.
std::vector<CellRun> Runs(const std::vector<int64_t>& cells) {
  std::vector<CellRun> runs;
  for (const int64_t cell : cells) {
    if (!runs.empty() && runs.back().first + runs.back().count == cell) {
      ++runs.back().count;
    } else {
      runs.push_back({0, cell, 1, 1});
    }
  }
  return runs;
}

// The end of a wait before it begins.
WaitOptions NoWait() {
  WaitOptions wait;
  wait.interrupted = [] { return CancelledError("not waited for"); };
  return wait;
}

bool IsMeant(const bool* mask, size_t env) { return mask == nullptr || mask[env]; }

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
         max_in_flight_items == o.max_in_flight_items && configs == o.configs &&
         num_envs == o.num_envs;
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
  std::vector<Writer> writers;
  writers.push_back(std::move(writer).value());
  // Before they have columns, so that those have the same numbers in all.
  while (static_cast<int64_t>(writers.size()) < setup.num_envs) {
    writers.push_back(
        std::visit([](const auto& w) { return Writer(w->NewSibling()); }, writers.front()));
  }
  std::vector<int> sources;
  for (const Writer& each : writers) {
    Result<std::vector<int>> mapped = MapColumns(setup, each);
    if (!mapped.ok()) return ToTfStatus(mapped.status());
    sources = std::move(mapped).value();
  }
  resource->reset(new TrajectoryWriterResource(std::move(setup), std::move(writers),
                                               std::move(sources)));
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

// ---- Several environments ---------------------------------------------------------

class TrajectoryWriterResource::Turn {
 public:
  explicit Turn(TrajectoryWriterResource* resource) : resource_(*resource) {}
  ~Turn() {
    if (!taken_) return;
    MutexLock lock(&resource_.mu_);
    resource_.turn_taken_ = false;
    resource_.turn_free_.Signal();
  }

  // Waits for the calls of other threads until it is interrupted.
  Status Take(const WaitOptions& wait) {
    WaitOptions until;
    until.interrupted = wait.interrupted;
    Waiter waiter(until, [] { return std::string("another call on the writer goes on"); });
    MutexLock lock(&resource_.mu_);
    RTF_RETURN_IF_ERROR(waiter.Until(&resource_.mu_, &resource_.turn_free_,
                                     [this] { return !resource_.turn_taken_; }));
    taken_ = resource_.turn_taken_ = true;
    return OkStatus();
  }

 private:
  TrajectoryWriterResource& resource_;
  bool taken_ = false;
};

Status TrajectoryWriterResource::At(size_t env, const Status& status) const {
  if (status.ok() || !is_vector()) return status;
  return Status(status.code(),
                "environment " + std::to_string(env) + ": " + status.message());
}

template <typename Call>
Status TrajectoryWriterResource::ForEach(const bool* mask, const Call& call) const {
  for (size_t env = 0; env < writers_.size(); ++env) {
    if (!IsMeant(mask, env)) continue;
    const Status status = call(env);
    if (!status.ok()) return At(env, status);
  }
  return OkStatus();
}

Status TrajectoryWriterResource::WaitForRoom(int64_t items, const WaitOptions& wait) {
  // Waits for nothing if all may stay.
  int64_t stay = std::numeric_limits<int64_t>::max();
  if (items > 0 && has_bound()) {
    stay = std::max<int64_t>(setup_.max_in_flight_items - items, 0);
  }
  return std::visit([&](const auto& w) { return w->Flush(stay, wait); }, writers_[0]);
}

// ---- Appending --------------------------------------------------------------------

Status TrajectoryWriterResource::Append(const EnvCells& cells, AppendKind kind,
                                        const bool* mask, const WaitOptions& wait,
                                        int64_t* steps) {
  if (!is_vector()) {
    RTF_RETURN_IF_ERROR(AppendOne(cells.of(0), cells.n, kind, wait));
    *steps = FirstStep(cells.of(0), 0, kind);
    return OkStatus();
  }
  if (kind == AppendKind::kBatch && creates_items_itself()) {
    return InvalidArgumentError(
        "append_batch: a vectorised writer with configs appends one step at a time; use "
        "append");
  }
  Turn turn(this);
  RTF_RETURN_IF_ERROR(turn.Take(wait));
  RTF_RETURN_IF_ERROR(WaitForRoom(0, wait));
  int64_t items = 0;
  RTF_RETURN_IF_ERROR(
      ForEach(mask, [&](size_t env) { return CheckAppend(cells, env, kind, &items); }));
  if (items > 0) RTF_RETURN_IF_ERROR(WaitForRoom(items, wait));
  Status first;
  for (size_t env = 0; env < writers_.size(); ++env) {
    steps[env] = -1;
    if (!IsMeant(mask, env)) continue;
    // With an error the step is in, but an item of it is not.
    const Status status = AppendChecked(cells, env, kind);
    if (first.ok()) first = At(env, status);
    steps[env] = FirstStep(cells.of(env), env, kind);
  }
  return first;
}

Status TrajectoryWriterResource::AppendOne(const CellView* cells, size_t n, AppendKind kind,
                                           const WaitOptions& wait) {
  const bool is_partial = kind == AppendKind::kPartialStep;
  if (!creates_items_itself()) {
    TrajectoryWriter* const writer = trajectory_writer(0);
    return kind == AppendKind::kBatch ? writer->AppendBatch(cells, n)
                                      : writer->Append(cells, n, is_partial);
  }
  StructuredWriter* const writer = structured_writer(0);
  return kind == AppendKind::kBatch ? writer->AppendBatch(cells, n, wait)
                                    : writer->Append(cells, n, is_partial, wait);
}

Status TrajectoryWriterResource::CheckAppend(const EnvCells& cells, size_t env,
                                             AppendKind kind, int64_t* items) {
  if (!creates_items_itself()) {
    return trajectory_writer(env)->CheckAppend(cells.of(env), cells.n, kind);
  }
  return structured_writer(env)->CheckAppend(cells.of(env), cells.n,
                                             kind == AppendKind::kPartialStep, items);
}

Status TrajectoryWriterResource::AppendChecked(const EnvCells& cells, size_t env,
                                               AppendKind kind) {
  if (!creates_items_itself()) {
    return trajectory_writer(env)->AppendChecked(cells.of(env), cells.n, kind);
  }
  return structured_writer(env)->AppendChecked(cells.of(env), cells.n,
                                               kind == AppendKind::kPartialStep);
}

int64_t TrajectoryWriterResource::FirstStep(const CellView* cells, size_t env,
                                            AppendKind kind) const {
  const int64_t steps = episode_steps(env);
  if (kind == AppendKind::kPartialStep) return steps;
  return steps - (kind == AppendKind::kBatch ? cells[0].dims[0] : 1);
}

// ---- Flush, end, close ------------------------------------------------------------

Status TrajectoryWriterResource::Flush(int64_t ignore_last, const WaitOptions& wait) {
  // All wait for the items of all; those after the first have errors of their own at most.
  for (size_t env = 0; env < writers_.size(); ++env) {
    const Status status = std::visit(
        [&](const auto& w) { return w->Flush(ignore_last, wait); }, writers_[env]);
    if (!status.ok()) return env == 0 ? status : At(env, status);
  }
  return OkStatus();
}

Status TrajectoryWriterResource::EndEpisode(bool clear_buffers, const bool* mask,
                                            const WaitOptions& wait) {
  if (!is_vector()) {
    return std::visit([&](const auto& w) { return w->EndEpisode(clear_buffers, wait); },
                      writers_[0]);
  }
  bool has_ended = false;
  {
    Turn turn(this);
    RTF_RETURN_IF_ERROR(turn.Take(wait));
    Status first = WaitForRoom(0, wait);
    for (size_t env = 0; env < writers_.size(); ++env) {
      if (!IsMeant(mask, env)) continue;
      has_ended = true;
      const Status status = EndEpisodeOf(env, clear_buffers);
      if (first.ok()) first = At(env, status);
    }
    RTF_RETURN_IF_ERROR(first);
  }
  return has_ended ? Flush(0, wait) : OkStatus();
}

Status TrajectoryWriterResource::EndEpisodeOf(size_t env, bool clear_buffers) {
  return std::visit(
      [&](const auto& w) {
        Status status = w->EndEpisode(clear_buffers, NoWait());
        const bool has_ended = !w->step_is_open();
        return has_ended && status.code() == StatusCode::kCancelled ? OkStatus() : status;
      },
      writers_[env]);
}

Result<int64_t> TrajectoryWriterResource::Close(const WaitOptions& wait) {
  // The first closes all.
  Result<int64_t> closed = 0;
  for (size_t env = 0; env < writers_.size(); ++env) {
    Result<int64_t> one =
        std::visit([&](const auto& w) { return w->Close(wait); }, writers_[env]);
    if (env == 0 || (closed.ok() && !one.ok())) closed = std::move(one);
  }
  return closed;
}

int64_t TrajectoryWriterResource::episode_steps(size_t env) const {
  return std::visit([](const auto& w) { return w->episode_steps(); }, writers_[env]);
}

int64_t TrajectoryWriterResource::pending_items() const {
  return std::visit([](const auto& w) { return w->pending_items(); }, writers_[0]);
}

// ---- History ----------------------------------------------------------------------

Status TrajectoryWriterResource::CheckHistory() const {
  if (!creates_items_itself()) return OkStatus();
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
  if (slice.squeeze && !slice.start) {
    return BadSlice(slice, "a squeezed column without an index is out of range");
  }
  ItemColumn column{slice.path, slice.squeeze, {}};
  if (slice.squeeze || slice.indices) {
    std::vector<int64_t> cells;
    const std::vector<int32_t> one = {slice.start.value_or(0)};
    for (const int64_t index : slice.indices ? *slice.indices : one) {
      cells.push_back(begin + (index < 0 ? index + length : index));
      if (begin <= cells.back() && cells.back() < begin + length) continue;
      return BadSlice(slice, "index " + std::to_string(index) +
                                 " is out of range for a history of " +
                                 std::to_string(length) + " steps");
    }
    column.runs = Runs(cells);
  } else {
    if (slice.step == 0) return BadSlice(slice, "slice step cannot be zero");
    column.runs.push_back(Slice(slice, begin, length));
  }
  for (CellRun& run : column.runs) {
    run.column = sources_[static_cast<size_t>(slice.source)];
  }
  return column;
}

Result<std::vector<ItemColumn>> TrajectoryWriterResource::ResolveAll(
    const std::vector<HistorySlice>& slices, size_t env) const {
  std::vector<ItemColumn> columns;
  columns.reserve(slices.size());
  for (const HistorySlice& slice : slices) {
    RTF_ASSIGN_OR_RETURN(ItemColumn column, Resolve(*trajectory_writer(env), slice));
    columns.push_back(std::move(column));
  }
  return columns;
}

Status TrajectoryWriterResource::CreateItem(const std::string& table,
                                            const double* priorities, bool one_priority,
                                            const std::vector<HistorySlice>& slices,
                                            const bool* mask, const WaitOptions& wait,
                                            uint64_t* keys) {
  RTF_RETURN_IF_ERROR(CheckHistory());
  if (!is_vector()) {
    RTF_ASSIGN_OR_RETURN(const std::vector<ItemColumn> columns, ResolveAll(slices, 0));
    RTF_ASSIGN_OR_RETURN(
        *keys, trajectory_writer(0)->CreateItem(table, priorities[0], columns, wait));
    return OkStatus();
  }
  std::fill_n(keys, writers_.size(), 0);
  Turn turn(this);
  RTF_RETURN_IF_ERROR(turn.Take(wait));
  int64_t count = 0;
  for (size_t env = 0; env < writers_.size(); ++env) count += IsMeant(mask, env) ? 1 : 0;
  RTF_RETURN_IF_ERROR(WaitForRoom(count, wait));
  std::vector<std::unique_ptr<PreparedItem>> items;
  RTF_RETURN_IF_ERROR(ForEach(mask, [&](size_t env) {
    RTF_ASSIGN_OR_RETURN(const std::vector<ItemColumn> columns, ResolveAll(slices, env));
    RTF_ASSIGN_OR_RETURN(auto item,
                         trajectory_writer(env)->PrepareItem(
                             table, priorities[one_priority ? 0 : env], columns, wait));
    items.push_back(std::move(item));
    return OkStatus();
  }));
  RTF_ASSIGN_OR_RETURN(const std::vector<uint64_t> queued,
                       trajectory_writer(0)->Queue(std::move(items)));
  auto next = queued.begin();
  for (size_t env = 0; env < writers_.size(); ++env) {
    if (IsMeant(mask, env)) keys[env] = *next++;
  }
  return OkStatus();
}

Result<Tensor> TrajectoryWriterResource::Read(const HistorySlice& slice, size_t env) const {
  RTF_RETURN_IF_ERROR(CheckHistory());
  const TrajectoryWriter& writer = *trajectory_writer(env);
  const Result<ItemColumn> column = Resolve(writer, slice);
  if (!column.ok()) return At(env, column.status());
  if (std::all_of(column->runs.begin(), column->runs.end(),
                  [](const CellRun& run) { return run.count == 0; })) {
    return Empty(writer, slice);
  }
  Result<Tensor> values = writer.Read(*column);
  if (values.ok()) return values;
  // A cell that expired is the slice's fault here.
  return At(env, InvalidArgumentError(values.status().message()));
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
