#include "cc/client/ack_ledger.h"

#include <utility>

namespace reverb_tf {

int64_t AckLedger::Add(int64_t n) {
  const int64_t first = front_ + static_cast<int64_t>(settled_.size());
  settled_.insert(settled_.end(), static_cast<size_t>(n), false);
  pending_ += n;
  return first;
}

void AckLedger::Return(int64_t first, int64_t n) {
  for (int64_t i = 0; i < n; ++i) returned_.push_back(first + i);
  Settle(first, n);
}

void AckLedger::Settle(int64_t first, int64_t n) {
  pending_ -= n;
  if (first == front_) {  // the usual case: in order
    settled_.erase(settled_.begin(), settled_.begin() + static_cast<std::ptrdiff_t>(n));
    front_ += n;
  } else {
    for (int64_t i = 0; i < n; ++i) {
      settled_[static_cast<size_t>(first - front_ + i)] = true;
    }
  }
  while (!settled_.empty() && settled_.front()) {
    settled_.pop_front();
    ++front_;
  }
}

void AckLedger::Report(SampleRequest* request) {
  request->delivered = front_;
  request->returned = std::exchange(returned_, {});
  told_ = front_;
}

}  // namespace reverb_tf
