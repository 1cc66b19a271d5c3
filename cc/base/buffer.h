// Bytes shared between layers without copies.
#ifndef REVERB_TF_CC_BASE_BUFFER_H_
#define REVERB_TF_CC_BASE_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cc/base/ref_counted.h"

namespace reverb_tf {

// A run of bytes with an owner: heap memory, a slice of a received message, …
// Whoever makes a buffer may write it until it is first shared; afterwards it
// is immutable. Thread-safe once immutable.
class Buffer : public RefCounted<Buffer> {
 public:
  // What TensorFlow's kernels expect of tensor data.
  static constexpr size_t kAlignment = 64;

  // Uninitialised heap memory, kAlignment-aligned. Large ones come from and
  // return to a small process-wide pool, so that their pages stay mapped.
  static RefPtr<Buffer> Allocate(size_t size);
  static RefPtr<Buffer> CopyOf(std::string_view bytes);

  uint8_t* mutable_data() { return data_; }
  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  std::string_view view() const { return {reinterpret_cast<const char*>(data_), size_}; }

  static void Destroy(const Buffer* b) { delete b; }

 protected:
  Buffer(uint8_t* data, size_t size) : data_(data), size_(size) {}
  virtual ~Buffer() = default;
  friend class RefCounted<Buffer>;

 private:
  uint8_t* const data_;
  const size_t size_;
};

using BufferPtr = RefPtr<Buffer>;

// Gives the pool's memory back to the operating system.
void ReleasePooledBuffers();

// Has glibc's malloc keep up to 62 MB of free memory per arena rather than return it at
// once: gRPC receives into blocks that it allocates and frees for each message, and
// faulting their pages in anew costs more than the copies. Settings of the environment
// (MALLOC_…) stay in force.
void KeepFreedMemory();

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_BASE_BUFFER_H_
