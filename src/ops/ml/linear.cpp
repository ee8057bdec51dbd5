#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// LinearRegressor and LinearClassifier (ai.onnx.ml 1) as tensor operators. Their weights are
// attributes; each becomes an initializer with its inverse (ir::WeightOrigin).

namespace onnxgrad::ops::linear_op {

using ir::WeightOrigin;

namespace {

constexpr std::string_view kMl = "ai.onnx.ml";

[[noreturn]] void refuse(const Node& node, std::string what, std::string detail = {}) {
  throw ModelError({.what = std::move(what),
                    .where = {.node = node.name, .op_type = node.op_type},
                    .detail = std::move(detail),
                    .hint = "Export the model again: its attributes are inconsistent."});
}

const std::string& first_output_name(const Node& node) {
  for (const Value* output : node.outputs) {
    if (output != nullptr) return output->name;
  }
  refuse(node, "the node has no outputs");
}

// Adds an initializer for the weight stored in the attribute `attribute`.
Value* add_weight(GraphBuilder& g, const Node& node, const std::string& attribute, Tensor numbers,
                  std::vector<std::int64_t> index = {}, std::vector<float> factor = {}) {
  const std::string& name = first_output_name(node);
  Value* weight = g.graph().add_initializer(name + "." + attribute, std::move(numbers));
  weight->origin =
      std::make_shared<const WeightOrigin>(WeightOrigin{.kind = WeightOrigin::Kind::kAttribute,
                                                        .name = name,
                                                        .attribute = attribute,
                                                        .index = std::move(index),
                                                        .factor = std::move(factor)});
  return weight;
}

// Computes `rows` scores per sample from `features` inputs; empty intercepts: none.
struct LinearModel {
  std::int64_t rows = 0;
  std::int64_t features = 0;
  std::vector<float> coefficients;
  std::vector<float> intercepts;

  // Returns true if there are two rows, one the negative of the other: a model of one score, as
  // scikit-learn exports binary classifiers.
  bool is_mirrored() const {
    if (rows != 2) return false;
    for (std::int64_t i = 0; i < features; ++i) {
      const auto k = static_cast<std::size_t>(i);
      if (coefficients[k] != -coefficients[k + static_cast<std::size_t>(features)]) return false;
    }
    return intercepts.empty() || intercepts[0] == -intercepts[1];
  }
};

LinearModel read_model(const Node& node, std::int64_t rows) {
  LinearModel model{.rows = rows,
                    .coefficients = node.floats_attribute("coefficients"),
                    .intercepts = node.floats_attribute("intercepts")};
  const auto count = static_cast<std::int64_t>(model.coefficients.size());
  if (rows < 1 || count == 0 || count % rows != 0) {
    refuse(node, fmt::format("{} coefficients for {} rows", count, rows),
           "There is one coefficient per row and feature.");
  }
  model.features = count / rows;
  if (!model.intercepts.empty() && static_cast<std::int64_t>(model.intercepts.size()) != rows) {
    refuse(node, fmt::format("{} intercepts for {} rows", model.intercepts.size(), rows));
  }
  const auto features = known_dim(node.input(0), -1);
  if (features && *features != model.features) {
    throw ShapeError({.what = fmt::format("input X has {} features, the coefficients are for {}",
                                          *features, model.features),
                      .where = {.node = node.name, .op_type = node.op_type, .value = "X"},
                      .hint = fmt::format("Give {} features.", model.features)});
  }
  return model;
}

Value* gemm(GraphBuilder& g, Value* x, Value* weight, Value* bias) {
  return g.op("Gemm", {g.cast(x, DataType::kFloat32), weight, bias},
              {{.name = "transB", .value = std::int64_t{1}}});
}

// Returns the scores [N, rows].
Value* all_scores(GraphBuilder& g, const Node& node, const LinearModel& model) {
  Value* weight = add_weight(g, node, "coefficients",
                             Tensor::from(model.coefficients, {model.rows, model.features}));
  Value* bias = nullptr;
  if (!model.intercepts.empty()) {
    bias = add_weight(g, node, "intercepts", Tensor::from(model.intercepts, {model.rows}));
  }
  return gemm(g, node.input(0), weight, bias);
}

// Returns the score [N, 1] of a mirrored model, whose only weight is the second row.
Value* mirrored_score(GraphBuilder& g, const Node& node, const LinearModel& model) {
  const auto second = [](const std::vector<float>& both) {
    return std::vector<float>(both.begin() + static_cast<std::ptrdiff_t>(both.size() / 2),
                              both.end());
  };
  const auto add = [&](const std::string& attribute, const std::vector<float>& both, Dims dims) {
    const std::vector<float> kept = second(both);
    std::vector<std::int64_t> index(both.size());
    std::vector<float> factor(both.size());
    for (std::size_t i = 0; i < both.size(); ++i) {
      index[i] = static_cast<std::int64_t>(i % kept.size());
      factor[i] = i < kept.size() ? -1.0f : 1.0f;
    }
    return add_weight(g, node, attribute, Tensor::from(kept, std::move(dims)), std::move(index),
                      std::move(factor));
  };
  Value* weight = add("coefficients", model.coefficients, {1, model.features});
  Value* bias = nullptr;
  if (!model.intercepts.empty()) bias = add("intercepts", model.intercepts, {1});
  return gemm(g, node.input(0), weight, bias);
}

Value* softmax(GraphBuilder& g, Value* scores) {
  return g.op("Softmax", {scores}, {{.name = "axis", .value = std::int64_t{1}}});
}

// Returns [1 - p, p].
Value* two_columns(GraphBuilder& g, Value* p) {
  return g.concat({g.sub(g.scalar_like(p, 1), p), p}, 1);
}

bool is_matrix(const Value* x) {
  const auto rank = known_rank(x);
  return !rank || *rank == 2;
}

std::optional<std::vector<Value*>> lower_regressor(const Node& node, GraphBuilder& g) {
  const std::int64_t targets = node.int_attribute("targets");
  const std::string transform = node.string_attribute("post_transform");
  if (!is_matrix(node.input(0))) return std::nullopt;
  // With one target, runtimes disagree on whether a transform is applied at all.
  const bool is_known =
      transform == "NONE" || (targets > 1 && (transform == "LOGISTIC" || transform == "SOFTMAX"));
  if (!is_known) return std::nullopt;
  Value* y = all_scores(g, node, read_model(node, targets));
  if (transform == "LOGISTIC") y = g.op("Sigmoid", {y});
  if (transform == "SOFTMAX") y = softmax(g, y);
  return std::vector<Value*>{y};
}

// Adds the class list as an initializer that records its attribute.
Value* add_labels(GraphBuilder& g, const Node& node, const Tensor& labels) {
  const bool are_names = labels.dtype() == DataType::kString;
  Value* list = g.graph().add_initializer(first_output_name(node) + ".classes", labels);
  list->origin = std::make_shared<const WeightOrigin>(
      WeightOrigin{.kind = WeightOrigin::Kind::kAttribute,
                   .name = first_output_name(node),
                   .attribute = are_names ? "classlabels_strings" : "classlabels_ints"});
  return list;
}

// Returns the class list; undefined if there is none.
Tensor class_labels(const Node& node) {
  const auto numbers = node.ints_attribute("classlabels_ints");
  if (!numbers.empty()) {
    return Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())});
  }
  const ir::AttributeValue* value = node.find_attribute("classlabels_strings");
  const auto* names = value == nullptr ? nullptr : std::get_if<std::vector<std::string>>(value);
  if (names == nullptr || names->empty()) return {};
  return Tensor::from_strings(*names, {static_cast<std::int64_t>(names->size())});
}

// Result of a classifier; the label is the argmax of `ranking`.
struct Classification {
  Value* ranking = nullptr;
  Value* probabilities = nullptr;
};

// Classifies by one score s: classes 0 and 1.
std::optional<Classification> classify_by_one(GraphBuilder& g, Value* s, bool is_mirrored,
                                              const std::string& transform) {
  if (transform == "LOGISTIC") {
    Value* columns = two_columns(g, g.op("Sigmoid", {s}));
    return Classification{.ranking = columns, .probabilities = columns};
  }
  Value* mirrored = g.concat({g.neg(s), s}, 1);
  if (transform == "NONE") {
    return Classification{.ranking = mirrored,
                          .probabilities = is_mirrored ? mirrored : two_columns(g, s)};
  }
  if (transform == "SOFTMAX" && is_mirrored) {
    return Classification{.ranking = mirrored, .probabilities = softmax(g, mirrored)};
  }
  return std::nullopt;
}

std::optional<Classification> classify(GraphBuilder& g, const Node& node, std::int64_t num_labels) {
  const std::string transform = node.string_attribute("post_transform");
  // PROBIT and SOFTMAX_ZERO are not lowered; the node is kept.
  if (transform != "NONE" && transform != "LOGISTIC" && transform != "SOFTMAX") return std::nullopt;
  const auto intercepts = static_cast<std::int64_t>(node.floats_attribute("intercepts").size());
  const std::int64_t rows = intercepts > 0 ? intercepts : num_labels;
  if (rows != num_labels && !(rows == 1 && num_labels == 2)) {
    refuse(node, fmt::format("{} rows of coefficients for {} classes", rows, num_labels));
  }
  const LinearModel model = read_model(node, rows);
  if (rows == 1) {
    if (num_labels != 2 || transform == "SOFTMAX") return std::nullopt;
    return classify_by_one(g, all_scores(g, node, model), false, transform);
  }
  if (model.is_mirrored()) {
    return classify_by_one(g, mirrored_score(g, node, model), true, transform);
  }
  Value* scores = all_scores(g, node, model);
  Value* probabilities = scores;
  if (transform == "LOGISTIC") probabilities = g.op("Sigmoid", {scores});
  if (transform == "SOFTMAX") probabilities = softmax(g, scores);
  return Classification{.ranking = scores, .probabilities = probabilities};
}

// Returns (labels [N], probabilities [N, E]).
std::optional<std::vector<Value*>> lower_classifier(const Node& node, GraphBuilder& g) {
  const Tensor labels = class_labels(node);
  if (!labels.is_defined() || !is_matrix(node.input(0))) return std::nullopt;
  const auto result = classify(g, node, labels.num_elements());
  if (!result) return std::nullopt;
  std::vector<Value*> outputs(node.outputs.size(), nullptr);
  if (node.output(0) != nullptr) {
    Value* number = g.op("ArgMax", {result->ranking},
                         {{.name = "axis", .value = std::int64_t{1}},
                          {.name = "keepdims", .value = std::int64_t{0}}});
    outputs[0] = g.gather(add_labels(g, node, labels), number, 0);
  }
  if (node.output(1) != nullptr) outputs[1] = result->probabilities;
  return outputs;
}

AttributeSpec floats(std::string_view name, bool required = false) {
  return {.name = name,
          .type = AttributeType::kFloats,
          .required = required,
          .max_count = std::size_t{1} << 31};
}

AttributeSpec post_transform() {
  return choice_attribute("post_transform",
                          {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"});
}

}  // namespace

void register_linear(opdef::OpRegistry& registry) {
  registry.add({.domain = kMl,
                .op_type = "LinearRegressor",
                .since_version = 1,
                .attributes = {floats("coefficients"),
                               floats("intercepts"),
                               post_transform(),
                               {.name = "targets",
                                .type = AttributeType::kInt,
                                .min = 1,
                                .max = std::int64_t{1} << 31,
                                .default_value = std::int64_t{1}}},
                .lower = lower_regressor});
  registry.add({.domain = kMl,
                .op_type = "LinearClassifier",
                .since_version = 1,
                .attributes = {floats("coefficients", true),
                               floats("intercepts"),
                               post_transform(),
                               flag_attribute("multi_class", false),
                               {.name = "classlabels_ints", .type = AttributeType::kInts},
                               {.name = "classlabels_strings", .type = AttributeType::kStrings}},
                .lower = lower_classifier});
}

}  // namespace onnxgrad::ops::linear_op
