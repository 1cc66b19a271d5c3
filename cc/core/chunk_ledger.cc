#include "cc/core/chunk_ledger.h"

#include <algorithm>

namespace reverb_tf {
namespace {

uint64_t Address(const Chunk& chunk) { return reinterpret_cast<uintptr_t>(&chunk); }

// f(chunk, column) of each slice.
template <typename F>
void ForEachSlice(const Item& item, F f) {
  for (int i = 0; i < item.num_columns(); ++i) {
    for (const ChunkSlice& slice : item.column(i)) {
      f(*slice.chunk, static_cast<uint32_t>(i));
    }
  }
}

}  // namespace

void ChunkLedger::Count(const Chunk& chunk, uint32_t column, int64_t sign) {
  const auto stored = static_cast<int64_t>(chunk.stored_bytes());
  stored_bytes_ += sign * stored;
  uncompressed_bytes_ += sign * static_cast<int64_t>(chunk.uncompressed_bytes());
  if (column >= bytes_by_column_.size()) bytes_by_column_.resize(column + size_t{1});
  bytes_by_column_[column] += sign * stored;
}

void ChunkLedger::AddReference(const Chunk& chunk, uint32_t column, bool restore) {
  Use* const use = chunks_.FindOrAdd(Address(chunk));
  if (use->references++ > 0) return;
  use->column = column;
  Count(chunk, column, 1);
  Episode* const episode = episodes_.FindOrAdd(chunk.options().episode_id);
  if (episode->chunks++ == 0 && restore) --num_deleted_episodes_;
}

void ChunkLedger::RemoveReference(const Chunk& chunk) {
  Use* const use = chunks_.Find(Address(chunk));
  if (use->references > 1) {
    --use->references;
    return;
  }
  Count(chunk, use->column, -1);
  chunks_.Remove(Address(chunk));
  const uint64_t episode_id = chunk.options().episode_id;
  Episode* const episode = episodes_.Find(episode_id);
  if (episode->chunks > 1) {
    --episode->chunks;
  } else {
    episodes_.Remove(episode_id);
    ++num_deleted_episodes_;
  }
}

void ChunkLedger::Add(const Item& item) {
  ForEachSlice(item, [this](const Chunk& chunk, uint32_t column) {
    AddReference(chunk, column, /*restore=*/false);
  });
}

void ChunkLedger::Restore(const Item& item) {
  ForEachSlice(item, [this](const Chunk& chunk, uint32_t column) {
    AddReference(chunk, column, /*restore=*/true);
  });
}

void ChunkLedger::Remove(const Item& item) {
  ForEachSlice(item, [this](const Chunk& chunk, uint32_t) { RemoveReference(chunk); });
}

void ChunkLedger::Clear() {
  chunks_.Clear();
  episodes_.Clear();
  bytes_by_column_ = std::vector<int64_t>();
  stored_bytes_ = 0;
  uncompressed_bytes_ = 0;
  num_deleted_episodes_ = 0;
}

int64_t DistinctStoredBytes(const Item& item) {
  std::vector<const Chunk*> chunks;
  chunks.reserve(static_cast<size_t>(item.num_slices()));
  for (int i = 0; i < item.num_slices(); ++i)
    chunks.push_back(item.slices()[i].chunk.get());
  std::sort(chunks.begin(), chunks.end());
  chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
  int64_t bytes = 0;
  for (const Chunk* chunk : chunks) bytes += static_cast<int64_t>(chunk->stored_bytes());
  return bytes;
}

}  // namespace reverb_tf
