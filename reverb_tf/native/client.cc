#include "reverb_tf/native/client.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <utility>

#include "reverb_tf/native/interop.h"
#include "reverb_tf/native/nest.h"
#include "reverb_tf/native/row_writer.h"
#include "reverb_tf/native/structured_writer.h"
#include "reverb_tf/native/table_info.h"
#include "reverb_tf/native/writer.h"

namespace reverb_tf {
namespace {

class NativeSampler {
 public:
  explicit NativeSampler(std::unique_ptr<Sampler> sampler) : sampler_(std::move(sampler)) {}

  // (keys, probabilities, table_sizes, priorities, times_sampled, columns, squeezed)
  nb::object Next(double timeout) {
    const WaitOptions wait = Wait(timeout);
    SampleBatch batch;
    RaiseIfError(Unlocked([&] { return sampler_->Next(wait, &batch); }));
    nb::list columns;
    for (const Tensor& tensor : batch.columns) columns.append(TensorToPython(tensor));
    nb::list squeezed;
    for (bool s : batch.squeezed) squeezed.append(s);
    return nb::make_tuple(batch.keys, batch.probabilities, batch.table_sizes,
                          batch.priorities, batch.times_sampled, columns, squeezed);
  }
  void Close() {
    if (!sampler_.is_ours()) return;
    Unlocked([&] { return sampler_->Close(), 0; });
  }
  int64_t delivered() const { return sampler_->delivered(); }

 private:
  Owned<Sampler> sampler_;
};

Duration Seconds(double s) {
  if (!std::isfinite(s) || s > 1e9) return kForever;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

class NativeClient {
 public:
  NativeClient(const std::string& address, bool in_process) {
    CheckProcess();
    client_ = ValueOrRaise(Api().MakeClient({address, in_process}));
  }

  nb::object ServerInfo(double timeout) {
    const WaitOptions wait = Wait(timeout);
    const ServerTables info =
        ValueOrRaise(Unlocked([&] { return client_->GetServerInfo(wait); }));
    nb::list tables;
    for (const TableInfo& table : info.tables) tables.append(TableInfoToPython(table));
    return nb::make_tuple(info.state_id, tables);
  }

  nb::object Mutate(const std::string& table,
                    const std::vector<std::pair<uint64_t, double>>& updates,
                    const std::vector<uint64_t>& deletes, double timeout) {
    std::vector<KeyPriority> pairs;
    pairs.reserve(updates.size());
    for (const auto& [key, priority] : updates) pairs.push_back({key, priority});
    const WaitOptions wait = Wait(timeout);
    const MutateReply reply = ValueOrRaise(
        Unlocked([&] { return client_->Mutate(table, pairs, deletes, wait); }));
    return nb::make_tuple(reply.updated, reply.deleted, reply.not_found);
  }

  void Reset(const std::string& table, double timeout) {
    const WaitOptions wait = Wait(timeout);
    RaiseIfError(Unlocked([&] { return client_->Reset(table, wait); }));
  }

  std::string Checkpoint(double timeout) {
    const WaitOptions wait = Wait(timeout);
    return ValueOrRaise(Unlocked([&] { return client_->Checkpoint(wait); }));
  }

  std::vector<uint64_t> Insert(
      nb::object data, const std::vector<std::pair<std::string, double>>& priorities,
      double timeout) {
    LeafReader reader;
    std::vector<StepLeaf> step;
    Nest nest;
    nest.Walk(data.ptr(), [&](const NestNode& node, PyObject* value) {
      const Leaf leaf = reader.Read(value, node.path);
      Tensor tensor;
      tensor.dtype = leaf.dtype;
      tensor.shape = leaf.shape;
      tensor.buffer = Buffer::CopyOf({static_cast<const char*>(leaf.data), leaf.bytes});
      step.push_back({node.path, std::move(tensor)});
    });
    const WaitOptions wait = Wait(timeout);
    return ValueOrRaise(Unlocked([&] { return client_->Insert(step, priorities, wait); }));
  }

  NativeWriter* MakeWriter(int64_t num_keep_alive_refs, bool validate_items,
                           int64_t max_in_flight_items, int64_t max_in_flight_bytes,
                           double timeout) {
    TrajectoryWriterOptions options;
    options.num_keep_alive_refs = num_keep_alive_refs;
    options.validate_items = validate_items;
    options.max_in_flight_items = max_in_flight_items;
    options.max_in_flight_bytes = max_in_flight_bytes;
    const WaitOptions wait = Wait(timeout);
    auto state = std::make_shared<WriterState>();
    state->writer =
        ValueOrRaise(Unlocked([&] { return client_->NewTrajectoryWriter(options, wait); }));
    return new NativeWriter(std::move(state));
  }

  NativeRowWriter* MakeRowWriter(int64_t max_sequence_length,
                                 std::optional<int64_t> chunk_length, bool delta_encoded,
                                 int64_t max_in_flight_items, double timeout) {
    RowWriterOptions row;
    row.max_sequence_length = max_sequence_length;
    row.max_in_flight_items = max_in_flight_items;
    row.column.max_chunk_length = chunk_length;
    row.column.delta_encode = delta_encoded;
    TrajectoryWriterOptions options;
    options.num_keep_alive_refs = max_sequence_length;
    options.writes_steps = true;
    const WaitOptions wait = Wait(timeout);
    return new NativeRowWriter(
        ValueOrRaise(Unlocked([&] { return client_->NewTrajectoryWriter(options, wait); })),
        row);
  }

  NativeStructuredWriter* MakeStructuredWriter(
      nb::list configs, std::optional<nb::list> step_spec, bool validate_items,
      int64_t max_in_flight_items, int64_t max_in_flight_bytes, double timeout) {
    StructuredWriterOptions options;
    options.validate_items = validate_items;
    options.max_in_flight_items = max_in_flight_items;
    options.max_in_flight_bytes = max_in_flight_bytes;
    if (step_spec) options.step_spec = SpecsFromPython(*step_spec);
    std::vector<StructuredConfig> decoded = ConfigsFromPython(configs);
    const WaitOptions wait = Wait(timeout);
    return new NativeStructuredWriter(
        ValueOrRaise(Unlocked([&] {
          return client_->NewStructuredWriter(std::move(decoded), options, wait);
        })),
        /*waits=*/max_in_flight_items > 0 || max_in_flight_bytes > 0);
  }

  NativeSampler* MakeSampler(const std::string& table, int64_t max_in_flight,
                             int num_workers, std::optional<int64_t> max_samples,
                             int64_t consume_ahead, double rate_limiter_timeout,
                             bool end_on_timeout, bool require_steps) {
    SamplerOptions options;
    options.table = table;
    options.max_in_flight = max_in_flight;
    options.num_workers = num_workers;
    options.max_samples = max_samples;
    options.consume_ahead = consume_ahead;
    options.rate_limiter_timeout = Seconds(rate_limiter_timeout);
    options.end_on_timeout = end_on_timeout;
    options.require_steps = require_steps;
    return new NativeSampler(
        ValueOrRaise(Unlocked([&] { return client_->NewSampler(options); })));
  }

  std::string Describe() const { return client_->DescribeConnection(); }
  void Close() {
    if (!client_.is_ours()) return;
    Unlocked([&] { return client_->Close(), 0; });
  }

 private:
  Owned<ReverbClient> client_;
};

}  // namespace

void BindClient(nb::module_& m) {
  nb::class_<NativeSampler>(m, "Sampler")
      .def("next", &NativeSampler::Next)
      .def("close", &NativeSampler::Close)
      .def_prop_ro("delivered", &NativeSampler::delivered);
  nb::class_<NativeClient>(m, "Client")
      .def(nb::init<const std::string&, bool>())
      .def("server_info", &NativeClient::ServerInfo)
      .def("mutate", &NativeClient::Mutate)
      .def("reset", &NativeClient::Reset)
      .def("checkpoint", &NativeClient::Checkpoint)
      .def("insert", &NativeClient::Insert, nb::arg().none(), nb::arg(), nb::arg())
      .def("trajectory_writer", &NativeClient::MakeWriter, nb::rv_policy::take_ownership)
      .def("row_writer", &NativeClient::MakeRowWriter, nb::rv_policy::take_ownership,
           nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg())
      .def("structured_writer", &NativeClient::MakeStructuredWriter,
           nb::rv_policy::take_ownership, nb::arg(), nb::arg().none(), nb::arg(), nb::arg(),
           nb::arg(), nb::arg())
      .def("sampler", &NativeClient::MakeSampler, nb::rv_policy::take_ownership, nb::arg(),
           nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg(), nb::arg(),
           nb::arg())
      .def("describe", &NativeClient::Describe)
      .def("close", &NativeClient::Close);
}

}  // namespace reverb_tf
