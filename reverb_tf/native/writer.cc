#include "reverb_tf/native/writer.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

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

// What keeps the cells of all leaves of one append.
struct Cells {
  LeafReader reader;
  std::vector<Leaf> leaves;
  std::vector<CellView> views;
};

namespace {

std::string Where(const std::string& path) {
  return path.empty() ? "column" : "'" + path + "'";
}

// Fills in what points into `leaves`, which must not grow any more.
void FinishViews(Cells* cells) {
  for (size_t i = 0; i < cells->views.size(); ++i) {
    const Leaf& leaf = cells->leaves[i];
    CellView& view = cells->views[i];
    view.dtype = leaf.dtype;
    view.dims = leaf.shape.data();
    view.rank = static_cast<int>(leaf.shape.size());
    view.data = leaf.data;
    view.bytes = leaf.bytes;
  }
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
  const int64_t step = cell - writer.history_begin();
  const int64_t oldest = writer.oldest_cell(column_);
  if (cell < oldest) {
    throw nb::value_error((Where(path_) + ": step " + std::to_string(step) +
                           " has expired: the writer keeps num_keep_alive_refs=" +
                           std::to_string(state_->num_keep_alive_refs) +
                           " steps, the oldest usable index is " +
                           std::to_string(oldest - writer.history_begin()) +
                           "; raise num_keep_alive_refs to reach further back")
                              .c_str());
  }
  if (writer.is_hole(column_, cell)) {
    throw nb::value_error((Where(path_) +
                           ": cannot contain any None data references, "
                           "nothing was appended at step " +
                           std::to_string(step))
                              .c_str());
  }
}

Column ColumnHistory::Get(nb::object index) const {
  Column column;
  column.state = state_;
  column.path = path_;
  PyObject* key = index.ptr();
  if (const std::optional<int64_t> i = AsIndex(key)) {
    const int64_t cell = Resolve(*i);
    Check(cell);
    column.squeeze = true;
    column.runs.push_back({column_, cell, 1, 1});
    return column;
  }
  if (PySlice_Check(key)) {
    Py_ssize_t start, stop, step;
    if (PySlice_Unpack(key, &start, &stop, &step) < 0) throw nb::python_error();
    const Py_ssize_t count = PySlice_AdjustIndices(Length(), &start, &stop, step);
    const int64_t first = state_->writer->history_begin() + start;
    for (Py_ssize_t i = 0; i < count; ++i) Check(first + i * step);
    if (count > 0) column.runs.push_back({column_, first, step, count});
    return column;
  }
  nb::object indices = IndexList(index, path_);
  for (nb::handle i : indices) {
    const int64_t cell = Resolve(nb::cast<int64_t>(i));
    Check(cell);
    column.runs.push_back({column_, cell, 1, 1});
  }
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
    return column;
  }
  for (nb::handle i : IndexList(index, path)) {
    column.runs.push_back(Cell(nb::cast<int64_t>(i)));
  }
  return column;
}

TensorSpec Column::Spec() const {
  if (runs.empty()) throw nb::value_error((Where(path) + " is empty").c_str());
  return state->writer->column_spec(runs[0].column);
}

nb::object Column::Numpy() const {
  ItemColumn item{path, squeeze, runs};
  return TensorToPython(ValueOrRaise(state->writer->Read(item)));
}

// ---- The writer ----------------------------------------------------------------

void NativeWriter::Gather(nb::object data, Cells* cells) {
  nest_.Walk(data.ptr(), [&](const NestNode& node, PyObject* value) {
    const auto leaf = static_cast<size_t>(node.leaf);
    if (leaf >= columns_.size()) columns_.resize(leaf + 1, -1);
    if (columns_[leaf] < 0) columns_[leaf] = state_->writer->Column(node.path);
    if (!casts_.empty()) {
      const auto cast = casts_.find(node.path);
      if (cast != casts_.end()) {
        kept_.push_back(cast->second(nb::handle(value), node.path));
        value = kept_.back().ptr();
      }
    }
    cells->leaves.push_back(cells->reader.Read(value, node.path));
    CellView view;
    view.column = columns_[leaf];
    cells->views.push_back(view);
  });
  FinishViews(cells);
}

void NativeWriter::Append(nb::object data, bool partial_step) {
  Cells cells;
  kept_.clear();
  Gather(data, &cells);
  const Status status =
      state_->writer->Append(cells.views.data(), cells.views.size(), partial_step);
  RaiseIfError(status);
}

void NativeWriter::AppendBatch(nb::object data) {
  Cells cells;
  kept_.clear();
  Gather(data, &cells);
  RaiseIfError(Unlocked(
      [&] { return state_->writer->AppendBatch(cells.views.data(), cells.views.size()); }));
}

nb::object NativeWriter::History() {
  if (nest_.empty()) {
    throw std::runtime_error(
        "history is empty: it takes its structure from the first append (or step_spec=)");
  }
  if (history_leaves_ != nest_.num_leaves()) {
    history_leaves_ = nest_.num_leaves();
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
}

void NativeWriter::SetCast(const std::string& path, nb::object cast) {
  casts_[path] = cast;
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

WriterState::~WriterState() {
  if (!writer) return;
  // May flush for a while: other Python threads go on.
  if (PyGILState_Check()) {
    Unlocked([&] {
      writer.reset();
      return 0;
    });
  }
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
      const Column& cell = nb::cast<const Column&>(h);
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
      .def("append_batch", &NativeWriter::AppendBatch)
      .def("history", &NativeWriter::History)
      .def("set_structure", &NativeWriter::SetStructure)
      .def("set_cast", &NativeWriter::SetCast)
      .def("create_item", &NativeWriter::CreateItem)
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
