#include "onnxgrad/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "api/model_impl.h"
#include "base/check.h"
#include "ir/stored_form.h"
#include "train/checkpoints/checkpoint.h"
#include "train/tools/engine.h"
#include "train/tools/patterns.h"
#include "train/weights/initialize.h"

namespace onnxgrad {
namespace {

constexpr std::array<std::pair<std::string_view, InitScheme>, 10> kSchemes{{
    {"auto", InitScheme::kAuto},
    {"glorot_normal", InitScheme::kGlorotNormal},
    {"glorot_uniform", InitScheme::kGlorotUniform},
    {"he_normal", InitScheme::kHeNormal},
    {"he_uniform", InitScheme::kHeUniform},
    {"lecun_normal", InitScheme::kLecunNormal},
    {"lecun_uniform", InitScheme::kLecunUniform},
    {"normal", InitScheme::kNormal},
    {"uniform", InitScheme::kUniform},
    {"zeros", InitScheme::kZeros},
}};

}  // namespace

namespace api {

namespace {

bool has_weights(const Model::Impl& model, const NamedTensors& weights) {
  return std::ranges::all_of(weights, [&](const NamedTensor& weight) {
    return train::find_by_any_name(*model.working()->graph, weight.name) != nullptr;
  });
}

// A tensor that the file stores twice is set in both places.
void add_tied(const Model::Impl& model, NamedTensors& weights) {
  const auto find = [&](const ir::Value* value) {
    return std::ranges::find(weights, value->name, &NamedTensor::name);
  };
  // The first is that of all its copies.
  for (const auto from : {&train::TiedWeight::copy, &train::TiedWeight::main}) {
    const auto to =
        from == &train::TiedWeight::copy ? &train::TiedWeight::main : &train::TiedWeight::copy;
    for (const train::TiedWeight& tied : model.tied()) {
      const auto given = find(tied.*from);
      if (given == weights.end() || find(tied.*to) != weights.end()) continue;
      Tensor numbers = train::tied_form(tied, given->tensor);
      weights.push_back({.name = (tied.*to)->name, .tensor = std::move(numbers)});
    }
  }
}

}  // namespace

Model with_weights(const Model& model, const NamedTensors& weights) {
  if (!has_weights(model.impl(), weights)) {
    const auto& apart = model.impl().untied();
    if (apart != nullptr && has_weights(*apart, weights)) {
      return with_weights(Model(apart), weights);
    }
  }
  NamedTensors stored = weights;
  const ir::Model& working = *model.impl().working();
  bool is_quantized = false;
  for (NamedTensor& weight : stored) {
    const ir::Value& value = *find_weight(working, weight.name);
    weight.name = value.name;
    is_quantized = is_quantized ||
                   (is_floating(weight.tensor.dtype()) && !is_floating(value.initializer.dtype()));
  }
  if (is_quantized) train::to_integers(model.impl().float_form(), stored);
  for (NamedTensor& weight : stored) {
    const ir::Value& value = *find_weight(working, weight.name);
    const Tensor& old = value.initializer;
    const auto is_like = [&weight](const Tensor& other) {
      return weight.tensor.dtype() == other.dtype() && weight.tensor.dims() == other.dims();
    };
    if (is_like(old)) continue;
    const ir::Value& trained = *find_weight(*model.impl().training_copy(), weight.name);
    const bool is_master = is_f16(old.dtype()) && weight.tensor.dtype() == DataType::kFloat32;
    if (is_master && weight.tensor.dims() == old.dims()) {
      weight.tensor = weight.tensor.cast(old.dtype());
      continue;
    }
    const bool is_tied = trained.origin != nullptr &&
                         (is_like(trained.initializer) ||
                          (is_master && weight.tensor.dims() == trained.initializer.dims()));
    if (is_tied) {
      weight.tensor = ir::stored_form(weight.tensor, *trained.origin, old.dims()).cast(old.dtype());
      continue;
    }
    throw ModelError(
        {.what = fmt::format("weight '{}' is {}{}, but {}{} was given", weight.name,
                             dtype_name(old.dtype()), old.dims().to_string(),
                             dtype_name(weight.tensor.dtype()), weight.tensor.dims().to_string()),
         .where = {.value = weight.name},
         .hint = "Give it the type and shape that it has in the model."});
  }
  add_tied(model.impl(), stored);
  return Model(std::make_shared<const Model::Impl>(model.impl(), stored));
}

Model with_trained_weights(const Model& model, NamedTensors weights) {
  train::to_integers(model.impl().float_form(), weights);
  return with_weights(model, weights);
}

}  // namespace api

InitScheme init_scheme_from_name(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [known, scheme] : kSchemes) {
    if (known == name) return scheme;
    names.emplace_back(known);
  }
  throw ModelError({.what = "there is no initialisation '" + std::string(name) + "'",
                    .detail = "Known: " + base::quote_list(names, names.size()) + ".",
                    .hint = base::nearest_or(name, names)});
}

Model initialize(const Model& model, const InitializeOptions& options) {
  const Model apart = api::untied(model, options.untie);
  return api::with_weights(
      apart, train::draw_weights(*apart.impl().training_copy(), train::builtin_ops(), options));
}

NamedTensors load_weights(const std::string& path) { return train::read_weights(path); }

Model set_weights(const Model& model, const NamedTensors& weights) {
  NamedTensors copies;  // the caller may continue writing to its arrays
  for (const NamedTensor& weight : weights) {
    copies.push_back({.name = weight.name, .tensor = weight.tensor.clone()});
  }
  return api::with_weights(model, copies);
}

}  // namespace onnxgrad
