#include "cc/core/selectors/ordered_log.h"

#include <map>
#include <vector>

#include "cc/core/random.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

TEST(OrderedLogTest, EndsAreTheOldestAndTheNewest) {
  OrderedLog log;
  for (Slot slot = 0; slot < 5; ++slot) log.Insert(slot, 10 + slot);
  EXPECT_EQ(log.first(), 0u);
  EXPECT_EQ(log.last(), 4u);
  log.Remove(10);
  log.Remove(14);
  EXPECT_EQ(log.first(), 1u);
  EXPECT_EQ(log.last(), 3u);
  EXPECT_EQ(log.size(), 3u);
}

TEST(OrderedLogTest, RemovalInTheMiddleLeavesTheEnds) {
  OrderedLog log;
  for (Slot slot = 0; slot < 4; ++slot) log.Insert(slot, slot);
  log.Remove(1);
  log.Remove(2);
  EXPECT_EQ(log.size(), 2u);
  log.Remove(0);
  EXPECT_EQ(log.first(), 3u);
  EXPECT_EQ(log.last(), 3u);
}

TEST(OrderedLogTest, SlotComesBackInFrontOfTheFirst) {
  OrderedLog log;
  for (Slot slot = 0; slot < 3; ++slot) log.Insert(slot, slot);
  log.Remove(0);
  log.Remove(1);
  log.Insert(0, 0);
  EXPECT_EQ(log.first(), 0u);
  log.Remove(0);
  EXPECT_EQ(log.first(), 2u);
}

TEST(OrderedLogTest, SlotComesBackAlsoAfterItsTombstoneWasSwept) {
  OrderedLog log;
  for (Slot slot = 0; slot < 1000; ++slot) log.Insert(slot, slot);
  for (Slot slot = 1; slot < 999; ++slot) log.Remove(slot);
  log.Insert(500, 500);
  log.Remove(0);
  EXPECT_EQ(log.first(), 500u);
  log.Remove(500);
  EXPECT_EQ(log.first(), 999u);
}

TEST(OrderedLogTest, RemovesByOrderAcrossGaps) {
  OrderedLog log;
  const std::vector<uint64_t> orders = {
      1, 2, 50, 51, 1000, uint64_t{1} << 40, ~uint64_t{0} - 1};
  for (size_t i = 0; i < orders.size(); ++i) log.Insert(static_cast<Slot>(i), orders[i]);
  log.Remove(50);
  log.Remove(1);
  log.Remove(2);
  EXPECT_EQ(log.first(), 3u);
  log.Remove(orders[6]);
  log.Remove(orders[5]);
  EXPECT_EQ(log.last(), 4u);
}

TEST(OrderedLogTest, AgreesWithAMapUnderRandomUse) {
  // Seed 5, 200000 operations: inserts with gaps, removals anywhere, come-backs.
  Random random(5);
  OrderedLog log;
  std::map<uint64_t, Slot> model;
  std::vector<std::pair<uint64_t, Slot>> gone;
  uint64_t order = 0;
  Slot next_slot = 0;
  for (int i = 0; i < 200'000; ++i) {
    const uint64_t choice = random.Below(10);
    if (model.empty() || choice < 4) {
      order += 1 + (random.Below(4) == 0 ? random.Below(1000) : 0);
      log.Insert(next_slot, order);
      model[order] = next_slot++;
    } else if (choice < 8) {
      auto it =
          random.Below(2) ? model.begin() : model.lower_bound(random.Below(order + 1));
      if (it == model.end()) --it;
      log.Remove(it->first);
      gone.push_back(*it);
      model.erase(it);
    } else if (!gone.empty()) {
      std::swap(gone[random.Below(gone.size())], gone.back());
      log.Insert(gone.back().second, gone.back().first);
      model.insert(gone.back());
      gone.pop_back();
    }
    if (gone.size() > 100) gone.clear();
    ASSERT_EQ(log.size(), model.size());
    if (model.empty()) continue;
    ASSERT_EQ(log.first(), model.begin()->second);
    ASSERT_EQ(log.last(), model.rbegin()->second);
  }
}

}  // namespace
}  // namespace reverb_tf
