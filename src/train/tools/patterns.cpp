#include "train/tools/patterns.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ir/weight_alias.h"

namespace onnxgrad::train {

bool glob_match(std::string_view pattern, std::string_view name) {
  std::size_t p = 0;
  std::size_t n = 0;
  std::size_t star = std::string_view::npos;  // the last * seen, and what it has matched so far
  std::size_t taken = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      taken = n;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++taken;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

WeightNames names_for_patterns(const ir::Value& weight) {
  WeightNames names{.name = weight.name};
  if (auto alias = ir::find_alias(weight)) names.aliases = std::move(alias->names);
  return names;
}

bool glob_match(std::string_view pattern, const WeightNames& names) {
  return glob_match(pattern, names.name) ||
         std::ranges::any_of(names.aliases, [pattern](const std::string& alias) {
           return glob_match(pattern, alias);
         });
}

std::vector<std::string> all_names(std::span<const WeightNames> weights) {
  std::vector<std::string> names;
  for (const WeightNames& weight : weights) {
    if (!weight.name.empty()) names.push_back(weight.name);
    for (const std::string& alias : weight.aliases) {
      if (!alias.empty()) names.push_back(alias);
    }
  }
  return names;
}

std::vector<bool> match_patterns(std::span<const std::string> patterns,
                                 std::span<const WeightNames> weights, std::string_view what) {
  std::vector<bool> matched(weights.size(), false);
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!glob_match(pattern, weights[i])) continue;
      matched[i] = true;
      any = true;
    }
    if (!any) {
      const std::vector<std::string> names = all_names(weights);
      throw ModelError(
          {.what = "no " + std::string(what) + " matches '" + pattern + "'",
           .detail =
               names.empty() ? "There are none." : "There are " + base::quote_list(names) + ".",
           .hint = base::nearest_or(pattern, names, "Name one, or give a pattern such as 'fc*'.")});
    }
  }
  return matched;
}

ir::Value* find_by_any_name(const ir::Graph& graph, std::string_view name) {
  ir::Value* const named = graph.find(name);
  if (named != nullptr && named->is_initializer()) return named;
  for (ir::Value* value : graph.initializers) {
    const std::vector<std::string> aliases = names_for_patterns(*value).aliases;
    if (std::ranges::find(aliases, name) != aliases.end()) return value;
  }
  return nullptr;
}

}  // namespace onnxgrad::train
