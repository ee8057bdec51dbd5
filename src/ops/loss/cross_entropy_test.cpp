#include <gtest/gtest.h>

#include <limits>

#include "device/testing/instruction_sets.h"
#include "ops/testing/kernel_run.h"
#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace cross_entropy {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

OpCase loss(const std::string& op, std::string name, const std::string& attributes, Dims scores,
            CaseInput labels) {
  return {.name = op + "_" + std::move(name),
          .model = "loss = " + op + " " + attributes + "(scores, labels)",
          .inputs = {uniform(std::move(scores), -2, 2), std::move(labels)}};
}

OpCase weighted(OpCase one, std::int64_t classes) {
  one.name += "_weighted";
  one.model.replace(one.model.rfind("labels)"), 7, "labels, weights)");
  one.inputs.push_back(uniform({classes}, 0.5, 2));
  return one;
}

}  // namespace cross_entropy

std::vector<OpCase> cross_entropy_cases() {
  using cross_entropy::kInfinity;
  using cross_entropy::loss;
  using cross_entropy::weighted;
  std::vector<OpCase> cases;
  for (const std::string op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    const std::string ignore = "ignore_index = 2";
    for (const std::string reduction : {"none", "sum", "mean"}) {
      const std::string reduce = "reduction = \"" + reduction + "\"";
      cases.push_back(loss(op, reduction, "<" + reduce + "> ", {5, 3}, integers({5}, 0, 2)));
      cases.push_back(weighted(cases.back(), 3));
      cases.push_back(loss(op, reduction + "_ignore", "<" + reduce + ", " + ignore + "> ", {6, 3},
                           values({0, 2, 1, 2, 1, 0}, {6}, DataType::kInt64)));
      cases.push_back(weighted(cases.back(), 3));
      cases.push_back(loss(op, reduction + "_pixels", "<" + reduce + "> ", {2, 3, 2, 2},
                           integers({2, 2, 2}, 0, 2)));
      cases.push_back(weighted(cases.back(), 3));
    }
    // Enough classes that a plan stores one scalar per row instead of log p
    // (passes/keep_log_sums.cpp).
    for (const std::string reduction : {"none", "sum", "mean"}) {
      const std::string reduce = "<reduction = \"" + reduction + "\", ignore_index = 5> ";
      OpCase wide = loss(op, reduction + "_wide", reduce, {9, 2048},
                         values({0, 5, 2047, 1, 1, 2, 3, 5, 9}, {9}, DataType::kInt64));
      cases.push_back(wide);
      wide = weighted(std::move(wide), 2048);
      wide.wrt = {"scores"};
      cases.push_back(std::move(wide));
    }
    cases.push_back(loss(op, "wide_pixel", "", {9, 2048, 1}, integers({9, 1}, 0, 2047)));
    cases.push_back(loss(op, "default", "", {4, 5}, integers({4}, 0, 4)));
    cases.push_back(loss(op, "int32_labels", "", {4, 5}, integers({4}, 0, 4, DataType::kInt32)));
    cases.push_back(loss(op, "sequence", "", {2, 4, 3}, integers({2, 3}, 0, 3)));
    cases.push_back(loss(op, "one_class", "", {3, 1}, integers({3}, 0, 0)));
    cases.push_back(loss(op, "no_rows", "<reduction = \"sum\"> ", {0, 4}, integers({0}, 0, 3)));
    cases.push_back(loss(op, "one_row", "", {1, 4}, integers({1}, 0, 3)));
    cases.push_back(loss(op, "ignore_outside", "<ignore_index = -100> ", {3, 4},
                         values({1, -100, 3}, {3}, DataType::kInt64)));
    cases.push_back(weighted(cases.back(), 4));
    cases.push_back(loss(op, "ignore_int32", "<ignore_index = 1> ", {3, 4},
                         values({1, 0, 3}, {3}, DataType::kInt32)));
    cases.push_back(weighted(cases.back(), 4));
    cases.push_back(weighted(loss(op, "class_without_rows", "", {3, 4}, ints({1, 3, 1}).fed()), 4));
  }
  // An ignored row may hold any values.
  OpCase masked = loss("SoftmaxCrossEntropyLoss", "ignore_masked", "<ignore_index = 3> ", {2, 3},
                       values({3, 1}, {2}, DataType::kInt64));
  masked.inputs[0] = values({-kInfinity, -kInfinity, -kInfinity, 0.5, -0.5, 1}, {2, 3});
  cases.push_back(masked);
  cases.push_back(weighted(masked, 3));
  cases.push_back({.name = "log_prob",
                   .model = "loss, log_prob = SoftmaxCrossEntropyLoss (scores, labels)",
                   .inputs = {uniform({4, 3}, -2, 2), integers({4}, 0, 2)}});
  cases.push_back({.name = "log_prob_weighted",
                   .model = "loss, log_prob = SoftmaxCrossEntropyLoss (scores, labels, weights)",
                   .inputs = {uniform({4, 3}, -2, 2), integers({4}, 0, 2), uniform({3}, 0.5, 2)}});
  cases.push_back({.name = "log_prob_alone",
                   .model = "loss, log_prob = SoftmaxCrossEntropyLoss (scores, labels)",
                   .inputs = {uniform({4, 3}, -2, 2), integers({4}, 0, 2)},
                   .outputs = {"log_prob"}});
  cases.push_back(
      {.name = "far_apart",
       .model = "loss = SoftmaxCrossEntropyLoss (scores, labels)",
       .inputs = {values({1000, -1000, 0, 1000}, {2, 2}), values({0, 0}, {2}, DataType::kInt64)},
       .no_gradient = "differences of 1e3 vanish in float64"});
  return cases;
}

std::vector<ErrorCase> cross_entropy_error_cases() {
  std::vector<ErrorCase> cases;
  for (const std::string op : {"SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"}) {
    const auto add = [&](std::string name, const std::string& attributes, Dims scores,
                         CaseInput labels, std::string error, std::vector<std::string> fragments) {
      const OpCase one = cross_entropy::loss(op, std::move(name), attributes, std::move(scores),
                                             std::move(labels));
      fragments.emplace_back("head");
      cases.push_back({.name = one.name,
                       .model = "[head] " + one.model,
                       .inputs = one.inputs,
                       .error = std::move(error),
                       .fragments = std::move(fragments)});
    };
    const auto labels = [](std::vector<double> numbers) {
      const auto count = static_cast<std::int64_t>(numbers.size());
      return values(std::move(numbers), {count}, DataType::kInt64);
    };
    add("label_too_large", "", {3, 4}, labels({0, 4, 1}), "DataError", {"label 4", "row 1"});
    add("label_negative", "", {3, 4}, labels({0, 1, -1}), "DataError", {"label -1", "row 2"});
    add("label_far", "<ignore_index = 7> ", {1, 4}, labels({1e12}), "DataError", {"7"});
    add("label_count", "", {3, 4}, labels({0, 1}), "ShapeError", {});
    add("reduction", "<reduction = \"average\"> ", {3, 4}, labels({0, 1, 2}), "ModelError",
        {"reduction"});
  }
  return cases;
}

namespace cross_entropy {

// Compares the kernels on the loss and gradient of 33 rows, some of them ignored.
void compare_kernels(std::int64_t classes, const std::string& reduction, bool wants_log_prob,
                     const device::CpuOptions& cpu) {
  constexpr auto kFloat = DataType::kFloat32;
  const std::vector<ir::Attribute> attributes = {
      {.name = "reduction", .value = reduction},
      {.name = "ignore_index", .value = std::int64_t{-1}}};
  const Dims scores{33, classes};
  const Dims loss = reduction == "none" ? Dims{33} : Dims{};
  const Tensor x = random_tensor(kFloat, scores, 1, -5, 5);
  const Tensor weights = random_tensor(kFloat, {classes}, 5, 0.5, 2);
  const Tensor labels =
      random_tensor(DataType::kInt64, {33}, 2, -1.9, static_cast<double>(classes));
  KernelCall forward{
      .op_type = "SoftmaxCrossEntropyLoss",
      .attributes = attributes,
      .inputs = {x, labels, weights},
      .outputs = {{.dtype = kFloat, .dims = loss}, {.dtype = kFloat, .dims = scores}},
      .cpu = &cpu};
  const Tensor log_prob = run_plain(forward).at(1);
  if (!wants_log_prob) forward.outputs.pop_back();
  EXPECT_EQ(compare_offers(forward, 2e-6), 1u);
  const KernelCall grad{.op_type = "SoftmaxCrossEntropyLossGrad",
                        .attributes = attributes,
                        .inputs = {random_tensor(kFloat, loss, 3), log_prob, labels, weights},
                        .outputs = {{.dtype = kFloat, .dims = scores}},
                        .domain = "onnxgrad",
                        .cpu = &cpu};
  EXPECT_EQ(compare_offers(grad, 2e-6), 1u);
}

}  // namespace cross_entropy

TEST(CrossEntropyKernels, FastOnesAgreeWithThePlainOne) {
  const auto check = [](const device::CpuOptions& cpu) {
    for (const std::int64_t classes : {1, 2, 10, 16, 100}) {
      for (const char* reduction : {"none", "sum", "mean"}) {
        SCOPED_TRACE(std::to_string(classes) + " classes, " + reduction);
        cross_entropy::compare_kernels(classes, reduction, true, cpu);
        cross_entropy::compare_kernels(classes, reduction, false, cpu);
      }
    }
  };
  device::for_each_instruction_set(check);
}

}  // namespace onnxgrad::ops_test
