#include "cc/client/item_check.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "cc/core/signature.h"

namespace reverb_tf {
namespace {

constexpr Duration kRefreshTimeout = std::chrono::seconds(1);

bool SameOutline(const ColumnOutline& a, const ColumnOutline& b) {
  return a.cell == b.cell && a.length == b.length && a.squeeze == b.squeeze &&
         a.path == b.path;
}

std::vector<std::string> Paths(const std::vector<ColumnOutline>& columns) {
  std::vector<std::string> paths;
  paths.reserve(columns.size());
  for (const ColumnOutline& column : columns) paths.push_back(column.path);
  return paths;
}

std::vector<int> GivenOrder(size_t n) {
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Status CheckShapes(const TableConfig& config, bool written_as_steps,
                   const std::vector<ColumnOutline>& columns,
                   const std::vector<int>& order) {
  std::vector<ColumnShape> shapes;
  shapes.reserve(order.size());
  for (const int i : order) {
    const ColumnOutline& column = columns[static_cast<size_t>(i)];
    shapes.push_back(
        {column.cell->dtype, column.cell->shape, column.length, column.squeeze});
  }
  SignatureScope scope = config.signature_scope;
  return CheckSignature(*config.signature, shapes, written_as_steps, &scope);
}

Status ForTable(const std::string& name, const Status& status) {
  return Status(status.code(), "table '" + name + "': " + status.message());
}

}  // namespace

ItemChecker::Passed* ItemChecker::PassedOf(const std::string& name) {
  for (Passed& passed : passed_) {
    if (passed.name == name) return &passed;
  }
  passed_.emplace_back();
  passed_.back().name = name;
  return &passed_.back();
}

Result<const std::vector<int>*> ItemChecker::Check(
    const TableInfoPtr& table, bool written_as_steps,
    const std::vector<ColumnOutline>& columns) {
  Passed* const passed = PassedOf(table->config.name);
  if (passed->table == table &&
      std::equal(columns.begin(), columns.end(), passed->columns.begin(),
                 passed->columns.end(), SameOutline)) {
    return &passed->order;
  }
  std::vector<int> order = GivenOrder(columns.size());
  if (const auto& signature = table->config.signature) {
    Result<std::vector<int>> matched = MatchPaths(signature->leaves, Paths(columns));
    if (!matched.ok()) return ForTable(table->config.name, matched.status());
    order = *std::move(matched);
    const Status status = CheckShapes(table->config, written_as_steps, columns, order);
    if (!status.ok()) return ForTable(table->config.name, status);
  }
  passed->table = table;
  passed->columns = columns;
  passed->order = std::move(order);
  return &passed->order;
}

const std::vector<int>* ItemChecker::Order(const TableInfoPtr& table,
                                           const std::vector<ColumnOutline>& columns) {
  order_ = GivenOrder(columns.size());
  if (table && table->config.signature) {
    auto matched = MatchPaths(table->config.signature->leaves, Paths(columns));
    if (matched.ok()) order_ = *std::move(matched);
  }
  return &order_;
}

Result<TableInfoPtr> FindTable(TableCache* cache, const std::string& table,
                               const WaitOptions& wait) {
  Result<TableInfoPtr> found = cache->Find(table, wait);
  if (found.ok() || found.status().code() != StatusCode::kNotFound) return found;
  return InvalidArgumentError(found.status().message());
}

Status CheckItemPriority(const TableInfo* table, double priority) {
  if (table != nullptr) return table->config.CheckPriority(priority);
  if (!std::isnan(priority)) return OkStatus();
  return InvalidArgumentError("priority: got NaN, expected a number");
}

TableInfoPtr FreshInfo(TableCache* cache, const std::string& table,
                       const WaitOptions& wait) {
  WaitOptions bounded = wait;
  bounded.timeout = std::min(wait.timeout, kRefreshTimeout);
  return cache->Refresh(bounded).ok() ? cache->Known(table) : nullptr;
}

}  // namespace reverb_tf
