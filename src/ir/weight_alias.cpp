#include "ir/weight_alias.h"

#include <algorithm>

namespace onnxgrad::ir {
namespace {

// Lines: '1' or '0' for is_certain and is_transposed, cell, parameter, names.
std::string alias_text(const WeightAlias& alias) {
  std::string text{alias.is_certain ? '1' : '0', alias.is_transposed ? '1' : '0'};
  text += '\n' + alias.cell + '\n' + alias.parameter;
  for (const std::string& name : alias.names) text += '\n' + name;
  return text;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (true) {
    const std::size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return lines;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

std::optional<WeightAlias> find_alias(const Value& weight) {
  const auto entry = std::ranges::find(weight.metadata, kAliasEntry, &Metadata::value_type::first);
  if (entry == weight.metadata.end()) return std::nullopt;
  std::vector<std::string> lines = lines_of(entry->second);
  constexpr std::size_t kBeforeNames = 3;
  if (lines.size() <= kBeforeNames || lines[0].size() != 2) return std::nullopt;
  return WeightAlias{.names = {lines.begin() + kBeforeNames, lines.end()},
                     .parameter = lines[2],
                     .is_certain = lines[0][0] == '1',
                     .is_transposed = lines[0][1] == '1',
                     .cell = lines[1]};
}

void set_alias(Value& weight, const WeightAlias& alias) {
  remove_alias(weight);
  weight.metadata.emplace_back(kAliasEntry, alias_text(alias));
}

void remove_alias(Value& weight) {
  std::erase_if(weight.metadata, [](const auto& entry) { return entry.first == kAliasEntry; });
}

}  // namespace onnxgrad::ir
