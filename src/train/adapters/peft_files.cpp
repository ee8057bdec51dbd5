#include "train/adapters/peft_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
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

Json config_of(const RecordedAdapter& adapter) {
  const AdapterOptions& options = adapter.options;
  Json modules = Json::array();
  Json feedforward = Json::array();
  for (const RecordedLayer& layer : adapter.layers) {
    modules.push_back(layer.module);
    if (layer.scales_inputs) feedforward.push_back(layer.module);
  }
  Json config{{"peft_type", options.kind == AdapterKind::kIa3 ? "IA3" : "LORA"},
              {"task_type", nullptr},
              {"base_model_name_or_path", nullptr},
              {"inference_mode", true},
              {"target_modules", std::move(modules)},
              {"fan_in_fan_out", false}};
  if (options.kind == AdapterKind::kIa3) {
    config["feedforward_modules"] = std::move(feedforward);
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
  }
  config["modules_to_save"] = nullptr;
  if (!options.full.empty()) {
    std::vector<std::string> saved;
    for (const std::string& name : options.full) {
      std::string module = name.substr(0, name.rfind('.'));
      if (std::ranges::find(saved, module) == saved.end()) saved.push_back(std::move(module));
    }
    config["modules_to_save"] = saved;
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

// The value for a module in a pattern of the configuration, whose keys are ends of modules.
std::optional<double> value_for(const Json& config, const char* key, const std::string& module) {
  const auto found = config.find(key);
  if (found == config.end() || !found->is_object()) return std::nullopt;
  for (const auto& [pattern, value] : found->items()) {
    const bool is_end = module.ends_with("." + pattern) || module == pattern;
    if (is_end && value.is_number()) return value.get<double>();
  }
  return std::nullopt;
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

double scale_of(double alpha, double rank, bool rank_stabilized) {
  return alpha / (rank_stabilized ? std::sqrt(rank) : rank);
}

}  // namespace

void write_peft_files(const std::string& folder, const RecordedAdapter& adapter,
                      NamedTensors tensors) {
  const AdapterKind kind = adapter.options.kind;
  if (kind == AdapterKind::kBias || kind == AdapterKind::kNorm) {
    throw ModelError({.what = fmt::format("PEFT has no file for '{}': nothing was added to the "
                                          "model",
                                          adapter_kind_name(kind)),
                      .hint = "Save the model, or its state_dict()."});
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
    base::write_atomically(path_in(folder, kConfigFile), config_of(adapter).dump(2) + "\n");
  } catch (const CheckpointError&) {
    throw;
  } catch (const Error& error) {
    rethrow_as_checkpoint_error(error);
  }
}

PeftAdapter read_peft_files(const std::string& folder) {
  const std::string path = path_in(folder, kConfigFile);
  const Json config = read_config(path);
  PeftAdapter adapter;
  AdapterOptions& options = adapter.options;
  try {
    read_options(path, config, options);
  } catch (const nlohmann::json::exception& error) {
    refuse(path, "the configuration cannot be read: " + base::printable(error.what()),
           "Save the adapter again.");
  }
  const SafetensorsFile file = SafetensorsFile::open(path_in(folder, kTensorFile));
  std::int64_t rank = options.kind == AdapterKind::kIa3 ? options.rank : 0;
  std::map<std::string, std::int64_t> ranks;  // by module
  for (const SafetensorsEntry& entry : file.entries()) {
    std::string_view name = entry.name;
    if (name.starts_with(kPeftPrefix)) name.remove_prefix(kPeftPrefix.size());
    const TensorName parts = split_name(name);
    adapter.tensors.push_back(
        {.name = parts.part.empty() ? parts.module : parts.module + "." + parts.part,
         .tensor = file.read(entry)});
    if (parts.part.empty()) {
      options.full.push_back(parts.module);
      continue;
    }
    if (std::ranges::find(options.targets, parts.module) == options.targets.end()) {
      options.targets.push_back(parts.module);
    }
    if (is_first_matrix(parts.part) && entry.dims.rank() >= 2) {
      ranks[parts.module] = entry.dims[0];
      rank = std::max(rank, entry.dims[0]);
    }
  }
  if (options.targets.empty()) {
    refuse(file.path(), "the file has no tensors of an adapter",
           "Give a folder that PEFT's save_pretrained() or save_adapter() wrote.");
  }
  if (options.kind == AdapterKind::kIa3) return adapter;
  // One rank and one scale for all layers.
  const double scale =
      scale_of(options.alpha, static_cast<double>(options.rank), options.rank_stabilized);
  for (NamedTensor& tensor : adapter.tensors) {
    const TensorName parts = split_name(tensor.name);
    const auto known = ranks.find(parts.module);
    if (known == ranks.end() || parts.part.empty()) continue;
    const std::int64_t own_rank = known->second;
    if (is_first_matrix(parts.part) && own_rank != rank) {
      tensor.tensor = filled_up(tensor.tensor, 0, rank, 1);
    } else if (is_second_matrix(parts.part) && tensor.tensor.dims().rank() >= 2) {
      const double alpha = value_for(config, "alpha_pattern", parts.module).value_or(options.alpha);
      const double own = scale_of(alpha, static_cast<double>(own_rank), options.rank_stabilized);
      if (own_rank != rank || own != scale) {
        tensor.tensor = filled_up(tensor.tensor, 1, rank, own / scale);
      }
    }
  }
  // alpha / rank, or alpha / sqrt(rank), stays what it was.
  options.alpha = scale * (options.rank_stabilized ? std::sqrt(static_cast<double>(rank))
                                                   : static_cast<double>(rank));
  options.rank = rank;
  return adapter;
}

}  // namespace onnxgrad::train
