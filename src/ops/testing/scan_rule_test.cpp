#include <gtest/gtest.h>

#include <cstring>

#include "onnx/inference.h"
#include "ops/builtin.h"
#include "ops/testing/case_runner.h"

// Rules of nodes with subgraphs may change the primal: shown on Scan, which onnxgrad does not have
// yet. What the gradient of the body reads becomes further scan outputs, and the gradient is a Scan
// from the back over these. Both run here by a loop over the body.

namespace onnxgrad::ops_test {
namespace scan_rule {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;
using opdef::AttributeType;

ir::Graph& body_of(const Node& node) {
  return *std::get<ir::GraphPtr>(*node.find_attribute("body"));
}

std::size_t count_scanned(const Node& node) {
  return static_cast<std::size_t>(node.int_attribute("num_scan_inputs"));
}

bool is_backward(const Node& node, std::string_view directions, std::size_t i) {
  const auto list = node.ints_attribute(directions);
  return i < list.size() && list[i] == 1;
}

std::int64_t row_bytes(const Tensor& tensor) { return tensor.size_bytes() / tensor.dims()[0]; }

std::vector<Tensor> run_scan(const opdef::DynamicCall& call) {
  const Node& node = call.node;
  const std::size_t scanned = count_scanned(node);
  const std::size_t states = call.inputs.size() - scanned;
  const std::int64_t length = call.inputs[states].dims()[0];
  std::vector<Tensor> results(call.inputs.begin(),
                              call.inputs.begin() + static_cast<std::ptrdiff_t>(states));
  results.resize(node.outputs.size());
  for (std::int64_t step = 0; step < length; ++step) {
    const auto row = [&](std::string_view directions, std::size_t i) {
      return is_backward(node, directions, i) ? length - 1 - step : step;
    };
    std::vector<Tensor> formal(results.begin(),
                               results.begin() + static_cast<std::ptrdiff_t>(states));
    for (std::size_t i = 0; i < scanned; ++i) {
      const Tensor& whole = call.inputs[states + i];
      auto* bytes =
          const_cast<std::byte*>(whole.raw()) + row("scan_input_directions", i) * row_bytes(whole);
      const Dims dims{std::vector<std::int64_t>(whole.dims().begin() + 1, whole.dims().end())};
      formal.push_back(Tensor::view(whole.dtype(), dims, bytes, nullptr).clone());
    }
    const std::vector<Tensor> given = call.run_subgraph(body_of(node), formal);
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (i < states) {
        results[i] = given[i].clone();
        continue;
      }
      if (!results[i].is_defined()) {
        std::vector<std::int64_t> dims{length};
        dims.insert(dims.end(), given[i].dims().begin(), given[i].dims().end());
        results[i] = Tensor::empty(given[i].dtype(), Dims{std::move(dims)});
      }
      std::memcpy(results[i].mutable_raw() +
                      row("scan_output_directions", i - states) * row_bytes(results[i]),
                  given[i].raw(), static_cast<std::size_t>(given[i].size_bytes()));
    }
  }
  return results;
}

// With S the states, X the sequences, Y the scan outputs and c what the body captures: a Scan from
// the back whose states are dS and the sums of dc, over dY and what the gradient of the body reads.
std::vector<Value*> scan_vjp(opdef::VjpContext& ctx, GraphBuilder& g) {
  const Node& node = ctx.node();
  ir::Graph& body = body_of(node);
  const std::size_t states = node.inputs.size() - count_scanned(node);
  const std::vector<Value*> captured = ir::captured_values(node);
  const std::vector<Value*> results = body.outputs;
  std::vector<Value*> wrt = body.inputs;
  wrt.insert(wrt.end(), captured.begin(), captured.end());

  std::vector<Value*> initial;
  std::vector<Value*> sequences;
  const auto cotangent = [&](std::size_t i) {
    return ctx.cotangent(i) != nullptr ? ctx.cotangent(i) : g.zeros_like(ctx.output(i));
  };
  for (std::size_t i = 0; i < states; ++i) initial.push_back(cotangent(i));
  for (Value* value : captured) initial.push_back(g.zeros_like(value));
  for (std::size_t i = states; i < results.size(); ++i) sequences.push_back(cotangent(i));

  const ir::GraphPtr backward = g.subgraph("backward", [&](GraphBuilder& inner) {
    const auto formal = [&](const Value* like) {
      return inner.graph().add_input("d_" + like->name, like->type);
    };
    std::vector<Value*> seeds;
    std::vector<Value*> sums;
    for (std::size_t i = 0; i < states; ++i) seeds.push_back(formal(body.inputs[i]));
    for (const Value* value : captured) sums.push_back(formal(value));
    for (std::size_t i = states; i < results.size(); ++i) seeds.push_back(formal(results[i]));
    const auto gradients = ctx.differentiate(inner, body, results, seeds, wrt);
    const auto first_captured = gradients.begin() + static_cast<std::ptrdiff_t>(body.inputs.size());
    std::vector<Value*> outputs(gradients.begin(),
                                gradients.begin() + static_cast<std::ptrdiff_t>(states));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      outputs.push_back(inner.add(sums[i], first_captured[static_cast<std::ptrdiff_t>(i)]));
    }
    outputs.insert(outputs.end(), gradients.begin() + static_cast<std::ptrdiff_t>(states),
                   first_captured);
    return outputs;
  });
  GraphBuilder inner = g.inside(*backward);
  GraphBuilder primal = g.inside(body);
  ctx.carry(inner, body, [&](Value* value) {
    const auto formal = std::ranges::find(body.inputs, value) - body.inputs.begin();
    const bool is_input = formal < std::ssize(body.inputs);
    if (is_input && formal >= static_cast<std::ptrdiff_t>(states)) {
      sequences.push_back(node.inputs[static_cast<std::size_t>(formal)]);
    } else {
      ir::Type type = value->type;
      type.shape->insert(type.shape->begin(), node.inputs[states]->type.shape->front());
      body.outputs.push_back(is_input ? primal.identity(value) : value);
      sequences.push_back(ctx.add_output(type, value->name + "_all"));
    }
    return backward->add_input(value->name + "_at", value->type);
  });

  const auto count = static_cast<std::int64_t>(sequences.size());
  std::vector<Value*> inputs = initial;
  inputs.insert(inputs.end(), sequences.begin(), sequences.end());
  const std::size_t scanned = node.inputs.size() - states;
  const std::vector<Value*> given =
      g.ops("Scan", inputs, initial.size() + scanned,
            {{"body", backward},
             {"num_scan_inputs", count},
             {"scan_input_directions", std::vector<std::int64_t>(sequences.size(), 1)},
             {"scan_output_directions", std::vector<std::int64_t>(scanned, 1)}});
  std::vector<Value*> gradients(given.begin(), given.begin() + static_cast<std::ptrdiff_t>(states));
  gradients.insert(gradients.end(), given.begin() + static_cast<std::ptrdiff_t>(initial.size()),
                   given.end());
  gradients.insert(gradients.end(), given.begin() + static_cast<std::ptrdiff_t>(states),
                   given.begin() + static_cast<std::ptrdiff_t>(initial.size()));
  return gradients;
}

struct Registries {
  opdef::OpRegistry ops;
  opdef::KernelRegistry kernels;
  Registries() {
    ops::register_builtin_ops(ops);
    ops::register_builtin_cpu_kernels(kernels);
    const auto directions = [](std::string_view name) {
      return opdef::AttributeSpec{.name = name, .type = AttributeType::kInts, .min = 0, .max = 1};
    };
    ops.add({.op_type = "Scan",
             .since_version = 25,
             .differentiable_inputs = {0, -1},
             .attributes = {{.name = "body", .type = AttributeType::kGraph, .required = true},
                            {.name = "num_scan_inputs", .required = true, .min = 1},
                            directions("scan_input_directions"),
                            directions("scan_output_directions")},
             .vjp = scan_vjp});
    kernels.add_dynamic("", "Scan", run_scan);
  }
};

// A recurrent layer, h' = tanh(x W + h U), that also gives h' h at each step.
const OpCase kRecurrence{
    .name = "recurrence",
    .model = R"(
  last, all = Scan <num_scan_inputs = 1, body = step ($T[3] h, $T[2] x) => ($T[3] next, $T[3] y) {
    from_x = MatMul (x, w)
    from_h = MatMul (h, u)
    sum = Add (from_x, from_h)
    next = Tanh (sum)
    y = Mul (next, h)
  }> (h0, xs))",
    .inputs = {uniform({3}, -1, 1).named("h0"), uniform({4, 2}, -1, 1).named("xs"),
               uniform({2, 3}, -1, 1).named("w"), uniform({3, 3}, -1, 1).named("u")},
    .outputs = {"last", "all"}};

const Node& find_scan(const ir::Model& model) {
  return **std::ranges::find(model.graph->nodes, "Scan", &Node::op_type);
}

}  // namespace scan_rule

TEST(ScanRule, SavesWhatTheGradientOfTheBodyReads) {
  using namespace scan_rule;  // NOLINT(google-build-using-namespace): this file's own
  const Registries registries;
  const runtime::Engine engine{registries.ops, registries.kernels, onnx_io::make_type_inferer};
  const BuiltCase built = build_case(kRecurrence, {.dtype = DataType::kFloat64}, registries.ops);

  // The products and the state before each step; not the sum, nor what follows from it.
  EXPECT_EQ(find_scan(*built.forward).outputs.size(), 2U);
  EXPECT_EQ(find_scan(*built.gradient).outputs.size(), 5U) << ir::to_text(*built.gradient);
  EXPECT_EQ(ir::find_fault(*built.gradient->graph), "");

  const CaseResult result = run_case(kRecurrence, built, {}, engine);
  runtime::Executor forward(built.forward, engine, {});
  const ScalarFunction f = [&](const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> outputs = forward.run(inputs);
    double sum = 0;
    for (std::size_t k = 0; k < outputs.size(); ++k) {
      const std::vector<double> y = outputs[k].to_doubles();
      const std::vector<double> seed = result.seeds[k].to_doubles();
      for (std::size_t i = 0; i < y.size(); ++i) sum += seed[i] * y[i];
    }
    return sum;
  };
  ASSERT_EQ(result.gradients.size(), 4U);
  for (const Difference& difference :
       check_gradient(f, built.inputs, built.wrt, result.gradients)) {
    ADD_FAILURE() << difference.to_string();
  }
}

}  // namespace onnxgrad::ops_test
