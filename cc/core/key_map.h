// A compact hash map from 64-bit keys.
#ifndef REVERB_TF_CC_CORE_KEY_MAP_H_
#define REVERB_TF_CC_CORE_KEY_MAP_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/random.h"

namespace reverb_tf {

// Keyed by a number that nobody outside knows, so that chosen keys cannot pile up: for
// all containers of keys that peers choose. The same within a process.
class KeyHash {
 public:
  uint64_t operator()(uint64_t key) const {
    using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(key ^ seed_) * 0x9e3779b97f4a7c15;
    const uint64_t hash =
        static_cast<uint64_t>(product >> 64) ^ static_cast<uint64_t>(product);
    return (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93;
  }

 private:
  static uint64_t ProcessSeed() {
    static const uint64_t seed = RandomSeed();
    return seed;
  }

  uint64_t seed_ = ProcessSeed();
};

// Open addressing with linear probing, no allocation an entry: entries are half
// to three quarters of the places (a table of a million items has three of these,
// and std::unordered_map takes 40 bytes an entry).
//
// `Value` has static bool IsEmpty(const Value&), true for Value(), and only
// non-empty values are stored. Pointers stay valid until the next Add or Remove.
// Thread-compatible.
template <typename Value>
class KeyMap {
 public:
  size_t size() const { return size_; }

  // Null if `key` isn't in.
  Value* Find(uint64_t key) {
    if (places_.empty()) return nullptr;
    Place& place = places_[Probe(key)];
    return place.empty() ? nullptr : &place.value;
  }
  const Value* Find(uint64_t key) const { return const_cast<KeyMap*>(this)->Find(key); }
  // Brings the place of `key` nearer, to hide the latency of a Find soon after.
  void Prefetch(uint64_t key) const {
    if (!places_.empty()) __builtin_prefetch(&places_[Home(key)]);
  }

  // The value of `key`, an empty one if it is new: the caller must fill that.
  Value* FindOrAdd(uint64_t key) {
    if ((size_ + 1) > places_.size() / 4 * 3) Rehash(places_.size() / 2 * 3);
    Place& place = places_[Probe(key)];
    if (place.empty()) {
      place.set_key(key);
      ++size_;
    }
    return &place.value;
  }

  // REQUIRES: `key` is in
  void Remove(uint64_t key) {
    size_t hole = Probe(key);
    // Entries behind move up while that takes them nearer to their home.
    for (size_t i = Next(hole); !places_[i].empty(); i = Next(i)) {
      const size_t home = Home(places_[i].key());
      if (Distance(home, i) < Distance(hole, i)) continue;
      places_[hole] = places_[i];
      hole = i;
    }
    places_[hole] = Place();
    --size_;
    if (size_ < places_.size() / 8) Rehash(places_.size() / 4);
  }

  void Clear() {
    places_ = std::vector<Place>();
    size_ = 0;
  }

  // f(key, value) of each entry, in no particular order.
  template <typename F>
  void ForEach(F f) const {
    for (const Place& place : places_) {
      if (!place.empty()) f(place.key(), place.value);
    }
  }

 private:
  static constexpr size_t kMinPlaces = 16;

  // The key in two halves, so that a 4-byte value makes 12 bytes.
  struct Place {
    uint32_t low = 0;
    uint32_t high = 0;
    Value value{};

    bool empty() const { return Value::IsEmpty(value); }
    uint64_t key() const { return uint64_t{high} << 32 | low; }
    void set_key(uint64_t key) {
      low = static_cast<uint32_t>(key);
      high = static_cast<uint32_t>(key >> 32);
    }
  };

  size_t Home(uint64_t key) const {
    using Wide = unsigned __int128;
    return static_cast<size_t>((static_cast<Wide>(hash_(key)) * places_.size()) >> 64);
  }
  size_t Next(size_t i) const { return i + 1 == places_.size() ? 0 : i + 1; }
  size_t Distance(size_t from, size_t to) const {
    return to >= from ? to - from : to + places_.size() - from;
  }
  // The place of `key`, or the empty one where it belongs.
  size_t Probe(uint64_t key) const {
    size_t i = Home(key);
    while (!places_[i].empty() && places_[i].key() != key) i = Next(i);
    return i;
  }

  void Rehash(size_t num_places) {
    if (num_places < kMinPlaces) num_places = kMinPlaces;
    if (num_places == places_.size()) return;
    std::vector<Place> old(num_places);
    old.swap(places_);
    for (const Place& place : old) {
      if (!place.empty()) places_[Probe(place.key())] = place;
    }
  }

  KeyHash hash_;
  size_t size_ = 0;
  std::vector<Place> places_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_KEY_MAP_H_
