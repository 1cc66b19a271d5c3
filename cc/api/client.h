// The client as kernels and the Python extension see it. Values of std types,
// cc/base and the plain structs of cc/core cross this boundary; no exception does.
#ifndef REVERB_TF_CC_API_CLIENT_H_
#define REVERB_TF_CC_API_CLIENT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/api/sampler.h"
#include "cc/api/structured_writer.h"
#include "cc/api/trajectory_writer.h"
#include "cc/base/status.h"
#include "cc/base/tensor.h"
#include "cc/base/wait.h"
#include "cc/core/table_info.h"

namespace reverb_tf {

struct ClientOptions {
  // "host:port", "[v6]:port", "unix:/path", "dns:///…", "ipv4:…", "ipv6:…".
  std::string address;
  // Use the server directly when it lives in this process.
  bool in_process = true;

  // INVALID_ARGUMENT for a malformed address: empty, with "http://", without port
  // or with one outside 1 … 65535.
  Status Validate() const;
};

struct ServerTables {
  std::pair<uint64_t, uint64_t> state_id;
  std::vector<TableInfo> tables;
};

struct KeyPriority {
  uint64_t key = 0;
  double priority = 0;
};

// Counts; -1 when the server doesn't tell.
struct MutateReply {
  int64_t updated = 0;
  int64_t deleted = 0;
  int64_t not_found = 0;
};

// A leaf of one step: its path, and a contiguous value of the cell's dtype and
// shape (strings: content form).
struct StepLeaf {
  std::string path;
  Tensor value;
};

// Thread-safe. Connects when first needed. Each call waits for a server that
// isn't there (see WaitOptions) and says so in the log.
class ReverbClient {
 public:
  virtual ~ReverbClient() = default;

  virtual Result<ServerTables> GetServerInfo(const WaitOptions& wait) = 0;
  virtual Result<MutateReply> Mutate(const std::string& table,
                                     const std::vector<KeyPriority>& updates,
                                     const std::vector<uint64_t>& deletes,
                                     const WaitOptions& wait) = 0;
  virtual Status Reset(const std::string& table, const WaitOptions& wait) = 0;
  virtual Result<std::string> Checkpoint(const WaitOptions& wait) = 0;

  // Inserts one step as one item into each table, data sent once; returns the
  // keys (in the order of `priorities`) when all are in. Everything is checked
  // before anything is sent. On a timeout what is not yet in is withdrawn and the
  // message says which tables have it.
  virtual Result<std::vector<uint64_t>> Insert(
      const std::vector<StepLeaf>& step,
      const std::vector<std::pair<std::string, double>>& priorities,
      const WaitOptions& wait) = 0;

  // The same for a batch of B steps, each of which becomes an item of every table: the
  // leaves are [B, ...], `priorities` has B rows of one a table, and so has the result.
  virtual Result<std::vector<uint64_t>> InsertBatch(const std::vector<StepLeaf>& steps,
                                                    const std::vector<std::string>& tables,
                                                    const std::vector<double>& priorities,
                                                    const WaitOptions& wait) = 0;

  // With validate_items the signatures are fetched now (hence `wait`).
  virtual Result<std::unique_ptr<TrajectoryWriter>> NewTrajectoryWriter(
      const TrajectoryWriterOptions& options, const WaitOptions& wait) = 0;
  // Configs: see ReverbApi::DecodeStructuredConfig. With validate_items the configs are
  // checked against their tables' signatures (hence `wait`). INVALID_ARGUMENT naming
  // the config's position.
  virtual Result<std::unique_ptr<StructuredWriter>> NewStructuredWriter(
      std::vector<StructuredConfig> configs, const StructuredWriterOptions& options,
      const WaitOptions& wait) = 0;
  virtual Result<std::unique_ptr<Sampler>> NewSampler(const SamplerOptions& options) = 0;

  // State of the connection, writers and samplers of this client.
  virtual std::string DescribeConnection() const = 0;
  // Ends samplers and waiting calls with CANCELLED; later calls
  // FAILED_PRECONDITION. Writers go on until they are closed. Idempotent.
  virtual void Close() = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_API_CLIENT_H_
