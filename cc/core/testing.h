// What the tests of core share: short ways to make chunks, items and tables.
#ifndef REVERB_TF_CC_CORE_TESTING_H_
#define REVERB_TF_CC_CORE_TESTING_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/core/chunk.h"
#include "cc/core/item.h"
#include "cc/core/table_info.h"

namespace reverb_tf {

inline TensorSpec Spec(std::string path, DType dtype, Shape shape) {
  TensorSpec spec;
  spec.path = std::move(path);
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  return spec;
}

inline CellSpecPtr Cell(DType dtype, Shape shape = {}) {
  return std::make_shared<const TensorSpec>(Spec("", dtype, std::move(shape)));
}

template <typename T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// `rows` zero rows of `cell` (not a string).
inline ChunkPtr ZeroChunk(CellSpecPtr cell, int32_t rows, uint64_t key = 1,
                          uint64_t episode_id = 1) {
  ChunkOptions options;
  options.key = key;
  options.num_rows = rows;
  options.episode_id = episode_id;
  options.end = rows;
  const size_t bytes =
      static_cast<size_t>(NumElements(cell->shape) * rows) * ElementSize(cell->dtype);
  options.cell = std::move(cell);
  return Chunk::Copy(options, std::string(bytes, '\0')).value();
}

// One column, the whole of `chunk`.
inline ItemPtr ItemOf(uint64_t key, const ChunkPtr& chunk, bool written_as_steps = false) {
  const ChunkSlice slice{chunk, 0, chunk->num_rows()};
  return Item::Create(key, written_as_steps, {{&slice, 1, false}}).value();
}

// An item with a one-row int32 chunk of its own.
inline ItemPtr SmallItem(uint64_t key, uint64_t episode_id = 1) {
  static const CellSpecPtr cell = Cell(DType::kInt32);
  return ItemOf(key, ZeroChunk(cell, 1, key, episode_id));
}

// Fifo in, fifo out, no limits.
inline TableConfig OpenConfig() {
  TableConfig config;
  config.name = "t";
  config.sampler.kind = SelectorKind::kFifo;
  config.remover.kind = SelectorKind::kFifo;
  config.max_size = 1000;
  config.rate_limiter.min_diff = std::numeric_limits<double>::lowest();
  config.rate_limiter.max_diff = std::numeric_limits<double>::max();
  return config;
}

inline TableConfig QueueConfig(int64_t size) {
  TableConfig config = OpenConfig();
  config.max_size = size;
  config.max_times_sampled = 1;
  config.rate_limiter.min_diff = 0;
  config.rate_limiter.max_diff = static_cast<double>(size);
  return config;
}

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_TESTING_H_
