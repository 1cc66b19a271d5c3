#include "cc/base/status.h"

namespace reverb_tf {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "OK";
    case StatusCode::kCancelled:
      return "CANCELLED";
    case StatusCode::kUnknown:
      return "UNKNOWN";
    case StatusCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case StatusCode::kNotFound:
      return "NOT_FOUND";
    case StatusCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case StatusCode::kPermissionDenied:
      return "PERMISSION_DENIED";
    case StatusCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case StatusCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case StatusCode::kAborted:
      return "ABORTED";
    case StatusCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case StatusCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case StatusCode::kInternal:
      return "INTERNAL";
    case StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case StatusCode::kDataLoss:
      return "DATA_LOSS";
    case StatusCode::kUnauthenticated:
      return "UNAUTHENTICATED";
  }
  return "UNKNOWN_CODE";
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return std::string(StatusCodeName(code_)) + ": " + message_;
}

std::ostream& operator<<(std::ostream& os, const Status& status) {
  return os << status.ToString();
}

#define RTF_DEFINE_ERROR(name)                              \
  Status name##Error(std::string message) {                 \
    return Status(StatusCode::k##name, std::move(message)); \
  }
RTF_DEFINE_ERROR(Cancelled)
RTF_DEFINE_ERROR(InvalidArgument)
RTF_DEFINE_ERROR(DeadlineExceeded)
RTF_DEFINE_ERROR(NotFound)
RTF_DEFINE_ERROR(AlreadyExists)
RTF_DEFINE_ERROR(ResourceExhausted)
RTF_DEFINE_ERROR(FailedPrecondition)
RTF_DEFINE_ERROR(OutOfRange)
RTF_DEFINE_ERROR(Unimplemented)
RTF_DEFINE_ERROR(Internal)
RTF_DEFINE_ERROR(Unavailable)
RTF_DEFINE_ERROR(DataLoss)
#undef RTF_DEFINE_ERROR

}  // namespace reverb_tf
