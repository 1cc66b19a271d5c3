// Client.insert: one step into several tables, then wait.
#ifndef REVERB_TF_CC_CLIENT_STEP_INSERTER_H_
#define REVERB_TF_CC_CLIENT_STEP_INSERTER_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/api/client.h"
#include "cc/client/chunk_encoder.h"
#include "cc/client/item_check.h"
#include "cc/client/item_sender.h"

namespace reverb_tf {

// A connection for one insert at a time: its stream stays open from one to the next.
// Thread-compatible.
class StepInserter {
 public:
  using Priorities = std::vector<std::pair<std::string, double>>;

  StepInserter(std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
               const std::string& address);

  // As ReverbClient::Insert.
  Result<std::vector<uint64_t>> Insert(const std::vector<StepLeaf>& step,
                                       const Priorities& priorities,
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

  void OutlineStep(const std::vector<StepLeaf>& step);
  Status CheckTable(const std::string& table, double priority, const WaitOptions& wait,
                    std::vector<int>* order);
  Status CheckOnce(const TableInfoPtr& info, double priority, std::vector<int>* order);
  Result<std::vector<ChunkHandlePtr>> MakeChunks(const std::vector<StepLeaf>& step);
  std::vector<uint64_t> PushAll(const std::vector<ChunkHandlePtr>& chunks,
                                const Priorities& priorities,
                                const std::vector<std::vector<int>>& orders);
  // After a wait that failed: withdraws what isn't in, and says which are.
  Status Withdraw(const Status& why, const std::vector<uint64_t>& keys,
                  const Priorities& priorities);

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
