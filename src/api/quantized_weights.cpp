#include "onnxgrad/quantized_weights.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/model_impl.h"
#include "base/check.h"
#include "onnxgrad/option_error.h"
#include "train/adapters/quantize.h"

namespace onnxgrad {
namespace {

// Above this a file has no bytes of its own.
constexpr std::int64_t kMostBytes = 1'900'000'000;

// A model that does not hold the bytes of the file that `model` was made from.
Model on_its_own(const Model& model) {
  std::int64_t size = 0;
  for (const ir::Value* value : model.impl().file.model->graph->initializers) {
    size += value->initializer.size_bytes();
  }
  if (size > kMostBytes) return model;
  return Model::from_bytes(model.to_bytes(), model.impl().options);
}

}  // namespace

WeightFormat weight_format_from_name(std::string_view name) {
  if (name == "int4") return WeightFormat::kInt4;
  if (name == "int8") return WeightFormat::kInt8;
  if (name == "nf4") return WeightFormat::kNf4;
  const std::vector<std::string> known{"int4", "int8", "nf4"};
  throw OptionError({.what = "unknown format of weights '" + base::printable(name) + "'",
                     .detail = "Formats: " + base::quote_list(known) + ".",
                     .hint = base::nearest_or(name, known, "Give one of them.")});
}

Model quantize_weights(const Model& model, const WeightQuantization& options) {
  auto graph = model.impl().copied_graph();
  train::quantize_layers(*graph, *model.impl().working(), options);
  return on_its_own(Model(api::edited(model, std::move(graph))));
}

Model dequantize_weights(const Model& model) {
  auto graph = model.impl().copied_graph();
  train::dequantize_layers(*graph, *model.impl().working());
  return Model(api::edited(model, std::move(graph)));
}

}  // namespace onnxgrad
