#include "reverb_tf/native/nest.h"

#include <algorithm>

namespace reverb_tf {
namespace {

using Kind = NestNode::Kind;

// As the signatures' parser: deeper ones are cycles or mistakes.
constexpr int kMaxDepth = 64;

const char* KindName(Kind kind) {
  switch (kind) {
    case Kind::kLeaf:
      return "a leaf";
    case Kind::kDict:
      return "a dict";
    case Kind::kList:
      return "a list";
    case Kind::kTuple:
      return "a tuple";
    case Kind::kNamedTuple:
      return "a named tuple";
    case Kind::kUnknown:
      break;
  }
  return "nothing";
}

bool IsNamedTuple(PyObject* value) {
  return PyTuple_Check(value) && !PyTuple_CheckExact(value) &&
         PyObject_HasAttrString(value, "_fields");
}

// A dataclass instance or a non-dict mapping, as the dict of its fields; else null.
nb::object AsDict(PyObject* value) {
  if (PyType_Check(value)) return nb::object();
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  if (PyObject_HasAttrString(type, "__dataclass_fields__")) {
    nb::dict fields;
    for (nb::handle name : nb::handle(type).attr("__dataclass_fields__")) {
      fields[name] = nb::handle(value).attr(name);
    }
    return fields;
  }
  if (PyMapping_Check(value) && !PySequence_Check(value) &&
      PyObject_HasAttrString(value, "items")) {
    return nb::steal(PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&PyDict_Type),
                                                  value, nullptr));
  }
  return nb::object();
}

Kind KindOf(PyObject* value) {
  if (PyDict_Check(value)) return Kind::kDict;
  if (PyList_Check(value)) return Kind::kList;
  if (PyTuple_Check(value)) return IsNamedTuple(value) ? Kind::kNamedTuple : Kind::kTuple;
  return Kind::kLeaf;
}

// Containers of these kinds with the same keys have the same paths.
bool HaveSamePaths(Kind a, Kind b) {
  const auto has_positions = [](Kind kind) {
    return kind == Kind::kList || kind == Kind::kTuple;
  };
  return a != Kind::kLeaf && b != Kind::kLeaf && has_positions(a) == has_positions(b);
}

std::string ChildPath(const NestNode& node, PyObject* key, size_t index) {
  if (node.kind == Kind::kList || node.kind == Kind::kTuple) {
    return node.path + "[" + std::to_string(index) + "]";
  }
  const std::string name = nb::str(nb::handle(key)).c_str();
  return node.path.empty() ? name : node.path + "/" + name;
}

std::string Where(const std::string& path) {
  return path.empty() ? "the top level" : "'" + path + "'";
}

[[noreturn]] void StructureChanged(const NestNode& node, const char* got) {
  throw nb::value_error((Where(node.path) + " is " + got + ", was " + KindName(node.kind) +
                         " before: the container at a path must not change")
                            .c_str());
}

[[noreturn]] void Extra(const std::string& path) {
  throw nb::value_error(
      ("extra: " + path + ": every step must have the paths of the first").c_str());
}

// The keys of a dict in order.
nb::object SortedKeys(PyObject* dict, const std::string& path) {
  nb::object keys = nb::steal(PyMapping_Keys(dict));
  if (!keys.is_valid()) throw nb::python_error();
  if (PyList_Sort(keys.ptr()) == 0) return keys;
  PyErr_Clear();
  throw nb::type_error(
      ("the dict keys of " + Where(path) + " must be all str or all int").c_str());
}

}  // namespace

NestNode* Nest::Child(NestNode* node, PyObject* key, size_t hint) {
  const size_t n = node->keys.size();
  if (hint < n && node->keys[hint].ptr() == key) return node->children[hint].get();
  for (size_t i = 0; i < n; ++i) {
    const int equal = PyObject_RichCompareBool(node->keys[i].ptr(), key, Py_EQ);
    if (equal < 0) throw nb::python_error();
    if (equal) return node->children[i].get();
  }
  if (node->kind == Kind::kDict && !PyUnicode_Check(key) && !PyLong_Check(key)) {
    throw nb::type_error(("dict keys must be str or int, got " +
                          std::string(Py_TYPE(key)->tp_name) + " at " + Where(node->path))
                             .c_str());
  }
  std::string path = ChildPath(*node, key, hint);
  if (fixed_) Extra(path);
  auto child = std::make_unique<NestNode>();
  child->path = std::move(path);
  node->keys.push_back(nb::borrow(key));
  node->children.push_back(std::move(child));
  changes_.push_back({node, true});
  return node->children.back().get();
}

void Nest::VisitDict(NestNode* node, PyObject* value,
                     const std::function<void(const NestNode&, PyObject*)>& on_leaf) {
  if (node->keys.empty() && PyDict_Size(value) > 1) {
    // First sight: leaves are numbered in sorted order, as tf.nest flattens.
    nb::object sorted = SortedKeys(value, node->path);
    for (nb::handle key : sorted) Child(node, key.ptr(), node->keys.size());
    for (nb::handle key : sorted) {
      PyObject* item = PyDict_GetItemWithError(value, key.ptr());
      if (item == nullptr && PyErr_Occurred()) throw nb::python_error();
      if (item != nullptr) Visit(Child(node, key.ptr(), 0), item, on_leaf);
    }
    return;
  }
  Py_ssize_t position = 0;
  size_t hint = 0;
  PyObject *key, *item;
  while (PyDict_Next(value, &position, &key, &item)) {
    Visit(Child(node, key, hint++), item, on_leaf);
  }
}

void Nest::VisitSequence(NestNode* node, PyObject* value, Kind kind,
                         const std::function<void(const NestNode&, PyObject*)>& on_leaf) {
  nb::object fields;
  if (kind == Kind::kNamedTuple) fields = nb::handle(value).attr("_fields");
  const bool is_list = PyList_Check(value);
  const Py_ssize_t n = is_list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value);
  for (Py_ssize_t i = 0; i < n; ++i) {
    const auto index = static_cast<size_t>(i);
    nb::object key =
        fields.is_valid() ? nb::object(fields[index]) : nb::steal(PyLong_FromSsize_t(i));
    PyObject* item = is_list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i);
    Visit(Child(node, key.ptr(), index), item, on_leaf);
  }
}

void Nest::Visit(NestNode* node, PyObject* value,
                 const std::function<void(const NestNode&, PyObject*)>& on_leaf) {
  if (value == Py_None) {
    if (*on_none_) (*on_none_)(*node);
    return;
  }
  if (depth_ > kMaxDepth) {
    throw nb::value_error((Where(node->path).substr(0, 80) + "...: nested deeper than " +
                           std::to_string(kMaxDepth) + " levels")
                              .c_str());
  }
  Kind kind = KindOf(value);
  nb::object as_dict;
  if (kind == Kind::kLeaf) {
    as_dict = AsDict(value);
    if (as_dict.is_valid()) {
      kind = Kind::kDict;
      value = as_dict.ptr();
    }
  }
  if (node->kind == Kind::kUnknown) {
    if (fixed_) Extra(node->path);
    SetKind(node, kind, value);
  } else if (node->kind != kind && !(fixed_ && HaveSamePaths(node->kind, kind))) {
    StructureChanged(*node, KindName(kind));
  }
  if (kind == Kind::kLeaf) return on_leaf(*node, value);
  ++depth_;
  if (kind == Kind::kDict) {
    VisitDict(node, value, on_leaf);
  } else {
    VisitSequence(node, value, kind, on_leaf);
  }
  --depth_;
}

void Nest::SetKind(NestNode* node, NestNode::Kind kind, PyObject* value) {
  node->kind = kind;
  if (kind == Kind::kLeaf) node->leaf = num_leaves_++;
  if (kind == Kind::kNamedTuple) {
    node->type = nb::borrow(reinterpret_cast<PyObject*>(Py_TYPE(value)));
  }
  changes_.push_back({node, false});
}

void Nest::Walk(PyObject* value,
                const std::function<void(const NestNode&, PyObject*)>& on_leaf,
                const std::function<void(const NestNode&)>& on_none) {
  changes_.clear();
  depth_ = 0;
  on_none_ = &on_none;
  try {
    Visit(&root_, value, on_leaf);
  } catch (...) {
    Rollback();
    throw;
  }
}

void Nest::Rollback() {
  for (; !changes_.empty(); changes_.pop_back()) {
    NestNode* const node = changes_.back().node;
    if (changes_.back().is_child) {
      node->keys.pop_back();
      node->children.pop_back();
      continue;
    }
    if (node->kind == Kind::kLeaf) --num_leaves_;
    node->leaf = -1;
    node->kind = Kind::kUnknown;
    node->type.reset();
  }
}

nb::object Nest::BuildNode(
    const NestNode& node,
    const std::function<nb::object(int, const std::string&)>& make) const {
  switch (node.kind) {
    case Kind::kUnknown:
      return nb::none();
    case Kind::kLeaf:
      return make(node.leaf, node.path);
    case Kind::kDict: {
      nb::dict d;
      for (size_t i = 0; i < node.keys.size(); ++i) {
        d[node.keys[i]] = BuildNode(*node.children[i], make);
      }
      return d;
    }
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kNamedTuple:
      break;
  }
  nb::list items;
  for (const auto& child : node.children) items.append(BuildNode(*child, make));
  if (node.kind == Kind::kList) return items;
  if (node.kind == Kind::kTuple) return nb::tuple(items);
  return node.type(*items);
}

nb::object Nest::Build(
    const std::function<nb::object(int, const std::string&)>& make) const {
  return BuildNode(root_, make);
}

}  // namespace reverb_tf
