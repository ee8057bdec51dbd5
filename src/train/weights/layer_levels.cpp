#include "train/weights/layer_levels.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/check.h"
#include "ir/pattern.h"
#include "ir/uses.h"
#include "train/tools/patterns.h"

namespace onnxgrad::train {
namespace {

using ir::is_op;
using ir::Node;
using ir::Value;

// Maps nodes of subgraphs to the node of the main graph that they belong to.
void map_bodies(const ir::Graph& graph, const Node* main,
                std::unordered_map<const Node*, const Node*>& mains) {
  for (const Node* node : graph.nodes) {
    const Node* const owner = main == nullptr ? node : main;
    mains.emplace(node, owner);
    for (const ir::Graph* body : node->subgraphs()) map_bodies(*body, owner, mains);
  }
}

bool is_parameter(const Weight& weight) { return weight.trainable || weight.is_under_adapter; }

// Whether a layer is made of this weight; false for scales, biases and tables that are added.
bool makes_layer(const Weight& weight) {
  if (weight.reader == nullptr || weight.layer != nullptr) return false;
  const Dims& dims = weight.value->initializer.dims();
  const bool is_integer_matrix =
      !is_floating(weight.value->initializer.dtype()) && weight.reason.starts_with("quantized");
  if (is_integer_matrix) return true;
  if (!is_parameter(weight) || dims.rank() < 2) return false;
  const bool is_product =
      is_op(*weight.reader, {"MatMul", "Gemm", "Conv", "ConvTranspose", "Gather", "Einsum"});
  return is_product || (weight.is_of_layer &&
                        std::ranges::count_if(dims, [](std::int64_t dim) { return dim > 1; }) > 1);
}

class LevelFinder {
 public:
  explicit LevelFinder(std::span<const Weight> weights)
      : graph_(*weights.front().value->graph), uses_(graph_) {
    map_bodies(graph_, nullptr, mains_);
    for (const Weight& weight : weights) {
      if (makes_layer(weight)) layers_.insert(main_of(weight.reader));
    }
    layers_.erase(nullptr);
    for (auto node = graph_.nodes.rbegin(); node != graph_.nodes.rend(); ++node) {
      std::int64_t level = 0;
      for (const Value* output : (*node)->outputs) {
        if (output == nullptr) continue;
        for (const ir::Use& use : uses_.of(output)) {
          const Node* reader = main_of(use.node);
          if (reader == nullptr) continue;
          level = std::max(level, levels_[reader] + (layers_.contains(reader) ? 1 : 0));
        }
      }
      levels_[*node] = level;
    }
  }

  std::int64_t level_of(const Weight& weight) const {
    std::int64_t least = -1;
    const auto consider = [&](const Node* node) {
      const auto found = levels_.find(main_of(node));
      if (found != levels_.end() && (least < 0 || found->second < least)) least = found->second;
    };
    consider(weight.reader);
    std::vector<const Value*> open{weight.value};
    for (std::size_t i = 0; i < open.size(); ++i) {
      for (const ir::Use& use : uses_.of(open[i])) {
        if (use.node == nullptr) continue;
        if (is_op(*use.node, {"Transpose", "Cast", "Identity"}))
          open.push_back(use.node->output(0));
        consider(use.node);
      }
    }
    return least;
  }

 private:
  const Node* main_of(const Node* node) const {
    const auto found = mains_.find(node);
    return found == mains_.end() ? nullptr : found->second;
  }

  const ir::Graph& graph_;
  ir::Uses uses_;
  std::unordered_map<const Node*, const Node*> mains_;
  std::unordered_set<const Node*> layers_;
  std::unordered_map<const Node*, std::int64_t> levels_;
};

// The last level of "head" or "last:<n>"; nullopt: an ordinary pattern.
std::optional<std::int64_t> last_level(std::string_view pattern) {
  if (pattern == "head") return 0;
  constexpr std::string_view kLast = "last:";
  if (!pattern.starts_with(kLast)) return std::nullopt;
  pattern.remove_prefix(kLast.size());
  std::int64_t count = 0;
  const auto [end, error] = std::from_chars(pattern.data(), pattern.data() + pattern.size(), count);
  const bool is_number = error == std::errc() && end == pattern.data() + pattern.size();
  if (is_number && count < 1) {
    throw ModelError({.what = fmt::format("'last:{}' selects no layer", count),
                      .hint = "Give \"head\" for the head alone, 'last:1' for it and the layer "
                              "before it."});
  }
  return is_number ? std::optional(count) : std::nullopt;
}

}  // namespace

std::vector<std::int64_t> layer_levels(std::span<const Weight> weights) {
  if (weights.empty()) return {};
  const LevelFinder finder(weights);
  std::vector<std::int64_t> levels;
  for (const Weight& weight : weights) levels.push_back(finder.level_of(weight));
  return levels;
}

std::vector<std::string> expand_layer_groups(std::span<const std::string> patterns,
                                             std::span<const Weight> weights) {
  std::vector<std::string> expanded;
  for (const std::string& pattern : patterns) {
    const auto last = last_level(pattern);
    const bool is_name = std::ranges::any_of(weights, [&](const Weight& weight) {
      return glob_match(pattern, names_for_patterns(*weight.value));
    });
    if (!last || is_name) {
      expanded.push_back(pattern);
      continue;
    }
    const std::size_t before = expanded.size();
    for (const Weight& weight : weights) {
      const bool is_wanted = is_parameter(weight) && weight.level >= 0 && weight.level <= *last;
      if (is_wanted) expanded.push_back(weight.value->name);
    }
    if (expanded.size() == before) {
      throw ModelError({.what = fmt::format("'{}' selects no weight: the last layer has none that "
                                            "is trained by default",
                                            pattern),
                        .hint = "Name weights; `report` lists them with their levels."});
    }
  }
  return expanded;
}

}  // namespace onnxgrad::train
