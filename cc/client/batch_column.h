// A batch of steps of one column, step by step.
#ifndef REVERB_TF_CC_CLIENT_BATCH_COLUMN_H_
#define REVERB_TF_CC_CLIENT_BATCH_COLUMN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/api/trajectory_writer.h"
#include "cc/base/status.h"

namespace reverb_tf {

// Thread-compatible.
class BatchColumn {
 public:
  // Takes a view [T, ...], whose data must outlive the cells. INVALID_ARGUMENT unless T
  // is at least 1 and the bytes make T cells.
  Status Reset(const CellView& batch);

  int64_t rows() const { return rows_; }
  // The cell of step `row`; valid until the next Reset.
  CellView Row(int64_t row) const;

 private:
  Status SplitStrings(const CellView& batch);

  CellView row_;
  int64_t rows_ = 0;
  std::vector<std::string> strings_;  // the rows, in content form
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_BATCH_COLUMN_H_
