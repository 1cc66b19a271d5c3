// The early check of an item: what its table will check again.
#ifndef REVERB_TF_CC_CLIENT_ITEM_CHECK_H_
#define REVERB_TF_CC_CLIENT_ITEM_CHECK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/wait.h"
#include "cc/client/table_cache.h"
#include "cc/core/chunk.h"

namespace reverb_tf {

// A column of an item as a signature sees it.
struct ColumnOutline {
  std::string path;
  CellSpecPtr cell;
  int64_t length = 0;
  bool squeeze = false;
};

using TableInfoPtr = std::shared_ptr<const TableInfo>;

// Matches items against what is known of their tables. An item that is like the last
// one of its table costs a comparison. Thread-compatible.
class ItemChecker {
 public:
  // The order in which `columns` go into the item: order[i] is the column of leaf i.
  // INVALID_ARGUMENT with paths unless the table's signature, if it has one, is met.
  // The result is valid until the next call.
  Result<const std::vector<int>*> Check(const TableInfoPtr& table, bool written_as_steps,
                                        const std::vector<ColumnOutline>& columns);
  // The order alone, as far as names tell; never refuses. For items that only the
  // server checks; `table` may be null.
  const std::vector<int>* Order(const TableInfoPtr& table,
                                const std::vector<ColumnOutline>& columns);

 private:
  // The last item of a table that passed.
  struct Passed {
    std::string name;
    TableInfoPtr table;
    std::vector<ColumnOutline> columns;
    std::vector<int> order;
  };
  Passed* PassedOf(const std::string& name);

  std::vector<Passed> passed_;  // few tables
  std::vector<int> order_;
};

// What is known of `table`; asks the server when nothing is. INVALID_ARGUMENT listing
// the tables there are if it isn't one.
Result<TableInfoPtr> FindTable(TableCache* cache, const std::string& table,
                               const WaitOptions& wait);

// OK, or INVALID_ARGUMENT: by the table's selectors, or NaN when `table` is null.
Status CheckItemPriority(const TableInfo* table, double priority);

// What the server tells of `table` now, within 1 s; null when it doesn't answer or
// has no such table.
TableInfoPtr FreshInfo(TableCache* cache, const std::string& table,
                       const WaitOptions& wait);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_ITEM_CHECK_H_
