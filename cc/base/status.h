// Status and Result: the one error vocabulary of the project.
//
// Errors that a caller or a peer can cause travel as a Status; broken
// invariants are RTF_CHECKs (check.h). The codes have the numbers of gRPC's
// and TensorFlow's canonical codes, so that the two edges that convert them
// (cc/rpc/status_codec, reverb_tf/kernels/bridge) are static_asserted casts.
#ifndef REVERB_TF_CC_BASE_STATUS_H_
#define REVERB_TF_CC_BASE_STATUS_H_

#include <optional>
#include <ostream>
#include <string>
#include <utility>

#include "cc/base/check.h"

namespace reverb_tf {

enum class StatusCode : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

// "INVALID_ARGUMENT" and so on.
const char* StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "OK" or "CODE: message".
  std::string ToString() const;

  bool operator==(const Status& other) const {
    return code_ == other.code_ && message_ == other.message_;
  }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

std::ostream& operator<<(std::ostream& os, const Status& status);

inline Status OkStatus() { return Status(); }
Status CancelledError(std::string message);
Status InvalidArgumentError(std::string message);
Status DeadlineExceededError(std::string message);
Status NotFoundError(std::string message);
Status AlreadyExistsError(std::string message);
Status ResourceExhaustedError(std::string message);
Status FailedPreconditionError(std::string message);
Status OutOfRangeError(std::string message);
Status UnimplementedError(std::string message);
Status InternalError(std::string message);
Status UnavailableError(std::string message);
Status DataLossError(std::string message);

// A value or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT: implicit
  Result(Status status) : status_(std::move(status)) {  // NOLINT: implicit
    RTF_CHECK(!status_.ok()) << "a Result without value needs an error";
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  // REQUIRES: ok(). Of a temporary by value: `for (x : MakeResult().value().list)`
  // would loop over what is gone.
  T& value() & { return RequireValue(); }
  const T& value() const& { return const_cast<Result*>(this)->RequireValue(); }
  T value() && { return std::move(RequireValue()); }
  T& operator*() & { return RequireValue(); }
  const T& operator*() const& { return value(); }
  T operator*() && { return std::move(RequireValue()); }
  T* operator->() { return &RequireValue(); }
  const T* operator->() const { return &value(); }

 private:
  T& RequireValue() {
    RTF_CHECK(ok()) << status_.ToString();
    return *value_;
  }

  Status status_;
  std::optional<T> value_;
};

}  // namespace reverb_tf

#define RTF_RETURN_IF_ERROR(expression)            \
  do {                                             \
    ::reverb_tf::Status rtf_status = (expression); \
    if (!rtf_status.ok()) return rtf_status;       \
  } while (false)

#define RTF_STATUS_CONCAT_(a, b) a##b
#define RTF_STATUS_CONCAT(a, b) RTF_STATUS_CONCAT_(a, b)

// RTF_ASSIGN_OR_RETURN(auto x, MakeX()); declares or assigns `x`.
#define RTF_ASSIGN_OR_RETURN(lhs, expression) \
  RTF_ASSIGN_OR_RETURN_(RTF_STATUS_CONCAT(rtf_result_, __LINE__), lhs, expression)
#define RTF_ASSIGN_OR_RETURN_(result, lhs, expression) \
  auto result = (expression);                          \
  if (!result.ok()) return result.status();            \
  lhs = std::move(result).value()

#endif  // REVERB_TF_CC_BASE_STATUS_H_
