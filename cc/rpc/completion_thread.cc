#include "cc/rpc/completion_thread.h"

#include <algorithm>
#include <vector>

#include "cc/base/mutex.h"

namespace reverb_tf {
namespace {

constexpr unsigned kMostThreads = 8;
// A thread takes in some 2 GB a second, which keeps about as many cores busy.
constexpr unsigned kCoresPerThread = 4;

struct Threads {
  Mutex mu;
  std::vector<std::weak_ptr<CompletionThread>> slots GUARDED_BY(mu) =
      std::vector<std::weak_ptr<CompletionThread>>(std::clamp(
          std::thread::hardware_concurrency() / kCoresPerThread, 1u, kMostThreads));
  size_t next GUARDED_BY(mu) = 0;
};

}  // namespace

std::shared_ptr<CompletionThread> CompletionThread::Get() {
  static Threads* const threads = new Threads;  // outlives what static objects refer to
  MutexLock lock(&threads->mu);
  std::weak_ptr<CompletionThread>& slot = threads->slots[threads->next];
  threads->next = (threads->next + 1) % threads->slots.size();
  std::shared_ptr<CompletionThread> thread = slot.lock();
  if (!thread) slot = thread = std::make_shared<CompletionThread>();
  return thread;
}

CompletionThread::CompletionThread() : thread_([this] { Run(); }) {}

CompletionThread::~CompletionThread() {
  queue_.Shutdown();
  thread_.join();
}

void CompletionThread::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) static_cast<Completion*>(tag)->Run(ok);
}

}  // namespace reverb_tf
