#include "reverb_tf/native/writer.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "reverb_tf/native/cells.h"

namespace reverb_tf {

// An int or what passes for one (numpy's, not arrays).
std::optional<int64_t> AsIndex(PyObject* key) {
  if (!PyIndex_Check(key) || PyBool_Check(key)) return std::nullopt;
  const Py_ssize_t i = PyNumber_AsSsize_t(key, PyExc_IndexError);
  if (i != -1 || !PyErr_Occurred()) return i;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();  // an array: see IndexList
  return std::nullopt;
}

namespace {

std::string Where(const std::string& path) {
  return path.empty() ? "column" : "'" + path + "'";
}

}  // namespace

// ---- History -------------------------------------------------------------------

int64_t ColumnHistory::Length() const {
  return state_->writer->history_end() - state_->writer->history_begin();
}

int64_t ColumnHistory::Resolve(int64_t index) const {
  const int64_t n = Length();
  const int64_t i = index < 0 ? index + n : index;
  if (i < 0 || i >= n) {
    throw nb::index_error((Where(path_) + ": index " + std::to_string(index) +
                           " is out of range for a history of " + std::to_string(n) +
                           " steps")
                              .c_str());
  }
  return state_->writer->history_begin() + i;
}

void ColumnHistory::Check(int64_t cell) const {
  const TrajectoryWriter& writer = *state_->writer;
  if (cell >= writer.oldest_cell(column_) && !writer.is_hole(column_, cell)) return;
  const Result<Tensor> value = writer.Read({path_, true, {{column_, cell, 1, 1}}});
  if (!value.ok()) throw nb::value_error(value.status().message().c_str());
}

void ColumnHistory::Add(int64_t index, Column* column) const {
  const int64_t cell = Resolve(index);
  Check(cell);
  column->runs.push_back({column_, cell, 1, 1});
}

Column ColumnHistory::Get(nb::object index) const {
  Column column;
  column.state = state_;
  column.path = path_;
  PyObject* key = index.ptr();
  if (const std::optional<int64_t> i = AsIndex(key)) {
    column.squeeze = true;
    Add(*i, &column);
    return column;
  }
  if (PySlice_Check(key)) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key, &start, &stop, &step) < 0) throw nb::python_error();
    const Py_ssize_t count = PySlice_AdjustIndices(Length(), &start, &stop, step);
    const int64_t first = state_->writer->history_begin() + start;
    for (Py_ssize_t i = 0; i < count; ++i) Check(first + i * step);
    column.runs.push_back({column_, first, step, count});
    return column;
  }
  const nb::object indices = IndexList(index, path_);
  for (nb::handle i : indices) Add(*AsIndex(i.ptr()), &column);
  if (column.runs.empty()) column.runs.push_back({column_, 0, 1, 0});
  return column;
}

nb::object IndexList(nb::object index, const std::string& path) {
  if (PyList_Check(index.ptr()) || PyTuple_Check(index.ptr())) {
    for (nb::handle i : index) {
      if (!PyIndex_Check(i.ptr()) || PyBool_Check(i.ptr())) {
        throw nb::type_error(
            (Where(path) + ": indices must be ints, got " + Py_TYPE(i.ptr())->tp_name)
                .c_str());
      }
    }
    nb::list plain;
    for (nb::handle i : index) plain.append(nb::steal(PyNumber_Index(i.ptr())));
    return plain;
  }
  if (nb::hasattr(index, "dtype") && nb::hasattr(index, "tolist") &&
      nb::hasattr(index, "ndim") && nb::cast<int>(index.attr("ndim")) == 1) {
    const std::string kind =
        nb::cast<std::string>(nb::str(index.attr("dtype").attr("kind")));
    if (kind == "i" || kind == "u") return index.attr("tolist")();
  }
  throw nb::type_error((Where(path) +
                        ": indices must be an int, a slice or a list of ints, "
                        "got " +
                        Py_TYPE(index.ptr())->tp_name)
                           .c_str());
}

// ---- Columns -------------------------------------------------------------------

int64_t Column::Length() const {
  int64_t n = 0;
  for (const CellRun& run : runs) n += run.count;
  return n;
}

CellRun Column::Cell(int64_t index) const {
  const int64_t n = Length();
  int64_t i = index < 0 ? index + n : index;
  if (i < 0 || i >= n) {
    throw nb::index_error((Where(path) + ": index " + std::to_string(index) +
                           " is out of range for a column of " + std::to_string(n) +
                           " cells")
                              .c_str());
  }
  for (const CellRun& run : runs) {
    if (i < run.count) return {run.column, run.first + i * run.stride, 1, 1};
    i -= run.count;
  }
  return {};
}

Column Column::Get(nb::object index) const {
  Column column;
  column.state = state;
  column.path = path;
  PyObject* key = index.ptr();
  if (squeeze)
    throw nb::type_error((Where(path) + " is squeezed: it has no steps").c_str());
  if (const std::optional<int64_t> i = AsIndex(key)) {
    column.squeeze = true;
    column.runs.push_back(Cell(*i));
    return column;
  }
  if (PySlice_Check(key)) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key, &start, &stop, &step) < 0) throw nb::python_error();
    const Py_ssize_t count = PySlice_AdjustIndices(Length(), &start, &stop, step);
    for (Py_ssize_t i = 0; i < count; ++i) column.runs.push_back(Cell(start + i * step));
  } else {
    const nb::object indices = IndexList(index, path);
    for (nb::handle i : indices) column.runs.push_back(Cell(*AsIndex(i.ptr())));
  }
  if (column.runs.empty() && !runs.empty())
    column.runs.push_back({runs[0].column, 0, 1, 0});
  return column;
}

TensorSpec Column::Spec() const {
  TensorSpec spec;
  if (!runs.empty()) spec = state->writer->column_spec(runs[0].column);
  if (spec.dtype == DType::kInvalid) {
    throw nb::value_error((Where(path) + " has no cell that tells its dtype").c_str());
  }
  return spec;
}

nb::object Column::Numpy() const {
  ItemColumn item{path, squeeze, runs};
  return TensorToPython(ValueOrRaise(state->writer->Read(item)));
}

// ---- The writer ----------------------------------------------------------------

CallGate::Hold::Hold(CallGate* gate) : gate_(gate) {
  if (gate->holder_ == std::this_thread::get_id()) {
    throw std::runtime_error("a value that is being appended calls its own writer");
  }
  if (!gate->mu_.try_lock()) {
    Unlocked([&] { return gate->mu_.lock(), 0; });
  }
  gate->holder_ = std::this_thread::get_id();
}

CallGate::Hold::~Hold() {
  gate_->holder_ = std::thread::id();
  gate_->mu_.unlock();
}

void NativeWriter::DropUndone() {
  columns_.resize(std::min(columns_.size(), static_cast<size_t>(nest_.num_leaves())));
}

void NativeWriter::Gather(nb::object data, bool is_batch, Cells* cells) {
  DropUndone();
  nest_.Walk(data.ptr(), [&](const NestNode& node, PyObject* value) {
    const auto leaf = static_cast<size_t>(node.leaf);
    if (leaf >= columns_.size()) columns_.resize(leaf + 1, -1);
    if (columns_[leaf] < 0) columns_[leaf] = state_->writer->Column(node.path);
    if (!casts_.empty()) {
      const auto cast = casts_.find(node.path);
      if (cast != casts_.end()) {
        cells->AddOwned(columns_[leaf],
                        cast->second(nb::handle(value), node.path, is_batch), node.path);
        return;
      }
    }
    cells->Add(columns_[leaf], value, node.path);
  });
}

void NativeWriter::Append(nb::object data, bool partial_step) {
  const CallGate::Hold hold(&gate_);
  Cells cells;
  Gather(data, /*is_batch=*/false, &cells);
  const Status status = state_->writer->Append(cells.views(), cells.size(), partial_step);
  if (!status.ok()) nest_.Rollback();
  RaiseIfError(status);
}

void NativeWriter::AppendBatch(nb::object data) {
  const CallGate::Hold hold(&gate_);
  Cells cells;
  Gather(data, /*is_batch=*/true, &cells);
  const Status status =
      Unlocked([&] { return state_->writer->AppendBatch(cells.views(), cells.size()); });
  if (!status.ok()) nest_.Rollback();
  RaiseIfError(status);
}

nb::object NativeWriter::History() {
  const CallGate::Hold hold(&gate_);
  if (nest_.empty()) {
    throw std::runtime_error(
        "history is empty: it takes its structure from the first append (or step_spec=)");
  }
  if (history_leaves_ != nest_.num_leaves()) {
    history_leaves_ = nest_.num_leaves();
    DropUndone();
    columns_.resize(static_cast<size_t>(history_leaves_), -1);
    history_ = nest_.Build([this](int leaf, const std::string& path) {
      int& column = columns_[static_cast<size_t>(leaf)];
      if (column < 0) column = state_->writer->Column(path);
      return nb::cast(ColumnHistory(state_, column, path));
    });
  }
  return history_;
}

void NativeWriter::SetStructure(nb::object structure) {
  nest_.Walk(structure.ptr(), [](const NestNode&, PyObject*) {});
  nest_.Fix();
}

void NativeWriter::SetCast(const std::string& path, nb::object cast) {
  const CallGate::Hold hold(&gate_);
  casts_[path] = cast;
}

DType NativeWriter::DTypeOf(const std::string& path) {
  TrajectoryWriter& writer = *state_->writer;
  return writer.column_spec(writer.Column(path)).dtype;
}

uint64_t NativeWriter::CreateItem(const std::string& table, double priority,
                                  nb::object trajectory, double timeout) {
  std::vector<ItemColumn> columns;
  Nest structure;
  structure.Walk(trajectory.ptr(), [&](const NestNode& node, PyObject* value) {
    Column* column = nullptr;
    if (!nb::try_cast(nb::handle(value), column, false) || column == nullptr) {
      throw nb::type_error(("trajectory leaf " + Where(node.path) +
                            " must be a TrajectoryColumn (writer.history[...][...]), got " +
                            Py_TYPE(value)->tp_name)
                               .c_str());
    }
    if (column->state != state_) {
      throw nb::value_error(
          ("trajectory leaf " + Where(node.path) + " belongs to another writer").c_str());
    }
    columns.push_back({node.path, column->squeeze, column->runs});
  });
  const WaitOptions wait = Wait(timeout);
  return ValueOrRaise(
      Unlocked([&] { return state_->writer->CreateItem(table, priority, columns, wait); }));
}

void NativeWriter::Flush(int64_t ignore_last, double timeout) {
  const WaitOptions wait = Wait(timeout);
  RaiseIfError(Unlocked([&] { return state_->writer->Flush(ignore_last, wait); }));
}

void NativeWriter::EndEpisode(bool clear_buffers, double timeout) {
  const WaitOptions wait = Wait(timeout);
  RaiseIfError(Unlocked([&] { return state_->writer->EndEpisode(clear_buffers, wait); }));
}

int64_t NativeWriter::Close(double timeout) {
  if (!state_->writer.is_ours()) return 0;
  const WaitOptions wait = Wait(timeout);
  return ValueOrRaise(Unlocked([&] { return state_->writer->Close(wait); }));
}

void NativeWriter::Configure(const std::string& path, std::optional<int64_t> keep,
                             std::optional<int64_t> max_chunk_length,
                             std::optional<int> codec, std::optional<bool> delta_encode) {
  ColumnOptions options;
  options.num_keep_alive_refs = keep;
  options.max_chunk_length = max_chunk_length;
  if (codec) options.codec = static_cast<Codec>(*codec);
  options.delta_encode = delta_encode;
  RaiseIfError(state_->writer->Configure(path, options));
}

void BindWriter(nb::module_& m) {
  nb::class_<Column>(m, "TrajectoryColumn")
      .def("__len__", &Column::Length)
      .def("__getitem__", &Column::Get)
      .def("numpy", &Column::Numpy,
           "The cells as a numpy array, [T, …] or the cell itself if squeezed.")
      .def_ro("is_squeezed", &Column::squeeze)
      .def_prop_ro("path", [](const Column& c) { return c.path; })
      .def("_runs",
           [](const Column& c) {
             nb::list runs;
             for (const CellRun& r : c.runs) {
               runs.append(nb::make_tuple(r.column, r.first, r.stride, r.count));
             }
             return runs;
           })
      .def("_spec", [](const Column& c) {
        const TensorSpec spec = c.Spec();
        nb::list shape;
        for (int64_t d : spec.shape) shape.append(d);
        return nb::make_tuple(static_cast<int>(spec.dtype), nb::tuple(shape));
      });
  m.def("mix_columns", [](nb::object cells, bool squeeze, const std::string& path) {
    Column mixed;
    mixed.squeeze = squeeze;
    mixed.path = path;
    for (nb::handle h : cells) {
      Column* found = nullptr;
      if (!nb::try_cast(h, found, false) || found == nullptr) {
        throw nb::type_error(("data_references must be TrajectoryColumns, got " +
                              std::string(Py_TYPE(h.ptr())->tp_name))
                                 .c_str());
      }
      const Column& cell = *found;
      if (mixed.state && mixed.state != cell.state) {
        throw nb::value_error("data_references of different writers cannot be mixed");
      }
      mixed.state = cell.state;
      mixed.runs.insert(mixed.runs.end(), cell.runs.begin(), cell.runs.end());
    }
    if (squeeze && mixed.Length() != 1) {
      throw nb::value_error(
          ("squeeze needs exactly one cell, got " + std::to_string(mixed.Length()))
              .c_str());
    }
    return mixed;
  });
  nb::class_<ColumnHistory>(m, "ColumnHistory")
      .def("__len__", &ColumnHistory::Length)
      .def("__getitem__", &ColumnHistory::Get)
      .def_prop_ro("oldest_index", &ColumnHistory::OldestIndex)
      .def_prop_ro("path", [](const ColumnHistory& h) { return h.path(); });
  nb::class_<NativeWriter>(m, "Writer")
      .def("append", &NativeWriter::Append, nb::arg().none(), nb::arg())
      .def("append_batch", &NativeWriter::AppendBatch, nb::arg().none())
      .def("history", &NativeWriter::History)
      .def("set_structure", &NativeWriter::SetStructure)
      .def("set_cast", &NativeWriter::SetCast)
      .def("dtype_of",
           [](NativeWriter& w, const std::string& path) {
             return static_cast<int>(w.DTypeOf(path));
           })
      .def("create_item", &NativeWriter::CreateItem, nb::arg(), nb::arg(), nb::arg().none(),
           nb::arg())
      .def("flush", &NativeWriter::Flush)
      .def("end_episode", &NativeWriter::EndEpisode)
      .def("close", &NativeWriter::Close)
      .def("configure", &NativeWriter::Configure, nb::arg(), nb::arg().none(),
           nb::arg().none(), nb::arg().none(), nb::arg().none())
      .def_prop_ro("episode_steps",
                   [](const NativeWriter& w) { return w.writer().episode_steps(); })
      .def_prop_ro("step_is_open",
                   [](const NativeWriter& w) { return w.writer().step_is_open(); })
      .def_prop_ro("pending_items",
                   [](const NativeWriter& w) { return w.writer().pending_items(); })
      .def_prop_ro("pending_bytes",
                   [](const NativeWriter& w) { return w.writer().pending_bytes(); })
      .def_prop_ro("rejected_items",
                   [](const NativeWriter& w) { return w.writer().rejected_items(); });
}

}  // namespace reverb_tf
