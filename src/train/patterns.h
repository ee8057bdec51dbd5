#ifndef ONNXGRAD_TRAIN_PATTERNS_H_
#define ONNXGRAD_TRAIN_PATTERNS_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace onnxgrad::train {

/// Shell-style matching of whole names: * is any string, ? any character, all else itself.
/// Time is at most the product of the lengths.
bool glob_match(std::string_view pattern, std::string_view name);

/// For each name whether one of the patterns matches it.
/// Throws: ModelError for a pattern that matches none ("no <what> matches 'fc*'", nearest name).
std::vector<bool> match_patterns(std::span<const std::string> patterns,
                                 std::span<const std::string> names, std::string_view what);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_PATTERNS_H_
