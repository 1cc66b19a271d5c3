// The protocol's messages as plain structs, the same over every transport.
#ifndef REVERB_TF_CC_SERVICE_MESSAGES_H_
#define REVERB_TF_CC_SERVICE_MESSAGES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/clock.h"
#include "cc/base/status.h"
#include "cc/core/table.h"

namespace reverb_tf {

// A slice of a chunk of the stream: by key (off the wire), or by reference (the
// in-process road), then `chunk` is set.
struct SliceRef {
  uint64_t chunk_key = 0;
  int32_t offset = 0;
  int32_t length = 0;
  ChunkPtr chunk;
};

struct ColumnRef {
  int32_t num_slices = 0;
  bool squeeze = false;
};

struct InsertItem {
  uint64_t key = 0;
  std::string table;
  double priority = 0;
  std::vector<ColumnRef> columns;
  std::vector<SliceRef> slices;  // of all columns, one after another
  bool written_as_steps = false;
  uint64_t writer_id = 0;  // 0: the peer counts no sequence
  uint64_t sequence = 0;
};

// The key of tensor `index` of a chunk that holds several columns (the form of row
// writers); each becomes a chunk of its own. MixKey(key, 0) == key.
inline uint64_t MixKey(uint64_t key, uint32_t index) {
  return key ^ (index * 0x9e3779b97f4a7c15u);
}

struct InsertRequest {
  std::vector<ChunkPtr> chunks;
  std::vector<InsertItem> items;
  // After a request with items all other chunks of the stream are forgotten. A key
  // keeps all the columns of its chunk.
  std::vector<uint64_t> keep_chunk_keys;
};

struct RefusedItem {
  uint64_t key = 0;
  Status status;
};

struct InsertReply {
  std::vector<uint64_t> confirmed;
  std::vector<RefusedItem> refused;  // only to peers of this project
};

// Where the picks of a seeded dataset come from.
struct SampleSeed {
  uint64_t seed = 0;
  uint64_t stream = 0;  // number of the iterator and worker
};

struct SampleRequest {
  std::string table;
  // Samples wanted now; 0 only acknowledges (peers of this project).
  int64_t num_samples = 0;
  // Longest wait in the rate limiter; kForever waits for ever.
  Duration timeout = kForever;
  // Peers of this project: samples of this stream (counted from its start) that
  // were delivered to the caller: all below `delivered`, but for `returned`,
  // which are given back.
  int64_t delivered = 0;
  std::vector<int64_t> returned;
  int64_t partial = 0;  // of the delivered ones, delivered in part (since the last request)
  std::optional<SampleSeed> seed;
  // Scope that the reader's declared specs ask for; kUndecided asks for none.
  SignatureScope scope = SignatureScope::kUndecided;
};

struct SampleReply {
  std::vector<SampledItem> items;
  // Of the table, when the reply was made; samples granted under an older one
  // are void.
  uint64_t generation = 0;
  // Set when a request is over: OK, or DEADLINE_EXCEEDED with the explain line
  // when it timed out (the stream goes on).
  std::optional<Status> request_done;
};

struct MutateRequest {
  std::string table;
  std::vector<PriorityUpdate> updates;
  std::vector<uint64_t> deletes;
};

struct ServerInfo {
  std::pair<uint64_t, uint64_t> state_id;
  std::vector<TableInfo> tables;
};

// Whom a session talks to: a peer of this project knows acknowledgements,
// refusals of single items and time-outs that leave the stream open.
enum class Peer : uint8_t { kOwn, kForeign };

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_SERVICE_MESSAGES_H_
