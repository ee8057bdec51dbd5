#include "ir/graph.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/inline.h"
#include "ir/key.h"
#include "ir/static_size.h"
#include "ir/uses.h"
#include "onnxgrad/error.h"

namespace onnxgrad::ir {
namespace {

class NoInference : public TypeInferer {
 public:
  void infer(Node&) const override {}
};

Type matrix() { return Type::tensor(DataType::kFloat32, Dims{2, 3}); }

// x -> Relu -> Add(c) -> y
Model small_model() {
  Model model;
  Graph& graph = *model.graph;
  Value* x = graph.add_input("x", matrix());
  Value* c = graph.add_initializer("c", Tensor::scalar(1.0F));
  Node* relu = graph.add_node("Relu", {x}, 1);
  Node* add = graph.add_node("Add", {relu->outputs[0], c}, 1, {}, "", "y");
  graph.outputs = {add->outputs[0]};
  return model;
}

TEST(StaticSize, IsThatOfTheDims) {
  Value value;
  EXPECT_EQ(static_elements(value), std::nullopt);
  for (const Dims& dims : {Dims{}, Dims{2, 3}, Dims{5, 0}, Dims{7}}) {
    for (const DataType dtype :
         {DataType::kFloat32, DataType::kBool, DataType::kInt4, DataType::kString}) {
      value.type = Type::tensor(dtype, dims);
      EXPECT_EQ(static_elements(value), dims.num_elements());
      EXPECT_EQ(static_bytes(value), dims.size_bytes(dtype));
    }
  }
  value.type = Type::tensor(DataType::kFloat32, SymbolicShape{Dim(2), Dim::named("N")});
  EXPECT_EQ(static_bytes(value), std::nullopt);
  const Dim large(std::int64_t{1} << 32);
  value.type = Type::tensor(DataType::kFloat32, SymbolicShape{large, large});
  EXPECT_THROW(static_bytes(value), ShapeError);
}

TEST(Key, DiffersWhereAPartDoes) {
  const auto key_of = [](const AttributeValue& value) {
    std::string key;
    EXPECT_TRUE(append_key(key, value, 64));
    return key;
  };
  using Ints = std::vector<std::int64_t>;
  EXPECT_EQ(key_of(Ints{1, 2}), key_of(Ints{1, 2}));
  EXPECT_NE(key_of(Ints{1, 2}), key_of(Ints{1, 2, 0}));
  EXPECT_NE(key_of(std::int64_t{0}), key_of(0.0F));
  EXPECT_NE(key_of(0.0F), key_of(-0.0F));
  EXPECT_NE(key_of(Tensor::zeros(DataType::kFloat32, {2, 1})),
            key_of(Tensor::zeros(DataType::kFloat32, {1, 2})));
  std::string key;
  EXPECT_FALSE(append_key(key, AttributeValue(Tensor::zeros(DataType::kFloat32, {17})), 64));
  std::string of_symbol;
  std::string of_other;
  append_key(of_symbol, Type::tensor(DataType::kFloat32, SymbolicShape{Dim::named("N")}));
  append_key(of_other, Type::tensor(DataType::kFloat32, SymbolicShape{Dim::named("M")}));
  EXPECT_NE(of_symbol, of_other);
}

TEST(NameAuthority, NeverGivesANameTwice) {
  NameAuthority names;
  names.reserve("a_1");
  EXPECT_EQ(names.unique("a"), "a");
  EXPECT_EQ(names.unique("a"), "a_2");
  EXPECT_EQ(names.unique("a_1"), "a_1_1");
}

TEST(Graph, CloneIsIndependentAndKeepsNames) {
  const Model model = small_model();
  std::unordered_map<const Value*, Value*> map;
  const Model copy = clone(model, &map);
  EXPECT_EQ(to_text(model), to_text(copy));
  copy.graph->nodes.clear();
  EXPECT_EQ(model.graph->nodes.size(), 2U);
  Value* c = model.graph->find("c");
  EXPECT_NE(map.at(c), c);
  EXPECT_EQ(map.at(c)->initializer.raw(), c->initializer.raw());  // data is shared
}

TEST(Graph, AModelThatNobodyElseHoldsIsNotCloned) {
  std::shared_ptr<const Model> model = std::make_shared<const Model>(small_model());
  const Model* const first = model.get();
  const std::shared_ptr<Model> copy = writable(model);
  EXPECT_NE(copy.get(), first);
  EXPECT_NE(copy->graph, model->graph);
  EXPECT_EQ(writable(std::move(model)).get(), first);
}

TEST(Graph, SortsStablyAndReportsCycles) {
  const Model model = small_model();
  Graph& graph = *model.graph;
  std::swap(graph.nodes[0], graph.nodes[1]);
  sort_topologically(graph);
  EXPECT_EQ(graph.nodes[0]->op_type, "Relu");
  graph.nodes[0]->inputs[0] = graph.nodes[1]->outputs[0];
  try {
    sort_topologically(graph);
    FAIL() << "a cycle was sorted";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("cycle"), std::string::npos);
  }
}

TEST(Graph, FaultsAreFound) {
  const auto expect = [](const std::string& part, auto change) {
    const Model model = small_model();
    Graph& graph = *model.graph;
    EXPECT_EQ(find_fault(graph), "");
    change(graph, *graph.nodes[0], *graph.nodes[1]);
    EXPECT_NE(find_fault(graph).find(part), std::string::npos) << find_fault(graph);
  };
  expect("before it is computed",
         [](Graph& graph, Node&, Node&) { std::swap(graph.nodes[0], graph.nodes[1]); });
  expect("before it is computed",
         [](Graph&, Node& relu, Node& add) { relu.inputs[0] = add.outputs[0]; });
  expect("before it is computed", [](Graph& graph, Node&, Node&) { graph.initializers.clear(); });
  expect("listed twice", [](Graph& graph, Node& relu, Node&) { graph.nodes.push_back(&relu); });
  expect("names another producer",
         [](Graph&, Node& relu, Node& add) { relu.outputs[0]->producer = &add; });
  expect("already exists",
         [](Graph& graph, Node& relu, Node&) { Graph::set_output(&relu, 0, graph.inputs[0]); });
  expect("is never computed", [](Graph& graph, Node&, Node&) { graph.nodes.pop_back(); });
}

TEST(Graph, SortsALongChainWithoutRecursion) {
  Graph graph;
  Value* value = graph.add_input("x", matrix());
  for (int i = 0; i < 100000; ++i) value = graph.add_node("Relu", {value}, 1)->outputs[0];
  graph.outputs = {value};
  std::reverse(graph.nodes.begin(), graph.nodes.end());
  sort_topologically(graph);
  EXPECT_EQ(graph.nodes.front()->inputs[0], graph.inputs[0]);
  EXPECT_EQ(eliminate_dead_nodes(graph), 0U);
}

TEST(Graph, EliminatesWhatNobodyReads) {
  const Model model = small_model();
  Graph& graph = *model.graph;
  graph.add_node("Exp", {graph.find("x")}, 1);
  graph.add_initializer("unused", Tensor::scalar(2.0F));
  EXPECT_EQ(eliminate_dead_nodes(graph), 1U);
  EXPECT_EQ(graph.initializers.size(), 1U);
  EXPECT_EQ(eliminate_dead_nodes(graph), 0U);
}

TEST(Graph, SubgraphsReadEnclosingValues) {
  Model model = small_model();
  Graph& graph = *model.graph;
  Value* condition = graph.add_input("condition", Type::tensor(DataType::kBool, Dims{}));
  auto branch = std::make_shared<Graph>(graph.names_ptr(), &graph);
  Value* relu = graph.nodes[0]->outputs[0];
  branch->outputs = {branch->add_node("Neg", {relu}, 1)->outputs[0]};
  Node* node =
      graph.add_node("If", {condition}, 1, {{.name = "then_branch", .value = GraphPtr(branch)}});
  graph.outputs.push_back(node->outputs[0]);
  EXPECT_EQ(captured_values(*node), std::vector<Value*>{relu});
  EXPECT_EQ(Uses(graph).count(relu), 2U);

  const Model copy = clone(model);
  const Node* copied = copy.graph->nodes.back();
  ASSERT_EQ(captured_values(*copied).size(), 1U);
  EXPECT_EQ(captured_values(*copied)[0]->graph, copy.graph.get());

  Value* other = graph.add_input("other", matrix());
  replace_uses(graph, {{relu, other}});
  EXPECT_EQ(captured_values(*node), std::vector<Value*>{other});
}

// f(a, b) = (a + b, a), with an attribute that the call may leave out.
Function sum_function() {
  Function function;
  function.domain = "onnxgrad";
  function.name = "F";
  function.body = std::make_shared<Graph>();
  Graph& body = *function.body;
  Value* a = body.add_input("a", {});
  Value* b = body.add_input("b", {});
  Node* sum =
      body.add_node("Sum", {a, b}, 1,
                    {{.name = "axis", .value = AttributeRef{.name = "given", .type = 2}},
                     {.name = "other", .value = AttributeRef{.name = "absent", .type = 2}}});
  body.outputs = {sum->outputs[0], a};
  function.attribute_defaults = {{.name = "given", .value = std::int64_t{7}}};
  return function;
}

TEST(Inline, TakesThePlaceOfTheCall) {
  Model model;
  Graph& graph = *model.graph;
  Value* x = graph.add_input("x", matrix());
  Node* call = graph.add_node("F", {x, x}, 2, {}, "onnxgrad", "call");
  Value* first = call->outputs[0];
  Value* second = call->outputs[1];
  graph.outputs = {graph.add_node("Neg", {first}, 1)->outputs[0], second};
  inline_call(*call, sum_function(), NoInference());

  ASSERT_EQ(graph.nodes.size(), 3U);
  EXPECT_EQ(graph.nodes[0]->op_type, "Sum");
  EXPECT_EQ(graph.nodes[0]->outputs[0], first);
  EXPECT_EQ(graph.nodes[0]->int_attribute("axis", 0), 7);
  EXPECT_EQ(graph.nodes[0]->find_attribute("other"), nullptr);
  EXPECT_EQ(graph.nodes[1]->op_type, "Identity");  // passes an input through
  EXPECT_EQ(second->producer, graph.nodes[1]);
}

TEST(Inline, RefusesTooManyInputs) {
  Model model;
  Value* x = model.graph->add_input("x", matrix());
  Node* call = model.graph->add_node("F", {x, x, x}, 1, {}, "onnxgrad");
  EXPECT_THROW(inline_call(*call, sum_function(), NoInference()), ModelError);
}

TEST(Type, TextAndStaticDims) {
  const Type type = Type::tensor(DataType::kFloat32, {Dim::named("N"), 3, Dim()});
  EXPECT_EQ(type.to_string(), "float32[N, 3, ?]");
  EXPECT_FALSE(type.static_dims());
  EXPECT_EQ(matrix().static_dims(), (Dims{2, 3}));
  EXPECT_TRUE(Dim::named("N").surely_equals(Dim::named("N")));
  EXPECT_FALSE(Dim().surely_equals(Dim()));
}

}  // namespace
}  // namespace onnxgrad::ir
