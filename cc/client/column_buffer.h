// One column of a trajectory writer: its newest cells.
#ifndef REVERB_TF_CC_CLIENT_COLUMN_BUFFER_H_
#define REVERB_TF_CC_CLIENT_COLUMN_BUFFER_H_

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "cc/api/trajectory_writer.h"
#include "cc/base/buffer.h"
#include "cc/client/chunk_encoder.h"
#include "cc/client/chunk_handle.h"
#include "cc/core/random.h"

namespace reverb_tf {

// The episode that cells are appended to.
struct Episode {
  uint64_t id = 0;
  int64_t first_step = 0;
};

// Cells are addressed by step (numbered over the writer's life; a step without a
// value is a hole) and stored as rows (values only, numbered over the column's
// life). Rows gather in an open chunk, which is closed when it is full, when its
// episode ends or when an item that refers to it is sent (Seal).
//
// A value costs one memcpy into the open chunk. Closing copies small payloads into
// the chunk's own allocation and goes on with the same buffer; large ones are handed
// over. Cells of the last num_keep_alive_refs values can be found; older chunks
// live only as long as someone else holds their handles.
//
// Thread-compatible: guarded by its writer's lock.
class ColumnBuffer : public ChunkFiller {
 public:
  // Payload that an automatically sized chunk is closed at.
  static constexpr int64_t kChunkBytes = 256 << 10;

  // Chunk keys are drawn from `keys`, which outlives this.
  ColumnBuffer(std::string path, int64_t num_keep_alive_refs, Random* keys)
      : path_(std::move(path)), keys_(keys), num_keep_alive_refs_(num_keep_alive_refs) {}

  // Cells may change dtype and shape; those of before are then forgotten.
  void set_may_change() { may_change_ = true; }
  // INVALID_ARGUMENT for bounds, FAILED_PRECONDITION while rows are in the open chunk.
  Status Configure(const ColumnOptions& options);

  // OK if `view` may be appended: one cell, or [T, ...] cells with `batch`.
  Status Check(const CellView& view, bool batch) const;
  // Appends the cells for `step`, step + 1, .... An error is a broken invariant.
  // REQUIRES: Check(view, batch) is OK, `step` > last_step()
  Status Append(const CellView& view, bool batch, int64_t step, const Episode& episode);
  // Closes the open chunk if it has rows.
  Status Seal() override;
  // No chunk spans two episodes. With `clear` no cell can be found any more.
  Status EndEpisode(bool clear);

  enum class Found { kRow, kHole, kExpired };
  // The row of the cell of `step`, and how many steps from there on have the rows that
  // follow it (at least 1).
  Found Find(int64_t step, int64_t* row, int64_t* run) const;
  // Appends slices for `count` rows from `row` on, merged with the last of `out` if
  // that is at or after `first` and ends where they begin.
  void AppendSlices(int64_t row, int64_t count, size_t first,
                    std::vector<HandleSlice>* out) const;

  // Copies rows, which must be findable. Not for strings.
  Status ReadRows(int64_t row, int64_t count, uint8_t* dest) const;
  // Appends the lengths and bytes of the strings of one row.
  Status ReadStrings(int64_t row, std::vector<uint64_t>* lengths, std::string* bytes) const;

  const std::string& path() const { return path_; }
  // Dtype and shape of a cell; null before the first.
  const CellSpecPtr& spec() const { return spec_; }
  int64_t num_keep_alive_refs() const { return num_keep_alive_refs_; }
  // Step of the newest value; -1 before the first.
  int64_t last_step() const { return last_step_; }
  // First step whose cell can be found; `none` if there is none.
  int64_t OldestStep(int64_t none) const;
  int64_t open_rows() const { return open_.rows; }

 private:
  // Steps with values in a row: steps first_step, ... have rows first_row, ....
  struct Segment {
    int64_t first_step;
    int64_t first_row;
    int64_t count;
  };
  struct ClosedChunk {
    int64_t first_row;
    int32_t rows;
    ChunkHandlePtr handle;
  };
  // Ends of a row's strings in the open chunk.
  struct StringRow {
    size_t lengths_end;
    size_t bytes_end;
  };
  struct OpenChunk {
    ChunkHandlePtr handle;  // null: no row yet
    int64_t first_row = 0;
    int32_t rows = 0;
    BufferPtr data;  // recycled from chunk to chunk; strings: the bytes
    size_t used = 0;
    size_t first_size = 0;  // of a new buffer: what the last chunk used
    std::string lengths;    // strings: the varints
    std::vector<StringRow> string_rows;
    Episode episode;
    int64_t first_step = 0;
    int64_t last_step = 0;
  };

  // The first cell, if there is one, was like this.
  bool IsLikeFirst(DType dtype, const int64_t* dims, int rank) const;
  Status CheckSpec(DType dtype, const int64_t* dims, int rank) const;
  Status CheckBytes(const CellView& view, int64_t elements) const;
  void SetSpec(const CellView& view, bool batch);
  Status AppendNumbers(const uint8_t* data, int64_t count, int64_t step,
                       const Episode& episode);
  Status AppendStrings(const CellView& view, int64_t count, int64_t step,
                       const Episode& episode);
  // Makes room for `bytes` more in the open chunk.
  void Reserve(size_t bytes);
  void BeginChunk(int64_t step, const Episode& episode);
  // Books rows that were put into the open chunk; closes it when it is full.
  Status NoteRows(int64_t step, int64_t rows);
  int64_t MaxRows() const;
  bool IsFull() const;
  Result<ChunkPtr> EncodeOpen();
  // Forgets the rows of the open chunk, but for its buffer.
  void ResetOpen();
  void DropExpired();
  const ClosedChunk& ClosedWith(int64_t row) const;

  const std::string path_;
  Random* const keys_;
  int64_t num_keep_alive_refs_;
  int64_t max_chunk_length_ = 0;  // 0: automatic
  bool may_change_ = false;
  ChunkEncoder encoder_;

  CellSpecPtr spec_;
  size_t row_bytes_ = 0;      // 0 for strings
  int64_t row_elements_ = 0;  // strings: elements a row
  int64_t last_step_ = -1;
  int64_t end_row_ = 0;     // rows ever appended
  int64_t oldest_row_ = 0;  // first that can be found
  std::deque<Segment> segments_;
  std::deque<ClosedChunk> closed_;
  OpenChunk open_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_COLUMN_BUFFER_H_
