#include "cc/client/batch_column.h"

#include "cc/base/varint.h"

namespace reverb_tf {

Status BatchColumn::Reset(const CellView& batch) {
  row_ = batch;
  rows_ = batch.rank > 0 ? batch.dims[0] : 0;
  if (rows_ < 1) return InvalidArgumentError("needs a first dimension of at least 1");
  ++row_.dims;
  --row_.rank;
  if (batch.dtype == DType::kString) return SplitStrings(batch);
  row_.bytes = batch.bytes / static_cast<size_t>(rows_);
  if (row_.bytes * static_cast<size_t>(rows_) == batch.bytes) return OkStatus();
  return InvalidArgumentError("has " + std::to_string(batch.bytes) +
                              " bytes, which don't make " + std::to_string(rows_) +
                              " cells");
}

CellView BatchColumn::Row(int64_t row) const {
  CellView view = row_;
  const auto i = static_cast<size_t>(row);
  if (row_.dtype == DType::kString) {
    view.data = strings_[i].data();
    view.bytes = strings_[i].size();
  } else if (view.bytes > 0) {
    view.data = static_cast<const uint8_t*>(row_.data) + i * row_.bytes;
  }
  return view;
}

Status BatchColumn::SplitStrings(const CellView& batch) {
  const int64_t count = NumElements(Shape(batch.dims, batch.dims + batch.rank));
  RTF_ASSIGN_OR_RETURN(
      const StringContent content,
      ParseStringContent({static_cast<const char*>(batch.data), batch.bytes}, count));
  const size_t per_row = content.lengths.size() / static_cast<size_t>(rows_);
  strings_.assign(static_cast<size_t>(rows_), "");
  size_t at = 0;
  for (size_t i = 0; i < strings_.size(); ++i) {
    size_t bytes = 0;
    for (size_t k = i * per_row; k < (i + 1) * per_row; ++k) {
      AppendVarint(&strings_[i], content.lengths[k]);
      bytes += static_cast<size_t>(content.lengths[k]);
    }
    strings_[i].append(content.bytes.substr(at, bytes));
    at += bytes;
  }
  return OkStatus();
}

}  // namespace reverb_tf
