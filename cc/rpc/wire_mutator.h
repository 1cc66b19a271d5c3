// Damages protobuf messages field by field, for fuzzing.
#ifndef REVERB_TF_CC_RPC_WIRE_MUTATOR_H_
#define REVERB_TF_CC_RPC_WIRE_MUTATOR_H_

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace reverb_tf {

// Knows no schema: what parses as fields is taken for a message. Thread-compatible.
class WireMutator {
 public:
  explicit WireMutator(std::mt19937_64* random) : random_(random) {}

  // `message` with one change somewhere within: a field dropped, repeated, moved, given
  // another value, length or type, or bytes that are flipped, lost or put in.
  std::string Mutate(std::string_view message);
  // The same without regard to fields.
  std::string MutateBytes(std::string bytes);
  // A number that code tends to get wrong.
  uint64_t WildNumber();

  uint64_t Below(uint64_t n) { return (*random_)() % n; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }

 private:
  // A field of the same number with another value.
  std::string ChangeValue(uint64_t tag, std::string_view value);

  std::mt19937_64* const random_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_RPC_WIRE_MUTATOR_H_
