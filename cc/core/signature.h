// Signatures: what the items of a table look like, and the one function that
// tells whether an item does.
#ifndef REVERB_TF_CC_CORE_SIGNATURE_H_
#define REVERB_TF_CC_CORE_SIGNATURE_H_

#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/base/tensor.h"

namespace reverb_tf {

// A path leads from the root of a nest to a leaf. Names (dict keys, fields) are
// joined by "/", positions are written "[i]": "obs/camera[0]", "[1]", "" (bare).

// True if the path has a name in it (not only positions).
bool PathHasName(std::string_view path);

struct Signature {
  // The nest as a serialised tensorflow.StructuredValue, given back unchanged.
  std::string structured_value;
  // Its leaves in order, with their paths.
  std::vector<TensorSpec> leaves;

  // Reads dicts, lists, tuples, named tuples and (bounded) tensor specs;
  // INVALID_ARGUMENT for anything else or for bytes that don't parse.
  static Result<Signature> Parse(std::string structured_value);
};

// The paths of the leaves of a nest of none_value, a structure without specs, in order.
// INVALID_ARGUMENT as Signature::Parse.
Result<std::vector<std::string>> ParseStructurePaths(std::string_view structured_value);

// How the columns of an item relate to a signature (api: §1.4).
enum class SignatureScope : uint8_t { kUndecided = 0, kTrajectory = 1, kStep = 2 };
const char* SignatureScopeName(SignatureScope scope);

// Matches leaves by path: returns, for each leaf of `signature`, the index of
// its column in `paths`. If both sides have names anywhere the sets of paths
// must be equal, else the numbers of leaves. INVALID_ARGUMENT with
// "missing: …, extra: …".
Result<std::vector<int>> MatchPaths(const std::vector<TensorSpec>& signature,
                                    const std::vector<std::string>& paths);

// A column as a signature sees it.
struct ColumnShape {
  DType dtype = DType::kInvalid;
  Shape cell;
  int64_t length = 0;
  bool squeeze = false;
};

// The same without a copy of the cell's shape.
struct ColumnShapeRef {
  DType dtype = DType::kInvalid;
  const Shape* cell = nullptr;
  int64_t length = 0;
  bool squeeze = false;
};

// OK if an item of `columns` (in the order of the leaves) may enter a table of
// `signature` whose scope is *scope; on success *scope becomes what it decides
// (unchanged when it decides nothing). INVALID_ARGUMENT otherwise: number of
// columns, or "differs: path got expected" for every leaf that does, with a hint
// for 64/32-bit mix-ups; on a contradiction of scopes it names both uses and
// `signature_scope=`.
Status CheckSignature(const Signature& signature, const std::vector<ColumnShape>& columns,
                      bool written_as_steps, SignatureScope* scope);
Status CheckSignature(const Signature& signature,
                      const std::vector<ColumnShapeRef>& columns, bool written_as_steps,
                      SignatureScope* scope);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CORE_SIGNATURE_H_
