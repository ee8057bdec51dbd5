#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/onnx_pb.h>

#include <functional>
#include <string>
#include <vector>

#include "base/memory_budget.h"
#include "onnx/model_io.h"

namespace onnxgrad::onnx_io::import_test {
namespace {

using testing::HasSubstr;

// The message of what load throws; fails if it is none of ours.
std::string error_of(const std::function<void()>& load) {
  try {
    load();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 5) << text;
    return text;
  }
  return "no error";
}

std::string text_error(const std::string& text) {
  return error_of([&] { load_text(text); });
}

std::string header(int ir_version = 8, const std::string& imports = "\"\" : 18") {
  return "<ir_version: " + std::to_string(ir_version) + ", opset_import: [" + imports + "]>\n";
}

onnx::ModelProto small_model() {
  onnx::ModelProto model;
  model.set_ir_version(8);
  model.add_opset_import()->set_version(18);
  model.mutable_graph()->set_name("g");
  return model;
}

std::string proto_error(const onnx::ModelProto& model) {
  return error_of([&] { load_bytes(model.SerializeAsString()); });
}

onnx::NodeProto& add_node(onnx::GraphProto& graph, const std::string& op_type,
                          const std::string& input, const std::string& output) {
  onnx::NodeProto& node = *graph.add_node();
  node.set_op_type(op_type);
  node.set_name("node_" + output);
  if (!input.empty()) node.add_input(input);
  node.add_output(output);
  return node;
}

TEST(Import, ReadsWhatTheTextSays) {
  const FileModel file = load_text(header() + R"(
    main (float[N, 4] x) => (float[N, 2] y)
    <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] b = {0.5, -1}> {
      [first] h = MatMul(x, w)
      y = Add(h, b)
    })");
  const ir::Graph& graph = *file.model->graph;
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_EQ(graph.inputs[0]->type.to_string(), "float32[N, 4]");
  EXPECT_EQ(graph.nodes[0]->inputs[1], graph.initializers[0]);
  EXPECT_EQ(graph.initializers[1]->initializer.data<float>()[1], -1.0F);
  EXPECT_EQ(graph.outputs[0], graph.nodes[1]->outputs[0]);
  EXPECT_EQ(graph.nodes[1]->inputs[0]->producer, graph.nodes[0]);
  EXPECT_EQ(file.model->opset(), 18);
}

TEST(Import, RefusesHeadersOutOfRange) {
  const std::string body = "g (float[1] x) => (float[1] y) { y = Relu(x) }";
  EXPECT_THAT(text_error(header(0) + body), HasSubstr("IR version 0, expected 3 to 14"));
  EXPECT_THAT(text_error(header(999) + body), HasSubstr("IR version 999"));
  EXPECT_THAT(text_error(header(8, "\"\" : 0") + body), HasSubstr("opset 0 of 'ai.onnx'"));
  EXPECT_THAT(text_error(header(8, "\"\" : 999") + body), HasSubstr("expected 1 to 28"));
  EXPECT_THAT(text_error(header(8, "\"\" : 18, \"ai.onnx\" : 17") + body),
              HasSubstr("twice, in versions 18 and 17"));
  EXPECT_EQ(text_error(header(8, "\"\" : 18, \"\" : 18") + body), "no error");
  // As in onnxruntime, domains that it knows need no import.
  EXPECT_EQ(text_error(header(8, "\"other\" : 1") + body), "no error");
  EXPECT_THAT(
      text_error(header(8, "\"\" : 18") + "g (float[1] x) => (float[1] y) { y = other.Relu(x) }"),
      HasSubstr("not among the opset imports"));
  EXPECT_THAT(text_error(header(8, "\"ai.onnx.ml\" : 77, \"\" : 18") + body), HasSubstr("1 to 5"));
  onnx::ModelProto model = small_model();
  model.clear_opset_import();
  EXPECT_THAT(proto_error(model), HasSubstr("no opset"));
}

TEST(Import, RefusesWhatIsNoModel) {
  const auto bytes_error = [](const std::string& bytes) {
    return error_of([&] { load_bytes(bytes); });
  };
  EXPECT_THAT(bytes_error(""), HasSubstr("not an ONNX model"));
  EXPECT_THAT(bytes_error("hello, this is text"), HasSubstr("not an ONNX model"));
  EXPECT_THAT(bytes_error(std::string(100, '\xff')), HasSubstr("not an ONNX model"));
  onnx::ModelProto model = small_model();
  add_node(*model.mutable_graph(), "Relu", "x", "y");
  const std::string whole = model.SerializeAsString();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(bytes_error(whole.substr(0, size)), "no error") << size;
  }
  EXPECT_THAT(error_of([] { load_file("/nowhere/model.onnx"); }), HasSubstr("/nowhere/model.onnx"));
}

TEST(Import, RefusesNamesThatAreNotDefinedOnce) {
  const auto graph_error = [](const std::string& graph) { return text_error(header() + graph); };
  EXPECT_THAT(
      graph_error("g (float[1] value) => (float[1] y) { y = Relu(valve) }"),
      testing::AllOf(HasSubstr("'valve' is not defined"), HasSubstr("Did you mean 'value'?")));
  EXPECT_THAT(graph_error("g (float[1] x) => (float[1] z) { y = Relu(x) }"),
              HasSubstr("output 'z' of the graph is not defined"));
  EXPECT_THAT(graph_error("g (float[1] x) => (float[1] y) { y = Relu(x) y = Tanh(x) }"),
              HasSubstr("a name that is already used"));
  EXPECT_THAT(graph_error("g (float[1] x) => (float[1] x) { x = Relu(x) }"),
              HasSubstr("already used"));
  EXPECT_THAT(graph_error("g (float[1] x, float[1] x) => (float[1] x) { }"),
              HasSubstr("the name of another value of the graph"));
  EXPECT_THAT(graph_error("g (float[1] x) => (float[1] y) <float w = {1}, float w = {2}>"
                          "{ y = Add(x, w) }"),
              HasSubstr("the name of another value of the graph"));
}

TEST(Import, SortsNodesAndRefusesCycles) {
  const FileModel file = load_text(header() + R"(
    g (float[1] x) => (float[1] c) { c = Relu(b)  b = Tanh(a)  a = Exp(x) })");
  std::string order;
  for (const ir::Node* node : file.model->graph->nodes) order += node->op_type + " ";
  EXPECT_EQ(order, "Exp Tanh Relu ");
  EXPECT_THAT(text_error(header() + "g (float[1] x) => (float[1] a) { a = Add(x, b) b = Relu(a) }"),
              HasSubstr("cycle"));
  EXPECT_THAT(text_error(header() + "g (float[1] x) => (float[1] a) { a = Add(x, a) }"),
              HasSubstr("cycle"));
  // A value that only a subgraph reads counts, too.
  const FileModel captured = load_text(header() + R"(
    g (bool c, float[1] x) => (float[1] y) {
      y = If (c) <then_branch = t () => (float[1] p) { p = Relu(late) },
                  else_branch = e () => (float[1] q) { q = Tanh(x) }>
      late = Exp(x)
    })");
  EXPECT_EQ(captured.model->graph->nodes[0]->op_type, "Exp");
}

TEST(Import, NamesOfSubgraphsAreTheirOwn) {
  const FileModel file = load_text(header() + R"(
    g (bool c, float[1] x) => (float[1] y) {
      y = If (c) <then_branch = t () => (float[1] p) { p = Relu(x) },
                  else_branch = e () => (float[1] p) { p = Tanh(x) }>
    })");
  const std::vector<ir::Graph*> branches = file.model->graph->nodes[0]->subgraphs();
  ASSERT_EQ(branches.size(), 2u);
  EXPECT_NE(branches[0]->outputs[0], branches[1]->outputs[0]);
  EXPECT_EQ(branches[0]->nodes[0]->inputs[0], file.model->graph->inputs[1]);
  EXPECT_EQ(branches[0]->parent(), file.model->graph.get());
}

TEST(Import, RefusesMalformedAttributes) {
  const auto attribute_error = [](const std::function<void(onnx::NodeProto&)>& change) {
    onnx::ModelProto model = small_model();
    onnx::GraphProto& graph = *model.mutable_graph();
    graph.add_input()->set_name("x");
    change(add_node(graph, "Softmax", "x", "y"));
    return proto_error(model);
  };
  const auto axis = [](onnx::NodeProto& node) -> onnx::AttributeProto& {
    onnx::AttributeProto& attribute = *node.add_attribute();
    attribute.set_name("axis");
    attribute.set_type(onnx::AttributeProto::INT);
    attribute.set_i(1);
    return attribute;
  };
  EXPECT_EQ(attribute_error([&](auto& node) { axis(node); }), "no error");
  EXPECT_THAT(attribute_error([&](auto& node) {
                axis(node);
                axis(node);
              }),
              HasSubstr("attribute 'axis' is given twice"));
  EXPECT_THAT(attribute_error([&](auto& node) { axis(node).set_f(2); }), HasSubstr("two types"));
  EXPECT_THAT(
      attribute_error([&](auto& node) { axis(node).set_type(onnx::AttributeProto::FLOATS); }),
      HasSubstr("not of its declared type"));
  EXPECT_THAT(attribute_error([&](auto& node) { axis(node).clear_name(); }), HasSubstr("no name"));
  EXPECT_THAT(attribute_error([&](auto& node) {
                axis(node).set_ref_attr_name("a");
                node.mutable_attribute(0)->clear_i();
              }),
              HasSubstr("outside a function"));
  EXPECT_THAT(attribute_error([&](auto& node) {
                axis(node).clear_i();
                node.mutable_attribute(0)->set_type(onnx::AttributeProto::GRAPH);
              }),
              HasSubstr("has no value"));
}

TEST(Import, SubgraphsNestAsDeepAsProtobufReads) {
  const auto nested = [](int depth) {
    onnx::ModelProto model = small_model();
    onnx::GraphProto* graph = model.mutable_graph();
    for (int i = 0; i < depth; ++i) {
      onnx::NodeProto& node = *graph->add_node();
      node.set_op_type("If");
      onnx::AttributeProto& attribute = *node.add_attribute();
      attribute.set_name("then_branch");
      attribute.set_type(onnx::AttributeProto::GRAPH);
      graph = attribute.mutable_g();
    }
    return model;
  };
  EXPECT_EQ(proto_error(nested(31)), "no error");
  EXPECT_THAT(proto_error(nested(32)), HasSubstr("deeper than 31"));
  EXPECT_THAT(proto_error(nested(2000)), HasSubstr("deeper than 31"));
}

TEST(Import, FunctionsAreBounded) {
  const std::string main = "main (float[1] x) => (float[1] y) { y = f.F0(x) }\n";
  const auto function = [](int i, const std::string& body) {
    return "<domain: \"f\", opset_import: [\"\" : 18, \"f\" : 1]> F" + std::to_string(i) +
           " (a) => (b) { " + body + " }\n";
  };
  const std::string imports = header(8, "\"\" : 18, \"f\" : 1");
  EXPECT_EQ(text_error(imports + main + function(0, "b = Relu(a)")), "no error");
  EXPECT_THAT(text_error(imports + main + function(0, "b = f.F0(a)")), HasSubstr("calls itself"));
  EXPECT_THAT(text_error(imports + main + function(0, "b = f.F1(a)") + function(1, "b = f.F0(a)")),
              HasSubstr("calls itself"));
  EXPECT_THAT(text_error(imports + main + function(0, "b = Relu(a)") + function(0, "b = Exp(a)")),
              HasSubstr("defined twice"));
  std::string doubling;
  for (int i = 0; i < 40; ++i) {
    const std::string next = "f.F" + std::to_string(i + 1);
    doubling += function(i, "c = " + next + "(a) b = " + next + "(c)");
  }
  EXPECT_THAT(text_error(imports + main + doubling + function(40, "b = Relu(a)")),
              HasSubstr("expand to more than"));
}

TEST(Import, ALongChainAndManyPathsAreLinearWork) {
  onnx::ModelProto model = small_model();
  onnx::GraphProto& graph = *model.mutable_graph();
  graph.add_input()->set_name("v0");
  constexpr int kNodes = 100'000;
  for (int i = 0; i < kNodes; ++i) {
    onnx::NodeProto& node =
        add_node(graph, "Add", "v" + std::to_string(i), "v" + std::to_string(i + 1));
    node.add_input("v" + std::to_string(i));  // 2^100000 paths
  }
  // In the wrong order, so that they have to be sorted.
  for (int i = 0; i < kNodes / 2; ++i) {
    graph.mutable_node()->SwapElements(i, kNodes - 1 - i);
  }
  graph.add_output()->set_name("v" + std::to_string(kNodes));
  const std::string bytes = model.SerializeAsString();
  // An algorithm that is quadratic or follows paths would exceed the test runner's time limit.
  const FileModel file = load_bytes(bytes);
  EXPECT_EQ(file.model->graph->nodes.size(), static_cast<std::size_t>(kNodes));
}

TEST(Import, InitializersMustFitTheirInputs) {
  EXPECT_THAT(text_error(header() + "g (float[3] w) => (float[2] y) <float[2] w = {1, 2}>"
                                    "{ y = Relu(w) }"),
              HasSubstr("declared as float32[3], but its initializer is float32[2]"));
  EXPECT_EQ(text_error(header() + "g (float[N] w) => (float[2] y) <float[2] w = {1, 2}>"
                                  "{ y = Relu(w) }"),
            "no error");
}

// onnxruntime's optimizer for transformers transposes weights and leaves their declarations.
TEST(Import, DeclarationsOfInitializersInsideAreIgnored) {
  EXPECT_EQ(text_error(header() + "g (float[2] x) => (float[2] y) <float[3] w, float[2] w = {1, 2}>"
                                  "{ y = Add(x, w) }"),
            "no error");
}

TEST(Import, StaysWithinTheMemoryBudget) {
  onnx::ModelProto model = small_model();
  onnx::TensorProto& tensor = *model.mutable_graph()->add_initializer();
  tensor.set_name("w");
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  tensor.add_dims(1 << 20);
  tensor.mutable_float_data()->Resize(1 << 20, 0.0F);
  const std::string bytes = model.SerializeAsString();
  const auto budget = std::make_shared<base::MemoryBudget>(bytes.size() + 1000);
  const base::MemoryBudgetScope scope(budget);
  EXPECT_THROW(load_bytes(bytes), DeviceError);
  EXPECT_EQ(budget->used_bytes(), 0);
}

TEST(Import, ShapesThatOverflowAreRefusedBeforeMemoryIsAskedFor) {
  const auto shape_error = [](std::vector<std::int64_t> dims) {
    onnx::ModelProto model = small_model();
    onnx::TensorProto& tensor = *model.mutable_graph()->add_initializer();
    tensor.set_name("w");
    tensor.set_data_type(onnx::TensorProto::INT8);
    for (const std::int64_t dim : dims) tensor.add_dims(dim);
    tensor.add_int32_data(1);
    return proto_error(model);
  };
  EXPECT_EQ(shape_error({1}), "no error");
  const auto big = [](int bits) { return std::int64_t{1} << bits; };
  EXPECT_NE(shape_error({big(40)}), "no error");
  EXPECT_NE(shape_error({big(62), big(62)}), "no error");
  EXPECT_NE(shape_error({big(32), big(32)}), "no error");  // wraps to 0
  EXPECT_NE(shape_error({-1}), "no error");
  EXPECT_NE(shape_error(std::vector<std::int64_t>(100, 1)), "no error");
}

TEST(Import, NamesMustBeUtf8) {
  onnx::ModelProto model = small_model();
  add_node(*model.mutable_graph(), "Relu", "", "y");
  std::string bytes = model.SerializeAsString();
  const std::size_t at = bytes.find("node_y");
  bytes[at] = '\xff';
  EXPECT_THAT(error_of([&] { load_bytes(bytes); }), HasSubstr("UTF-8"));
}

}  // namespace
}  // namespace onnxgrad::onnx_io::import_test
