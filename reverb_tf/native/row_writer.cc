#include "reverb_tf/native/row_writer.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "reverb_tf/native/cells.h"

namespace reverb_tf {

NativeRowWriter::NativeRowWriter(std::unique_ptr<TrajectoryWriter> writer,
                                 RowWriterOptions options)
    : options_(std::move(options)) {
  state_.writer = std::move(writer);
}

void NativeRowWriter::Gather(nb::object step, Cells* cells) {
  if (!fixed_) columns_.clear();
  nest_.Walk(step.ptr(), [&](const NestNode& node, PyObject* value) {
    const auto leaf = static_cast<size_t>(node.leaf);
    if (leaf == columns_.size()) {
      const int column = state_.writer->Column(node.path);
      RaiseIfError(state_.writer->Configure(node.path, options_.column));
      columns_.push_back({node.path, /*squeeze=*/false, {{column, 0, 1, 0}}});
    }
    cells->Add(columns_[leaf].runs[0].column, value, node.path);
  });
  if (!fixed_ && cells->size() == 0) nest_.Rollback();
  CheckLeaves(*cells);
}

void NativeRowWriter::CheckLeaves(const Cells& cells) const {
  if (cells.size() == 0)
    throw nb::value_error("the step has no leaf, expected at least one");
  if (cells.size() == columns_.size()) return;
  std::string missing;
  for (const ItemColumn& column : columns_) {
    if (cells.Has(column.runs[0].column)) continue;
    missing += (missing.empty() ? "missing: " : ", ") + column.path;
  }
  throw nb::value_error(
      (missing + ": every step must have the paths of the first").c_str());
}

void NativeRowWriter::Settle(const Status& status) {
  if (!status.ok()) {
    if (!fixed_) nest_.Rollback();
    Raise(status);
  }
  if (!fixed_) nest_.Fix();
  fixed_ = true;
}

void NativeRowWriter::Append(nb::object step) {
  const CallGate::Hold hold(&gate_);
  Cells cells;
  Gather(step, &cells);
  Settle(state_.writer->Append(cells.views(), cells.size(), /*partial_step=*/false));
}

void NativeRowWriter::AppendSequence(nb::object sequence) {
  const CallGate::Hold hold(&gate_);
  Cells cells;
  Gather(sequence, &cells);
  const CellView* const views = cells.views();
  Settle(Unlocked([&] { return state_.writer->AppendBatch(views, cells.size()); }));
}

bool NativeRowWriter::IsFull() const {
  return options_.max_in_flight_items > 0 &&
         pending_items() >= options_.max_in_flight_items;
}

void NativeRowWriter::Select(int64_t num_timesteps) {
  const TrajectoryWriter& writer = *state_.writer;
  const int64_t end = writer.history_end();
  const int64_t kept = std::min(end, options_.max_sequence_length);
  if (num_timesteps < 1 || num_timesteps > kept) {
    throw nb::value_error(("num_timesteps: got " + std::to_string(num_timesteps) +
                           ", expected 1 ... " + std::to_string(kept) +
                           ", the steps that are kept (max_sequence_length is " +
                           std::to_string(options_.max_sequence_length) + ")")
                              .c_str());
  }
  for (ItemColumn& column : columns_) {
    CellRun& run = column.runs[0];
    run.first = end - num_timesteps;
    run.count = num_timesteps;
    const int64_t oldest = writer.oldest_cell(run.column);
    if (oldest <= run.first) continue;
    throw nb::value_error(("column '" + column.path + "': the newest " +
                           std::to_string(num_timesteps) +
                           " steps differ in dtype or shape; only the newest " +
                           std::to_string(end - oldest) + " are alike")
                              .c_str());
  }
}

uint64_t NativeRowWriter::CreateItem(const std::string& table, int64_t num_timesteps,
                                     double priority, double timeout) {
  const WaitOptions wait = Wait(timeout);
  for (;;) {
    // Not inside the gate: other threads may append meanwhile.
    if (IsFull()) {
      RaiseIfError(Unlocked(
          [&] { return state_.writer->Flush(options_.max_in_flight_items - 1, wait); }));
    }
    const CallGate::Hold hold(&gate_);
    if (IsFull()) continue;  // by another thread
    Select(num_timesteps);
    return ValueOrRaise(Unlocked(
        [&] { return state_.writer->CreateItem(table, priority, columns_, wait); }));
  }
}

void NativeRowWriter::Flush(double timeout) {
  const WaitOptions wait = Wait(timeout);
  RaiseIfError(Unlocked([&] { return state_.writer->Flush(/*ignore_last=*/0, wait); }));
}

void NativeRowWriter::Close(bool retry_on_unavailable, double timeout) {
  const WaitOptions wait = Wait(timeout);
  RaiseIfError(Unlocked([&] { return state_.writer->Finish(retry_on_unavailable, wait); }));
}

void BindRowWriter(nb::module_& m) {
  nb::class_<NativeRowWriter>(m, "RowWriter")
      .def("append", &NativeRowWriter::Append, nb::arg().none())
      .def("append_sequence", &NativeRowWriter::AppendSequence, nb::arg().none())
      .def("create_item", &NativeRowWriter::CreateItem)
      .def("flush", &NativeRowWriter::Flush)
      .def("close", &NativeRowWriter::Close)
      .def_prop_ro("pending_items", &NativeRowWriter::pending_items);
}

}  // namespace reverb_tf
