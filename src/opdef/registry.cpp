#include "opdef/registry.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace onnxgrad::opdef {
namespace {

std::string_view canonical_domain(std::string_view domain) {
  return domain == "ai.onnx" ? std::string_view() : domain;
}

}  // namespace

std::string_view base_name(std::string_view domain, std::string_view op_type) {
  if (domain != ir::kFunctionDomain) return op_type;
  return op_type.substr(0, op_type.find("__"));
}

OpNameView registered_name(std::string_view domain, std::string_view op_type) {
  const std::string_view known = canonical_domain(domain);
  return {known, base_name(known, op_type)};
}

void OpRegistry::add(OpDef def) {
  OpName name{.domain = std::string(def.domain), .op_type = std::string(def.op_type)};
  const bool is_new = defs_.emplace(std::move(name), std::move(def)).second;
  ONNXGRAD_ASSERT(is_new);
}

const OpDef* OpRegistry::find(std::string_view domain, std::string_view op_type) const {
  const auto found = defs_.find(registered_name(domain, op_type));
  return found == defs_.end() ? nullptr : &found->second;
}

ir::Node OpRegistry::complete(const ir::Node& node) const {
  ir::Node copy = node;
  if (const OpDef* def = find(node)) complete_attributes(copy, *def);
  return copy;
}

ir::NodeTest OpRegistry::passing(Passage least) const {
  return [this, least](const ir::Node& node) {
    const OpDef* def = find(node);
    return def != nullptr && def->passage >= least;
  };
}

std::vector<const OpDef*> OpRegistry::all() const {
  std::vector<const OpDef*> result;
  result.reserve(defs_.size());
  for (const auto& [name, def] : defs_) result.push_back(&def);
  std::ranges::sort(result, {},
                    [](const OpDef* def) { return std::pair(def->domain, def->op_type); });
  return result;
}

std::vector<std::string> OpRegistry::names(std::string_view domain) const {
  std::vector<std::string> result;
  for (const auto& [name, def] : defs_) {
    if (name.domain == canonical_domain(domain)) result.push_back(name.op_type);
  }
  std::ranges::sort(result);
  return result;
}

ir::Function OpRegistry::specialise(std::string_view name, const std::vector<ir::Value*>& inputs,
                                    const std::vector<ir::Attribute>& attributes) const {
  const OpDef* def = find(ir::kFunctionDomain, name);
  ONNXGRAD_ASSERT(def != nullptr && def->function_body != nullptr);
  return def->function_body(name, inputs, attributes);
}

}  // namespace onnxgrad::opdef
