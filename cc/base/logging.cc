#include "cc/base/logging.h"

#include <cstdio>
#include <memory>

#include "cc/base/mutex.h"

namespace reverb_tf {
namespace {

void LogToStderr(LogLevel level, const std::string& message) {
  static const char* const kNames = "DIWE";
  if (level < LogLevel::kWarning) return;
  std::fprintf(stderr, "%c reverb_tf: %s\n", kNames[static_cast<int>(level)],
               message.c_str());
}

struct SinkHolder {
  Mutex mu;
  std::shared_ptr<const LogSink> sink GUARDED_BY(mu) =
      std::make_shared<const LogSink>(LogToStderr);
};

// Never destroyed: threads may log during static destruction.
SinkHolder& Holder() {
  static SinkHolder* holder = new SinkHolder;
  return *holder;
}

}  // namespace

void SetLogSink(LogSink sink) {
  auto shared = std::make_shared<const LogSink>(std::move(sink));
  SinkHolder& holder = Holder();
  MutexLock lock(&holder.mu);
  holder.sink.swap(shared);
}

void Log(LogLevel level, const std::string& message) {
  std::shared_ptr<const LogSink> sink;
  {
    SinkHolder& holder = Holder();
    MutexLock lock(&holder.mu);
    sink = holder.sink;
  }
  (*sink)(level, message);
}

}  // namespace reverb_tf
