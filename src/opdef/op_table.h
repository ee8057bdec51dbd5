#ifndef ONNXGRAD_OPDEF_OP_TABLE_H_
#define ONNXGRAD_OPDEF_OP_TABLE_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

namespace onnxgrad::opdef {

/// The name that an operator is registered under: its domain ("" for ai.onnx) and base_name().
struct OpName {
  std::string domain;
  std::string op_type;
};

/// A view of an OpName, to search without an allocation: graphs look up every node repeatedly.
struct OpNameView {
  std::string_view domain;
  std::string_view op_type;

  OpNameView(std::string_view domain_in, std::string_view type_in)
      : domain(domain_in), op_type(type_in) {}
  OpNameView(const OpName& name)  // NOLINT(google-explicit-constructor): as string to its view
      : domain(name.domain), op_type(name.op_type) {}
};

struct OpNameHash {
  using is_transparent = void;
  std::size_t operator()(const OpNameView& name) const {
    // Few types are in several domains.
    return std::hash<std::string_view>()(name.op_type) + name.domain.size();
  }
};

struct OpNameEqual {
  using is_transparent = void;
  bool operator()(const OpNameView& a, const OpNameView& b) const {
    return a.op_type == b.op_type && a.domain == b.domain;
  }
};

/// A table of information on operators, by name.
template <class T>
using OpTable = std::unordered_map<OpName, T, OpNameHash, OpNameEqual>;

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_OP_TABLE_H_
