#include "cc/client/pattern_evaluator.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <string>
#include <utility>

#include "cc/client/cell_value.h"
#include "cc/client/pattern_check.h"

namespace reverb_tf {
namespace {

// What a source has in the steps that count.
struct Source {
  int64_t history = 0;  // cells that patterns reach back
  bool in_condition = false;
  bool in_priority = false;

  struct Cell {
    int64_t step = -1;
    int64_t integer = 0;  // its value for conditions
    double number = 0;    // and for priorities
  };
  Cell cell;                   // the newest
  std::deque<int64_t> holes;   // closed steps without a cell, within `history`
  std::deque<double> numbers;  // of the closed steps, within `history`
};

// How far streams are counted, so that no sum of steps overflows.
constexpr int64_t kMaxSteps = int64_t{1} << 62;

// A column of a pattern: cells first, first + stride, ..., last, from the step after
// the newest on (so all are negative).
struct Node {
  int source = 0;
  int64_t first = 0;
  int64_t last = 0;
  int64_t stride = 1;
  int64_t count = 1;
};

Node CompileNode(const PatternNode& node) {
  Node compiled;
  compiled.source = node.source;
  if (!node.start) {
    compiled.first = compiled.last = *node.stop;
    return compiled;
  }
  compiled.first = *node.start;
  compiled.stride = node.step.value_or(1);
  const int64_t cells = node.stop.value_or(0) - compiled.first;
  compiled.count = (cells + compiled.stride - 1) / compiled.stride;
  compiled.last = compiled.first + compiled.stride * (compiled.count - 1);
  return compiled;
}

struct Compiled {
  std::vector<Node> nodes;
  std::vector<ItemColumn> columns;
  int64_t min_length = 0;  // steps that the pattern needs
  bool at_end = false;     // conditioned on the end of the episode
  int td_node = -1;

  int64_t applied_step = -1;  // newest step that it made an item in
  bool is_done = false;       // has made an item of the step at hand
};

Compiled Compile(const StructuredConfig& config) {
  Compiled compiled;
  for (const PatternNode& node : config.nodes) {
    const Node added = CompileNode(node);
    if (config.priority.td_source == node.source) {
      compiled.td_node = static_cast<int>(compiled.nodes.size());
    }
    compiled.nodes.push_back(added);
    compiled.columns.push_back(
        {node.path, !node.start, {{added.source, 0, added.stride, added.count}}});
    compiled.min_length = std::max(compiled.min_length, -added.first);
  }
  for (const PatternCondition& condition : config.conditions) {
    compiled.at_end |= condition.left == PatternCondition::Left::kIsEndEpisode;
  }
  return compiled;
}

// Reads what Save() wrote, and remembers if anything was out of its bounds.
class StateReader {
 public:
  explicit StateReader(const std::vector<int64_t>& words) : words_(words) {}

  // The next word, if it is in [low, high]; else low.
  int64_t Next(int64_t low, int64_t high) {
    is_good_ = is_good_ && at_ < words_.size() && words_[at_] >= low && words_[at_] <= high;
    return is_good_ ? words_[at_++] : low;
  }
  bool is_good() const { return is_good_; }
  bool is_done() const { return is_good_ && at_ == words_.size(); }

 private:
  const std::vector<int64_t>& words_;
  size_t at_ = 0;
  bool is_good_ = true;
};

class PatternEvaluatorImpl : public PatternEvaluator {
 public:
  // REQUIRES: the configs are checked
  explicit PatternEvaluatorImpl(std::vector<StructuredConfig> configs);

  const std::vector<StructuredConfig>& configs() const override { return configs_; }
  const std::vector<std::string>& source_paths() const override { return source_paths_; }
  int num_sources() const override { return num_sources_; }
  int64_t history(int source) const override {
    return source < num_sources_ ? SourceOf(source).history : 0;
  }
  const std::vector<ItemColumn>& columns(int config) const override {
    return compiled_[static_cast<size_t>(config)].columns;
  }
  void SetColumns(const std::vector<int>& columns) override;

  Status Evaluate(const CellView* cells, size_t n, bool closes,
                  std::vector<Firing>* firings) override;
  void Commit() override;
  void Rollback() override;
  void EvaluateEnd(std::vector<Firing>* firings) override;
  void EndEpisode(bool clear) override;
  int64_t skipped_items() const override { return skipped_items_; }
  std::vector<int64_t> Save() const override;
  Status Restore(const std::vector<int64_t>& state) override;

 private:
  enum class Verdict { kNo, kWaits, kHole, kFires };

  // Makes the source if there is none.
  Source& Need(int source);
  Source& SourceOf(int source) { return sources_[static_cast<size_t>(source)]; }
  const Source& SourceOf(int source) const { return sources_[static_cast<size_t>(source)]; }
  std::string NameOf(int source) const;

  // The cells of one Evaluate.
  Status SetCell(const CellView& cell);
  Status ReadCell(const CellView& cell, Source* source) const;

  // Looks at the config in step `step`, which is the one at hand unless `is_past`.
  Verdict Judge(size_t config, int64_t step, bool is_past) const;
  bool Holds(const PatternCondition& condition, size_t config, int64_t step) const;
  bool HasHole(const Node& node, int64_t step, bool is_past) const;
  Firing Fire(size_t config, int64_t step, bool is_past);
  double TdError(size_t config, int64_t step, bool is_past) const;
  void CloseStep();

  static void SaveSource(const Source& source, std::vector<int64_t>* words);
  // `source` at `step`, with what its configs want of it.
  static Source ReadSource(const Source& source, int64_t step, StateReader* reader);

  const std::vector<StructuredConfig> configs_;
  std::vector<std::string> source_paths_;
  std::vector<Compiled> compiled_;
  std::vector<Source> sources_;
  int num_sources_ = 0;  // that configs tell of; steps may have more
  int64_t max_history_ = 0;

  int64_t step_ = 0;  // the one that is open or begins next
  int64_t episode_begin_ = 0;
  int64_t history_begin_ = 0;
  int64_t skipped_items_ = 0;

  // Of the last Evaluate, until Commit or Rollback.
  struct Set {
    int source;
    Source::Cell previous;
  };
  std::vector<Set> set_;
  std::vector<size_t> fired_;
  int64_t skips_ = 0;
  bool closes_ = false;
};

PatternEvaluatorImpl::PatternEvaluatorImpl(std::vector<StructuredConfig> configs)
    : configs_(std::move(configs)) {
  for (const StructuredConfig& config : configs_) {
    if (source_paths_.empty()) source_paths_ = config.source_paths;
    compiled_.push_back(Compile(config));
    for (const Node& node : compiled_.back().nodes) {
      Source& source = Need(node.source);
      source.history = std::max(source.history, -node.first);
      max_history_ = std::max(max_history_, source.history);
    }
    for (const PatternCondition& condition : config.conditions) {
      if (condition.left != PatternCondition::Left::kData) continue;
      Need(condition.source).in_condition = true;
    }
    if (config.priority.td_source) Need(*config.priority.td_source).in_priority = true;
  }
  if (source_paths_.size() > sources_.size()) sources_.resize(source_paths_.size());
  num_sources_ = static_cast<int>(sources_.size());
}

Source& PatternEvaluatorImpl::Need(int source) {
  const auto i = static_cast<size_t>(source);
  if (i >= sources_.size()) sources_.resize(i + 1);
  return sources_[i];
}

void PatternEvaluatorImpl::SetColumns(const std::vector<int>& columns) {
  for (Compiled& compiled : compiled_) {
    for (size_t i = 0; i < compiled.nodes.size(); ++i) {
      const auto source = static_cast<size_t>(compiled.nodes[i].source);
      compiled.columns[i].runs[0].column = columns[source];
    }
  }
}

std::string PatternEvaluatorImpl::NameOf(int source) const {
  const auto i = static_cast<size_t>(source);
  return i < source_paths_.size() && !source_paths_[i].empty()
             ? "'" + source_paths_[i] + "'"
             : "leaf " + std::to_string(source) + " of the step";
}

// ---- Cells ----------------------------------------------------------------------

Status PatternEvaluatorImpl::ReadCell(const CellView& cell, Source* source) const {
  const bool is_scalar = cell.rank == 0 && cell.bytes == ElementSize(cell.dtype);
  if (source->in_condition &&
      (!is_scalar || !ReadInteger(cell.dtype, cell.data, &source->cell.integer))) {
    return InvalidArgumentError(NameOf(cell.column) +
                                ": a condition needs a bool or integer scalar that fits " +
                                "int64, got " + DTypeName(cell.dtype) +
                                ShapeString(Shape(cell.dims, cell.dims + cell.rank)));
  }
  if (source->in_priority &&
      (!is_scalar || !ReadNumber(cell.dtype, cell.data, &source->cell.number))) {
    return InvalidArgumentError(
        NameOf(cell.column) + ": td_error needs a float or integer scalar, got " +
        DTypeName(cell.dtype) + ShapeString(Shape(cell.dims, cell.dims + cell.rank)));
  }
  return OkStatus();
}

Status PatternEvaluatorImpl::SetCell(const CellView& cell) {
  if (cell.column < 0 || cell.column >= kMaxSources) {
    return InvalidArgumentError("append: there is no leaf " + std::to_string(cell.column));
  }
  Source& source = Need(cell.column);
  if (source.cell.step == step_) {
    return InvalidArgumentError(NameOf(cell.column) +
                                " is set already in this step; close the step first "
                                "(append without partial_step)");
  }
  set_.push_back({cell.column, source.cell});
  source.cell.step = step_;
  return ReadCell(cell, &source);
}

// ---- Deciding -------------------------------------------------------------------

bool PatternEvaluatorImpl::Holds(const PatternCondition& condition, size_t config,
                                 int64_t step) const {
  int64_t left = 1;
  switch (condition.left) {
    case PatternCondition::Left::kStepIndex:
      left = step - episode_begin_;
      break;
    case PatternCondition::Left::kStepsSinceApplied:
      left = step - compiled_[config].applied_step;
      break;
    case PatternCondition::Left::kBufferLength:
      left = std::min(step - history_begin_ + 1, max_history_);
      break;
    case PatternCondition::Left::kIsEndEpisode:
      break;  // asked at the end only
    case PatternCondition::Left::kData: {
      const Source& source = SourceOf(condition.source);
      if (source.cell.step != step) return false;
      left = source.cell.integer;
      break;
    }
  }
  if (condition.mod) {
    left %= *condition.mod;
    if (left < 0) left += *condition.mod;
  }
  const bool holds = condition.compare == PatternCondition::Compare::kEqual
                         ? left == condition.value
                         : left >= condition.value;
  return holds != condition.inverse;
}

bool PatternEvaluatorImpl::HasHole(const Node& node, int64_t step, bool is_past) const {
  const std::deque<int64_t>& holes = SourceOf(node.source).holes;
  const int64_t first = step + 1 + node.first;
  if (holes.empty() || holes.back() < first) return false;
  const int64_t last = std::min(step + 1 + node.last, is_past ? step : step - 1);
  for (auto hole = std::lower_bound(holes.begin(), holes.end(), first);
       hole != holes.end() && *hole <= last; ++hole) {
    if ((*hole - first) % node.stride == 0) return true;
  }
  return false;
}

PatternEvaluatorImpl::Verdict PatternEvaluatorImpl::Judge(size_t config, int64_t step,
                                                          bool is_past) const {
  const Compiled& compiled = compiled_[config];
  if (step - history_begin_ + 1 < compiled.min_length) return Verdict::kNo;
  for (const PatternCondition& condition : configs_[config].conditions) {
    if (!Holds(condition, config, step)) return Verdict::kNo;
  }
  bool waits = false;
  for (const Node& node : compiled.nodes) {
    if (HasHole(node, step, is_past)) return Verdict::kHole;
    waits |= !is_past && node.last == -1 && SourceOf(node.source).cell.step != step;
  }
  return waits ? Verdict::kWaits : Verdict::kFires;
}

double PatternEvaluatorImpl::TdError(size_t config, int64_t step, bool is_past) const {
  const Compiled& compiled = compiled_[config];
  const Node& node = compiled.nodes[static_cast<size_t>(compiled.td_node)];
  const Source& source = SourceOf(node.source);
  // numbers.back() is of this step.
  const int64_t newest = is_past ? step : step - 1;
  double max = 0, sum = 0;
  for (int64_t i = 0; i < node.count; ++i) {
    const int64_t cell = step + 1 + node.first + i * node.stride;
    const auto from_end = static_cast<size_t>(newest - cell + 1);
    const double x =
        std::abs(cell > newest ? source.cell.number
                               : source.numbers[source.numbers.size() - from_end]);
    max = std::isnan(x) ? x : std::max(max, x);
    sum += x;
  }
  const double weight = configs_[config].priority.value;
  return weight * max + (1 - weight) * sum / static_cast<double>(node.count);
}

PatternEvaluator::Firing PatternEvaluatorImpl::Fire(size_t config, int64_t step,
                                                    bool is_past) {
  Compiled& compiled = compiled_[config];
  for (size_t i = 0; i < compiled.nodes.size(); ++i) {
    compiled.columns[i].runs[0].first = step + 1 + compiled.nodes[i].first;
  }
  const double priority = compiled.td_node >= 0 ? TdError(config, step, is_past)
                                                : configs_[config].priority.value;
  return {static_cast<int>(config), priority, &compiled.columns};
}

Status PatternEvaluatorImpl::Evaluate(const CellView* cells, size_t n, bool closes,
                                      std::vector<Firing>* firings) {
  firings->clear();
  Rollback();
  for (size_t i = 0; i < n; ++i) {
    Status status = SetCell(cells[i]);
    if (status.ok()) continue;
    Rollback();
    return status;
  }
  closes_ = closes;
  for (size_t i = 0; i < compiled_.size(); ++i) {
    if (compiled_[i].is_done || compiled_[i].at_end) continue;
    const Verdict verdict = Judge(i, step_, /*is_past=*/false);
    if (verdict == Verdict::kFires) {
      firings->push_back(Fire(i, step_, /*is_past=*/false));
      fired_.push_back(i);
    } else if (verdict != Verdict::kNo && closes) {
      ++skips_;
    }
  }
  return OkStatus();
}

void PatternEvaluatorImpl::Rollback() {
  for (const Set& set : set_) SourceOf(set.source).cell = set.previous;
  set_.clear();
  fired_.clear();
  skips_ = 0;
}

void PatternEvaluatorImpl::CloseStep() {
  for (Source& source : sources_) {
    if (source.history == 0) continue;
    while (!source.holes.empty() && source.holes.front() <= step_ - source.history) {
      source.holes.pop_front();
    }
    if (source.cell.step != step_) source.holes.push_back(step_);
    if (!source.in_priority) continue;
    source.numbers.push_back(source.cell.number);
    if (static_cast<int64_t>(source.numbers.size()) > source.history) {
      source.numbers.pop_front();
    }
  }
  for (Compiled& compiled : compiled_) compiled.is_done = false;
  ++step_;
}

void PatternEvaluatorImpl::Commit() {
  for (const size_t config : fired_) {
    compiled_[config].is_done = true;
    compiled_[config].applied_step = step_;
  }
  skipped_items_ += skips_;
  set_.clear();
  fired_.clear();
  skips_ = 0;
  if (closes_) CloseStep();
}

void PatternEvaluatorImpl::EvaluateEnd(std::vector<Firing>* firings) {
  firings->clear();
  if (step_ == episode_begin_) return;
  const int64_t step = step_ - 1;
  for (size_t i = 0; i < compiled_.size(); ++i) {
    if (!compiled_[i].at_end) continue;
    const Verdict verdict = Judge(i, step, /*is_past=*/true);
    if (verdict == Verdict::kHole) ++skipped_items_;
    if (verdict != Verdict::kFires) continue;
    firings->push_back(Fire(i, step, /*is_past=*/true));
    compiled_[i].applied_step = step;
  }
}

void PatternEvaluatorImpl::EndEpisode(bool clear) {
  episode_begin_ = step_;
  if (clear) history_begin_ = step_;
}

// ---- State ----------------------------------------------------------------------

void PatternEvaluatorImpl::SaveSource(const Source& source, std::vector<int64_t>* words) {
  words->push_back(source.cell.step);
  words->push_back(source.cell.integer);
  words->push_back(static_cast<int64_t>(source.holes.size()));
  words->insert(words->end(), source.holes.begin(), source.holes.end());
  for (const double number : source.numbers) {
    int64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    words->push_back(bits);
  }
}

std::vector<int64_t> PatternEvaluatorImpl::Save() const {
  std::vector<int64_t> words = {step_,
                                episode_begin_,
                                history_begin_,
                                skipped_items_,
                                static_cast<int64_t>(compiled_.size()),
                                num_sources_};
  for (const Compiled& compiled : compiled_) words.push_back(compiled.applied_step);
  // Steps may have sources that no config tells of: nothing depends on those.
  for (int i = 0; i < num_sources_; ++i) SaveSource(SourceOf(i), &words);
  return words;
}

Source PatternEvaluatorImpl::ReadSource(const Source& source, int64_t step,
                                        StateReader* reader) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  Source read;
  read.history = source.history;
  read.in_condition = source.in_condition;
  read.in_priority = source.in_priority;
  read.cell.step = reader->Next(-1, step - 1);
  read.cell.integer = reader->Next(kMin, kMax);
  const int64_t reachable = std::min(source.history, step);
  int64_t holes = reader->Next(0, reachable);
  for (int64_t oldest = step - reachable; holes > 0 && reader->is_good(); --holes) {
    read.holes.push_back(reader->Next(oldest, step - 1));
    oldest = read.holes.back() + 1;
  }
  if (!source.in_priority) return read;
  for (int64_t i = 0; i < reachable && reader->is_good(); ++i) {
    const int64_t bits = reader->Next(kMin, kMax);
    double number = 0;
    std::memcpy(&number, &bits, sizeof number);
    read.numbers.push_back(number);
  }
  return read;
}

Status PatternEvaluatorImpl::Restore(const std::vector<int64_t>& state) {
  StateReader reader(state);
  const int64_t step = reader.Next(0, kMaxSteps);
  const int64_t episode_begin = reader.Next(0, step);
  const int64_t history_begin = reader.Next(0, step);
  const int64_t skipped_items = reader.Next(0, kMaxSteps);
  const auto configs = static_cast<int64_t>(compiled_.size());
  reader.Next(configs, configs);
  reader.Next(num_sources_, num_sources_);
  std::vector<int64_t> applied;
  std::vector<Source> sources;
  for (int64_t i = 0; i < configs; ++i) applied.push_back(reader.Next(-1, step - 1));
  for (int i = 0; i < num_sources_ && reader.is_good(); ++i) {
    sources.push_back(ReadSource(SourceOf(i), step, &reader));
  }
  if (!reader.is_done()) {
    return DataLossError("the saved state of the patterns is damaged, or of other configs");
  }
  Rollback();
  step_ = step;
  episode_begin_ = episode_begin;
  history_begin_ = history_begin;
  skipped_items_ = skipped_items;
  for (size_t i = 0; i < compiled_.size(); ++i) {
    compiled_[i].applied_step = applied[i];
    compiled_[i].is_done = false;
  }
  sources_ = std::move(sources);
  return OkStatus();
}

}  // namespace

Result<std::unique_ptr<PatternEvaluator>> MakePatternEvaluator(
    std::vector<StructuredConfig> configs) {
  RTF_RETURN_IF_ERROR(CheckConfigs(configs));
  return std::unique_ptr<PatternEvaluator>(
      std::make_unique<PatternEvaluatorImpl>(std::move(configs)));
}

}  // namespace reverb_tf
