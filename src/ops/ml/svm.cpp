#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "ops/ml/post_transform.h"

// SVMRegressor and SVMClassifier (ai.onnx.ml 1) as tensor operators, differentiable in their inputs
// and weights: support vectors, coefficients, rho, and the slopes of the probabilities. Chang and
// Lin, LIBSVM, 2011; Platt, Probabilistic Outputs for Support Vector Machines, 1999.

namespace onnxgrad::ops::svm_op {
namespace {

struct Kernel {
  std::string type;
  double gamma = 0;
  double offset = 0;
  double degree = 1;
};

Kernel read_kernel(const Node& node) {
  Kernel kernel{.type = node.string_attribute("kernel_type")};
  const auto numbers = node.floats_attribute("kernel_params");
  if (numbers.empty() && kernel.type == "LINEAR") return kernel;
  if (numbers.size() != 3) {
    refuse_attributes(node, fmt::format("kernel_params has {} elements, expected gamma, coef0 and "
                                        "degree",
                                        numbers.size()));
  }
  kernel.gamma = static_cast<double>(numbers[0]);
  kernel.offset = static_cast<double>(numbers[1]);
  kernel.degree = static_cast<double>(numbers[2]);
  return kernel;
}

// Returns k(x, v) for all rows of x [N, F] and v [M, F]: [N, M].
Value* kernel_values(GraphBuilder& g, const Kernel& kernel, Value* x, Value* v) {
  Value* product = g.matmul(x, g.transpose(v, {1, 0}));
  if (kernel.type == "LINEAR") return product;
  if (kernel.type == "RBF") {  // |x - v|^2 = |x|^2 - 2 x v' + |v|^2
    Value* of_x = g.reduce_sum(g.mul(x, x), {1}, /*keepdims=*/true);
    Value* of_v = g.reduce_sum(g.mul(v, v), {1}, /*keepdims=*/false);
    Value* distance = g.add(g.sub(of_x, g.scale(product, 2)), of_v);
    return g.exp(g.scale(distance, -kernel.gamma));
  }
  Value* inner = g.add(g.scale(product, kernel.gamma), g.scalar_like(product, kernel.offset));
  if (kernel.type == "SIGMOID") return g.op("Tanh", {inner});
  return g.pow(inner, g.scalar_like(inner, kernel.degree));
}

Value* list_weight(GraphBuilder& g, const Node& node, const std::string& name, Dims dims) {
  const auto numbers = node.floats_attribute(name);
  if (static_cast<std::int64_t>(numbers.size()) != dims.num_elements()) {
    refuse_attributes(node, fmt::format("{} has {} elements, expected {}", name, numbers.size(),
                                        dims.num_elements()));
  }
  return attribute_initializer(g, node, name, Tensor::from(numbers, std::move(dims)));
}

std::int64_t count_of(const Node& node, const std::string& name) {
  return static_cast<std::int64_t>(node.floats_attribute(name).size());
}

std::int64_t features_of(const Node& node, std::int64_t numbers, std::int64_t rows) {
  if (rows > 0 && numbers > 0 && numbers % rows == 0) return numbers / rows;
  refuse_attributes(node, fmt::format("{} elements for {} vectors", numbers, rows));
}

bool is_matrix(const Value* x) {
  const auto rank = known_rank(x);
  return rank && *rank == 2;
}

// y = k(x, v) coefficients + rho
std::optional<std::vector<Value*>> lower_regressor(const Node& node, GraphBuilder& g) {
  if (!is_matrix(node.input(0))) return std::nullopt;
  Value* x = g.cast(node.input(0), DataType::kFloat32);
  const Kernel kernel = read_kernel(node);
  const std::int64_t supports = node.int_attribute("n_supports");
  Value* y = nullptr;
  if (supports > 0) {
    const std::int64_t features = features_of(node, count_of(node, "support_vectors"), supports);
    Value* v = list_weight(g, node, "support_vectors", {supports, features});
    y = g.matmul(kernel_values(g, kernel, x, v),
                 list_weight(g, node, "coefficients", {supports, 1}));
  } else {  // one vector, the coefficients themselves
    const std::int64_t features = features_of(node, count_of(node, "coefficients"), 1);
    Kernel linear = kernel;
    linear.type = "LINEAR";
    y = kernel_values(g, linear, x, list_weight(g, node, "coefficients", {1, features}));
  }
  y = g.add(y, list_weight(g, node, "rho", {1}));
  if (node.int_attribute("one_class") != 0) {
    Value* one = g.scalar_like(y, 1);
    y = g.where(g.greater(y, g.scalar_like(y, 0)), one, g.neg(one));
  }
  return {{post_transform(g, y, node.string_attribute("post_transform"))}};
}

Value* arg_max(GraphBuilder& g, Value* scores) {
  return g.op("ArgMax", {scores}, {{"axis", std::int64_t{1}}, {"keepdims", std::int64_t{0}}});
}

// One-versus-one classifiers of the pairs of classes i < j, which determine labels and scores.
struct Pairs {
  std::int64_t classes = 0;
  Value* scores = nullptr;  // [N, C (C - 1) / 2], positive for class i
  std::vector<std::pair<std::int64_t, std::int64_t>> members;
};

// Support vectors are ordered by class. In coefficients [C - 1, M], the columns of class i have its
// coefficients against class j in row j - 1 if j > i, in row j if j < i.
Pairs decide_pairs(GraphBuilder& g, const Node& node, Value* x,
                   const std::vector<std::int64_t>& sizes) {
  Pairs pairs;
  pairs.classes = static_cast<std::int64_t>(sizes.size());
  std::int64_t supports = 0;
  std::vector<std::int64_t> first;
  for (const std::int64_t size : sizes) {
    if (size < 0) refuse_attributes(node, "vectors_per_class has a negative element");
    first.push_back(supports);
    supports += size;
  }
  const std::int64_t features = features_of(node, count_of(node, "support_vectors"), supports);
  Value* v = list_weight(g, node, "support_vectors", {supports, features});
  Value* coefficients = list_weight(g, node, "coefficients", {pairs.classes - 1, supports});
  // Column p selects the coefficients of pair p.
  std::vector<float> mask;
  std::vector<std::int64_t> row;
  for (std::int64_t i = 0; i < pairs.classes; ++i) {
    for (std::int64_t j = i + 1; j < pairs.classes; ++j) {
      pairs.members.emplace_back(i, j);
      for (std::int64_t c = 0; c < pairs.classes; ++c) {
        const auto size = static_cast<std::size_t>(sizes[static_cast<std::size_t>(c)]);
        mask.insert(mask.end(), size, c == i || c == j ? 1.0F : 0.0F);
        row.insert(row.end(), size, c == i ? j - 1 : c == j ? i : 0);
      }
    }
  }
  const auto count = static_cast<std::int64_t>(pairs.members.size());
  Value* chosen =
      g.op("GatherElements", {coefficients, g.constant(Tensor::from(row, {count, supports}))},
           {{"axis", std::int64_t{0}}});
  Value* counted = g.mul(chosen, g.constant(Tensor::from(mask, {count, supports})));
  Value* values = kernel_values(g, read_kernel(node), x, v);
  pairs.scores =
      g.add(g.matmul(values, g.transpose(counted, {1, 0})), list_weight(g, node, "rho", {count}));
  return pairs;
}

Value* column(GraphBuilder& g, Value* matrix, std::int64_t i) {
  return g.slice(matrix, {i}, {i + 1}, {1});
}

// Returns the number of pairs that each class wins, [N, C].
Value* count_votes(GraphBuilder& g, const Pairs& pairs) {
  const auto count = static_cast<std::int64_t>(pairs.members.size());
  std::vector<float> first(static_cast<std::size_t>(count * pairs.classes), 0);
  std::vector<float> second = first;
  for (std::int64_t p = 0; p < count; ++p) {
    const auto [i, j] = pairs.members[static_cast<std::size_t>(p)];
    first[static_cast<std::size_t>(p * pairs.classes + i)] = 1;
    second[static_cast<std::size_t>(p * pairs.classes + j)] = 1;
  }
  Value* wins = g.cast(g.greater(pairs.scores, g.scalar_like(pairs.scores, 0)), DataType::kFloat32);
  Value* losses = g.sub(g.scalar_like(wins, 1), wins);
  return g.add(g.matmul(wins, g.constant(Tensor::from(first, {count, pairs.classes}))),
               g.matmul(losses, g.constant(Tensor::from(second, {count, pairs.classes}))));
}

// Returns the index of the winning class of two: 0 where the score of the pair is positive.
Value* winner_of_two(GraphBuilder& g, Value* score) {
  Value* second = g.neg(score);
  return g.op("ArgMax", {g.concat({g.neg(second), second}, 1)},
              {{"axis", std::int64_t{1}},
               {"keepdims", std::int64_t{0}},
               {"select_last_index", std::int64_t{1}}});
}

// Couples pairwise probabilities r_ij into the most likely class probabilities p: Q p is constant,
// where Q_ii = sum_j r_ji^2 and Q_ij = -r_ji r_ij (Wu, Lin and Weng, Probability Estimates for
// Multi-class Classification by Pairwise Coupling, 2004). Q is singular if the r_ij agree with each
// other; (Q + 1 1') p is constant too, and that matrix is positive definite and well conditioned:
// elimination needs no pivoting. In float64, as LIBSVM: the least p are 1e-7.
Value* couple(GraphBuilder& g, const Pairs& pairs, Value* shares) {
  shares = g.cast(shares, DataType::kFloat64);
  const auto n = static_cast<std::size_t>(pairs.classes);
  std::vector<std::vector<Value*>> r(n, std::vector<Value*>(n, nullptr));
  for (std::size_t p = 0; p < pairs.members.size(); ++p) {
    const auto [i, j] = pairs.members[p];
    Value* share = column(g, shares, static_cast<std::int64_t>(p));
    r[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = share;
    r[static_cast<std::size_t>(j)][static_cast<std::size_t>(i)] =
        g.sub(g.scalar_like(share, 1), share);
  }
  Value* one = g.scalar_like(r[0][1], 1);
  std::vector<std::vector<Value*>> q(n, std::vector<Value*>(n, one));  // Q + 1 1'
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      if (i == j) continue;
      q[i][j] = g.sub(one, g.mul(r[j][i], r[i][j]));
      q[i][i] = g.add(q[i][i], g.mul(r[j][i], r[j][i]));
    }
  }
  std::vector<Value*> right(n, g.ones_like(q[0][0]));
  for (std::size_t k = 0; k < n; ++k) {
    for (std::size_t i = k + 1; i < n; ++i) {
      Value* factor = g.div(q[i][k], q[k][k]);
      for (std::size_t j = k + 1; j < n; ++j) q[i][j] = g.sub(q[i][j], g.mul(factor, q[k][j]));
      right[i] = g.sub(right[i], g.mul(factor, right[k]));
    }
  }
  std::vector<Value*> p(n, nullptr);
  for (std::size_t k = n; k-- > 0;) {
    Value* rest = right[k];
    for (std::size_t j = k + 1; j < n; ++j) rest = g.sub(rest, g.mul(q[k][j], p[j]));
    p[k] = g.div(rest, q[k][k]);
  }
  Value* all = g.concat(p, 1);
  return g.cast(g.div(all, g.reduce_sum(all, {1}, /*keepdims=*/true)), DataType::kFloat32);
}

// Returns the class probabilities [N, C], from those of the pairs: r_ij = 1 / (1 + exp(a s + b)),
// clamped away from 0 and 1 as in LIBSVM.
Value* probabilities(GraphBuilder& g, const Node& node, const Pairs& pairs) {
  const auto count = static_cast<std::int64_t>(pairs.members.size());
  Value* a = list_weight(g, node, "prob_a", {count});
  Value* b = list_weight(g, node, "prob_b", {count});
  Value* r = g.op("Sigmoid", {g.neg(g.add(g.mul(pairs.scores, a), b))});
  constexpr double kLeast = 1e-7;
  r = g.op("Clip", {r, g.scalar_like(r, kLeast), g.scalar_like(r, 1 - kLeast)});
  if (pairs.classes == 2) return g.concat({r, g.sub(g.scalar_like(r, 1), r)}, 1);
  return couple(g, pairs, r);
}

std::optional<std::vector<Value*>> lower_classifier(const Node& node, GraphBuilder& g) {
  const Tensor labels = class_list(node);
  if (!labels.is_defined()) refuse_attributes(node, "there are no class labels");
  if (!is_matrix(node.input(0))) return std::nullopt;
  Value* x = g.cast(node.input(0), DataType::kFloat32);
  const std::string transform = node.string_attribute("post_transform");
  const auto sizes = node.ints_attribute("vectors_per_class");
  const std::int64_t classes = labels.num_elements();
  Value* number = nullptr;
  Value* scores = nullptr;
  if (sizes.empty()) {  // linear model: one vector per class
    const std::int64_t features = features_of(node, count_of(node, "coefficients"), classes);
    Value* v = list_weight(g, node, "coefficients", {classes, features});
    Value* rho = list_weight(g, node, "rho", {count_of(node, "rho")});
    Kernel linear = read_kernel(node);
    linear.type = "LINEAR";
    scores = g.add(kernel_values(g, linear, x, v), g.slice(rho, {0}, {1}, {0}));
    number = arg_max(g, scores);
  } else {
    if (static_cast<std::int64_t>(sizes.size()) != classes || classes < 2) {
      refuse_attributes(node, fmt::format("vectors_per_class has {} elements for {} classes",
                                          sizes.size(), classes));
    }
    const Pairs pairs = decide_pairs(g, node, x, sizes);
    // Labels follow the votes, as in LIBSVM and onnxruntime, even if another class is more
    // probable.
    number = classes == 2 ? winner_of_two(g, pairs.scores) : arg_max(g, count_votes(g, pairs));
    if (count_of(node, "prob_a") > 0) {
      scores = probabilities(g, node, pairs);
    } else {
      scores = pairs.scores;
      if (classes == 2) scores = g.concat({g.neg(scores), scores}, 1);
    }
  }
  std::vector<Value*> results(2, nullptr);
  if (node.output(0) != nullptr) results[0] = pick_labels(g, node, number);
  if (node.output(1) != nullptr) results[1] = post_transform(g, scores, transform);
  return results;
}

}  // namespace

void register_svm(opdef::OpRegistry& registry) {
  using Type = opdef::AttributeType;
  const std::vector<opdef::AttributeSpec> common = {
      list_attribute("coefficients", Type::kFloats),
      list_attribute("kernel_params", Type::kFloats),
      choice_attribute("kernel_type", {"LINEAR", "POLY", "RBF", "SIGMOID"}),
      choice_attribute("post_transform", {"NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"}),
      list_attribute("rho", Type::kFloats),
      list_attribute("support_vectors", Type::kFloats)};
  std::vector<opdef::AttributeSpec> regressor = common;
  regressor.push_back({.name = "n_supports",
                       .type = Type::kInt,
                       .min = 0,
                       .max = std::int64_t{1} << 31,
                       .default_value = std::int64_t{0}});
  regressor.push_back(flag_attribute("one_class", false));
  registry.add({.domain = kMl,
                .op_type = "SVMRegressor",
                .since_version = 1,
                .attributes = std::move(regressor),
                .lower = lower_regressor});
  std::vector<opdef::AttributeSpec> classifier = common;
  classifier.push_back(list_attribute("classlabels_ints", Type::kInts));
  classifier.push_back(list_attribute("classlabels_strings", Type::kStrings));
  classifier.push_back(list_attribute("prob_a", Type::kFloats));
  classifier.push_back(list_attribute("prob_b", Type::kFloats));
  classifier.push_back(list_attribute("vectors_per_class", Type::kInts));
  registry.add({.domain = kMl,
                .op_type = "SVMClassifier",
                .since_version = 1,
                .attributes = std::move(classifier),
                .lower = lower_classifier});
}

}  // namespace onnxgrad::ops::svm_op
