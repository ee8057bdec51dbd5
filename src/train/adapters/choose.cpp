#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "train/adapters/insert.h"
#include "train/tools/patterns.h"

namespace onnxgrad::train {
namespace {

constexpr std::array<std::string_view, 12> kRoles{
    "attention", "query", "key",      "value", "attention_output", "mlp",
    "mlp_up",    "head",  "mlp_down", "conv",  "embedding",        "linear"};

bool has_role(const AdaptableLayer& layer, std::string_view wanted) {
  const std::string& role = layer.role;
  const bool is_attention = role == "query" || role == "key" || role == "value" || role == "qkv" ||
                            role == "attention_output";
  if (wanted == "attention") return is_attention;
  if (wanted == "mlp") return role.starts_with("mlp");
  if (wanted == "linear") return layer.kind == LayerKind::kLinear;
  if (wanted == "conv") return layer.kind == LayerKind::kConvolution;
  if (wanted == "query" || wanted == "key" || wanted == "value") {
    return role == wanted || role == "qkv";
  }
  return role == wanted;
}

// "q_proj" and "self_attn.q_proj" name the module "layers.0.self_attn.q_proj".
bool ends_in(std::string_view module, std::string_view parts) {
  if (!module.ends_with(parts) || module.size() <= parts.size()) return false;
  const char before = module[module.size() - parts.size() - 1];
  return before == '.' || before == '/';
}

bool matches(const AdaptableLayer& layer, const std::string& pattern) {
  if (std::ranges::find(kRoles, pattern) != kRoles.end()) return has_role(layer, pattern);
  if (ends_in(layer.module, pattern)) return true;
  return std::ranges::any_of(layer.names,
                             [&](const std::string& name) { return glob_match(pattern, name); });
}

std::vector<std::string> modules_of(const std::vector<AdaptableLayer>& layers) {
  std::vector<std::string> names;
  for (const AdaptableLayer& layer : layers) {
    if (!layer.module.empty()) names.push_back(layer.module);
  }
  return names;
}

[[noreturn]] void refuse_pattern(const std::string& pattern, const char* option,
                                 const std::vector<AdaptableLayer>& layers) {
  const std::vector<std::string> modules = modules_of(layers);
  const bool is_role = std::ranges::find(kRoles, pattern) != kRoles.end();
  std::vector<std::string> known = modules;
  if (!is_role) known.insert(known.end(), kRoles.begin(), kRoles.end());
  throw ModelError({.what = fmt::format("no layer matches '{}' of {}", pattern, option),
                    .where = {.value = pattern},
                    .detail = "Layers that an adapter fits: " + base::quote_list(modules) + ".",
                    .hint = base::nearest_or(
                        is_role ? std::string_view() : pattern, known,
                        R"(Name layers, or what they are: "attention", "mlp", "linear".)")});
}

std::vector<std::string> default_targets(const std::vector<AdaptableLayer>& layers,
                                         AdapterKind kind) {
  const bool has_linear = std::ranges::any_of(layers, [](const AdaptableLayer& layer) {
    return layer.kind == LayerKind::kLinear && layer.role != "head";
  });
  if (has_linear && kind == AdapterKind::kIa3) return {"key", "value", "mlp_down"};
  if (has_linear) return {"linear"};
  const bool has_convolution = std::ranges::any_of(layers, [](const AdaptableLayer& layer) {
    return layer.kind == LayerKind::kConvolution && layer.role != "head";
  });
  return {has_convolution ? "conv" : "linear"};
}

}  // namespace

std::vector<AdaptableLayer> named_layers(std::vector<AdaptableLayer> layers,
                                         const LayerForms& forms) {
  for (const auto& [module, form] : forms) {
    const auto is_named = [&](const AdaptableLayer& layer) {
      return layer.module == module && form.is_embedding == (layer.kind == LayerKind::kEmbedding);
    };
    const auto found = std::ranges::find_if(layers, is_named);
    if (found == layers.end()) refuse_pattern(module, "the adapter", layers);
  }
  std::erase_if(layers, [&forms](const AdaptableLayer& layer) {
    const auto form = forms.find(layer.module);
    return form == forms.end() ||
           form->second.is_embedding != (layer.kind == LayerKind::kEmbedding);
  });
  return layers;
}

std::vector<AdaptableLayer> choose_layers(std::vector<AdaptableLayer> layers,
                                          const AdapterOptions& options) {
  if (layers.empty()) {
    throw ModelError({.what = "the model has no layer that an adapter fits",
                      .detail = "Adapters fit MatMul and Gemm with a weight matrix, Conv without "
                                "groups, and Gather from a table, outside of functions.",
                      .hint = "Train some of its weights instead: trainable=."});
  }
  const bool is_default = options.targets.empty();
  const std::vector<std::string> targets =
      is_default ? default_targets(layers, options.kind) : options.targets;
  std::vector<bool> chosen(layers.size(), false);
  for (const std::string& pattern : targets) {
    bool any = false;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (!matches(layers[i], pattern)) continue;
      chosen[i] = any = true;
    }
    if (!any && !is_default) refuse_pattern(pattern, "targets", layers);
  }
  if (is_default) {  // the head is replaced, or kept: see AdapterOptions::full
    const std::vector<bool> with_head = chosen;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (layers[i].role == "head") chosen[i] = false;
    }
    if (std::ranges::none_of(chosen, std::identity())) chosen = with_head;
  }
  for (const std::string& pattern : options.exclude) {
    bool any = false;
    for (std::size_t i = 0; i < layers.size(); ++i) {
      if (!matches(layers[i], pattern)) continue;
      chosen[i] = false;
      any = true;
    }
    if (!any) refuse_pattern(pattern, "exclude", layers);
  }
  std::vector<AdaptableLayer> result;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (chosen[i]) result.push_back(std::move(layers[i]));
  }
  if (result.empty()) {
    throw ModelError(
        {.what = options.exclude.empty()
                     ? fmt::format("the model has no layer that '{}' adapts by default",
                                   adapter_kind_name(options.kind))
                     : "exclude leaves no layer to adapt",
         .detail = "Layers that an adapter fits: " + base::quote_list(modules_of(layers)) + ".",
         .hint = "Name layers with targets."});
  }
  return result;
}

void refuse_two_readings(const std::vector<AdaptableLayer>& layers) {
  std::unordered_set<std::string> modules;
  for (const AdaptableLayer& layer : layers) {
    if (modules.insert(layer.module).second) continue;
    throw ModelError(
        {.what = fmt::format("the weight of '{}' is read in two ways (transposed, or as "
                             "a table), which an adapter cannot follow",
                             layer.module),
         .where = {.value = layer.module},
         .hint = "Exclude it, or name one of the two by its node."});
  }
}

}  // namespace onnxgrad::train
