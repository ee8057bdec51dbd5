#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "onnx/inference.h"
#include "onnx/model_io.h"
#include "onnx/testing/schema_info.h"
#include "opdef/collectives.h"
#include "opdef/fused.h"
#include "ops/testing/case_runner.h"

// Fails for an operator with a property that the sample cases leave untested: an operator cannot be
// added to the registry without cases.

namespace onnxgrad::ops_test {
namespace coverage {

// Operator application in a case, with the known properties of its operands.
struct Use {
  const OpCase* op_case;
  const ir::Node* node;
};

// Uses in the sample cases, by operator ("" and "ai.onnx" are one domain).
struct Uses {
  std::vector<OpCase> cases = all_op_cases();
  std::vector<ErrorCase> errors = all_error_cases();
  std::vector<std::unique_ptr<ir::Model>> models;  // own the nodes
  std::map<std::pair<std::string, std::string>, std::vector<Use>> by_op;
  std::set<std::string> function_calls;  // base names of `onnxgrad` functions in gradients

  Uses() {
    // Derived cases are left out, since they do not show what was written by hand.
    std::erase_if(cases, [](const OpCase& one) { return one.name.starts_with("absent."); });
    for (const OpCase& op_case : cases) {
      // The file's nodes are read, since internal graphs have lost the operators that were lowered.
      const onnx_io::FileModel file = onnx_io::load_text(model_text(op_case, {}));
      models.push_back(std::make_unique<ir::Model>(ir::clone(*file.model)));
      ir::Graph& graph = *models.back()->graph;
      onnx_io::infer_types(graph, *onnx_io::make_type_inferer(*models.back()));
      add_graph(op_case, graph);
      if (!op_case.no_gradient.empty()) continue;
      add_functions(*build_case(op_case, {}).gradient);
      if (op_case.static_only.empty()) {
        add_functions(*build_case(op_case, {.symbolic = true}).gradient);
      }
    }
  }

  void add_functions(const ir::Model& gradient) {
    for (const ir::Function& function : gradient.functions) {
      function_calls.insert(std::string(opdef::base_name(function.domain, function.name)));
    }
  }

  void add_graph(const OpCase& op_case, const ir::Graph& graph) {
    for (const ir::Node* node : graph.nodes) {
      const std::string domain = node->domain == "ai.onnx" ? "" : node->domain;
      by_op[{domain, node->op_type}].push_back({&op_case, node});
      for (const ir::Graph* subgraph : node->subgraphs()) add_graph(op_case, *subgraph);
    }
  }

  const std::vector<Use>& of(const opdef::OpDef& def) const {
    static const std::vector<Use> none;
    const auto found = by_op.find({std::string(def.domain), std::string(def.op_type)});
    return found == by_op.end() ? none : found->second;
  }
};

const Uses& all_uses() {
  static const Uses uses;
  return uses;
}

// Operators that occur in files: not those of plans, nor functions that gradients call.
// tests/python/test_contrib_operators.py compares those without an ONNX schema (com.microsoft) with
// onnxruntime.
std::vector<const opdef::OpDef*> file_operators() {
  std::vector<const opdef::OpDef*> defs;
  for (const opdef::OpDef* def : builtin_ops().all()) {
    const bool is_ours = def->domain == ir::kFusedDomain || def->domain == ir::kFunctionDomain;
    // String operator: tests/python/test_ml_operators.py.
    if (def->op_type == "CategoryMapper") continue;
    const std::int64_t opset = def->domain.empty() ? ir::kInternalOpset : 0;
    if (!is_ours && onnx_io::schema_info(def->domain, def->op_type, opset)) defs.push_back(def);
  }
  return defs;
}

bool holds_word(const std::string& text, std::string_view word) {
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const bool begins = at == 0 || !is_part(text[at - 1]);
    const std::size_t end = at + word.size();
    if (begins && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

// Returns the values that a flag or choice attribute takes in some case, as text.
std::set<std::string> values_used(const opdef::OpDef& def, std::string_view attribute) {
  std::set<std::string> used;
  for (const Use& use : all_uses().of(def)) {
    const ir::AttributeValue* value = use.node->find_attribute(attribute);
    if (value == nullptr) continue;
    if (const auto* number = std::get_if<std::int64_t>(value))
      used.insert(std::to_string(*number));
    else if (const auto* text = std::get_if<std::string>(value))
      used.insert(*text);
    else
      used.insert("given");
    if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(value)) {
      for (const std::int64_t one : *numbers) used.insert(std::to_string(one));
    }
  }
  return used;
}

std::set<std::string> values_wanted(const opdef::AttributeSpec& spec) {
  std::set<std::string> wanted(spec.choices.begin(), spec.choices.end());
  const bool is_flag = spec.type == opdef::AttributeType::kInt && spec.min == 0 && spec.max == 1;
  if (is_flag) wanted = {"0", "1"};
  return wanted;
}

std::optional<Dims> dims_of(const ir::Value* value) {
  return value == nullptr ? std::nullopt : value->type.static_dims();
}

// Returns true if `small` is broadcast along some axis to match `large`.
bool is_stretched(const Dims& small, const Dims& large) {
  if (small.rank() < large.rank()) return true;
  for (std::size_t i = 0; i < large.rank(); ++i) {
    const std::size_t axis = small.rank() - large.rank() + i;
    if (small[axis] == 1 && large[i] != 1) return true;
  }
  return false;
}

struct Sizes {
  bool has_zero = false;
  bool has_one = false;
  bool has_scalar = false;
  bool takes_tensors = false;
  bool has_negative_axis = false;
  bool takes_axis = false;
};

void look_at_axes(const Use& use, Sizes& sizes) {
  for (const ir::Value* input : use.node->inputs) {
    if (input == nullptr || (input->name != "axis" && input->name != "axes")) continue;
    sizes.takes_axis = true;
    if (!input->is_constant()) continue;
    const std::vector<std::int64_t> axes = input->initializer.to_int64s();
    sizes.has_negative_axis =
        sizes.has_negative_axis || std::ranges::any_of(axes, [](auto a) { return a < 0; });
  }
}

Sizes sizes_used(const opdef::OpDef& def) {
  Sizes sizes;
  for (const Use& use : all_uses().of(def)) {
    for (const ir::Value* input : use.node->inputs) {
      const auto dims = dims_of(input);
      if (!dims) continue;
      sizes.takes_tensors = sizes.takes_tensors || dims->rank() > 0;
      sizes.has_scalar = sizes.has_scalar || dims->rank() == 0;
      sizes.has_zero = sizes.has_zero || std::ranges::find(*dims, 0) != dims->end();
      sizes.has_one = sizes.has_one || std::ranges::find(*dims, 1) != dims->end();
    }
    look_at_axes(use, sizes);
  }
  for (const opdef::AttributeSpec& spec : def.attributes) {
    if ((spec.name != "axis" && spec.name != "axes") || spec.min >= 0) continue;
    sizes.takes_axis = true;
    for (const std::string& value : values_used(def, spec.name)) {
      sizes.has_negative_axis = sizes.has_negative_axis || value.front() == '-';
    }
  }
  return sizes;
}

}  // namespace coverage

TEST(Coverage, EveryOperatorHasValueGradientAndErrorCases) {
  const coverage::Uses& uses = coverage::all_uses();
  for (const opdef::OpDef* def : coverage::file_operators()) {
    EXPECT_FALSE(uses.of(*def).empty()) << "no case of " << def->op_type;
    if (def->vjp != nullptr) {
      EXPECT_TRUE(std::ranges::any_of(
          uses.of(*def), [](const auto& use) { return use.op_case->no_gradient.empty(); }))
          << "no gradient case of " << def->op_type;
    }
    EXPECT_TRUE(std::ranges::any_of(
        uses.errors,
        [def](const ErrorCase& one) { return coverage::holds_word(one.model, def->op_type); }))
        << "no error case of " << def->op_type;
  }
}

// float_inputs_test.cpp perturbs every one of these.
TEST(Coverage, EveryInputThatMayBeFloatingIsSo) {
  for (const opdef::OpDef* def : coverage::file_operators()) {
    const auto schema = onnx_io::schema_info(def->domain, def->op_type,
                                             def->domain.empty() ? ir::kInternalOpset : 0);
    ASSERT_TRUE(schema.has_value()) << def->op_type;
    for (std::size_t i = 0; i < schema->inputs.size(); ++i) {
      if (!schema->inputs[i].takes_floats) continue;
      if (def->op_type == "OneHot" && i == 1) continue;  // a depth is known only as an integer
      EXPECT_TRUE(std::ranges::any_of(coverage::all_uses().of(*def),
                                      [i](const coverage::Use& use) {
                                        const ir::Value* input = use.node->input(i);
                                        return input != nullptr && is_floating(input->dtype());
                                      }))
          << def->op_type << ": no case has a floating-point input " << i;
    }
  }
}

TEST(Coverage, EveryFunctionIsCalledByAGradient) {
  for (const opdef::OpDef* def : builtin_ops().all()) {
    // No gradient contains the functions that optimizers and workers call, and no case the one by
    // which users stop gradients, nor that of trained biases of 32 bits (tests/python).
    if (def->domain != ir::kFunctionDomain || def->op_type == opdef::kWeightUpdate) continue;
    if (std::ranges::find(opdef::kCollectives, def->op_type) != std::end(opdef::kCollectives)) {
      continue;
    }
    if (def->zero_gradient || def->op_type == "RoundedBias") continue;
    EXPECT_TRUE(coverage::all_uses().function_calls.contains(std::string(def->op_type)))
        << def->op_type << " is called by no gradient of a case";
  }
}

TEST(Coverage, EveryAttributeValueIsUsed) {
  for (const opdef::OpDef* def : coverage::file_operators()) {
    for (const opdef::AttributeSpec& spec : def->attributes) {
      const std::set<std::string> used = coverage::values_used(*def, spec.name);
      // Cases have no strings; tests/python/test_ml_operators.py has.
      const std::set<std::string_view> of_texts = {"cats_strings", "default_string", "keys_strings",
                                                   "values_strings"};
      if (of_texts.contains(spec.name)) continue;
      // ONNX's text syntax has no sparse tensors.
      if (spec.name == "sparse_value") continue;
      EXPECT_FALSE(used.empty()) << def->op_type << ": no case gives attribute " << spec.name;
      for (const std::string& value : coverage::values_wanted(spec)) {
        // Nodes with these values are kept, and the engine reports that it cannot run them.
        if (spec.name == "post_transform" && (value == "PROBIT" || value == "SOFTMAX_ZERO"))
          continue;
        EXPECT_TRUE(used.contains(value))
            << def->op_type << ": no case has " << spec.name << " = " << value;
      }
    }
  }
}

TEST(Coverage, BroadcastingGoesBothWays) {
  for (const opdef::OpDef* def : coverage::file_operators()) {
    if (!def->broadcasts) continue;
    bool first = false;
    bool second = false;
    for (const coverage::Use& use : coverage::all_uses().of(*def)) {
      const std::size_t count = use.node->inputs.size();
      if (count < 2) continue;
      const auto a = coverage::dims_of(use.node->inputs[count - 2]);
      const auto b = coverage::dims_of(use.node->inputs[count - 1]);
      if (!a || !b || !use.op_case->no_gradient.empty() != (def->vjp == nullptr)) continue;
      first = first || coverage::is_stretched(*a, *b);
      second = second || coverage::is_stretched(*b, *a);
    }
    EXPECT_TRUE(first && second) << def->op_type << " is not broadcast both ways";
  }
}

TEST(Coverage, SizesZeroAndOneRankZeroAndNegativeAxes) {
  // Their operands are scalars, shapes or booleans, which cannot be of size zero.
  const std::set<std::string_view> without_empty = {"Range", "If", "ArgMax", "ArgMin"};
  for (const opdef::OpDef* def : coverage::file_operators()) {
    const coverage::Sizes sizes = coverage::sizes_used(*def);
    if (sizes.takes_tensors && !without_empty.contains(def->op_type)) {
      EXPECT_TRUE(sizes.has_zero) << def->op_type << ": no case has a dimension of 0";
      EXPECT_TRUE(sizes.has_one) << def->op_type << ": no case has a dimension of 1";
    }
    if (def->expression != nullptr) {
      EXPECT_TRUE(sizes.has_scalar) << def->op_type << ": no case has a scalar";
    }
    if (sizes.takes_axis) {
      EXPECT_TRUE(sizes.has_negative_axis) << def->op_type << ": no case has a negative axis";
    }
  }
}

namespace coverage {

bool is_same(const ir::AttributeValue& a, const ir::AttributeValue& b) {
  const auto both = [&]<class T>(const T*) {
    const T* first = std::get_if<T>(&a);
    const T* second = std::get_if<T>(&b);
    return first != nullptr && second != nullptr && *first == *second;
  };
  return both(static_cast<const std::int64_t*>(nullptr)) ||
         both(static_cast<const float*>(nullptr)) || both(static_cast<const std::string*>(nullptr));
}

}  // namespace coverage

TEST(Coverage, RecordsAreOfTheSchemaAtTheInternalOpset) {
  for (const opdef::OpDef* def : coverage::file_operators()) {
    const std::int64_t opset = def->domain.empty() ? ir::kInternalOpset : 0;
    const auto schema = onnx_io::schema_info(def->domain, def->op_type, opset);
    ASSERT_TRUE(schema.has_value()) << def->op_type;
    EXPECT_EQ(def->since_version, schema->since_version)
        << def->op_type << " has a newer schema: look at the record again";
    std::vector<std::string> names;
    for (const opdef::AttributeSpec& spec : def->attributes) {
      names.emplace_back(spec.name);
      const bool is_required = std::ranges::find(schema->required_attributes, spec.name) !=
                               schema->required_attributes.end();
      EXPECT_EQ(spec.required, is_required) << def->op_type << " " << spec.name;
      const auto schema_default = schema->defaults.find(std::string(spec.name));
      const bool has_default = schema_default != schema->defaults.end();
      ASSERT_EQ(spec.default_value.has_value(), has_default) << def->op_type << " " << spec.name;
      if (has_default) {
        EXPECT_TRUE(coverage::is_same(*spec.default_value, schema_default->second))
            << def->op_type << ": the default of " << spec.name << " is not the schema's";
      }
    }
    std::ranges::sort(names);
    EXPECT_EQ(names, schema->attributes) << def->op_type << ": the attributes are not the schema's";
  }
}

namespace coverage {

void check_passage(opdef::Passage passage, const Tensor& from, const Tensor& to,
                   const std::string& where) {
  using opdef::Passage;
  const std::vector<double> before = from.to_doubles();
  const std::vector<double> after = to.to_doubles();
  if (passage >= Passage::kReshaped) {
    EXPECT_EQ(after, before) << where;
  }
  if (passage == Passage::kUnchanged) {
    EXPECT_EQ(to.dims(), from.dims()) << where;
  }
  if (passage == Passage::kPermuted) {
    EXPECT_TRUE(std::ranges::is_permutation(after, before)) << where;
  }
  if (passage == Passage::kPartial) {
    EXPECT_LE(after.size(), before.size()) << where;
  }
  const std::set<double> known(before.begin(), before.end());
  EXPECT_TRUE(std::ranges::all_of(after, [&](double x) { return known.contains(x); })) << where;
}

}  // namespace coverage

// Graph searches rely on these properties of operators. Conversions change values.
TEST(Coverage, PassagesAreWhatOperatorsDoToTheirElements) {
  using opdef::Passage;
  const auto keeps_numbers = [](const opdef::OpDef* def) {
    return def != nullptr && def->passage != Passage::kNone && def->passage != Passage::kConverted;
  };
  std::set<const opdef::OpDef*> shown;
  for (const OpCase& op_case : all_op_cases()) {
    if (!op_case.no_gradient.empty()) continue;
    const BuiltCase built = build_case(op_case, {.dtype = DataType::kFloat64});
    for (const ir::Node* node : built.forward->graph->nodes) {
      const opdef::OpDef* def = builtin_ops().find(*node);
      if (!keeps_numbers(def) || node->input(0)->is_constant()) continue;
      std::unordered_map<const ir::Value*, ir::Value*> map;
      auto model = std::make_shared<ir::Model>(ir::clone(*built.forward, &map));
      model->graph->outputs = {map.at(node->input(0))};
      for (const ir::Value* output : node->outputs) {
        if (output != nullptr) model->graph->outputs.push_back(map.at(output));
      }
      const auto results = runtime::Executor(model, builtin_engine(), {}).run(built.inputs);
      for (std::size_t i = 1; i < results.size(); ++i) {
        coverage::check_passage(def->passage, results[0], results[i],
                                op_case.name + ": " + node->describe());
      }
      shown.insert(def);
    }
  }
  for (const opdef::OpDef* def : builtin_ops().all()) {
    const bool is_stop = def->domain == ir::kFunctionDomain && def->zero_gradient;
    if (keeps_numbers(def) && !is_stop) {
      EXPECT_TRUE(shown.contains(def)) << def->op_type << ": no case shows its passage";
    }
  }
}

// Returns true if the shapes of the outputs are known only with the value of this input.
bool gives_shape(ir::Node& node, ir::Value& input, const ir::TypeInferer& inferer) {
  std::vector<ir::Type> known;
  for (ir::Value* output : node.outputs) {
    known.push_back(output == nullptr ? ir::Type{} : std::exchange(output->type, {}));
  }
  input.is_input = true;
  inferer.infer(node);
  bool gives = false;
  for (std::size_t i = 0; i < known.size(); ++i) {
    ir::Value* output = node.outputs[i];
    if (output == nullptr) continue;
    const bool was_static = known[i].is_tensor() && known[i].static_dims();
    gives = gives || (was_static && !(output->type.is_tensor() && output->type.static_dims()));
    output->type = known[i];
  }
  input.is_input = false;
  return gives;
}

// A plan waits for the values of these inputs; it is not specialised for those of other inputs.
TEST(Coverage, InputsWhoseValuesGiveShapesAreListed) {
  std::set<std::pair<const opdef::OpDef*, int>> found;
  for (const OpCase& op_case : all_op_cases()) {
    const onnx_io::FileModel file = onnx_io::load_text(model_text(op_case, {}));
    const ir::Model model = ir::clone(*file.model);
    const auto inferer = onnx_io::make_type_inferer(model);
    onnx_io::infer_types(*model.graph, *inferer);
    for (ir::Node* node : model.graph->nodes) {
      const opdef::OpDef* def = builtin_ops().find(*node);
      if (def == nullptr) continue;
      for (std::size_t i = 0; i < node->inputs.size(); ++i) {
        ir::Value* input = node->inputs[i];
        const bool is_listed =
            std::ranges::find(def->shape_inputs, static_cast<int>(i)) != def->shape_inputs.end() ||
            std::ranges::find(def->planned_inputs, static_cast<int>(i)) !=
                def->planned_inputs.end();
        if (input == nullptr || !input->is_constant() || !gives_shape(*node, *input, *inferer)) {
          continue;
        }
        found.emplace(def, static_cast<int>(i));
        EXPECT_TRUE(is_listed) << op_case.name << ": input " << i << " of " << def->op_type
                               << " gives a shape";
      }
    }
  }
  for (const opdef::OpDef* def : builtin_ops().all()) {
    if (builtin_engine().kernels.dynamic(def->domain, def->op_type) != nullptr)
      continue;  // Range: its cases feed the scalars
    for (const int i : def->shape_inputs) {
      EXPECT_TRUE(found.contains({def, i}))
          << def->op_type << ": no case shows that input " << i << " gives a shape";
    }
  }
}

}  // namespace onnxgrad::ops_test
