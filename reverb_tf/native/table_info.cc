#include "reverb_tf/native/table_info.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

namespace reverb_tf {
namespace {

namespace nb = nanobind;

nb::object SelectorToPython(const SelectorConfig& c) {
  return nb::make_tuple(static_cast<int>(c.kind), c.priority_exponent, c.seed);
}

nb::dict StatsToPython(const CallStats& s) {
  nb::dict d;
  d["completed"] = s.completed;
  d["refused"] = s.refused;
  d["delivered"] = s.delivered;
  d["returned"] = s.returned;
  d["partial"] = s.partial;
  d["in_flight"] = s.in_flight;
  d["timed_out"] = s.timed_out;
  d["blocked_ms"] = s.blocked_ms;
  return d;
}

nb::dict WorkerTimeToPython(const WorkerTime& t) {
  nb::dict d;
  d["running_ms"] = t.running_ms;
  d["sampling_ms"] = t.sampling_ms;
  d["inserting_ms"] = t.inserting_ms;
  d["sleeping_ms"] = t.sleeping_ms;
  d["waiting_for_sampling_ms"] = t.waiting_for_sampling_ms;
  d["waiting_for_inserts_ms"] = t.waiting_for_inserts_ms;
  return d;
}

}  // namespace

nb::object TableInfoToPython(const TableInfo& info) {
  const TableConfig& c = info.config;
  nb::dict d;
  d["name"] = c.name;
  d["sampler"] = SelectorToPython(c.sampler);
  d["remover"] = SelectorToPython(c.remover);
  d["max_size"] = c.max_size;
  d["max_times_sampled"] = c.max_times_sampled;
  d["rate_limiter"] =
      nb::make_tuple(c.rate_limiter.samples_per_insert, c.rate_limiter.min_size_to_sample,
                     c.rate_limiter.min_diff, c.rate_limiter.max_diff);
  d["insert_stats"] = StatsToPython(info.insert_stats);
  d["sample_stats"] = StatsToPython(info.sample_stats);
  d["signature"] = nb::none();
  if (c.signature) {
    const std::string& bytes = c.signature->structured_value;
    d["signature"] = nb::bytes(bytes.data(), bytes.size());
  }
  d["current_size"] = info.current_size;
  d["num_episodes"] = info.num_episodes;
  d["num_deleted_episodes"] = info.num_deleted_episodes;
  d["num_unique_samples"] = info.num_unique_samples;
  d["table_worker_time"] = WorkerTimeToPython(info.worker_time);
  d["max_bytes"] = c.max_bytes;
  d["bytes_stored"] = info.bytes_stored;
  d["bytes_uncompressed"] = info.bytes_uncompressed;
  d["num_chunks"] = info.num_chunks;
  nb::dict by_column;
  for (const auto& [path, bytes] : info.bytes_by_column) by_column[path.c_str()] = bytes;
  d["bytes_by_column"] = by_column;
  d["signature_scope"] = static_cast<int>(c.signature_scope);
  d["generation"] = info.generation;
  d["insert_count"] = info.insert_count;
  d["sample_count"] = info.sample_count;
  d["delete_count"] = info.delete_count;
  d["num_evicted"] = info.num_evicted;
  d["num_expired"] = info.num_expired;
  d["num_waiting_inserts"] = info.num_waiting_inserts;
  d["num_waiting_samples"] = info.num_waiting_samples;
  d["oldest_wait_s"] = info.oldest_wait_s;
  d["num_writers"] = info.num_writers;
  d["num_samplers"] = info.num_samplers;
  d["explain"] = info.explain;
  return d;
}

}  // namespace reverb_tf
