// What the chunks of a table's items take, each counted once.
#ifndef REVERB_TF_CC_CORE_CHUNK_LEDGER_H_
#define REVERB_TF_CC_CORE_CHUNK_LEDGER_H_

#include <cstdint>
#include <vector>

#include "cc/core/item.h"
#include "cc/core/key_map.h"

namespace reverb_tf {

// Counts the references of items to chunks, and the chunks of episodes. A chunk
// belongs to the column that referred to it first. Thread-compatible.
class ChunkLedger {
 public:
  void Add(const Item& item);
  // REQUIRES: added
  void Remove(const Item& item);
  // Adds an item that was removed before, as if it had not been.
  void Restore(const Item& item);
  void Clear();

  // Of the distinct chunks.
  int64_t num_chunks() const { return static_cast<int64_t>(chunks_.size()); }
  int64_t stored_bytes() const { return stored_bytes_; }
  int64_t uncompressed_bytes() const { return uncompressed_bytes_; }
  // By column index; may end with zeros.
  const std::vector<int64_t>& bytes_by_column() const { return bytes_by_column_; }

  int64_t num_episodes() const { return static_cast<int64_t>(episodes_.size()); }
  // Episodes whose last chunk went.
  int64_t num_deleted_episodes() const { return num_deleted_episodes_; }

 private:
  struct Use {
    uint32_t references = 0;
    uint32_t column = 0;
    static bool IsEmpty(const Use& use) { return use.references == 0; }
  };
  struct Episode {
    uint32_t chunks = 0;
    static bool IsEmpty(const Episode& episode) { return episode.chunks == 0; }
  };

  void AddReference(const Chunk& chunk, uint32_t column, bool restore);
  void RemoveReference(const Chunk& chunk);
  void Count(const Chunk& chunk, uint32_t column, int64_t sign);

  KeyMap<Use> chunks_;  // by address
  KeyMap<Episode> episodes_;
  std::vector<int64_t> bytes_by_column_;
  int64_t stored_bytes_ = 0;
  int64_t uncompressed_bytes_ = 0;
  int64_t num_deleted_episodes_ = 0;
};

// Stored bytes of the distinct chunks of an item.
int64_t DistinctStoredBytes(const Item& item);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_CHUNK_LEDGER_H_
