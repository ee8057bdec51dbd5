#include "train/weights/adapter_record.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "onnxgrad/option_error.h"

namespace onnxgrad {
namespace {

constexpr std::array<std::pair<std::string_view, AdapterKind>, 5> kKinds{{
    {"lora", AdapterKind::kLora},
    {"dora", AdapterKind::kDora},
    {"ia3", AdapterKind::kIa3},
    {"bitfit", AdapterKind::kBias},
    {"norms", AdapterKind::kNorm},
}};

}  // namespace

AdapterKind adapter_kind_from_name(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [known, kind] : kKinds) {
    if (known == name) return kind;
    names.emplace_back(known);
  }
  throw OptionError({.what = "there is no adapter '" + base::printable(name) + "'",
                     .detail = "Known: " + base::quote_list(names) + ".",
                     .hint = base::nearest_or(name, names)});
}

std::string_view adapter_kind_name(AdapterKind kind) {
  return std::ranges::find(kKinds, kind, &decltype(kKinds)::value_type::second)->first;
}

namespace train {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kVersion = 1;

const std::string* find_entry(const ir::Model& model) {
  for (const auto& [key, text] : model.metadata) {
    if (key == kAdapterEntry) return &text;
  }
  return nullptr;
}

Json to_json(const AdapterSite& site) {
  Json json{{"plain", site.plain}, {"adapted", site.adapted}, {"renamed", site.is_renamed}};
  if (!site.bias.empty()) json["bias"] = site.bias;
  return json;
}

AdapterSite site_from(const Json& json) {
  return {.plain = json.at("plain"),
          .adapted = json.at("adapted"),
          .is_renamed = json.at("renamed"),
          .bias = json.value("bias", "")};
}

// The fields of a layer that are names of tensors or values, by key.
constexpr std::pair<const char*, std::string RecordedLayer::*> kNames[] = {
    {"a", &RecordedLayer::a},
    {"b", &RecordedLayer::b},
    {"magnitude", &RecordedLayer::magnitude},
    {"factors", &RecordedLayer::factors},
    {"norm", &RecordedLayer::norm},
};

Json to_json(const RecordedLayer& layer) {
  Json json{{"module", layer.module}, {"weight", layer.weight}, {"role", layer.role}};
  if (layer.is_transposed) json["transposed"] = true;
  if (layer.scales_inputs) json["scales_inputs"] = true;
  if (layer.rank != 0) json["rank"] = layer.rank;
  if (layer.scale != 0) json["scale"] = layer.scale;
  for (const auto& [key, field] : kNames) {
    if (!(layer.*field).empty()) json[key] = layer.*field;
  }
  for (const AdapterSite& site : layer.sites) json["sites"].push_back(to_json(site));
  return json;
}

RecordedLayer layer_from(const Json& json) {
  RecordedLayer layer{.module = json.at("module"),
                      .weight = json.at("weight"),
                      .role = json.at("role"),
                      .is_transposed = json.value("transposed", false),
                      .scales_inputs = json.value("scales_inputs", false),
                      .rank = json.value("rank", std::int64_t{0}),
                      .scale = json.value("scale", 0.0)};
  for (const auto& [key, field] : kNames) layer.*field = json.value(key, "");
  for (const Json& site : json.at("sites")) layer.sites.push_back(site_from(site));
  return layer;
}

Json to_json(const RecordedAdapter& adapter) {
  const AdapterOptions& options = adapter.options;
  Json json{{"name", options.name},
            {"kind", adapter_kind_name(options.kind)},
            {"rank", options.rank},
            {"alpha", options.alpha},
            {"scale", adapter.scale},
            {"dropout", options.dropout},
            {"rank_stabilized", options.rank_stabilized},
            {"full", options.full},
            {"layers", Json::array()}};
  for (const RecordedLayer& layer : adapter.layers) json["layers"].push_back(to_json(layer));
  return json;
}

RecordedAdapter adapter_from(const Json& json) {
  RecordedAdapter adapter{
      .options = {.kind = adapter_kind_from_name(json.at("kind").get<std::string>()),
                  .rank = json.at("rank"),
                  .alpha = json.at("alpha"),
                  .rank_stabilized = json.at("rank_stabilized"),
                  .dropout = json.at("dropout"),
                  .full = json.at("full"),
                  .name = json.at("name")},
      .scale = json.at("scale"),
      .layers = {}};
  for (const Json& layer : json.at("layers")) adapter.layers.push_back(layer_from(layer));
  return adapter;
}

// A fault of a record that names something twice, or a value as its own replacement; or "".
std::string repeated_name(const std::vector<RecordedAdapter>& adapters) {
  std::unordered_set<std::string> names;
  for (const RecordedAdapter& adapter : adapters) {
    if (adapter.options.rank < 1 || !std::isfinite(adapter.scale)) {
      return "an adapter has no rank of at least 1, or no finite scale";
    }
    const AdapterOptions& options = adapter.options;
    const auto rank = static_cast<double>(options.rank);
    const double scale =
        low_rank_scale(options.alpha == 0 ? rank : options.alpha, rank, options.rank_stabilized);
    if (!(std::abs(adapter.scale - scale) <= 1e-9 * scale)) {
      return "a scale is not that of the adapter's rank and alpha";
    }
    for (const RecordedLayer& layer : adapter.layers) {
      std::vector<std::string> own = tensor_names(layer);
      for (const AdapterSite& site : layer.sites) {
        if (site.plain == site.adapted) return "'" + site.plain + "' is adapted to itself";
        own.push_back("value " + site.adapted);
      }
      for (const std::string& name : own) {
        if (!names.insert(name).second) return "it has '" + name + "' twice";
      }
    }
  }
  return "";
}

}  // namespace

bool has_adapters(const ir::Model& model) { return find_entry(model) != nullptr; }

std::vector<RecordedAdapter> read_adapters(const ir::Model& model) {
  const std::string* text = find_entry(model);
  if (text == nullptr) return {};
  std::string problem;
  try {
    const Json json = Json::parse(*text);
    std::vector<RecordedAdapter> adapters;
    if (json.at("version") != kVersion) {
      problem = "its version is not " + std::to_string(kVersion);
    } else {
      for (const Json& adapter : json.at("adapters")) adapters.push_back(adapter_from(adapter));
      problem = repeated_name(adapters);
      if (problem.empty()) return adapters;
    }
  } catch (const nlohmann::json::exception& error) {
    problem = error.what();
  } catch (const OptionError& error) {
    problem = error.problem().what;
  }
  throw ModelError(
      {.what = "the record of the model's adapters cannot be read: " + base::printable(problem),
       .where = {.value = std::string(kAdapterEntry)},
       .hint = "Remove this entry of the model's metadata to use it as a model "
               "without adapters."});
}

void write_adapters(ir::Model& model, const std::vector<RecordedAdapter>& adapters) {
  std::erase_if(model.metadata, [](const auto& entry) { return entry.first == kAdapterEntry; });
  if (adapters.empty()) return;
  Json json{{"version", kVersion}, {"adapters", Json::array()}};
  for (const RecordedAdapter& adapter : adapters) json["adapters"].push_back(to_json(adapter));
  model.metadata.emplace_back(kAdapterEntry,
                              json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::vector<std::string> tensor_names(const RecordedLayer& layer) {
  std::vector<std::string> names;
  for (const std::string* name : {&layer.a, &layer.b, &layer.magnitude, &layer.factors}) {
    if (!name->empty()) names.push_back(*name);
  }
  return names;
}

std::vector<std::string> trained_names(const std::vector<RecordedAdapter>& adapters) {
  std::vector<std::string> names;
  for (const RecordedAdapter& adapter : adapters) {
    for (const RecordedLayer& layer : adapter.layers) {
      const std::vector<std::string> own = tensor_names(layer);
      names.insert(names.end(), own.begin(), own.end());
    }
    names.insert(names.end(), adapter.options.full.begin(), adapter.options.full.end());
  }
  return names;
}

std::vector<std::string> stopped_names(const ir::Model& model) {
  std::vector<std::string> names;
  for (const RecordedAdapter& adapter : read_adapters(model)) {
    for (const RecordedLayer& layer : adapter.layers) {
      if (!layer.norm.empty()) names.push_back(layer.norm);
    }
  }
  return names;
}

}  // namespace train
}  // namespace onnxgrad
