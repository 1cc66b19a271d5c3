#include "cc/core/random.h"

#include <sys/random.h>

#include <random>

namespace reverb_tf {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;

uint64_t RotateLeft(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

// The output function of splitmix64; a bijection.
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

Random::Random(uint64_t seed, uint64_t stream) {
  // Mixed twice, so that neighbouring seeds and streams start far apart.
  uint64_t x = Mix(Mix(seed + kGolden) + stream * kGolden);
  for (uint64_t& word : state_) word = Mix(x += kGolden);
}

Random Random::FromOptionalSeed(std::optional<uint64_t> seed, uint64_t stream) {
  return Random(seed ? *seed : RandomSeed(), stream);
}

uint64_t Random::Next() {
  const uint64_t result = RotateLeft(state_[0] + state_[3], 23) + state_[0];
  const uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = RotateLeft(state_[3], 45);
  return result;
}

uint64_t Random::Below(uint64_t n) {
  // Lemire, "Fast random integer generation in an interval", 2019: the high word
  // of a product; the few low words that would favour some results are redrawn.
  using Wide = unsigned __int128;
  Wide product = static_cast<Wide>(Next()) * n;
  if (static_cast<uint64_t>(product) < n) {
    const uint64_t threshold = -n % n;
    while (static_cast<uint64_t>(product) < threshold) {
      product = static_cast<Wide>(Next()) * n;
    }
  }
  return static_cast<uint64_t>(product >> 64);
}

uint64_t RandomSeed() {
  for (;;) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
      std::random_device device;
      seed = static_cast<uint64_t>(device()) << 32 | device();
    }
    if (seed != 0) return seed;
  }
}

}  // namespace reverb_tf
