// The Python side of a StructuredWriter: steps in.
#ifndef REVERB_TF_REVERB_TF_NATIVE_STRUCTURED_WRITER_H_
#define REVERB_TF_REVERB_TF_NATIVE_STRUCTURED_WRITER_H_

#include <nanobind/nanobind.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/api/structured_writer.h"
#include "reverb_tf/native/nest.h"
#include "reverb_tf/native/writer.h"

namespace reverb_tf {

class Cells;

// A list of serialised configs; ValueError naming the position of a bad one.
std::vector<StructuredConfig> ConfigsFromPython(nb::list configs);
// A list of (path, dtype number, shape or None).
std::vector<TensorSpec> SpecsFromPython(nb::list specs);

class NativeStructuredWriter {
 public:
  // `waits`: appends may wait for items to be confirmed.
  NativeStructuredWriter(std::unique_ptr<StructuredWriter> writer, bool waits)
      : waits_(waits), writer_(std::move(writer)) {}
  NativeStructuredWriter(const NativeStructuredWriter&) = delete;
  NativeStructuredWriter& operator=(const NativeStructuredWriter&) = delete;

  void Append(nb::object data, bool partial_step, double timeout);
  void AppendBatch(nb::object data, double timeout);
  // As NativeWriter's.
  void SetStructure(nb::object structure);
  void SetCast(const std::string& path, nb::object cast);
  void Flush(int64_t ignore_last, double timeout);
  void EndEpisode(bool clear_buffers, double timeout);
  int64_t Close(double timeout);
  const StructuredWriter& writer() const { return *writer_; }

 private:
  // Fills `cells`, whose columns are the sources. ValueError unless `data` has all of
  // them; some are enough, by name, of a step that is open or `may_be_part`.
  void Gather(nb::object data, bool is_batch, bool may_be_part, Cells* cells);
  // Decides how paths of steps lead to sources, by the first step.
  void MapPaths(nb::object data);
  // The sources at or below `path`: what a None there leaves out.
  int64_t SourcesUnder(const std::string& path) const;
  // ValueError that tells how many and which leaves differ.
  [[noreturn]] void RaiseMismatch(nb::object data) const;
  // After an append: its error, or what the step fixed stays.
  void Settle(const Status& status);

  const bool waits_;
  Owned<StructuredWriter> writer_;  // const
  CallGate gate_;                   // guards what follows: conversions run Python code
  Nest nest_;
  bool is_mapped_ = false;
  bool by_name_ = false;
  std::map<std::string, int> sources_;  // by path
  std::vector<int> source_of_leaf_;     // of the nest
  std::map<std::string, nb::object> casts_;
};

void BindStructuredWriter(nb::module_& m);

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_STRUCTURED_WRITER_H_
