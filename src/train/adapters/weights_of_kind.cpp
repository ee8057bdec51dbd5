#include "train/adapters/weights_of_kind.h"

#include <algorithm>

#include "ir/pattern.h"
#include "onnxgrad/error.h"

namespace onnxgrad::train {

using ir::is_op;
using ir::Node;

namespace {

bool is_normalization(const Weight& weight) {
  const std::string& op_type = weight.reader->op_type;
  if (op_type.ends_with("Normalization")) return weight.input == 1 || weight.input == 2;
  // The scale and shift of one that is written out.
  return weight.is_of_layer && weight.layer == nullptr &&
         is_op(*weight.reader, {"Mul", "Add", "Div", "Sub"});
}

bool is_bias(const Weight& weight) {
  const Dims& dims = weight.value->initializer.dims();
  if (std::ranges::count_if(dims, [](std::int64_t dim) { return dim > 1; }) > 1) return false;
  if (weight.layer != nullptr) return true;  // an Add adds it to the result of a layer
  const Node& reader = *weight.reader;
  if (is_op(reader, {"Gemm", "Conv", "ConvTranspose"})) return weight.input == 2;
  if (is_op(reader, {"LSTM", "GRU", "RNN"})) return weight.input == 3;
  if (is_op(reader, {"Add", "Sub"})) return weight.is_of_layer;
  return reader.op_type.ends_with("Normalization") && weight.input == 2;
}

}  // namespace

std::vector<std::string> weights_of_kind(const std::vector<Weight>& weights, AdapterKind kind) {
  std::vector<std::string> names;
  for (const Weight& weight : weights) {
    if (!weight.trainable) continue;
    if (kind == AdapterKind::kBias ? is_bias(weight) : is_normalization(weight)) {
      names.push_back(weight.value->name);
    }
  }
  if (names.empty()) {
    throw ModelError({.what = kind == AdapterKind::kBias
                                  ? "the model has no biases to train"
                                  : "the model has no scales and shifts of normalisations to train",
                      .hint = "Use LoRA, or name weights with trainable=."});
  }
  return names;
}

}  // namespace onnxgrad::train
