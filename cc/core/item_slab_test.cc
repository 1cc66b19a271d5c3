#include "cc/core/item_slab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "cc/core/testing.h"

namespace {

std::atomic<int64_t> num_allocations{0};

void* Allocate(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace reverb_tf {
namespace {

ItemRecord RecordOf(const ItemPtr& item) {
  ItemRecord record;
  record.item = item;
  return record;
}

// Allocations of adding `n` records of `item`.
int64_t AllocationsOfAdding(int n, const ItemPtr& item, ItemSlab* slab) {
  const int64_t before = num_allocations;
  for (int i = 0; i < n; ++i) slab->Add(RecordOf(item));
  return num_allocations - before;
}

TEST(ItemSlabTest, RunningEmptyAgainAndAgainAllocatesNothing) {
  const ItemPtr item = SmallItem(1);
  ItemSlab slab;
  slab.Take(slab.Add(RecordOf(item)));
  const int64_t before = num_allocations;
  for (int i = 0; i < 10; ++i) slab.Take(slab.Add(RecordOf(item)));
  EXPECT_EQ(num_allocations - before, 0);
}

TEST(ItemSlabTest, OfManyBlocksOneIsKept) {
  const ItemPtr item = SmallItem(1);
  ItemSlab slab;
  std::vector<Slot> slots;
  for (int i = 0; i < 10'000; ++i) slots.push_back(slab.Add(RecordOf(item)));
  for (const Slot slot : slots) slab.Take(slot);
  EXPECT_EQ(AllocationsOfAdding(100, item, &slab), 0);
  EXPECT_GT(AllocationsOfAdding(10'000, item, &slab), 10);
}

TEST(ItemSlabTest, ClearingLetsTheItemsGo) {
  const ItemPtr item = SmallItem(1);
  ItemSlab slab;
  for (int i = 0; i < 1'000; ++i) slab.Add(RecordOf(item));
  slab.Clear();
  EXPECT_TRUE(item->unique());
  slab.ForEach([](const ItemRecord*) { FAIL(); });
  EXPECT_EQ(AllocationsOfAdding(100, item, &slab), 0);
}

TEST(ItemSlabTest, ASlotIsAsGoodAsNewWhenUsedAgain) {
  ItemSlab slab;
  const Slot slot = slab.Add(RecordOf(SmallItem(1)));
  slab[slot].times_sampled = 5;
  slab[slot].in_flight = 2;
  slab.Clear();
  EXPECT_EQ(slab.Add(ItemRecord()), slot);
  EXPECT_EQ(slab[slot].item, nullptr);
  EXPECT_EQ(slab[slot].times_sampled, 0);
  EXPECT_EQ(slab[slot].in_flight, 0u);
}

}  // namespace
}  // namespace reverb_tf
