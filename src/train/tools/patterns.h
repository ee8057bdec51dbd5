#ifndef ONNXGRAD_TRAIN_PATTERNS_H_
#define ONNXGRAD_TRAIN_PATTERNS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

namespace onnxgrad::train {

/// Shell-style matching of whole names: * is any string, ? any character, all else itself.
/// Time is at most the product of the lengths.
bool glob_match(std::string_view pattern, std::string_view name);

/// Names by which users refer to a weight: that in the file, and those of its alias.
struct WeightNames {
  std::string name;
  std::vector<std::string> aliases = {};
};

WeightNames names_for_patterns(const ir::Value& weight);

/// Whether `pattern` matches the name or an alias.
bool glob_match(std::string_view pattern, const WeightNames& names);

/// True for each weight that one of the patterns matches. Throws: ModelError for a pattern that
/// matches none ("no <what> matches 'fc*'", nearest name).
std::vector<bool> match_patterns(std::span<const std::string> patterns,
                                 std::span<const WeightNames> weights, std::string_view what);

/// The initializer with that name, or else with that alias; nullptr if there is none.
ir::Value* find_by_any_name(const ir::Graph& graph, std::string_view name);

/// All names and aliases, for lists and suggestions in messages.
std::vector<std::string> all_names(std::span<const WeightNames> weights);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_PATTERNS_H_
