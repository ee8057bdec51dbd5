// One line of text about the weights that are trained and those that are not.
#include "train/graphs/weights_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/pattern.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {
namespace {

constexpr std::size_t kMostNames = 4;

using Reasons = std::vector<std::pair<std::string, std::vector<std::string>>>;

void add_reason(Reasons& reasons, const std::string& reason, const std::string& name) {
  auto known = std::ranges::find(reasons, reason, &Reasons::value_type::first);
  if (known == reasons.end()) known = reasons.insert(known, {reason, {}});
  known->second.push_back(name);
}

bool is_matched(const std::vector<std::string>& patterns, const WeightNames& names) {
  return std::ranges::any_of(patterns,
                             [&](const std::string& one) { return glob_match(one, names); });
}

/// A layer whose matrix and bias are weights.
struct LayerWithBias {
  WeightNames matrix;
  WeightNames bias;
};

std::vector<LayerWithBias> layers_with_bias(const std::vector<Weight>& weights) {
  std::vector<LayerWithBias> layers;
  for (const Weight& bias : weights) {
    const ir::Node* const reader = bias.reader;
    const bool has_bias_input =
        reader != nullptr && ir::is_op(*reader, {"Gemm", "Conv", "ConvTranspose"});
    const ir::Node* const layer =
        bias.layer != nullptr ? bias.layer : (has_bias_input && bias.input == 2 ? reader : nullptr);
    if (layer == nullptr) continue;
    const auto matrix = std::ranges::find_if(weights, [&](const Weight& weight) {
      return weight.reader == layer && weight.layer == nullptr && weight.input < 2;
    });
    if (matrix == weights.end()) continue;
    layers.push_back(
        {.matrix = names_for_patterns(*matrix->value), .bias = names_for_patterns(*bias.value)});
  }
  return layers;
}

// Whether a pattern that matches the bias would match the matrix if that were named alike: it is
// meant for the layer, not for biases.
bool is_for_layer(const std::string& pattern, std::string_view bias) {
  std::string name(bias);
  if (const std::size_t at = name.rfind("bias"); at != std::string::npos) {
    return glob_match(pattern, name.replace(at, 4, "weight"));
  }
  const std::size_t end = name.find_last_of("./");
  if (end == std::string::npos) return false;
  return glob_match(pattern, name.replace(end + 1, std::string::npos, "weight"));
}

}  // namespace

std::vector<std::string> pattern_warnings(const ir::Model& working,
                                          std::span<const std::string> patterns) {
  const std::vector<std::string> all(patterns.begin(), patterns.end());
  std::vector<std::string> warnings;
  if (all.empty()) return warnings;
  const auto layers = layers_with_bias(find_weights(working, builtin_ops()));
  for (const std::string& pattern : all) {
    std::vector<std::string> biases;
    std::vector<std::string> matrices;
    for (const LayerWithBias& layer : layers) {
      const bool is_split = glob_match(pattern, layer.bias) && !is_matched(all, layer.matrix) &&
                            is_for_layer(pattern, layer.bias.name);
      if (!is_split) continue;
      biases.push_back(layer.bias.name);
      matrices.push_back(layer.matrix.name);
    }
    if (biases.empty()) continue;
    warnings.push_back(fmt::format("'{}' matches the bias {} {} but not {}, {}: name {} too",
                                   pattern, short_list(biases),
                                   biases.size() == 1 ? "of a layer" : "of layers",
                                   biases.size() == 1 ? "its matrix" : "their matrices",
                                   short_list(matrices), biases.size() == 1 ? "it" : "them"));
  }
  return warnings;
}

std::string short_list(std::span<const std::string> names) {
  std::string text;
  const std::size_t shown = names.size() <= kMostNames + 1 ? names.size() : kMostNames;
  for (std::size_t i = 0; i < shown; ++i) text += (i > 0 ? ", '" : "'") + names[i] + "'";
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

std::string separation_line(std::span<const SeparatedWeight> separated) {
  std::string text;
  std::size_t shown = 0;
  for (const SeparatedWeight& weight : separated) {
    if (shown++ == kMostNames) break;
    text += fmt::format("{}'{}' as {}", text.empty() ? "" : "; ", weight.name,
                        short_list(weight.parts));
  }
  if (text.empty()) return text;
  if (separated.size() > kMostNames) {
    text += fmt::format("; and {} more", separated.size() - kMostNames);
  }
  return "\ntrained separately, since only equal values made them one in the file: " +
         base::printable(text);
}

std::string tie_line(std::span<const TiedWeight> tied) {
  if (tied.empty()) return "";
  std::string line = "\ntrained as one, since the file stores it twice: " +
                     tied_text(tied.first(std::min(tied.size(), kMostNames)));
  if (tied.size() > kMostNames) line += fmt::format("; and {} more", tied.size() - kMostNames);
  return line;
}

namespace {

// The reason for which a weight is not trained; scales of biases, which are computed again, have
// readers in the file alone.
const std::string& reason_of(const WeightInfo& weight, std::span<const WeightInfo> in_file) {
  if (!weight.op_type.empty()) return weight.reason;
  const auto found = std::ranges::find(in_file, weight.name, &WeightInfo::name);
  return found == in_file.end() || found->op_type.empty() ? weight.reason : found->reason;
}

}  // namespace

std::string weights_line(const ir::Model& working, const StepGraph& step,
                         const TrainingOptions& options, std::span<const WeightInfo> in_file) {
  std::unordered_set<std::string> trained;
  std::unordered_set<std::string> statistics;
  for (const WeightInfo& weight : step.weights) trained.insert(weight.name);
  for (const WeightInfo& weight : step.statistics) statistics.insert(weight.name);
  std::unordered_set<std::string> held;
  for (const WeightInfo& weight : step.held) held.insert(weight.name);

  std::size_t total = 0;
  Reasons reasons;
  for (const Weight& weight : find_weights(working, builtin_ops())) {
    const WeightInfo info = weight_info(weight);
    if (trained.contains(info.name)) {
      ++total;
      continue;
    }
    if ((!is_floating(info.dtype) && !is_quantized(info)) || is_plain_number(info) ||
        is_of_definition(weight))
      continue;
    ++total;
    const WeightNames names = names_for_patterns(*weight.value);
    const bool is_wanted = info.trainable || is_matched(options.trainable, names);
    const std::string& name = info.aliases.empty() ? info.name : info.aliases.front();
    if (statistics.contains(info.name)) {
      add_reason(reasons, "running statistics", name);
    } else if (held.contains(info.name) || (is_wanted && is_matched(options.frozen, names))) {
      add_reason(reasons, "frozen", name);
    } else if (!info.trainable) {
      add_reason(reasons, reason_of(info, in_file), name);
    } else if (!options.trainable.empty()) {
      add_reason(reasons, "not named", name);
    } else {
      add_reason(reasons, "without influence on the loss", name);
    }
  }
  std::string text =
      fmt::format("trains {} of {} weight{}", trained.size(), total, total == 1 ? "" : "s");
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    text += fmt::format("{}{} ({})", i == 0 ? "; not trained: " : "; ",
                        short_list(reasons[i].second), reasons[i].first);
  }
  return base::printable(text);
}

}  // namespace onnxgrad::train
