#include "cc/base/buffer.h"

#include <malloc.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

TEST(BufferTest, IsAlignedAndOfTheAskedSize) {
  for (const size_t size : {0, 1, 63, 64, 65, 4096, 131071, 131072, 1 << 20}) {
    const BufferPtr buffer = Buffer::Allocate(size);
    EXPECT_EQ(buffer->size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % Buffer::kAlignment, 0u);
    std::memset(buffer->mutable_data(), 1, size);
  }
}

TEST(BufferTest, CopyOfHoldsTheBytes) {
  const std::string bytes("a\0b", 3);
  EXPECT_EQ(Buffer::CopyOf(bytes)->view(), bytes);
  EXPECT_EQ(Buffer::CopyOf({})->size(), 0u);
}

TEST(BufferTest, LargeMemoryIsUsedAgain) {
  ReleasePooledBuffers();
  const uint8_t* const first = Buffer::Allocate(1 << 20)->data();
  const BufferPtr smaller = Buffer::Allocate(900 << 10);
  EXPECT_EQ(smaller->data(), first);
  EXPECT_EQ(smaller->size(), size_t{900} << 10);
}

TEST(BufferTest, PooledMemoryIsNotWastedOnSmallRequests) {
  ReleasePooledBuffers();
  const uint8_t* const first = Buffer::Allocate(4 << 20)->data();
  const BufferPtr small = Buffer::Allocate(1 << 20);
  const BufferPtr large = Buffer::Allocate(4 << 20);
  EXPECT_NE(small->data(), first);
  EXPECT_EQ(large->data(), first);
}

TEST(BufferTest, BuffersInUseAreNotHandedOutTwice) {
  ReleasePooledBuffers();
  std::vector<std::thread> threads;
  std::vector<int> damaged(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &damaged] {
      for (int i = 0; i < 50; ++i) {
        const BufferPtr buffer = Buffer::Allocate(200 << 10);
        std::memset(buffer->mutable_data(), t, buffer->size());
        for (size_t k = 0; k < buffer->size(); k += 4096) {
          if (buffer->data()[k] != t) ++damaged[static_cast<size_t>(t)];
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(damaged, std::vector<int>(4));
}

TEST(KeepFreedMemoryTest, BlocksOfMegabytesAreNoLongerMappedOneByOne) {
  KeepFreedMemory();
  const size_t mapped = mallinfo2().hblks;
  void* volatile block = std::malloc(4 << 20);
  EXPECT_EQ(mallinfo2().hblks, mapped);
  std::free(block);
}

}  // namespace
}  // namespace reverb_tf
