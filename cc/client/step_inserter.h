// Client.insert: steps into several tables, then wait.
#ifndef REVERB_TF_CC_CLIENT_STEP_INSERTER_H_
#define REVERB_TF_CC_CLIENT_STEP_INSERTER_H_

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cc/api/client.h"
#include "cc/client/chunk_encoder.h"
#include "cc/client/item_check.h"
#include "cc/client/item_sender.h"

namespace reverb_tf {

// A connection for one insert at a time: its stream stays open from one to the next. The
// rows of a batch share chunks.
// Thread-compatible.
class StepInserter {
 public:
  using Priorities = std::vector<std::pair<std::string, double>>;

  // Payload that a chunk of a batch's rows is closed at.
  static constexpr int64_t kChunkBytes = 256 << 10;

  StepInserter(std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
               const std::string& address);

  // As ReverbClient::Insert.
  Result<std::vector<uint64_t>> Insert(const std::vector<StepLeaf>& step,
                                       const Priorities& priorities,
                                       const WaitOptions& wait);
  // As ReverbClient::InsertBatch.
  Result<std::vector<uint64_t>> InsertBatch(const std::vector<StepLeaf>& steps,
                                            const std::vector<std::string>& tables,
                                            const std::vector<double>& priorities,
                                            const WaitOptions& wait);
  // False once it failed or withdrew something: make a new one.
  bool is_usable() const { return usable_; }
  const std::shared_ptr<ItemSender>& sender() const { return sender_; }

 private:
  // What is remembered of a leaf from insert to insert.
  struct Leaf {
    CellSpecPtr cell;
    ChunkEncoder encoder;
  };
  // What is to be inserted: `size` steps into each of the tables.
  struct Request {
    const std::vector<StepLeaf>* leaves = nullptr;
    bool batched = false;  // the leaves have a batch dimension
    int64_t size = 1;
    std::vector<std::string> tables;
    std::vector<double> priorities;  // [size, tables]
  };
  // The rows of a leaf, all chunks but the last with `rows_per_chunk`.
  struct Column {
    std::vector<ChunkHandlePtr> chunks;
    int32_t rows_per_chunk = 1;
  };

  Result<std::vector<uint64_t>> InsertAll(const Request& request, const WaitOptions& wait);
  void OutlineStep(const Request& request);
  Status CheckTable(const Request& request, size_t table, const WaitOptions& wait,
                    std::vector<int>* order);
  Status CheckOnce(const TableInfoPtr& info, const Request& request, size_t table,
                   std::vector<int>* order);
  Result<std::vector<Column>> MakeColumns(const Request& request);
  Status MakeColumn(const Tensor& value, int64_t size, Leaf* leaf, Column* column);
  // `buffer`, which may be null, is the payload's.
  Status AddChunk(std::string_view payload, int64_t rows, const BufferPtr& buffer,
                  Leaf* leaf, Column* column);
  std::vector<uint64_t> PushAll(const Request& request, const std::vector<Column>& columns,
                                const std::vector<std::vector<int>>& orders);
  // After a wait that failed: withdraws what isn't in, and says which are.
  Status Withdraw(const Status& why, const Request& request,
                  const std::vector<uint64_t>& keys);

  const std::shared_ptr<Transport> transport_;
  const std::shared_ptr<TableCache> cache_;
  const std::shared_ptr<ItemSender> sender_;
  Random random_;
  uint64_t episode_id_;
  bool usable_ = true;
  ItemChecker checker_;
  std::vector<Leaf> leaves_;             // by position
  std::vector<ColumnOutline> outlines_;  // of the step at hand
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_STEP_INSERTER_H_
