#include "reverb_tf/native/server.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "reverb_tf/native/interop.h"
#include "reverb_tf/native/table_info.h"

namespace reverb_tf {
namespace {

class NativeTable {
 public:
  explicit NativeTable(const TableConfig& config)
      : table_(ValueOrRaise(Api().MakeTable(config))) {}
  const std::shared_ptr<ReverbTable>& table() const { return table_; }

 private:
  std::shared_ptr<ReverbTable> table_;
};

// (kind, priority_exponent, seed or None)
SelectorConfig SelectorFromPython(nb::tuple t) {
  SelectorConfig config;
  config.kind = static_cast<SelectorKind>(nb::cast<int>(t[0]));
  config.priority_exponent = nb::cast<double>(t[1]);
  if (!nb::object(t[2]).is_none()) config.seed = nb::cast<uint64_t>(t[2]);
  return config;
}

NativeTable* MakeTable(const std::string& name, nb::tuple sampler, nb::tuple remover,
                       int64_t max_size, int32_t max_times_sampled, nb::tuple limiter,
                       std::optional<nb::bytes> signature, int64_t max_bytes, int scope) {
  TableConfig config;
  config.name = name;
  config.sampler = SelectorFromPython(sampler);
  config.remover = SelectorFromPython(remover);
  config.max_size = max_size;
  config.max_times_sampled = max_times_sampled;
  config.rate_limiter = {nb::cast<double>(limiter[0]), nb::cast<int64_t>(limiter[1]),
                         nb::cast<double>(limiter[2]), nb::cast<double>(limiter[3])};
  if (signature) {
    config.signature.emplace();
    config.signature->structured_value = std::string(signature->c_str(), signature->size());
  }
  config.max_bytes = max_bytes;
  config.signature_scope = static_cast<SignatureScope>(scope);
  return new NativeTable(config);
}

class NativeServer {
 public:
  NativeServer(const std::string& host, int port, const std::vector<NativeTable*>& tables) {
    CheckProcess();
    std::vector<std::shared_ptr<ReverbTable>> all;
    for (const NativeTable* table : tables) all.push_back(table->table());
    server_ = ValueOrRaise(Unlocked([&] { return Api().MakeServer({host, port}, all); }));
  }

  int port() const { return server_->port(); }
  std::string address() const { return server_->address(); }
  bool is_running() const { return server_->is_running(); }
  void Stop(double grace) {
    if (!server_.is_ours()) return;
    Unlocked([&] {
      server_->Stop(
          std::chrono::duration_cast<Duration>(std::chrono::duration<double>(grace)));
      return 0;
    });
  }
  // False on a timeout.
  bool WaitForStop(double timeout) {
    const WaitOptions wait = Wait(timeout);
    const Status status = Unlocked([&] { return server_->Wait(wait); });
    if (status.code() == StatusCode::kDeadlineExceeded) return false;
    RaiseIfError(status);
    return true;
  }

 private:
  Owned<ReverbServer> server_;
};

}  // namespace

void BindServer(nb::module_& m) {
  nb::class_<NativeTable>(m, "Table")
      .def("info",
           [](const NativeTable& t) {
             return TableInfoToPython(Unlocked([&] { return t.table()->info(); }));
           })
      .def("can_insert",
           [](const NativeTable& t, int64_t n) { return t.table()->CanInsert(n); })
      .def("can_sample",
           [](const NativeTable& t, int64_t n) { return t.table()->CanSample(n); });
  m.def("make_table", &MakeTable, nb::rv_policy::take_ownership, nb::arg(), nb::arg(),
        nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg().none(), nb::arg(), nb::arg());
  nb::class_<NativeServer>(m, "Server")
      .def(nb::init<const std::string&, int, const std::vector<NativeTable*>&>())
      .def_prop_ro("port", &NativeServer::port)
      .def_prop_ro("address", &NativeServer::address)
      .def_prop_ro("is_running", &NativeServer::is_running)
      .def("stop", &NativeServer::Stop)
      .def("wait", &NativeServer::WaitForStop);
}

}  // namespace reverb_tf
