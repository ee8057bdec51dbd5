#include "train/adapters/peft_files.h"

#include <fmt/format.h>

#include <re2/re2.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "train/checkpoints/safetensors.h"

namespace onnxgrad::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kConfigFile = "adapter_config.json";
constexpr const char* kTensorFile = "adapter_model.safetensors";
constexpr std::int64_t kMaxConfigBytes = 1 << 20;

std::string path_in(const std::string& folder, const char* file) {
  return (std::filesystem::path(folder) / file).string();
}

std::string module_of(const std::string& weight) { return weight.substr(0, weight.rfind('.')); }

// Modules as PEFT chooses them. It takes names in a list for ends of names: the "0" of a list would
// be "encoder.0" too, which may be any layer.
Json chosen(const std::vector<std::string>& modules) {
  const auto is_number = [](const std::string& module) {
    return module.find_first_not_of("0123456789") == std::string::npos;
  };
  if (std::ranges::none_of(modules, is_number)) return modules;
  std::string pattern;
  for (const std::string& module : modules) {
    pattern += (pattern.empty() ? "" : "|") + re2::RE2::QuoteMeta(module);
  }
  return "^(" + pattern + ")$";
}

Json config_of(const RecordedAdapter& adapter, bool keeps_ties) {
  const AdapterOptions& options = adapter.options;
  std::vector<std::string> modules;
  std::vector<std::string> feedforward;
  for (const RecordedLayer& layer : adapter.layers) {
    modules.push_back(layer.module);
    if (layer.scales_inputs) feedforward.push_back(layer.module);
  }
  Json config{{"peft_type", options.kind == AdapterKind::kIa3 ? "IA3" : "LORA"},
              {"task_type", nullptr},
              {"base_model_name_or_path", nullptr},
              {"inference_mode", true},
              {"target_modules", chosen(modules)},
              {"fan_in_fan_out", false}};
  if (options.kind == AdapterKind::kIa3) {
    config["feedforward_modules"] =
        config["target_modules"].is_array() ? Json(feedforward) : chosen(feedforward);
    config["init_ia3_weights"] = true;
  } else {
    const double alpha = options.alpha == 0 ? static_cast<double>(options.rank) : options.alpha;
    config["r"] = options.rank;
    config["lora_alpha"] = alpha;
    if (alpha == std::floor(alpha)) config["lora_alpha"] = static_cast<std::int64_t>(alpha);
    config["lora_dropout"] = options.dropout;
    config["use_rslora"] = options.rank_stabilized;
    config["use_dora"] = options.kind == AdapterKind::kDora;
    config["bias"] = "none";
    config["init_lora_weights"] = true;
    config["rank_pattern"] = Json::object();
    config["alpha_pattern"] = Json::object();
    for (const RecordedLayer& layer : adapter.layers) {
      const std::string key = "^" + re2::RE2::QuoteMeta(layer.module);
      const auto rank = static_cast<double>(rank_of(adapter, layer));
      if (layer.rank != 0) config["rank_pattern"][key] = layer.rank;
      if (layer.rank == 0 && layer.scale == 0) continue;
      config["alpha_pattern"][key] =
          scale_of(adapter, layer) * (options.rank_stabilized ? std::sqrt(rank) : rank);
    }
  }
  config["modules_to_save"] = nullptr;
  if (!options.full.empty()) {
    const std::vector<std::string> saved = saved_modules(adapter);
    for (const std::string& name : options.full) {
      const std::string module = module_of(name);
      if (std::ranges::find(modules, module) != modules.end()) {
        if (config["bias"] == "none") config["bias"] = "lora_only";
      } else if (std::ranges::find(saved, module) == saved.end()) {
        config["bias"] = "all";
      }
    }
    if (!saved.empty()) config["modules_to_save"] = saved;
    if (!saved.empty() && keeps_ties) config["ensure_weight_tying"] = true;
  }
  return config;
}

[[noreturn]] void refuse(const std::string& path, std::string what, std::string hint) {
  throw CheckpointError(
      {.what = std::move(what), .where = {.file = path}, .hint = Hint(std::move(hint))});
}

Json read_config(const std::string& path) {
  std::string text;
  try {
    const base::ReadableFile file = base::ReadableFile::open(path);
    if (file.size_bytes() > kMaxConfigBytes) {
      refuse(path, "the file is too long for a configuration", "Give the folder of an adapter.");
    }
    text.resize(static_cast<std::size_t>(file.size_bytes()));
    file.read(0, {reinterpret_cast<std::byte*>(text.data()), text.size()});
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    rethrow_as_checkpoint_error(error);
  }
  Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    refuse(path, "this is no configuration of an adapter: no JSON object",
           "Give a folder that PEFT's save_pretrained() or save_adapter() wrote.");
  }
  return config;
}

/// The parts of a tensor's name.
struct TensorName {
  std::string module;
  std::string part;  ///< "lora_A.weight"; empty: a weight of the model, whose name is `module`
};

TensorName split_name(std::string_view name) {
  static constexpr std::array<std::string_view, 6> kParts{
      ".lora_A.weight",    ".lora_B.weight",         ".lora_embedding_A",
      ".lora_embedding_B", ".lora_magnitude_vector", ".ia3_l"};
  for (const std::string_view part : kParts) {
    if (!name.ends_with(part)) continue;
    return {std::string(name.substr(0, name.size() - part.size())), std::string(part.substr(1))};
  }
  constexpr std::string_view kNewMagnitude = ".lora_magnitude_vector.weight";
  if (name.ends_with(kNewMagnitude)) {
    return {std::string(name.substr(0, name.size() - kNewMagnitude.size())),
            "lora_magnitude_vector"};
  }
  return {std::string(name), ""};
}

// The value for a module in "alpha_pattern" or its like: of the first key, a regular expression,
// that fits the end of the module's name.
double value_for(const std::string& path, const Json& config, const char* key,
                 const std::string& module, double value) {
  const auto found = config.find(key);
  if (found == config.end() || !found->is_object()) return value;
  for (const auto& [pattern, given] : found->items()) {
    const re2::RE2 regex("(.*\\.)?(" + pattern + ")", re2::RE2::Quiet);
    if (!regex.ok()) {
      refuse(path,
             fmt::format("{}: '{}' is no regular expression: {}", key, base::printable(pattern),
                         base::printable(regex.error())),
             "Give the names of the modules.");
    }
    if (given.is_number() && re2::RE2::FullMatch(module, regex)) return given.get<double>();
  }
  return value;
}

// Whether the configuration names a module: by the end of its name in a list, or by a pattern.
bool is_listed(const Json& config, const char* key, const std::string& module) {
  const auto list = config.find(key);
  if (list != config.end() && list->is_string()) {
    const re2::RE2 regex(list->get<std::string>(), re2::RE2::Quiet);
    return regex.ok() && re2::RE2::FullMatch(module, regex);
  }
  if (list == config.end() || !list->is_array()) return false;
  return std::ranges::any_of(*list, [&module](const Json& name) {
    if (!name.is_string()) return false;
    const auto& text = name.get_ref<const std::string&>();
    return module == text || module.ends_with("." + text);
  });
}

// Whether PEFT trains a weight of the model beside the adapter.
bool is_trained(const Json& config, const std::string& name) {
  const std::string bias = config.value("bias", "none");
  if (name.ends_with(".bias") && bias != "none") return true;
  if (is_listed(config, "modules_to_save", name)) return true;
  for (std::size_t end = name.rfind('.'); end != std::string::npos && end > 0;
       end = name.rfind('.', end - 1)) {
    if (is_listed(config, "modules_to_save", name.substr(0, end))) return true;
  }
  return false;
}

// `tensor` with `axis`, the one of the rank, filled up with zeros, and multiplied by `factor`.
Tensor filled_up(const Tensor& tensor, std::size_t axis, std::int64_t rank, double factor) {
  const Dims& dims = tensor.dims();
  std::vector<std::int64_t> sizes(dims.begin(), dims.end());
  sizes[axis] = rank;
  const std::vector<double> from = tensor.to_doubles();
  const Dims wanted(sizes);
  std::vector<double> to(static_cast<std::size_t>(wanted.num_elements()), 0.0);
  const auto inner = static_cast<std::size_t>(dims.product(axis + 1, dims.rank()));
  const auto old_row = static_cast<std::size_t>(dims[axis]) * inner;
  const auto new_row = static_cast<std::size_t>(rank) * inner;
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[(i / old_row * new_row) + (i % old_row)] = factor * from[i];
  }
  return Tensor::from(to, wanted).cast(tensor.dtype());
}

bool is_first_matrix(std::string_view part) {
  return part == "lora_A.weight" || part == "lora_embedding_A";
}
bool is_second_matrix(std::string_view part) {
  return part == "lora_B.weight" || part == "lora_embedding_B";
}

void read_options(const std::string& path, const Json& config, AdapterOptions& options) {
  const auto flag = [&](const char* key) {
    const auto found = config.find(key);
    return found != config.end() && found->is_boolean() && found->get<bool>();
  };
  const std::string type = config.value("peft_type", "");
  if (type == "IA3") {
    options.kind = AdapterKind::kIa3;
    return;
  }
  if (type != "LORA") {
    refuse(path, fmt::format("the adapter is of the kind '{}'", base::printable(type)),
           R"(LoRA, DoRA and (IA)^3 can be read ("peft_type": "LORA" or "IA3").)");
  }
  for (const char* key : {"lora_bias", "target_parameters", "trainable_token_indices",
                          "layer_replication", "alora_invocation_tokens", "use_qalora",
                          "use_bdlora", "velora_config", "arrow_config", "kasa_config"}) {
    const auto found = config.find(key);
    const bool is_set = found != config.end() && !found->is_null() && *found != Json(false) &&
                        !(found->is_structured() && found->empty());
    if (!is_set) continue;
    refuse(path, fmt::format("the adapter has '{}', which computes something else", key),
           "LoRA, rsLoRA, DoRA and (IA)^3 without it can be read.");
  }
  options.kind = flag("use_dora") ? AdapterKind::kDora : AdapterKind::kLora;
  options.rank_stabilized = flag("use_rslora");
  options.dropout = config.value("lora_dropout", 0.0);
  options.alpha = config.value("lora_alpha", 0.0);
  options.rank = config.value("r", std::int64_t{0});
  if (options.rank < 1 || !(options.alpha > 0)) {
    refuse(path, R"(the configuration has no rank "r" and no "lora_alpha" above 0)",
           "Save the adapter again.");
  }
}

}  // namespace

void write_peft_files(const std::string& folder, const RecordedAdapter& adapter,
                      NamedTensors tensors, bool keeps_ties) {
  const AdapterKind kind = adapter.options.kind;
  if (kind == AdapterKind::kBias || kind == AdapterKind::kNorm) {
    throw ModelError({.what = fmt::format("PEFT has no file for '{}': nothing was added to the "
                                          "model",
                                          adapter_kind_name(kind)),
                      .hint = "Save the model, or its state_dict()."});
  }
  const auto table = std::ranges::find(adapter.layers, "embedding", &RecordedLayer::role);
  if (kind == AdapterKind::kIa3 && table != adapter.layers.end()) {
    throw ModelError(
        {.what = fmt::format("PEFT has no file for factors on the table of '{}'", table->module),
         .where = {.value = table->module},
         .hint = "Save the model, or name other targets."});
  }
  try {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) {
      refuse(folder, "the folder cannot be made: " + error.message(), "Give another folder.");
    }
    sort_for_safetensors(tensors);
    // The tensors first: a folder with a configuration is complete.
    write_safetensors(path_in(folder, kTensorFile), safetensors_head(tensors, {{"format", "pt"}}),
                      tensors);
    base::write_atomically(path_in(folder, kConfigFile),
                           config_of(adapter, keeps_ties).dump(2) + "\n");
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    rethrow_as_checkpoint_error(error);
  }
}

std::vector<std::string> saved_modules(const RecordedAdapter& adapter) {
  const std::vector<std::string>& full = adapter.options.full;
  std::vector<std::string> saved;
  for (const std::string& name : full) {
    const std::string module = module_of(name);
    const bool is_adapted =
        std::ranges::find(adapter.layers, module, &RecordedLayer::module) != adapter.layers.end();
    const bool is_alone =
        name.ends_with(".bias") && std::ranges::find(full, module + ".weight") == full.end();
    if (is_adapted || is_alone || std::ranges::find(saved, module) != saved.end()) continue;
    saved.push_back(module);
  }
  return saved;
}

std::string without_base_layer(std::string_view name) {
  constexpr std::string_view kPart = ".base_layer.";
  std::string result(name);
  const std::size_t at = result.find(kPart);
  if (at != std::string::npos) result.replace(at, kPart.size(), ".");
  return result;
}

std::string peft_weight_name(const std::string& name, const RecordedAdapter& adapter) {
  const std::size_t end = name.rfind('.');
  if (end == std::string::npos) return name;
  const std::string module = name.substr(0, end);
  const auto found = std::ranges::find(adapter.layers, module, &RecordedLayer::module);
  return found == adapter.layers.end() ? name : module + ".base_layer" + name.substr(end);
}

PeftAdapter read_peft_files(const std::string& folder) {
  const std::string path = path_in(folder, kConfigFile);
  const Json config = read_config(path);
  PeftAdapter adapter;
  AdapterOptions& options = adapter.options;
  const std::string tensor_path = path_in(folder, kTensorFile);
  try {
    read_options(path, config, options);
    const auto ties = config.find("ensure_weight_tying");
    adapter.keeps_ties = ties != config.end() && ties->is_boolean() && ties->get<bool>();
    const SafetensorsFile file = SafetensorsFile::open(tensor_path);
    for (const SafetensorsEntry& entry : file.entries()) {
      std::string_view name = entry.name;
      if (name.starts_with(kPeftPrefix)) name.remove_prefix(kPeftPrefix.size());
      const TensorName parts = split_name(name);
      if (parts.part.empty()) {
        std::string weight = without_base_layer(parts.module);
        const bool trained = is_trained(config, weight);
        if (trained) options.full.push_back(weight);
        (trained ? adapter.tensors : adapter.frozen)
            .push_back({.name = std::move(weight), .tensor = file.read(entry)});
        continue;
      }
      adapter.tensors.push_back(
          {.name = parts.module + "." + parts.part, .tensor = file.read(entry)});
      LayerForm& form = adapter.layers[parts.module];
      const Dims& dims = entry.dims;
      if (parts.part.starts_with("lora_embedding")) form.is_embedding = true;
      if (parts.part == "ia3_l") {  // [1, in] or [out, 1], of a convolution [1, channels, 1, 1]
        form.scales_inputs = config.contains("feedforward_modules")
                                 ? is_listed(config, "feedforward_modules", parts.module)
                                 : dims.rank() >= 2 && dims[0] == 1;
        form.rank = 1;
      } else if (is_first_matrix(parts.part) && dims.rank() >= 2) {
        form.rank = dims[0];
        const double alpha = value_for(path, config, "alpha_pattern", parts.module, options.alpha);
        form.scale = low_rank_scale(alpha, static_cast<double>(form.rank), options.rank_stabilized);
      }
    }
  } catch (const nlohmann::json::exception& error) {
    refuse(path, "the configuration cannot be read: " + base::printable(error.what()),
           "Save the adapter again.");
  }
  const auto lacks_rank = [](const auto& layer) { return layer.second.rank < 1; };
  if (adapter.layers.empty() || std::ranges::any_of(adapter.layers, lacks_rank)) {
    refuse(tensor_path,
           adapter.layers.empty()
               ? "the file has no tensors of an adapter"
               : "the file has no 'lora_A' of '" +
                     std::ranges::find_if(adapter.layers, lacks_rank)->first + "'",
           "Give a folder that PEFT's save_pretrained() or save_adapter() wrote.");
  }
  return adapter;
}

void fit_tensors(PeftAdapter& adapter, const LayerForms& wanted) {
  for (NamedTensor& tensor : adapter.tensors) {
    const TensorName parts = split_name(tensor.name);
    const auto form = wanted.find(parts.module);
    if (parts.part.empty() || form == wanted.end()) continue;
    const LayerForm& own = adapter.layers.at(parts.module);
    if (own.scales_inputs != form->second.scales_inputs) {
      throw ModelError({.what = fmt::format("the adapters scale different sides of '{}': inputs "
                                            "and results",
                                            parts.module),
                        .where = {.value = parts.module},
                        .hint = "Load it into the model without adapters."});
    }
    const std::int64_t rank = form->second.rank;
    if (own.rank > rank || tensor.tensor.dims().rank() < 2) continue;
    if (is_first_matrix(parts.part) && own.rank < rank) {
      tensor.tensor = filled_up(tensor.tensor, 0, rank, 1);
    } else if (is_second_matrix(parts.part) &&
               (own.rank < rank || own.scale != form->second.scale)) {
      tensor.tensor = filled_up(tensor.tensor, 1, rank, own.scale / form->second.scale);
    }
  }
}

}  // namespace onnxgrad::train
