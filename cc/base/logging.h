// Log lines of the project. In Python they reach the logger `reverb_tf`; in
// executables and C++ tests stderr.
#ifndef REVERB_TF_CC_BASE_LOGGING_H_
#define REVERB_TF_CC_BASE_LOGGING_H_

#include <functional>
#include <string>

namespace reverb_tf {

enum class LogLevel : int { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };

// Never called with a lock of the project held; must not block.
using LogSink = std::function<void(LogLevel, const std::string&)>;

// Replaces the sink (initially stderr, from kWarning on).
void SetLogSink(LogSink sink);
void Log(LogLevel level, const std::string& message);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_LOGGING_H_
