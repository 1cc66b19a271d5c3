#include "cc/core/key_map.h"

#include <algorithm>
#include <unordered_map>

#include "cc/core/random.h"
#include "gtest/gtest.h"

namespace reverb_tf {
namespace {

struct Number {
  uint32_t value = 0;
  static bool IsEmpty(const Number& n) { return n.value == 0; }
};

TEST(KeyHashTest, ChosenKeysDoNotPileUpInStandardContainers) {
  constexpr uint64_t kKeys = 20'000;
  std::unordered_map<uint64_t, int, KeyHash> map;
  map.reserve(kKeys);
  const size_t buckets = map.bucket_count();
  // By std::hash all of them would be in one.
  for (uint64_t i = 0; i < kKeys; ++i) map[i * buckets] = 1;
  ASSERT_EQ(map.bucket_count(), buckets);
  size_t fullest = 0;
  for (size_t b = 0; b < buckets; ++b) fullest = std::max(fullest, map.bucket_size(b));
  EXPECT_LT(fullest, 20u);
}

TEST(KeyMapTest, FindsWhatWasAdded) {
  KeyMap<Number> map;
  EXPECT_EQ(map.Find(1), nullptr);
  map.FindOrAdd(1)->value = 10;
  map.FindOrAdd(0)->value = 20;
  map.FindOrAdd(~uint64_t{0})->value = 30;
  EXPECT_EQ(map.Find(1)->value, 10u);
  EXPECT_EQ(map.Find(0)->value, 20u);
  EXPECT_EQ(map.Find(~uint64_t{0})->value, 30u);
  EXPECT_EQ(map.size(), 3u);
  map.Remove(1);
  EXPECT_EQ(map.Find(1), nullptr);
  EXPECT_EQ(map.size(), 2u);
}

TEST(KeyMapTest, AddingAgainGivesTheSameValue) {
  KeyMap<Number> map;
  map.FindOrAdd(5)->value = 1;
  EXPECT_EQ(map.FindOrAdd(5)->value, 1u);
  EXPECT_EQ(map.size(), 1u);
}

TEST(KeyMapTest, AgreesWithUnorderedMapWhileGrowingAndShrinking) {
  // Seed 41; the size goes up to about 20000 and back to 0, three times. Keys are
  // small numbers, then multiples of 2^40.
  for (const int shift : {0, 40}) {
    Random random(41);
    KeyMap<Number> map;
    std::unordered_map<uint64_t, uint32_t> model;
    for (int phase = 0; phase < 6; ++phase) {
      const bool growing = phase % 2 == 0;
      for (int i = 0; i < 60'000; ++i) {
        const uint64_t key = random.Below(30'000) << shift;
        if (random.Below(4) < (growing ? 3u : 1u)) {
          const auto value = static_cast<uint32_t>(random.Below(1000) + 1);
          map.FindOrAdd(key)->value = value;
          model[key] = value;
        } else if (model.erase(key) > 0) {
          map.Remove(key);
        }
        const uint64_t probe = random.Below(30'000) << shift;
        const Number* found = map.Find(probe);
        const auto expected = model.find(probe);
        ASSERT_EQ(found != nullptr, expected != model.end());
        if (found != nullptr) {
          ASSERT_EQ(found->value, expected->second);
        }
      }
      ASSERT_EQ(map.size(), model.size());
      size_t visited = 0;
      map.ForEach([&](uint64_t key, const Number& n) {
        ++visited;
        ASSERT_EQ(model.at(key), n.value);
      });
      ASSERT_EQ(visited, model.size());
    }
    while (!model.empty()) {
      map.Remove(model.begin()->first);
      model.erase(model.begin());
    }
    EXPECT_EQ(map.size(), 0u);
  }
}

}  // namespace
}  // namespace reverb_tf
