#include "cc/base/buffer.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "cc/base/check.h"
#include "cc/base/mutex.h"

namespace reverb_tf {
namespace {

// Blocks of at least this size are recycled: below it malloc is quicker, above
// it fresh pages (a fault and a zeroing each) cost more than the copy into them.
constexpr size_t kMinPooledBytes = 128 << 10;
constexpr size_t kMaxPooledBytes = 256 << 20;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

uint8_t* AllocateAligned(size_t bytes) {
  void* p = std::aligned_alloc(Buffer::kAlignment, bytes);
  if (p == nullptr) throw std::bad_alloc();
  return static_cast<uint8_t*>(p);
}

// Free blocks, newest last. A block serves requests down to 3/4 of its size.
class Pool {
 public:
  uint8_t* Take(size_t bytes, size_t* capacity) {
    MutexLock lock(&mu_);
    for (size_t i = blocks_.size(); i-- > 0;) {
      if (blocks_[i].size < bytes || blocks_[i].size / 4 * 3 > bytes) continue;
      const Block block = blocks_[i];
      blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(i));
      held_ -= block.size;
      *capacity = block.size;
      return block.data;
    }
    return nullptr;
  }

  void Give(uint8_t* data, size_t size) {
    std::vector<Block> surplus;
    {
      MutexLock lock(&mu_);
      blocks_.push_back({data, size});
      held_ += size;
      size_t drop = 0;
      while (held_ > kMaxPooledBytes || blocks_.size() - drop > 64) {
        held_ -= blocks_[drop].size;
        surplus.push_back(blocks_[drop++]);
      }
      blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<std::ptrdiff_t>(drop));
    }
    for (const Block& b : surplus) std::free(b.data);
  }

  void Clear() {
    std::vector<Block> all;
    {
      MutexLock lock(&mu_);
      all.swap(blocks_);
      held_ = 0;
    }
    for (const Block& b : all) std::free(b.data);
  }

  // Never destroyed: buffers may outlive static destruction.
  static Pool& Get() {
    static Pool* pool = new Pool;
    return *pool;
  }

 private:
  struct Block {
    uint8_t* data;
    size_t size;
  };
  Mutex mu_;
  std::vector<Block> blocks_ GUARDED_BY(mu_);
  size_t held_ GUARDED_BY(mu_) = 0;
};

class HeapBuffer : public Buffer {
 public:
  HeapBuffer(uint8_t* data, size_t size, size_t capacity)
      : Buffer(data, size), capacity_(capacity) {}
  ~HeapBuffer() override {
    uint8_t* block = mutable_data();
    if (capacity_ >= kMinPooledBytes) {
      Pool::Get().Give(block, capacity_);
    } else {
      std::free(block);
    }
  }

 private:
  const size_t capacity_;
};

}  // namespace

BufferPtr Buffer::Allocate(size_t size) {
  size_t capacity = RoundUp(size == 0 ? 1 : size, kAlignment);
  uint8_t* block = nullptr;
  if (capacity >= kMinPooledBytes) block = Pool::Get().Take(capacity, &capacity);
  if (block == nullptr) block = AllocateAligned(capacity);
  return BufferPtr::Adopt(new HeapBuffer(block, size, capacity));
}

BufferPtr Buffer::CopyOf(std::string_view bytes) {
  BufferPtr b = Allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(b->mutable_data(), bytes.data(), bytes.size());
  return b;
}

void ReleasePooledBuffers() { Pool::Get().Clear(); }

void KeepFreedMemory() {
  // Freeing a mapped block lifts the thresholds to its size and twice that (mallopt(3)).
  void* volatile block = std::malloc(31 << 20);
  std::free(block);
}

}  // namespace reverb_tf
