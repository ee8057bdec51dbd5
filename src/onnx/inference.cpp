#include "onnx/inference.h"

#include <onnx/defs/shape_inference.h>

#include <algorithm>
#include <memory>
#include <new>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/interrupt.h"
#include "ir/inline.h"
#include "ir/key.h"
#include "onnx/control_flow.h"
#include "onnx/functions.h"
#include "onnx/inferer.h"
#include "onnx/known_values.h"
#include "onnx/model_rules.h"
#include "onnx/node_context.h"
#include "onnx/node_rules.h"
#include "onnx/protos.h"
#include "onnx/shape_checks.h"

namespace onnxgrad::onnx_io {
namespace {

constexpr std::size_t kMaxMessage = 300;    // characters of the library's message
constexpr std::int64_t kMaxKeyBytes = 512;  // constants in the key of a call
constexpr int kMaxLoopRounds = 4;
constexpr int kMaxLoopDepth = 2;  // nested Loops that track the shapes of states: rounds multiply

// "Inputs: 'x' float32[N, 4], 'w' float32[3, 5]."
std::string describe_inputs(const ir::Node& node) {
  constexpr std::size_t kMaxInputs = 6;
  std::string text = "Inputs: ";
  for (std::size_t i = 0; i < node.inputs.size() && i < kMaxInputs; ++i) {
    if (i > 0) text += ", ";
    const ir::Value* input = node.inputs[i];
    text += input == nullptr ? "absent" : "'" + input->name + "' " + input->type.to_string();
  }
  if (node.inputs.size() > kMaxInputs) {
    text += ", ... (" + std::to_string(node.inputs.size()) + " in total)";
  }
  return text + ".";
}

// The library's message on one line, without its markers.
std::string tidy(std::string_view message) {
  constexpr std::string_view kMarkerEnd = "Error] ";
  const std::size_t marker = message.find(kMarkerEnd);
  if (marker != std::string_view::npos) message.remove_prefix(marker + kMarkerEnd.size());
  message = message.substr(0, std::min(message.find('\n'), kMaxMessage));
  return std::string(message.empty() ? "its types and shapes cannot be inferred" : message);
}

Place place_of(const ir::Node& node) {
  return {.graph = node.graph == nullptr ? "" : node.graph->name,
          .node = node.name,
          .op_type = node.op_type};
}

// Runs `body`; every exception is converted to one of ours that names `node`.
template <class Body>
auto at_node(const ir::Node& node, const Body& body) {
  const auto with_place = [&node](const Error& error) {
    Problem problem = error.problem();
    if (problem.where.op_type.empty()) {
      problem.where = place_of(node);
      if (problem.detail.empty() && !node.inputs.empty()) problem.detail = describe_inputs(node);
    }
    return problem;
  };
  try {
    return body();
  } catch (const ShapeError& error) {
    throw ShapeError(with_place(error));
  } catch (const ModelError& error) {
    throw ModelError(with_place(error));
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw DeviceError({.what = "out of memory while inferring its types",
                       .where = place_of(node),
                       .hint = "Look for a huge constant shape, or free memory."});
  } catch (const std::exception& error) {
    const std::string_view message = error.what();
    Problem problem{
        .what = tidy(message),
        .where = place_of(node),
        .detail = describe_inputs(node),
        .hint = "Give inputs and attributes that the operator accepts, or export the model again."};
    if (message.find("ShapeInferenceError") != std::string_view::npos) {
      throw ShapeError(std::move(problem));
    }
    throw ModelError(std::move(problem));
  }
}

// The output types as far as the schema alone determines them: the element type of an input with
// the same type variable, or the only one that is allowed.
void fill_element_types(const ir::Node& node, const Schema& schema, std::vector<ir::Type>& types) {
  std::vector<DataType> bound(schema.num_constraints(), DataType::kUndefined);
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    const Parameter* parameter = schema.input(i);
    const ir::Value* input = node.inputs[i];
    if (parameter == nullptr || parameter->constraint < 0 || input == nullptr) continue;
    if (input->type.is_tensor())
      bound[static_cast<std::size_t>(parameter->constraint)] = input->dtype();
  }
  for (std::size_t i = 0; i < types.size(); ++i) {
    const Parameter* parameter = schema.output(i);
    ir::Type& type = types[i];
    if (parameter == nullptr || parameter->takes_others || type.dtype != DataType::kUndefined)
      continue;
    if (type.kind != ir::Type::Kind::kUnknown && type.kind != ir::Type::Kind::kTensor) continue;
    DataType dtype = parameter->constraint < 0
                         ? DataType::kUndefined
                         : bound[static_cast<std::size_t>(parameter->constraint)];
    for (int d = 1; d <= static_cast<int>(DataType::kInt2); ++d) {
      if (parameter->tensors == 1u << d) dtype = static_cast<DataType>(d);
    }
    if (dtype == DataType::kUndefined) continue;
    type.kind = ir::Type::Kind::kTensor;
    type.dtype = dtype;
  }
}

// ONNX's function makes the last of `num_outputs` parts negative if fewer would suffice.
void correct_split(const ir::Node& node, NodeContext& context) {
  const std::int64_t count = node.int_attribute("num_outputs", 0);
  const std::optional<Dims> dims = node.inputs.at(0)->type.static_dims();
  if (count <= 0 || !dims || dims->rank() == 0) return;
  const std::int64_t axis = normalize_axis(node.int_attribute("axis", 0), dims->rank());
  const std::int64_t size = (*dims)[static_cast<std::size_t>(axis)];
  const std::int64_t part = size / count + (size % count == 0 ? 0 : 1);
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    onnx::TypeProto& type = *context.getOutputType(i);
    if (!type.has_tensor_type() || type.tensor_type().shape().dim_size() <= axis) continue;
    const auto before = static_cast<std::int64_t>(i);  // parts
    const std::int64_t left = part == 0 || before > size / part ? 0 : size - before * part;
    type.mutable_tensor_type()
        ->mutable_shape()
        ->mutable_dim(static_cast<int>(axis))
        ->set_dim_value(std::min(left, part));
  }
}

// The dimension that Reshape is to find, -1, where ONNX's function gives up: names cancel, so that
// [N, 2, 4] becomes [N, 8] with the shape (-1, 8).
void complete_reshape(const ir::Node& node, ir::Type& type, std::int64_t opset) {
  const ir::Value* data = node.input(0);
  const ir::Value* shape = node.input(1);
  if (data == nullptr || shape == nullptr || !data->type.shape || !type.shape) return;
  const auto is_unknown = [](const ir::Dim& d) { return !d.is_static() && !d.is_symbolic(); };
  const auto found = std::ranges::find_if(*type.shape, is_unknown);
  if (found == type.shape->end() || std::ranges::any_of(*data->type.shape, is_unknown)) return;
  KnownValues known(opset);
  const onnx::TensorShapeProto* elements = known.elements(*shape);
  const auto place = static_cast<int>(found - type.shape->begin());
  if (elements == nullptr || elements->dim_size() <= place ||
      elements->dim(place).dim_value() != -1) {
    return;
  }
  std::vector<std::string> names;
  std::int64_t given = 1;
  for (const ir::Dim& dim : *data->type.shape) {
    if (dim.is_symbolic()) names.push_back(dim.symbol());
    if (dim.is_static() && __builtin_mul_overflow(given, dim.value(), &given)) return;
  }
  std::int64_t taken = 1;
  for (auto dim = type.shape->begin(); dim != type.shape->end(); ++dim) {
    if (dim == found) continue;
    const auto name = std::ranges::find(names, dim->symbol());
    if (dim->is_static() ? __builtin_mul_overflow(taken, dim->value(), &taken)
                         : name == names.end()) {
      return;
    }
    if (!dim->is_static()) names.erase(name);
  }
  if (taken == 0 || given % taken != 0) return;
  if (names.empty()) *found = given / taken;
  if (names.size() == 1 && given == taken) *found = ir::Dim::named(names.front());
}

// The rank of a result whose axes are computed or fed: their number is enough, or nothing where the
// axes are kept.
void complete_rank(const ir::Node& node, ir::Type& type) {
  const bool reduces = node.op_type.starts_with("Reduce");
  const bool keeps = reduces && node.int_attribute("keepdims", 1) != 0;
  const bool removes = reduces || node.op_type == "Squeeze";
  if (type.shape || !type.is_tensor() || !(removes || node.op_type == "Unsqueeze")) return;
  const ir::Value* data = node.input(0);
  const ir::Value* axes = node.input(1);
  if (data == nullptr || axes == nullptr || !data->type.shape) return;
  if (keeps) {
    type.shape.emplace(data->type.rank());
    return;
  }
  const std::optional<Dims> dims = axes->type.static_dims();
  if (!dims || dims->num_elements() == 0) return;
  const auto count = static_cast<std::size_t>(dims->num_elements());
  if (removes && count > data->type.rank()) return;
  if (!removes && count > Dims::kMaxRank) return;
  type.shape.emplace(removes ? data->type.rank() - count : data->type.rank() + count);
}

// The size of a OneHot's axis, where ONNX's function does not read a depth of that type.
void complete_depth(const ir::Node& node, ir::Type& type) {
  if (node.op_type != "OneHot" || !type.shape || type.shape->empty()) return;
  const ir::Value* input = node.input(1);
  const Tensor* depth = input == nullptr ? nullptr : constant_of(input);
  if (depth == nullptr || depth->num_elements() != 1 || depth->dtype() == DataType::kString) return;
  const auto rank = type.shape->size();
  const auto axis = static_cast<std::size_t>(normalize_axis(node.int_attribute("axis", -1), rank));
  const double size = depth->to_doubles().front();
  ir::Dim& dim = (*type.shape)[axis];
  if (dim.is_static() || dim.is_symbolic() || !(size >= 0 && size < 0x1p62)) return;
  dim = static_cast<std::int64_t>(size);
}

// ONNX's schemas of ai.onnx.ml omit the shapes of operators that preserve them.
void keep_ml_shape(const ir::Node& node, std::vector<ir::Type>& types) {
  const bool keeps = node.op_type == "Normalizer" || node.op_type == "Scaler" ||
                     node.op_type == "Imputer" || node.op_type == "Binarizer";
  if (!keeps || node.domain != "ai.onnx.ml" || types.empty() || node.input(0) == nullptr) return;
  if (types[0].is_tensor() && !types[0].shape) types[0].shape = node.inputs[0]->type.shape;
}

// Equal keys, equal types. Empty: not worth caching.
std::string key_of_call(const ir::Node& node, KnownValues& known) {
  std::string key = node.domain + ":" + node.op_type + ":" + node.overload;
  for (const ir::Value* input : node.inputs) {
    key += "|" + (input == nullptr ? "-" : input->type.to_string());
    if (input == nullptr) continue;
    if (!is_integer(input->dtype())) continue;
    if (input->is_constant() && input->initializer.size_bytes() > kMaxKeyBytes) return "";
    if (const onnx::TensorProto* tensor = known.tensor(*input)) {
      key += "=" + tensor->SerializeAsString();
    } else if (const onnx::TensorShapeProto* elements = known.elements(*input)) {
      key += "~" + elements->SerializeAsString();
    }
  }
  for (const ir::Attribute& attribute : node.attributes) {
    onnx::AttributeProto proto;
    to_proto(attribute, proto);
    if (proto.type() == onnx::AttributeProto::GRAPH ||
        proto.type() == onnx::AttributeProto::GRAPHS) {
      return "";
    }
    key += "|" + proto.SerializeAsString();
  }
  return key;
}

// Equal keys, equal types. False: elements of an integer, or bodies, may matter too, or the node is
// changed by the inference.
bool write_key(const ir::Node& node, std::int64_t opset, std::string& key) {
  constexpr std::int64_t kMaxBytes = 64;  // size of constants, which schemas may read
  if (node.inputs.empty() || node.inputs.back() == nullptr) return false;
  ir::append_key(key, &opset, 1);
  ir::append_key(key, node.domain);
  ir::append_key(key, node.op_type);
  ir::append_key(key, node.overload);
  for (const ir::Value* input : node.inputs) {
    key += input == nullptr ? '_' : input->is_constant() ? 'c' : 'v';
    if (input == nullptr) continue;
    if (!input->type.is_tensor() || is_integer(input->dtype())) return false;
    if (constant_of(input) != nullptr && !input->is_constant()) return false;  // a Constant's
    ir::append_key(key, input->type);
    if (input->is_constant() && !ir::append_key(key, input->initializer, kMaxBytes)) return false;
  }
  for (const ir::Attribute& attribute : node.attributes) {
    ir::append_key(key, attribute.name);
    if (!ir::append_key(key, attribute.value, kMaxBytes)) return false;
  }
  key += '|';
  for (const ir::Value* output : node.outputs) key += output == nullptr ? '_' : 'o';
  return true;
}

}  // namespace

void Inferer::infer_at(ir::Node& node, std::int64_t opset, int depth) const {
  if (node.domain == ir::kFusedDomain) return;
  base::poll_interrupt();
  at_node(node, [&] {
    std::vector<ir::Type> types = output_types(node, opset, depth);
    for (std::size_t i = 0; i < types.size() && i < node.outputs.size(); ++i) {
      ir::Value* output = node.outputs[i];
      if (output == nullptr) continue;
      try {
        output->type = merge_types(types[i], output->type);
      } catch (const ModelError& error) {
        throw ModelError({.what = "output '" + output->name + "' is " + error.problem().what,
                          .hint = error.problem().hint});
      }
      if (output->type.is_tensor()) output->type.static_dims();  // refuses sizes that are too large
    }
    return 0;
  });
}

void Inferer::check(const ir::Node& node) const {
  const bool is_standard = is_standard_domain(node.domain);
  const Schema* schema =
      find_schema(node.domain, node.op_type, is_standard ? opset_ : newest_opset(node.domain));
  if (schema == nullptr) return;
  at_node(node, [&] {
    check_call(node, *schema);
    return 0;
  });
}

std::vector<ir::Type> Inferer::output_types(ir::Node& node, std::int64_t opset, int depth) const {
  std::string key;
  key.reserve(256);
  if (!write_key(node, opset, key)) return infer_types(node, opset, depth);
  {
    const std::scoped_lock lock(mutex_);
    const auto known = nodes_.find(key);
    if (known != nodes_.end()) return known->second;
  }
  std::vector<ir::Type> types = infer_types(node, opset, depth);
  const std::scoped_lock lock(mutex_);
  return nodes_.try_emplace(std::move(key), std::move(types)).first->second;
}

std::vector<ir::Type> Inferer::infer_types(ir::Node& node, std::int64_t opset, int depth) const {
  if (depth > kMaxNesting) {
    throw ModelError({.what = "subgraphs or function calls nest deeper than " +
                              std::to_string(kMaxNesting) + " levels",
                      .hint = "Export the model with less nesting."});
  }
  const bool is_standard = is_standard_domain(node.domain);
  if (!is_standard) {
    if (const ir::Function* function = called_function(model_, node)) {
      return through_body(node, opset_, depth, [function] { return std::optional(*function); });
    }
  }
  const Schema* schema =
      find_schema(node.domain, node.op_type, is_standard ? opset : newest_opset(node.domain));
  if (schema == nullptr) {
    if (!is_standard) return {};
    throw UnsupportedOperatorError(
        {.what = "ONNX has no operator '" + node.op_type + "'",
         .where = place_of(node),
         .hint = base::nearest_or(
             node.op_type, schema_names(""),
             "Specify its domain, and add a function of that name to the model.")});
  }
  check_call(node, *schema);
  check_attribute_values(node);
  if (is_standard) check_counts(node);
  const auto infer_body = [&](ir::Graph& body) {
    for (ir::Node* inner : body.nodes) infer_at(*inner, opset, depth + 1);
  };
  if (is_standard && node.op_type == "If") return infer_if(node, infer_body);
  if (is_standard && node.op_type == "Scan") return infer_scan(node, infer_body);
  if (is_standard && node.op_type == "SequenceMap") return infer_sequence_map(node, infer_body);
  if (is_standard && node.op_type == "Loop") {
    return infer_loop(node, infer_body, depth < kMaxLoopDepth ? kMaxLoopRounds : 1);
  }
  if (is_standard && node.op_type == "OptionalHasElement") {  // an absent input included
    return {ir::Type::tensor(DataType::kBool, Dims{})};
  }
  if (is_standard && node.op_type == "Optional") ir::trim_inputs(node);
  if (is_standard && node.op_type == "Constant") {
    const ir::AttributeValue* value = node.find_attribute("value");
    const Tensor* tensor = value == nullptr ? nullptr : std::get_if<Tensor>(value);
    if (tensor != nullptr) return {ir::Type::tensor(tensor->dtype(), tensor->dims())};
  }
  std::vector<ir::Type> types;
  if (schema->infer()) {
    types = through_schema(node, *schema, opset);
  } else {
    types = through_body(node, opset, depth, [&] { return schema_function(node, opset); });
  }
  fill_element_types(node, *schema, types);
  keep_ml_shape(node, types);
  if (is_standard && !types.empty()) {
    if (node.op_type == "Reshape") complete_reshape(node, types[0], opset);
    complete_rank(node, types[0]);
    complete_depth(node, types[0]);
  }
  check_shapes(node, types);
  return types;
}

std::vector<ir::Type> Inferer::through_schema(const ir::Node& node, const Schema& schema,
                                              std::int64_t opset) const {
  std::vector<ir::Type> types(node.outputs.size());
  bool is_ready = true;
  for (const ir::Value* input : node.inputs) {
    // ONNX's functions read the types of inputs without checking whether they are known.
    if (input != nullptr && input->type.kind == ir::Type::Kind::kUnknown) is_ready = false;
  }
  for (const ir::Attribute& attribute : node.attributes) {
    // References have no value yet; only control flow handles graphs.
    if (std::holds_alternative<ir::AttributeRef>(attribute.value)) is_ready = false;
    if (std::holds_alternative<ir::GraphPtr>(attribute.value)) is_ready = false;
  }
  if (is_ready) {
    NodeContext context(node, opset);
    schema.infer()(context);
    if (node.op_type == "Split") correct_split(node, context);
    for (std::size_t i = 0; i < types.size(); ++i) types[i] = from_proto(context.outputs()[i]);
  }
  return types;
}

std::vector<ir::Type> Inferer::through_body(const ir::Node& node, std::int64_t opset, int depth,
                                            const FindBody& find_body) const {
  KnownValues known(opset);
  std::string key = key_of_call(node, known);
  if (!key.empty()) {
    key += "@" + std::to_string(opset);
    const std::scoped_lock lock(mutex_);
    const auto called = calls_.find(key);
    if (called != calls_.end()) return called->second;
  }
  std::vector<ir::Type> types(node.outputs.size());
  if (const auto function = find_body()) types = infer_body(node, *function, opset, depth);
  if (!key.empty()) {
    const std::scoped_lock lock(mutex_);
    calls_.emplace(key, types);
  }
  return types;
}

std::vector<ir::Type> Inferer::infer_body(const ir::Node& node, const ir::Function& function,
                                          std::int64_t opset, int depth) const {
  const ir::Graph& body = *function.body;
  if (node.inputs.size() > body.inputs.size() || node.outputs.size() > body.outputs.size()) {
    throw ModelError({.what = "the function has " + std::to_string(body.inputs.size()) +
                              " inputs and " + std::to_string(body.outputs.size()) +
                              " outputs, the call " + std::to_string(node.inputs.size()) + " and " +
                              std::to_string(node.outputs.size()),
                      .hint = "Remove what the function does not have, or export it again."});
  }
  ir::Graph copy;
  std::unordered_map<const ir::Value*, ir::Value*> map;
  // The copy reads the actual inputs, so known elements are known inside as well.
  for (std::size_t i = 0; i < body.inputs.size(); ++i) map[body.inputs[i]] = node.input(i);
  ir::append_nodes(body, copy, map);
  for (ir::Node* inner : copy.nodes) ir::bind_attributes(*inner, node, function);
  const std::int64_t own_opset = opset_of(function, opset);
  for (ir::Node* inner : copy.nodes) infer_at(*inner, own_opset, depth + 1);
  std::vector<ir::Type> types;
  for (std::size_t i = 0; i < node.outputs.size(); ++i) {
    const auto output = map.find(body.outputs[i]);
    const bool is_known = output != map.end() && output->second != nullptr;
    types.push_back(is_known ? output->second->type : ir::Type{});
  }
  return types;
}

std::unique_ptr<ir::TypeInferer> make_type_inferer(const ir::Model& model) {
  return std::make_unique<Inferer>(model, ir::kInternalOpset);
}

std::unique_ptr<ir::TypeInferer> make_file_inferer(const ir::Model& model) {
  return std::make_unique<Inferer>(model, model.opset());
}

void infer_types(ir::Graph& graph, const ir::TypeInferer& inferer) {
  for (ir::Node* node : graph.nodes) inferer.infer(*node);
}

}  // namespace onnxgrad::onnx_io
