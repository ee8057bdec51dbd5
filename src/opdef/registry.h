#ifndef ONNXGRAD_OPDEF_REGISTRY_H_
#define ONNXGRAD_OPDEF_REGISTRY_H_

#include <string>
#include <string_view>
#include <vector>

#include "opdef/op_def.h"
#include "opdef/op_table.h"

namespace onnxgrad::opdef {

/// The name that an operator is registered under: "ConvWeightGrad" for the specialised function
/// "ConvWeightGrad__2d_g1" of domain `onnxgrad`, otherwise `op_type` itself.
std::string_view base_name(std::string_view domain, std::string_view op_type);
/// The name that a node's operator is looked up under: "ai.onnx" becomes "".
OpNameView registered_name(std::string_view domain, std::string_view op_type);

/// Every operator that onnxgrad knows. Filled once by ops::register_builtin_ops, then only read.
class OpRegistry : public ir::FunctionProvider {
 public:
  /// Adds an operator. Throws: InternalError if it is already registered.
  void add(OpDef def);
  /// The record of an operator; nullptr if unknown. Specialised function names
  /// ("ConvWeightGrad__...") resolve to their base.
  const OpDef* find(std::string_view domain, std::string_view op_type) const;
  const OpDef* find(const ir::Node& node) const { return find(node.domain, node.op_type); }
  /// A copy of `node`, in no graph's list, with complete attributes; see complete_attributes().
  ir::Node complete(const ir::Node& node) const;
  /// True for nodes that preserve the elements of input 0 to at least this degree, so that a search
  /// can look through them.
  ir::NodeTest passing(Passage least) const;
  /// All operators, sorted by domain and name.
  std::vector<const OpDef*> all() const;
  /// Names like `op_type` in `domain`, for messages.
  std::vector<std::string> names(std::string_view domain) const;

  ir::Function specialise(std::string_view base_name, const std::vector<ir::Value*>& inputs,
                          const std::vector<ir::Attribute>& attributes) const override;

 private:
  OpTable<OpDef> defs_;
};

/// Checks the attributes of `node` against `def`: type, bounds, counts, choices, required, unknown.
/// Throws: ModelError naming node, attribute, expected and given.
void check_attributes(const ir::Node& node, const OpDef& def);

/// Adds the attributes that `node` omits and that have a default, as rules, passes and kernels
/// expect. For plans and copies: files keep the attributes that they had.
void complete_attributes(ir::Node& node, const OpDef& def);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_REGISTRY_H_
