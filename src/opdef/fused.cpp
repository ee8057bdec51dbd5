#include "opdef/fused.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"

namespace onnxgrad::opdef {
namespace {

constexpr std::array<std::string_view, kNumUpdateRules> kRuleNames{
    "momentum", "nesterov", "adam", "root", "lion", "velocity", "nesterov_velocity"};

UpdateRule rule_named(std::string_view name) {
  const auto* const found = std::ranges::find(kRuleNames, name);
  ONNXGRAD_ASSERT(found != kRuleNames.end());
  return static_cast<UpdateRule>(found - kRuleNames.begin());
}

// The shortest text that reads as this number again: "0p999", "1em08".
std::string number_key(double number) {
  std::string key;
  for (const char c : fmt::format("{}", number)) {
    if (c != '+') key += c == '.' ? 'p' : c == '-' ? 'm' : c;
  }
  return key;
}

}  // namespace

std::string_view update_rule_name(UpdateRule rule) {
  return kRuleNames.at(static_cast<std::size_t>(rule));
}

WeightUpdate WeightUpdate::read(const ir::Node& node) {
  const auto* const tensor = std::get_if<Tensor>(node.find_attribute("factors"));
  ONNXGRAD_ASSERT(tensor != nullptr);
  const std::vector<double> factors = tensor->to_doubles();
  return {.rule = rule_named(node.string_attribute("rule", "")),
          .decay = factors.at(0),
          .beta1 = factors.at(1),
          .share1 = factors.at(2),
          .beta2 = factors.at(3),
          .share2 = factors.at(4),
          .shrinks = node.int_attribute("shrinks", 0) != 0};
}

std::vector<ir::Attribute> WeightUpdate::attributes() const {
  return {
      {.name = "rule", .value = std::string(update_rule_name(rule))},
      {.name = "factors",
       .value = Tensor::from(std::vector<double>{decay, beta1, share1, beta2, share2}, Dims{5})},
      {.name = "shrinks", .value = std::int64_t{shrinks}}};
}

std::string WeightUpdate::key() const {
  std::string key{update_rule_name(rule)};
  for (const double factor : {decay, beta1, share1, beta2, share2}) {
    key += '_';
    key += number_key(factor);
  }
  return shrinks ? key + "_shrinks" : key;
}

}  // namespace onnxgrad::opdef
