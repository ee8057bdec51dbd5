#include "ops/testing/case_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autodiff/gradient.h"
#include "onnx/inference.h"
#include "onnx/model_io.h"
#include "ops/builtin.h"
#include "runtime/evaluator.h"

namespace onnxgrad::ops_test {
namespace {

// Returns uniform random elements for the cotangent of output `index`.
Tensor make_seed(const OpCase& op_case, std::size_t index, const Tensor& output) {
  const OpCase seed_case{.name = op_case.name + "/seed" + std::to_string(index),
                         .model = "y = Neg (x)",
                         .inputs = {uniform(output.dims(), -1, 1)}};
  return make_input(seed_case, 0, output.dtype());
}

// Returns the inputs to differentiate by, as indices of the fed inputs.
std::vector<std::size_t> wanted_inputs(const OpCase& op_case) {
  const std::vector<std::string> names = input_names(op_case);
  std::vector<std::size_t> wanted;
  std::size_t position = 0;
  for (std::size_t i = 0; i < op_case.inputs.size(); ++i) {
    const CaseInput& input = op_case.inputs[i];
    if (input.is_constant) continue;
    const bool is_named = std::ranges::find(op_case.wrt, names[i]) != op_case.wrt.end();
    const bool is_default = op_case.wrt.empty() && input.dtype == DataType::kUndefined;
    if (is_named || is_default) wanted.push_back(position);
    ++position;
  }
  return wanted;
}

// Appends the vector-Jacobian product; gradients that are not outputs of a separate node are copied
// to one.
std::shared_ptr<const ir::Model> differentiate(const ir::Model& forward, BuiltCase& built,
                                               const opdef::OpRegistry& ops) {
  auto model = std::make_shared<ir::Model>(ir::clone(forward));
  const auto inferer = onnx_io::make_type_inferer(*model);
  ir::GraphBuilder g(*model, *model->graph, *inferer, ops);
  g.set_scope("grad");
  std::vector<ir::Value*> outputs;
  std::vector<ir::Value*> seeds;
  for (const std::size_t i : built.seeded_outputs) {
    outputs.push_back(model->graph->outputs[i]);
    seeds.push_back(model->graph->add_input(outputs.back()->name + "_seed", outputs.back()->type));
  }
  std::vector<ir::Value*> wrt;
  for (const std::size_t i : built.wrt) wrt.push_back(model->graph->inputs[i]);
  for (ir::Value* gradient : autodiff::add_vjp(g, ops, outputs, seeds, wrt)) {
    auto& given = model->graph->outputs;
    const bool is_new = gradient->producer != nullptr && gradient->graph == model->graph.get() &&
                        std::ranges::find(given, gradient) == given.end();
    given.push_back(is_new ? gradient : g.identity(gradient));
  }
  return model;
}

}  // namespace

const opdef::OpRegistry& builtin_ops() {
  static const auto registry = [] {
    auto made = std::make_unique<opdef::OpRegistry>();
    ops::register_builtin_ops(*made);
    return made;
  }();
  return *registry;
}

const runtime::Engine& builtin_engine() {
  static const auto kernels = [] {
    auto made = std::make_unique<opdef::KernelRegistry>();
    ops::register_builtin_cpu_kernels(*made);
    return made;
  }();
  static const runtime::Engine engine{builtin_ops(), *kernels, onnx_io::make_type_inferer};
  return engine;
}

BuiltCase build_case(const OpCase& op_case, const CaseVariant& variant,
                     const opdef::OpRegistry& ops) {
  const onnx_io::FileModel file = onnx_io::load_text(model_text(op_case, variant));
  const runtime::KernelEvaluator evaluator(builtin_engine());
  BuiltCase built;
  built.forward = std::make_shared<const ir::Model>(onnx_io::to_internal(file, ops, &evaluator));
  for (std::size_t i = 0; i < op_case.inputs.size(); ++i) {
    if (op_case.inputs[i].is_constant) continue;
    built.inputs.push_back(make_input(op_case, i, variant.dtype));
  }
  if (!op_case.no_gradient.empty()) return built;
  built.wrt = wanted_inputs(op_case);
  for (std::size_t i = 0; i < built.forward->graph->outputs.size(); ++i) {
    if (is_floating(built.forward->graph->outputs[i]->dtype())) built.seeded_outputs.push_back(i);
  }
  built.gradient = differentiate(*built.forward, built, ops);
  return built;
}

CaseResult run_case(const OpCase& op_case, const BuiltCase& built, const RunOptions& options,
                    const runtime::Engine& engine) {
  const runtime::ExecutorOptions executor_options{.fuse = options.fuse, .cpu = options.cpu};
  runtime::Executor forward(built.forward, engine, executor_options);
  CaseResult result{.outputs = forward.run(built.inputs), .seeds = {}, .gradients = {}};
  if (built.gradient == nullptr) return result;
  std::vector<Tensor> inputs = built.inputs;
  for (const std::size_t i : built.seeded_outputs) {
    result.seeds.push_back(make_seed(op_case, i, result.outputs[i]));
    inputs.push_back(result.seeds.back());
  }
  runtime::Executor gradient(built.gradient, engine, executor_options);
  const std::vector<Tensor> all = gradient.run(inputs);
  result.gradients.assign(all.begin() + static_cast<std::ptrdiff_t>(result.outputs.size()),
                          all.end());
  return result;
}

std::vector<Difference> check_case_gradient(const OpCase& op_case, const opdef::OpRegistry& ops,
                                            bool only_where_smooth) {
  const runtime::Engine engine{ops, builtin_engine().kernels, onnx_io::make_type_inferer};
  const BuiltCase built = build_case(op_case, {.dtype = DataType::kFloat64}, ops);
  const CaseResult result = run_case(op_case, built, {}, engine);
  runtime::Executor forward(built.forward, engine, {});
  const ScalarFunction f = [&](const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> outputs = forward.run(inputs);
    double sum = 0;
    for (std::size_t k = 0; k < built.seeded_outputs.size(); ++k) {
      const std::vector<double> y = outputs[built.seeded_outputs[k]].to_doubles();
      const std::vector<double> seed = result.seeds[k].to_doubles();
      // An output whose size changes with the step, as of Unique, is a jump.
      if (y.size() != seed.size()) return std::numeric_limits<double>::quiet_NaN();
      for (std::size_t i = 0; i < y.size(); ++i) sum += seed[i] * y[i];
    }
    return sum;
  };
  return check_gradient(f, built.inputs, built.wrt, result.gradients,
                        {.tolerance = op_case.tolerance, .only_where_smooth = only_where_smooth});
}

std::string compare(const Tensor& given, const Tensor& expected, double tolerance) {
  if (given.dims() != expected.dims()) {
    return fmt::format("shape {}, expected {}", given.dims().to_string(),
                       expected.dims().to_string());
  }
  const std::vector<double> a = given.to_doubles();
  const std::vector<double> b = expected.to_doubles();
  double largest = 1;
  for (const double number : b) {
    if (std::isfinite(number)) largest = std::max(largest, std::abs(number));
  }
  const double allowed = is_floating(given.dtype()) ? tolerance * largest : 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (a[i] == b[i] || std::abs(a[i] - b[i]) <= allowed) continue;
    return fmt::format(
        "element {} is {:.17g}, expected {:.17g} (difference {:.3g}, allowed {:.3g})", i, a[i],
        b[i], std::abs(a[i] - b[i]), allowed);
  }
  return "";
}

}  // namespace onnxgrad::ops_test
