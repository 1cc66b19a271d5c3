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

  // Calls `on_leaf` for each leaf of `value` that isn't None, and `on_none` (may be empty)
  // for each None, whatever may be at its place. A structure that contradicts what was seen
  // raises ValueError with the path; what an exception (also one of `on_leaf`) ends leaves
  // the nest as it was.
  void Walk(PyObject* value, const std::function<void(const NestNode&, PyObject*)>& on_leaf,
            const std::function<void(const NestNode&)>& on_none = nullptr);
  // Undoes what the last Walk added.
  void Rollback();

  // From now on a path that wasn't seen raises ValueError, and containers pass for others
  // of the same paths: lists for tuples, dicts for named tuples.
  void Fix() { fixed_ = true; }

  // The structure with `make(leaf index, path)` at its leaves.
  nb::object Build(const std::function<nb::object(int, const std::string&)>& make) const;

  int num_leaves() const { return num_leaves_; }
  bool empty() const { return root_.kind == NestNode::Kind::kUnknown; }

 private:
  // What a Walk added: the last child of a node, or what kind of node it is.
  struct Change {
    NestNode* node;
    bool is_child;
  };

  void Visit(NestNode* node, PyObject* value,
             const std::function<void(const NestNode&, PyObject*)>& on_leaf);
  void SetKind(NestNode* node, NestNode::Kind kind, PyObject* value);
  void VisitDict(NestNode* node, PyObject* value,
                 const std::function<void(const NestNode&, PyObject*)>& on_leaf);
  void VisitSequence(NestNode* node, PyObject* value, NestNode::Kind kind,
                     const std::function<void(const NestNode&, PyObject*)>& on_leaf);
  NestNode* Child(NestNode* node, PyObject* key, size_t hint);
  nb::object BuildNode(
      const NestNode& node,
      const std::function<nb::object(int, const std::string&)>& make) const;

  NestNode root_;
  int num_leaves_ = 0;
  bool fixed_ = false;
  int depth_ = 0;  // of the Walk at hand
  const std::function<void(const NestNode&)>* on_none_ = nullptr;
  std::vector<Change> changes_;
};

}  // namespace reverb_tf

#endif  // REVERB_TF_REVERB_TF_NATIVE_NEST_H_
