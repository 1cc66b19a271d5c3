#include "reverb_tf/native/structured_writer.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

#include "cc/core/signature.h"
#include "reverb_tf/native/cells.h"

namespace reverb_tf {
namespace {

bool HaveNames(const std::vector<std::string>& paths) {
  return std::any_of(paths.begin(), paths.end(),
                     [](const std::string& path) { return PathHasName(path); });
}

// The paths of the leaves in order; a None is one.
std::vector<std::string> PathsOf(nb::object data) {
  std::vector<std::string> paths;
  const auto add = [&](const NestNode& node) { paths.push_back(node.path); };
  Nest().Walk(
      data.ptr(), [&](const NestNode& node, PyObject*) { add(node); }, add);
  return paths;
}

bool IsAtOrUnder(const std::string& name, const std::string& path) {
  if (path.empty() || name == path) return true;
  return name.size() > path.size() && name.rfind(path, 0) == 0 &&
         (name[path.size()] == '/' || name[path.size()] == '[');
}

std::string BytesOf(nb::handle h) {
  const auto bytes = nb::cast<nb::bytes>(h);
  return std::string(bytes.c_str(), bytes.size());
}

}  // namespace

std::vector<StructuredConfig> ConfigsFromPython(nb::list configs) {
  std::vector<StructuredConfig> decoded;
  for (nb::handle h : configs) {
    Result<StructuredConfig> config = Api().DecodeStructuredConfig(BytesOf(h));
    if (!config.ok()) {
      Raise(Status(config.status().code(), "Invalid configuration at position " +
                                               std::to_string(decoded.size()) + ": " +
                                               config.status().message()));
    }
    decoded.push_back(std::move(config).value());
  }
  return decoded;
}

std::vector<TensorSpec> SpecsFromPython(nb::list specs) {
  std::vector<TensorSpec> decoded;
  for (nb::handle h : specs) {
    TensorSpec spec;
    spec.path = nb::cast<std::string>(h[0]);
    spec.dtype = static_cast<DType>(nb::cast<int>(h[1]));
    spec.unknown_rank = h[2].is_none();
    if (!spec.unknown_rank) {
      for (nb::handle d : nb::object(h[2])) {
        spec.shape.push_back(d.is_none() ? -1 : nb::cast<int64_t>(d));
      }
    }
    decoded.push_back(std::move(spec));
  }
  return decoded;
}

// ---- Steps ----------------------------------------------------------------------

void NativeStructuredWriter::MapPaths(nb::object data) {
  sources_.clear();
  source_of_leaf_.clear();
  const std::vector<std::string>& known = writer_->source_paths();
  std::vector<std::string> paths = PathsOf(data);
  by_name_ = HaveNames(known) && (paths.empty() || HaveNames(paths));
  if (by_name_) {
    paths = known;
  } else {
    const auto needed = static_cast<size_t>(writer_->num_sources());
    if (known.empty() ? paths.size() < needed : paths.size() != needed) {
      throw nb::value_error(("Flattened data has an unexpected length, got " +
                             std::to_string(paths.size()) + " but wanted " +
                             std::to_string(needed) + (known.empty() ? " or more" : "") +
                             ", as the configs' reference step")
                                .c_str());
    }
  }
  for (size_t i = 0; i < paths.size(); ++i) sources_[paths[i]] = static_cast<int>(i);
}

int64_t NativeStructuredWriter::SourcesUnder(const std::string& path) const {
  return std::count_if(sources_.begin(), sources_.end(),
                       [&](const auto& source) { return IsAtOrUnder(source.first, path); });
}

void NativeStructuredWriter::RaiseMismatch(nb::object data) const {
  const std::vector<std::string> paths = PathsOf(data);
  int64_t got = 0;
  std::string missing, extra;
  for (const std::string& path : paths) {
    const int64_t n = SourcesUnder(path);
    got += std::max<int64_t>(n, 1);
    if (n == 0) extra += (extra.empty() ? "; extra: '" : ", '") + path + "'";
  }
  for (const auto& [name, source] : sources_) {
    const auto covers = [&, &name = name](const std::string& path) {
      return IsAtOrUnder(name, path);
    };
    if (std::any_of(paths.begin(), paths.end(), covers)) continue;
    missing += (missing.empty() ? "; missing: '" : ", '") + name + "'";
  }
  throw nb::value_error(("Flattened data has an unexpected length, got " +
                         std::to_string(got) + " but wanted " +
                         std::to_string(sources_.size()) + missing +
                         (missing.empty() ? "" : " (None makes a hole)") + extra)
                            .c_str());
}

void NativeStructuredWriter::Gather(nb::object data, bool is_batch, bool may_be_part,
                                    Cells* cells) {
  if (!is_mapped_) MapPaths(data);
  // Leaves that were undone: their numbers are given anew.
  const auto leaves = static_cast<size_t>(nest_.num_leaves());
  if (source_of_leaf_.size() > leaves) source_of_leaf_.resize(leaves);
  int64_t holes = 0;
  nest_.Walk(
      data.ptr(),
      [&](const NestNode& node, PyObject* value) {
        const auto leaf = static_cast<size_t>(node.leaf);
        if (leaf >= source_of_leaf_.size()) source_of_leaf_.resize(leaf + 1, -1);
        int& source = source_of_leaf_[leaf];
        if (source < 0) {
          const auto found = sources_.find(node.path);
          if (found == sources_.end()) RaiseMismatch(data);
          source = found->second;
        }
        const auto cast = casts_.empty() ? casts_.end() : casts_.find(node.path);
        if (cast == casts_.end()) return cells->Add(source, value, node.path);
        cells->AddOwned(source, cast->second(nb::handle(value), node.path, is_batch),
                        node.path);
      },
      [&](const NestNode& node) {
        const int64_t n = SourcesUnder(node.path);
        if (n == 0) RaiseMismatch(data);
        holes += n;
      });
  const size_t got = cells->size() + static_cast<size_t>(holes);
  if (got == sources_.size()) return;
  if (by_name_ && (may_be_part || (!is_batch && writer_->step_is_open()))) return;
  nest_.Rollback();
  RaiseMismatch(data);
}

void NativeStructuredWriter::Settle(const Status& status) {
  if (status.ok()) {
    is_mapped_ = true;
    return;
  }
  nest_.Rollback();
  Raise(status);
}

void NativeStructuredWriter::Append(nb::object data, bool partial_step, double timeout) {
  const CallGate::Hold hold(&gate_);
  Cells cells;
  Gather(data, /*is_batch=*/false, /*may_be_part=*/partial_step, &cells);
  const auto append = [&](const WaitOptions& wait) {
    return writer_->Append(cells.views(), cells.size(), partial_step, wait);
  };
  // What never waits keeps the GIL.
  Settle(waits_ ? Unlocked([&, wait = Wait(timeout)] { return append(wait); })
                : append(WaitOptions()));
}

void NativeStructuredWriter::AppendBatch(nb::object data, double timeout) {
  const CallGate::Hold hold(&gate_);
  Cells cells;
  Gather(data, /*is_batch=*/true, /*may_be_part=*/false, &cells);
  const WaitOptions wait = Wait(timeout);
  Settle(Unlocked([&] { return writer_->AppendBatch(cells.views(), cells.size(), wait); }));
}

void NativeStructuredWriter::SetStructure(nb::object structure) {
  const CallGate::Hold hold(&gate_);
  MapPaths(structure);
  nest_.Walk(structure.ptr(), [](const NestNode&, PyObject*) {});
  nest_.Fix();
  is_mapped_ = true;
}

void NativeStructuredWriter::SetCast(const std::string& path, nb::object cast) {
  const CallGate::Hold hold(&gate_);
  casts_[path] = std::move(cast);
}

// ---- The rest -------------------------------------------------------------------

void NativeStructuredWriter::Flush(int64_t ignore_last, double timeout) {
  const WaitOptions wait = Wait(timeout);
  RaiseIfError(Unlocked([&] { return writer_->Flush(ignore_last, wait); }));
}

void NativeStructuredWriter::EndEpisode(bool clear_buffers, double timeout) {
  const WaitOptions wait = Wait(timeout);
  RaiseIfError(Unlocked([&] { return writer_->EndEpisode(clear_buffers, wait); }));
}

int64_t NativeStructuredWriter::Close(double timeout) {
  if (!writer_.is_ours()) return 0;
  const WaitOptions wait = Wait(timeout);
  return ValueOrRaise(Unlocked([&] { return writer_->Close(wait); }));
}

void BindStructuredWriter(nb::module_& m) {
  m.def("check_config", [](nb::bytes config) {
    ValueOrRaise(Api().DecodeStructuredConfig(BytesOf(config)));
  });
  m.def("check_configs", [](nb::list configs) {
    ValueOrRaise(Api().MakePatternEvaluator(ConfigsFromPython(configs)));
  });
  using Writer = NativeStructuredWriter;
  nb::class_<Writer>(m, "StructuredWriter")
      .def("append", &Writer::Append, nb::arg().none(), nb::arg(), nb::arg())
      .def("append_batch", &Writer::AppendBatch, nb::arg().none(), nb::arg())
      .def("set_structure", &Writer::SetStructure)
      .def("set_cast", &Writer::SetCast)
      .def("flush", &Writer::Flush)
      .def("end_episode", &Writer::EndEpisode)
      .def("close", &Writer::Close)
      .def_prop_ro("episode_steps",
                   [](const Writer& w) { return w.writer().episode_steps(); })
      .def_prop_ro("step_is_open",
                   [](const Writer& w) { return w.writer().step_is_open(); })
      .def_prop_ro("pending_items",
                   [](const Writer& w) { return w.writer().pending_items(); })
      .def_prop_ro("pending_bytes",
                   [](const Writer& w) { return w.writer().pending_bytes(); })
      .def_prop_ro("rejected_items",
                   [](const Writer& w) { return w.writer().rejected_items(); })
      .def_prop_ro("skipped_items",
                   [](const Writer& w) { return w.writer().skipped_items(); });
}

}  // namespace reverb_tf
