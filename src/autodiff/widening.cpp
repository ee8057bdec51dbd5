#include "autodiff/widening.h"

#include <algorithm>
#include <unordered_set>

namespace onnxgrad::autodiff {

using ir::Value;

Value* as_gradient(ir::GraphBuilder& g, Value* gradient) {
  return ir::holds_f16(gradient) ? g.cast(gradient, DataType::kFloat32) : gradient;
}

Value* as_stored(ir::GraphBuilder& g, Value* gradient, const Value& value) {
  return ir::holds_f16(&value) ? g.cast(gradient, value.dtype()) : gradient;
}

void Widening::widen(ir::Node& copy) {
  if (!copy.subgraphs().empty()) return;
  for (auto* list : {&copy.inputs, &copy.outputs}) {
    for (Value*& value : *list) {
      if (ir::holds_f16(value)) value = wide(value);
    }
  }
}

Value* Widening::wide(Value* half) {
  Value*& known = wide_[half];
  if (known != nullptr) return known;
  // A number of a formula that rules look at. Those of a weight may change.
  const bool is_number =
      half->is_constant() && half->initializer.num_elements() == 1 && !activity_.is_active(half);
  known = is_number ? g_.constant(half->initializer.cast(DataType::kFloat32), half->name)
                    : g_.cast(half, DataType::kFloat32);
  return known;
}

void Widening::drop_unread(const std::vector<Value*>& results) {
  if (wide_.empty()) return;
  std::unordered_map<const Value*, Value*> f16_of;
  std::unordered_set<const ir::Node*> casts;
  for (const auto& [half, wide] : wide_) {
    f16_of.emplace(wide, half);
    if (wide->producer != nullptr) casts.insert(wide->producer);
  }
  std::unordered_set<const Value*> read(results.begin(), results.end());
  for (ir::Node* node : g_.graph().nodes) {
    const opdef::OpDef* def = registry_.find(*node);
    const bool is_shape = def != nullptr && def->fold_types != nullptr;
    for (Value*& input : node->inputs) {
      const auto found = f16_of.find(input);
      if (is_shape && found != f16_of.end()) input = found->second;
      read.insert(input);
    }
    if (node->subgraphs().empty()) continue;
    for (const Value* captured : ir::captured_values(*node)) read.insert(captured);
  }
  std::erase_if(g_.graph().nodes, [&](const ir::Node* node) {
    return casts.contains(node) && !read.contains(node->outputs[0]);
  });
}

}  // namespace onnxgrad::autodiff
