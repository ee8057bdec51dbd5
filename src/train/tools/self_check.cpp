#include "train/tools/self_check.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "autodiff/gradient.h"
#include "ir/builder.h"
#include "onnx/inference.h"
#include "onnx/model_io.h"
#include "runtime/executor.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

constexpr const char* kNetwork = R"(<ir_version: 8, opset_import: ["" : 17]>
check (float[16, 3, 9, 9] x, float[16, 3, 3, 3] k, float[1296, 24] w, float[24] s, float[24, 5] v,
       int64[20] rows) => (float[20, 5] y) {
  c = Conv <pads = [1, 1, 1, 1]> (x, k)
  r = Relu (c)
  f = Flatten (r)
  p = MatMul (f, w)
  n = LayerNormalization (p, s)
  e = Erf (n)
  g = Gather (e, rows)
  q = MatMul (g, v)
  y = LogSoftmax (q)
})";

// Relative to the largest element: sums of 1296 products in float32.
constexpr float kTolerance = 1e-4F;

// The network with the gradients of the sum of its squared results.
std::shared_ptr<const ir::Model> network() {
  ir::Model model = to_working_copy(onnx_io::load_text(kNetwork), nullptr);
  ir::Graph& graph = *model.graph;
  const auto inferer = onnx_io::make_type_inferer(model);
  ir::GraphBuilder g(model, graph, *inferer, builtin_ops());
  std::vector<ir::Value*> wrt;
  for (ir::Value* input : graph.inputs) {
    if (input->dtype() == DataType::kFloat32) wrt.push_back(input);
  }
  const std::vector<ir::Value*> results{graph.outputs.front()};
  const std::vector<ir::Value*> seeds{results.front()};
  const auto gradients = autodiff::add_vjp(g, builtin_ops(), results, seeds, wrt);
  graph.outputs.insert(graph.outputs.end(), gradients.begin(), gradients.end());
  return std::make_shared<const ir::Model>(std::move(model));
}

// Numbers between -0.5 and 0.5 without a pattern; rows below 16.
Tensor values_for(const runtime::Port& port) {
  const Dims dims = port.type.fixed_dims();
  std::vector<float> numbers;
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < dims.num_elements(); ++i) {
    const std::int64_t mixed = i * 7919 % 10007 * 31 % 1009;
    numbers.push_back(static_cast<float>(mixed) / 1009 - 0.5F);
    rows.push_back(mixed % 16);
  }
  return port.type.dtype == DataType::kInt64 ? Tensor::from(rows, dims)
                                             : Tensor::from(numbers, dims);
}

std::string difference(const Tensor& given, const Tensor& expected, const std::string& name) {
  const std::span<const float> a = given.data<float>();
  const std::span<const float> b = expected.data<float>();
  float largest = 0;
  float scale = 1e-3F;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const float one = std::abs(a[i] - b[i]);
    if (!(one <= largest)) largest = one;  // NaN too
    scale = std::max(scale, std::abs(b[i]));
  }
  if (largest <= kTolerance * scale) return {};
  return fmt::format("'{}' differs by {:g} where the largest value is {:g}", name, largest, scale);
}

}  // namespace

std::string self_check(const runtime::Engine& engine) {
  try {
    const std::shared_ptr<const ir::Model> model = network();
    runtime::Executor there(model, engine);
    runtime::Executor here(model, cpu_engine());
    std::vector<Tensor> inputs;
    for (const runtime::Port& port : here.inputs()) inputs.push_back(values_for(port));
    const std::vector<Tensor> given = there.run(inputs);
    const std::vector<Tensor> expected = here.run(inputs);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      std::string found = difference(given[i], expected[i], here.outputs()[i].name);
      if (!found.empty()) return found;
    }
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace onnxgrad::train
