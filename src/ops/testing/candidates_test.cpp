// From which size on the kernels of the CPU are worth a fused node: their offers decline a
// candidate that is smaller or larger, but take a node that is there.

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/activation.h"
#include "opdef/attention.h"
#include "opdef/conv_chain.h"
#include "opdef/fused.h"
#include "ops/testing/case_runner.h"
#include "runtime/kernel_selection.h"

namespace onnxgrad::ops_test::candidates {
namespace {

using ir::Value;

struct Size {
  std::string name;
  bool is_preferred = false;
  std::function<ir::Node*(ir::Graph& graph)> make;
};

Value* value(ir::Graph& graph, const Dims& dims, DataType dtype = DataType::kFloat32) {
  return graph.add_input("x", ir::Type::tensor(dtype, dims));
}

ir::Node* fused(ir::Graph& graph, std::string_view op_type, std::vector<Value*> inputs,
                const std::vector<Dims>& results, std::vector<ir::Attribute> attributes) {
  ir::Node* node = graph.add_node(op_type, std::move(inputs), results.size(), std::move(attributes),
                                  ir::kFusedDomain);
  for (std::size_t i = 0; i < results.size(); ++i) {
    node->outputs[i]->type = ir::Type::tensor(DataType::kFloat32, results[i]);
  }
  return node;
}

Size activation(std::int64_t count, bool is_preferred) {
  return {"activation of " + std::to_string(count), is_preferred, [=](ir::Graph& graph) {
            return fused(graph, opdef::kActivation, {value(graph, {count})}, {{count}, {count}},
                         {{.name = "function", .value = std::int64_t{2}}});
          }};
}

Size linear_step(std::int64_t rows, std::int64_t features, bool is_preferred) {
  return {"linear step " + Dims{rows, features}.to_string(), is_preferred, [=](ir::Graph& graph) {
            return fused(graph, opdef::kLinearStep,
                         {value(graph, {rows, features}), value(graph, {features, 1}), nullptr,
                          value(graph, {rows, 1}), nullptr},
                         {{}, {features, 1}}, opdef::LinearStep().attributes());
          }};
}

Size loss(std::int64_t classes, bool is_preferred) {
  return {"loss of 4 x " + std::to_string(classes), is_preferred, [=](ir::Graph& graph) {
            ir::Node* node = fused(
                graph, "SoftmaxCrossEntropyLoss",
                {value(graph, {4, classes}), value(graph, {4}, DataType::kInt64)}, {{}, {4}}, {});
            node->set_attribute("reduction", std::string("mean"));
            return node;
          }};
}

opdef::StridedView rows_of(std::int64_t rows, std::int64_t size) {
  return {.dims = {1, rows, size}, .strides = {rows * size, size, 1}};
}

Size attention(std::int64_t keys, bool stores_probabilities, bool is_preferred) {
  return {"attention to " + std::to_string(keys) + (stores_probabilities ? ", stored" : ""),
          is_preferred, [=](ir::Graph& graph) {
            constexpr std::int64_t kQueries = 256;
            const opdef::Attention op{.q = rows_of(kQueries, 8),
                                      .k = rows_of(keys, 8),
                                      .v = rows_of(keys, 8),
                                      .y = rows_of(kQueries, 8),
                                      .stores_probabilities = stores_probabilities};
            return fused(graph, opdef::kAttention,
                         {value(graph, {1, kQueries, 8}), value(graph, {1, keys, 8}),
                          value(graph, {1, keys, 8})},
                         {{1, kQueries, 8}, {kQueries, stores_probabilities ? keys : 2}},
                         op.attributes());
          }};
}

// A 1 x 1 convolution to 48 channels, and one that is depthwise or not.
Size chain(const char* name, const Dims& x, std::int64_t group, bool is_preferred) {
  return {name, is_preferred, [=](ir::Graph& graph) {
            const auto link = [](std::int64_t pad, std::int64_t groups) {
              return std::vector<ir::Attribute>{
                  {.name = "pads", .value = std::vector<std::int64_t>(4, pad)},
                  {.name = "group", .value = groups},
                  {.name = "auto_pad", .value = std::string("NOTSET")},
                  {.name = "low", .value = -1.0F},
                  {.name = "high", .value = 1.0F}};
            };
            const opdef::ConvChain op{.links = {link(0, 1), link(1, group)}};
            return fused(graph, opdef::kConvChain,
                         {value(graph, x), value(graph, {48, x[1], 1, 1}), nullptr, nullptr,
                          value(graph, {48, 48 / group, 3, 3}), nullptr, nullptr},
                         {{x[0], 48, x[2], x[3]}}, op.attributes());
          }};
}

TEST(Candidates, AreTakenWhereTheyPay) {
  const std::vector<Size> sizes = {
      activation(4096, true),
      activation(4095, false),
      linear_step(128, 1024, true),
      linear_step(129, 2, false),
      linear_step(2, 1025, false),
      loss(4096, true),
      loss(4095, false),
      attention(256, true, true),
      attention(257, true, false),
      attention(257, false, true),
      chain("chain", {8, 8, 32, 32}, 48, true),
      chain("chain of one image", {1, 8, 100, 100}, 48, false),
      chain("chain in the cache", {8, 8, 16, 16}, 48, false),
      chain("chain of large images", {2, 8, 128, 128}, 48, false),
      chain("chain of products", {8, 8, 32, 32}, 1, false),
  };
  for (const Size& size : sizes) {
    SCOPED_TRACE(size.name);
    ir::Graph graph;
    const ir::Node* node = size.make(graph);
    auto request = runtime::make_request(builtin_engine(), *node, 1);
    std::string reasons;
    const auto kernels = [&] {
      return runtime::select_kernel(builtin_engine().kernels, request, &reasons).has_value();
    };
    EXPECT_TRUE(kernels()) << reasons;
    request.is_candidate = true;
    EXPECT_EQ(kernels(), size.is_preferred) << reasons;
    EXPECT_EQ(reasons.empty(), size.is_preferred);
  }
}

}  // namespace
}  // namespace onnxgrad::ops_test::candidates
