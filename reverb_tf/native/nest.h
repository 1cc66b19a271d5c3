// Nests of dicts, lists, tuples and named tuples, walked along a structure that is
// remembered from call to call.
#ifndef REVERB_TF_REVERB_TF_NATIVE_NEST_H_
#define REVERB_TF_REVERB_TF_NATIVE_NEST_H_

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace reverb_tf {

namespace nb = nanobind;

// A place in a structure. Paths: names joined by "/", positions "[i]".
struct NestNode {
  enum class Kind { kUnknown, kLeaf, kDict, kList, kTuple, kNamedTuple };

  Kind kind = Kind::kUnknown;
  std::string path;
  int leaf = -1;                 // index of the leaf, in order of first appearance
  nb::object type;               // of named tuples
  std::vector<nb::object> keys;  // of dicts (as first seen) and named tuples
  std::vector<std::unique_ptr<NestNode>> children;
};

// Grows by what it is shown. Not thread-safe (the GIL or a lock guards it).
class Nest {
 public:
  Nest() = default;
  Nest(const Nest&) = delete;
  Nest& operator=(const Nest&) = delete;

  // Calls `on_leaf` for each leaf of `value` that isn't None. A structure that
  // contradicts what was seen raises ValueError with the path. `is_leaf` tells leaves
  // that would pass for containers; may be empty.
  void Walk(PyObject* value,
            const std::function<void(const NestNode&, PyObject*)>& on_leaf);

  // The structure with `make(leaf index, path)` at its leaves.
  nb::object Build(const std::function<nb::object(int, const std::string&)>& make) const;

  int num_leaves() const { return num_leaves_; }
  bool empty() const { return root_.kind == NestNode::Kind::kUnknown; }

 private:
  void Visit(NestNode* node, PyObject* value,
             const std::function<void(const NestNode&, PyObject*)>& on_leaf);
  void VisitDict(NestNode* node, PyObject* value,
                 const std::function<void(const NestNode&, PyObject*)>& on_leaf);
  void VisitSequence(NestNode* node, PyObject* value,
                     const std::function<void(const NestNode&, PyObject*)>& on_leaf);
  NestNode* Child(NestNode* node, PyObject* key, size_t hint);
  nb::object BuildNode(
      const NestNode& node,
      const std::function<nb::object(int, const std::string&)>& make) const;

  NestNode root_;
  int num_leaves_ = 0;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_NEST_H_
