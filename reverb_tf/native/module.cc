// The Python extension _native: the API of libreverb.so for the modules of
// reverb_tf, which are its only users.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <deque>
#include <utility>

#include "cc/base/mutex.h"
#include "reverb_tf/native/client.h"
#include "reverb_tf/native/interop.h"
#include "reverb_tf/native/interrupts.h"
#include "reverb_tf/native/row_writer.h"
#include "reverb_tf/native/server.h"
#include "reverb_tf/native/structured_writer.h"
#include "reverb_tf/native/writer.h"

namespace reverb_tf {
namespace {

// Log lines on their way to Python's logging: C++ threads put them in, one Python
// thread takes them out, so that no C++ thread ever waits for the GIL to log.
class LogQueue {
 public:
  void Push(LogLevel level, const std::string& text) {
    MutexLock lock(&mu_);
    if (stopped_ || lines_.size() >= kMaxLines) return;
    lines_.emplace_back(static_cast<int>(level), text);
    cv_.Signal();
  }

  // The next line as (level, text); None once stopped and empty.
  nb::object Pop() {
    std::pair<int, std::string> line;
    {
      GilRelease release;
      MutexLock lock(&mu_);
      while (lines_.empty() && !stopped_) cv_.Wait(&mu_);
      if (!lines_.empty()) {
        line = std::move(lines_.front());
        lines_.pop_front();
      } else {
        line.first = -1;
      }
    }
    if (line.first < 0) return nb::none();
    return nb::make_tuple(line.first, line.second);
  }

  void Stop() {
    MutexLock lock(&mu_);
    stopped_ = true;
    cv_.SignalAll();
  }

  static LogQueue& Get() {
    static LogQueue* queue = new LogQueue;
    return *queue;
  }

 private:
  static constexpr size_t kMaxLines = 1000;
  Mutex mu_;
  CondVar cv_;
  std::deque<std::pair<int, std::string>> lines_ GUARDED_BY(mu_);
  bool stopped_ GUARDED_BY(mu_) = false;
};

}  // namespace
}  // namespace reverb_tf

NB_MODULE(_native, m) {
  using namespace reverb_tf;     // NOLINT: the module's own namespace
  nb::set_leak_warnings(false);  // the interpreter's exit order is not ours
  m.def("set_error_factory", &SetErrorFactory);
  m.def("set_leaf_converter", &SetLeafConverter);
  m.def("start_log", [] {
    Api().SetLogSink(
        [](LogLevel level, const std::string& text) { LogQueue::Get().Push(level, text); });
  });
  m.def("pop_log", [] { return LogQueue::Get().Pop(); });
  m.def("stop_log", [] { LogQueue::Get().Stop(); });
  m.def("build_info", [] { return Api().BuildInfo(); });
  BindInterrupts(m);
  BindServer(m);
  BindClient(m);
  BindWriter(m);
  BindRowWriter(m);
  BindStructuredWriter(m);
}
