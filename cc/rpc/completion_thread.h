// The threads on which gRPC works for the clients of this process.
#ifndef REVERB_TF_CC_RPC_COMPLETION_THREAD_H_
#define REVERB_TF_CC_RPC_COMPLETION_THREAD_H_

#include <grpcpp/completion_queue.h>

#include <memory>
#include <thread>

namespace reverb_tf {

// What happens when an operation of gRPC is over.
class Completion {
 public:
  virtual void Run(bool ok) = 0;
  // What the operation is to be started with.
  void* tag() { return this; }

 protected:
  ~Completion() = default;
};

// Runs a member function of the object that has it as a member.
template <typename T>
class MemberCompletion final : public Completion {
 public:
  MemberCompletion(T* object, void (T::*method)(bool)) : object_(object), method_(method) {}
  void Run(bool ok) override { (object_->*method_)(ok); }

 private:
  T* const object_;
  void (T::*const method_)(bool);
};

// A completion queue and the one thread that polls it, reads from the sockets and runs the
// Completions. gRPC's own callback threads are two or more, and pass the part of the one
// that polls back and forth with each event: for streams of large messages that is a
// quarter of the client's time.
class CompletionThread {
 public:
  // One of the process' few, least recently given. Each lives as long as it is referred to.
  static std::shared_ptr<CompletionThread> Get();

  CompletionThread();
  // REQUIRES: all tags have come back. Not to be called by the thread itself.
  ~CompletionThread();

  grpc::CompletionQueue* queue() { return &queue_; }

 private:
  void Run();

  grpc::CompletionQueue queue_;
  std::thread thread_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_COMPLETION_THREAD_H_
