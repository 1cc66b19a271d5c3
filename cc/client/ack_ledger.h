// Which samples of a stream its server must still hear about.
#ifndef REVERB_TF_CC_CLIENT_ACK_LEDGER_H_
#define REVERB_TF_CC_CLIENT_ACK_LEDGER_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "cc/service/messages.h"

namespace reverb_tf {

// The samples of a stream by their position (counted from its start): pending, then
// delivered or returned, in any order. Thread-compatible.
//
// Invariant: all below the front of settled_ are settled.
class AckLedger {
 public:
  // `n` more samples arrived; gives the position of the first.
  int64_t Add(int64_t n);
  // REQUIRES: [first, first + n) is pending.
  void Deliver(int64_t first, int64_t n) { Settle(first, n); }
  void Return(int64_t first, int64_t n);

  int64_t num_pending() const { return pending_; }
  // Something was settled since the last Report.
  bool has_news() const { return told_ != front_ || !returned_.empty(); }
  // Writes the acknowledgement into `request`.
  void Report(SampleRequest* request);

 private:
  void Settle(int64_t first, int64_t n);

  std::deque<bool> settled_;  // of positions front_, front_ + 1, …
  int64_t front_ = 0;
  int64_t told_ = 0;
  int64_t pending_ = 0;
  std::vector<int64_t> returned_;  // since the last Report
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_ACK_LEDGER_H_
