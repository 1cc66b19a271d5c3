// A chunk on its way from a writer's column to the server.
#ifndef REVERB_TF_CC_CLIENT_CHUNK_HANDLE_H_
#define REVERB_TF_CC_CLIENT_CHUNK_HANDLE_H_

#include <cstdint>

#include "cc/base/ref_counted.h"
#include "cc/base/status.h"
#include "cc/core/chunk.h"

namespace reverb_tf {

// Closes the chunk that is being filled, so that it can be sent.
class ChunkFiller {
 public:
  virtual ~ChunkFiller() = default;
  virtual Status Seal() = 0;
};

// Stands for a chunk from its first row on, so that items can refer to it while it
// is still being filled. Shared by its column, by pending items and by the list of
// what the server holds; all fields are guarded by the lock of the ItemSender.
struct ChunkHandle : public RefCounted<ChunkHandle> {
  uint64_t key = 0;
  ChunkPtr chunk;                 // null while it is filled
  ChunkFiller* filler = nullptr;  // fills it; null afterwards
  int64_t bytes = 0;              // of payload so far
  bool in_column = false;         // later items may refer to it
  int32_t pending_slices = 0;     // of unconfirmed items
  int32_t unsent_slices = 0;      // of those that are to be sent (again)
  int64_t counted_bytes = 0;      // its share of the sender's pending bytes
  uint64_t held_by_stream = 0;    // number of the stream whose server has it; or 0

  static void Destroy(const ChunkHandle* handle) { delete handle; }
};

using ChunkHandlePtr = RefPtr<ChunkHandle>;

// Rows [offset, offset + length) of a chunk.
struct HandleSlice {
  ChunkHandlePtr chunk;
  int32_t offset = 0;
  int32_t length = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_CHUNK_HANDLE_H_
