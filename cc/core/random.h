// xoshiro256++ (Blackman and Vigna, "Scrambled linear pseudorandom number
// generators", 2021), seeded by splitmix64: small, fast, the same everywhere.
#ifndef REVERB_TF_CC_CORE_RANDOM_H_
#define REVERB_TF_CC_CORE_RANDOM_H_

#include <array>
#include <cstdint>
#include <optional>

namespace reverb_tf {

// Thread-compatible. A value: copying copies the position in the stream.
class Random {
 public:
  // The streams of one seed are independent of each other (sampler and remover
  // of a table, workers of an iterator).
  explicit Random(uint64_t seed, uint64_t stream = 0);
  // Seeds from the operating system when `seed` is absent.
  static Random FromOptionalSeed(std::optional<uint64_t> seed, uint64_t stream);

  uint64_t Next();
  // Uniform in [0, n), without modulo bias. REQUIRES: n > 0
  uint64_t Below(uint64_t n);
  // Uniform in [0, 1), 53 bits.
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // For checkpoints.
  const std::array<uint64_t, 4>& state() const { return state_; }
  void set_state(const std::array<uint64_t, 4>& state) { state_ = state; }

 private:
  std::array<uint64_t, 4> state_;
};

// 64 unpredictable bits from the operating system, never zero.
uint64_t RandomSeed();

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_RANDOM_H_
