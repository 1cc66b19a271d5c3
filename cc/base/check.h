// RTF_CHECK: for what cannot happen. Input from a caller or a peer is never
// checked with it (that is a Status).
#ifndef REVERB_TF_CC_BASE_CHECK_H_
#define REVERB_TF_CC_BASE_CHECK_H_

#include <sstream>

namespace reverb_tf {

// Collects the message of a failed check; its destructor prints and aborts.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace reverb_tf

#define RTF_CHECK(condition) \
  if (condition) {           \
  } else /* NOLINT */        \
    ::reverb_tf::CheckFailure(__FILE__, __LINE__, #condition).stream()

#endif  // REVERB_TF_CC_BASE_CHECK_H_
