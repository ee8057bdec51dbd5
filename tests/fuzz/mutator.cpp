#include "mutator.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "moves.h"
#include "onnx/schemas.h"
#include "onnx/testing/schema_info.h"

namespace onnxgrad::fuzz {
namespace {

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();

const std::vector<std::int64_t>& extreme_ints() {
  static const std::vector<std::int64_t> values = {0,
                                                   1,
                                                   -1,
                                                   2,
                                                   -2,
                                                   3,
                                                   7,
                                                   -7,
                                                   31,
                                                   64,
                                                   65,
                                                   255,
                                                   1 << 16,
                                                   -(1 << 16),
                                                   std::int64_t{1} << 31,
                                                   std::int64_t{1} << 32,
                                                   std::int64_t{1} << 40,
                                                   std::int64_t{1} << 62,
                                                   kLowest,
                                                   kHighest};
  return values;
}

const std::vector<float>& extreme_floats() {
  static const std::vector<float> values = {0.0F,
                                            -0.0F,
                                            1.0F,
                                            -1.0F,
                                            1e-45F,
                                            1e30F,
                                            -3e38F,
                                            std::nanf(""),
                                            std::numeric_limits<float>::infinity(),
                                            -std::numeric_limits<float>::infinity()};
  return values;
}

// Every operator of ONNX, one that is not, and the ones that models are made of many times over.
const std::vector<std::string>& operators() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = onnx_io::schema_names("");
    std::ranges::sort(all);
    for (const char* common : {"Add",
                               "Mul",
                               "MatMul",
                               "Gemm",
                               "Relu",
                               "Concat",
                               "Split",
                               "Slice",
                               "Reshape",
                               "Gather",
                               "ScatterElements",
                               "ScatterND",
                               "Sum",
                               "Max",
                               "Mean",
                               "Einsum",
                               "If",
                               "Pad",
                               "Expand",
                               "ReduceSum",
                               "Squeeze",
                               "Unsqueeze",
                               "Where",
                               "Clip",
                               "Conv",
                               "MaxPool",
                               "NoSuchOperator"}) {
      all.insert(all.end(), 3, common);
    }
    return all;
  }();
  return names;
}

// Values for string attributes, equations among them.
std::string odd_text(Random& random) {
  static const std::vector<std::string> texts = {"NONE",
                                                 "",
                                                 "constant",
                                                 "reflect",
                                                 "edge",
                                                 "wrap",
                                                 "add",
                                                 "mul",
                                                 "max",
                                                 "min",
                                                 "sum",
                                                 "mean",
                                                 "none",
                                                 "linear",
                                                 "cubic",
                                                 "tanh",
                                                 "SAME_UPPER",
                                                 "VALID",
                                                 "NCHW",
                                                 "ij,jk->ik",
                                                 "ii->i",
                                                 "ii>",
                                                 "ij-",
                                                 "i.j",
                                                 "...ij->...ji",
                                                 "i..j",
                                                 "->",
                                                 ",",
                                                 "forward",
                                                 "bidirectional",
                                                 "DCR",
                                                 std::string("\xff\0x", 3),
                                                 std::string(300, 'a')};
  std::string text = random.pick(texts);
  if (random.one_in(4)) {
    static const std::string letters = "ijkab.,-> \x7f(";
    text.insert(random.below(text.size() + 1), 1, letters[random.below(letters.size())]);
  }
  return text;
}

std::string mutate_bytes(std::string bytes, Random& random) {
  if (bytes.empty()) return bytes;
  const std::size_t count = 1 + random.below(4);
  for (std::size_t i = 0; i < count && !bytes.empty(); ++i) {
    const std::size_t at = random.below(bytes.size());
    const std::size_t size = std::min(bytes.size() - at, 1 + random.below(64));
    switch (random.below(7)) {
      case 0:
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
        break;
      case 1:
        bytes[at] = static_cast<char>(random.next());
        break;
      case 2:
        bytes.erase(at, size);
        break;
      case 3:
        bytes.insert(random.below(bytes.size()), bytes.substr(at, size));
        break;
      case 4:
        if (random.one_in(4)) bytes.resize(at);
        break;
      case 5:  // a varint or a length that is far too large
        bytes.replace(at, std::min<std::size_t>(size, 5), std::string(5, '\xff'));
        break;
      default: {
        const std::size_t to = random.below(bytes.size());
        const std::string part = bytes.substr(at, size);
        bytes.replace(to, std::min(size, bytes.size() - to), part);
        break;
      }
    }
  }
  return bytes;
}

class FieldMutator {
 public:
  FieldMutator(onnx::ModelProto& model, Random& random) : model_(model), random_(random) {}

  void run() {
    onnx::GraphProto& graph = choose_graph();
    switch (random_.below(27)) {
      case 0:
        return change_dims(graph);
      case 1:
        return change_tensor_type(graph);
      case 2:
        return change_tensor_data(graph);
      case 3:
        return change_indices(graph);
      case 4:
        return rename_input(graph);
      case 5:
        return rename_output(graph);
      case 6:
        return change_operator(graph);
      case 7:
      case 8:
        return change_attribute(graph);
      case 9:
        return change_declaration(graph);
      case 10:
        return change_nodes(graph);
      case 11:
        return change_header();
      case 12:
        return change_initializers(graph);
      case 13:
        return add_attribute(graph);
      case 14:
        return drop_operand(graph);
      case 15:
        return swap_operands(graph);
      case 16:
        return empty_list(graph, random_);
      case 17:
      case 18:
        return open_initializer(model_, graph, random_);
      case 19:
      case 20:
        return resize(graph, random_);
      case 21:
      case 22:
        return go_to_limit(graph, random_);
      case 23:
        return go_to_bound(graph, random_);
      case 24:
        return change_domain(model_, graph, random_);
      case 25:
        return pass_through_sequence(graph, random_);
      default:
        return add_operator_attribute(graph);
    }
  }

 private:
  // The main graph or, sometimes, a body.
  onnx::GraphProto& choose_graph() {
    onnx::GraphProto* graph = model_.mutable_graph();
    for (onnx::NodeProto& node : *graph->mutable_node()) {
      for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        if (attribute.has_g() && random_.one_in(3)) return *attribute.mutable_g();
      }
    }
    return *graph;
  }

  template <class List>
  auto* choose(List* list) {
    return list->empty() ? nullptr
                         : list->Mutable(static_cast<int>(
                               random_.below(static_cast<std::size_t>(list->size()))));
  }

  onnx::TensorProto* choose_tensor(onnx::GraphProto& graph) {
    if (random_.one_in(3)) {
      for (onnx::NodeProto& node : *graph.mutable_node()) {
        for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
          if (attribute.has_t() && random_.one_in(2)) return attribute.mutable_t();
        }
      }
    }
    return choose(graph.mutable_initializer());
  }

  std::string choose_name(const onnx::GraphProto& graph) {
    std::vector<std::string> names = {"", "no_such_value"};
    for (const auto& input : graph.input()) names.push_back(input.name());
    for (const auto& tensor : graph.initializer()) names.push_back(tensor.name());
    for (const auto& node : graph.node())
      names.insert(names.end(), node.output().begin(), node.output().end());
    return random_.pick(names);
  }

  void change_dims(onnx::GraphProto& graph) {
    onnx::TensorProto* tensor = choose_tensor(graph);
    if (tensor == nullptr) return;
    if (tensor->dims_size() == 0 || random_.one_in(4)) {
      tensor->add_dims(random_.pick(extreme_ints()));
    } else if (random_.one_in(4)) {
      tensor->mutable_dims()->RemoveLast();
    } else {
      tensor->set_dims(
          static_cast<int>(random_.below(static_cast<std::size_t>(tensor->dims_size()))),
          random_.pick(extreme_ints()));
    }
  }

  void change_tensor_type(onnx::GraphProto& graph) {
    if (onnx::TensorProto* tensor = choose_tensor(graph)) {
      tensor->set_data_type(static_cast<int>(random_.below(30)));
    }
  }

  void change_tensor_data(onnx::GraphProto& graph) {
    onnx::TensorProto* tensor = choose_tensor(graph);
    if (tensor == nullptr) return;
    switch (random_.below(5)) {
      case 0:
        tensor->clear_raw_data();
        break;
      case 1:
        tensor->mutable_raw_data()->append("x");
        break;
      case 2:
        tensor->add_float_data(1.0F);
        break;
      case 3: {
        tensor->set_data_location(onnx::TensorProto::EXTERNAL);
        auto& entry = *tensor->add_external_data();
        entry.set_key("location");
        entry.set_value(random_.one_in(2) ? "../../etc/passwd" : "/dev/zero");
        break;
      }
      default:
        // Other numbers of the same size: NaN, infinity, extremes.
        for (char& byte : *tensor->mutable_raw_data()) {
          if (random_.one_in(3)) byte = static_cast<char>(random_.one_in(2) ? 0xff : 0x7f);
        }
        break;
    }
  }

  // Axes, shapes, indices, pads: small integer tensors.
  void change_indices(onnx::GraphProto& graph) {
    std::vector<onnx::TensorProto*> lists;
    for (onnx::TensorProto& tensor : *graph.mutable_initializer()) {
      if (tensor.data_type() == onnx::TensorProto::INT64) lists.push_back(&tensor);
    }
    for (onnx::NodeProto& node : *graph.mutable_node()) {
      for (onnx::AttributeProto& attribute : *node.mutable_attribute()) {
        if (attribute.t().data_type() == onnx::TensorProto::INT64)
          lists.push_back(attribute.mutable_t());
      }
    }
    if (lists.empty()) return change_dims(graph);
    onnx::TensorProto& tensor = *random_.pick(lists);
    const std::int64_t value = random_.pick(extreme_ints());
    if (tensor.raw_data().size() >= sizeof value) {
      const std::size_t slot = random_.below(tensor.raw_data().size() / sizeof value);
      tensor.mutable_raw_data()->replace(slot * sizeof value, sizeof value,
                                         reinterpret_cast<const char*>(&value), sizeof value);
    } else if (tensor.int64_data_size() > 0) {
      tensor.set_int64_data(
          static_cast<int>(random_.below(static_cast<std::size_t>(tensor.int64_data_size()))),
          value);
    }
  }

  void rename_input(onnx::GraphProto& graph) {
    onnx::NodeProto* node = choose(graph.mutable_node());
    if (node == nullptr) return;
    if (node->input_size() == 0 || random_.one_in(6)) {
      node->add_input(choose_name(graph));
    } else if (random_.one_in(6)) {
      node->mutable_input()->RemoveLast();
    } else {
      const auto i = random_.below(static_cast<std::size_t>(node->input_size()));
      node->set_input(static_cast<int>(i), choose_name(graph));  // perhaps a cycle
    }
  }

  void rename_output(onnx::GraphProto& graph) {
    onnx::NodeProto* node = choose(graph.mutable_node());
    if (node == nullptr) return;
    if (node->output_size() == 0 || random_.one_in(4)) {
      node->add_output(random_.one_in(2) ? "extra_output" : choose_name(graph));
    } else {
      const auto i = random_.below(static_cast<std::size_t>(node->output_size()));
      node->set_output(static_cast<int>(i), choose_name(graph));
    }
  }

  // An input or output named "": anywhere, or behind the last one.
  void drop_operand(onnx::GraphProto& graph) {
    onnx::NodeProto* node = choose(graph.mutable_node());
    if (node == nullptr) return;
    auto& names = random_.one_in(3) ? *node->mutable_output() : *node->mutable_input();
    if (names.empty() || random_.one_in(6)) {
      *names.Add() = "";
    } else {
      names.Mutable(static_cast<int>(random_.below(static_cast<std::size_t>(names.size()))))
          ->clear();
    }
  }

  void swap_operands(onnx::GraphProto& graph) {
    onnx::NodeProto* node = choose(graph.mutable_node());
    onnx::NodeProto* other = random_.one_in(2) ? node : choose(graph.mutable_node());
    if (node == nullptr || node->input_size() == 0 || other->input_size() == 0) return;
    const auto at = [this](const onnx::NodeProto& of) {
      return static_cast<int>(random_.below(static_cast<std::size_t>(of.input_size())));
    };
    std::swap(*node->mutable_input(at(*node)), *other->mutable_input(at(*other)));
  }

  // An attribute that the operator has, with a value of its type that may mean anything.
  void add_operator_attribute(onnx::GraphProto& graph) {
    onnx::NodeProto* node = choose(graph.mutable_node());
    if (node == nullptr) return;
    const auto schema = onnx_io::schema_info(node->domain(), node->op_type(), 0);
    if (!schema || schema->attributes.empty()) return rename_input(graph);
    const std::string name = random_.pick(schema->attributes);
    for (int i = 0; i < node->attribute_size(); ++i) {
      if (node->attribute(i).name() != name) continue;
      node->mutable_attribute()->DeleteSubrange(i, 1);
      break;
    }
    onnx::AttributeProto& attribute = *node->add_attribute();
    attribute.set_name(name);
    switch (random_.below(5)) {
      case 0:
        attribute.set_type(onnx::AttributeProto::STRING);
        return attribute.set_s(odd_text(random_));
      case 1:
        attribute.set_type(onnx::AttributeProto::FLOAT);
        return attribute.set_f(random_.pick(extreme_floats()));
      case 2:
        attribute.set_type(onnx::AttributeProto::INTS);
        for (std::size_t i = random_.below(5); i > 0; --i) {
          attribute.add_ints(random_.pick(extreme_ints()));
        }
        return;
      default:
        attribute.set_type(onnx::AttributeProto::INT);
        return attribute.set_i(random_.pick(extreme_ints()));
    }
  }

  void change_operator(onnx::GraphProto& graph) {
    onnx::NodeProto* node = choose(graph.mutable_node());
    if (node == nullptr) return;
    if (random_.one_in(8)) {
      node->set_domain(random_.one_in(2) ? "ai.onnx.ml" : "com.example");
    } else {
      node->set_op_type(random_.pick(operators()));
      if (random_.one_in(2)) node->clear_attribute();
    }
  }

  void change_attribute(onnx::GraphProto& graph) {
    std::vector<onnx::NodeProto*> nodes;
    for (onnx::NodeProto& node : *graph.mutable_node()) {
      if (node.attribute_size() > 0) nodes.push_back(&node);
    }
    if (nodes.empty()) return rename_input(graph);
    onnx::NodeProto& node = *random_.pick(nodes);
    onnx::AttributeProto& attribute = *choose(node.mutable_attribute());
    if (random_.one_in(12)) return node.mutable_attribute()->RemoveLast();
    if (random_.one_in(16))
      attribute.set_type(static_cast<onnx::AttributeProto::AttributeType>(random_.below(15)));
    if (random_.one_in(20)) *node.add_attribute() = attribute;
    if (attribute.has_i()) attribute.set_i(random_.pick(extreme_ints()));
    if (attribute.has_f()) attribute.set_f(random_.pick(extreme_floats()));
    if (attribute.has_s()) attribute.set_s(odd_text(random_));
    change_list(attribute);
  }

  void change_list(onnx::AttributeProto& attribute) {
    if (attribute.ints_size() > 0) {
      const auto i =
          static_cast<int>(random_.below(static_cast<std::size_t>(attribute.ints_size())));
      attribute.set_ints(i, random_.pick(extreme_ints()));
      if (random_.one_in(4)) attribute.add_ints(random_.pick(extreme_ints()));
      if (random_.one_in(4)) attribute.mutable_ints()->RemoveLast();
    }
    if (attribute.floats_size() > 0) {
      const auto i =
          static_cast<int>(random_.below(static_cast<std::size_t>(attribute.floats_size())));
      attribute.set_floats(i, random_.pick(extreme_floats()));
      if (random_.one_in(3)) attribute.mutable_floats()->RemoveLast();
    }
    if (attribute.strings_size() > 0 && random_.one_in(2))
      attribute.mutable_strings()->RemoveLast();
  }

  void add_attribute(onnx::GraphProto& graph) {
    static const std::vector<std::string> names = {
        "axis", "axes",     "perm",  "kernel_shape", "pads",      "strides", "group",
        "to",   "keepdims", "alpha", "dilations",    "ceil_mode", "mode",    "transA"};
    onnx::NodeProto* node = choose(graph.mutable_node());
    if (node == nullptr) return;
    onnx::AttributeProto& attribute = *node->add_attribute();
    attribute.set_name(random_.pick(names));
    if (random_.one_in(2)) {
      attribute.set_type(onnx::AttributeProto::INT);
      attribute.set_i(random_.pick(extreme_ints()));
    } else {
      attribute.set_type(onnx::AttributeProto::INTS);
      for (std::size_t i = random_.below(5); i > 0; --i) {
        attribute.add_ints(random_.pick(extreme_ints()));
      }
    }
  }

  void change_declaration(onnx::GraphProto& graph) {
    onnx::ValueInfoProto* info =
        random_.one_in(4) ? choose(graph.mutable_output()) : choose(graph.mutable_input());
    if (info == nullptr) return;
    auto& tensor = *info->mutable_type()->mutable_tensor_type();
    switch (random_.below(5)) {
      case 0:
        tensor.set_elem_type(static_cast<int>(random_.below(28)));
        break;
      case 1:
        tensor.clear_shape();
        break;
      case 2:
        tensor.mutable_shape()->add_dim()->set_dim_value(random_.pick(extreme_ints()));
        break;
      case 3:
        if (tensor.shape().dim_size() > 0) tensor.mutable_shape()->mutable_dim()->RemoveLast();
        break;
      default:
        if (auto* dim = choose(tensor.mutable_shape()->mutable_dim())) {
          dim->set_dim_value(random_.pick(extreme_ints()));
        }
        break;
    }
  }

  void change_nodes(onnx::GraphProto& graph) {
    auto& nodes = *graph.mutable_node();
    if (nodes.empty()) return;
    const auto size = static_cast<std::size_t>(nodes.size());
    switch (random_.below(3)) {
      case 0:
        nodes.DeleteSubrange(static_cast<int>(random_.below(size)), 1);
        break;
      case 1:
        nodes.SwapElements(static_cast<int>(random_.below(size)),
                           static_cast<int>(random_.below(size)));
        break;
      default: {
        const onnx::NodeProto copy = nodes.Get(static_cast<int>(random_.below(size)));
        *nodes.Add() = copy;
        if (random_.one_in(2)) {
          for (auto& output : *nodes.rbegin()->mutable_output()) output += "_again";
        }
        break;
      }
    }
  }

  void change_initializers(onnx::GraphProto& graph) {
    auto& tensors = *graph.mutable_initializer();
    if (tensors.empty()) return change_nodes(graph);
    const auto i = static_cast<int>(random_.below(static_cast<std::size_t>(tensors.size())));
    if (random_.one_in(2)) {
      tensors.DeleteSubrange(i, 1);
    } else {
      tensors.Mutable(i)->set_name(choose_name(graph));
    }
  }

  void change_header() {
    switch (random_.below(4)) {
      case 0:
        model_.set_ir_version(random_.pick(extreme_ints()));
        break;
      case 1:
        for (auto& opset : *model_.mutable_opset_import()) {
          opset.set_version(static_cast<std::int64_t>(random_.below(30)));
        }
        break;
      case 2:
        model_.clear_opset_import();
        break;
      default: {
        onnx::FunctionProto& function = *model_.add_functions();
        function.set_name(random_.pick(operators()));
        for (const auto& opset : model_.opset_import()) *function.add_opset_import() = opset;
        function.add_input("a");
        function.add_output("b");
        onnx::NodeProto& node = *function.add_node();
        node.set_op_type(random_.one_in(2) ? function.name() : "Relu");
        node.add_input("a");
        node.add_output("b");
        break;
      }
    }
  }

  onnx::ModelProto& model_;
  Random& random_;
};

}  // namespace

std::string mutate(const std::string& model, std::uint64_t seed) {
  Random random(seed * 0x9e3779b97f4a7c15 + 1);
  if (random.one_in(6)) return mutate_bytes(model, random);
  onnx::ModelProto proto;
  if (!proto.ParseFromString(model)) return mutate_bytes(model, random);
  const std::size_t count = random.one_in(4) ? 2 : 1;
  for (std::size_t i = 0; i < count; ++i) FieldMutator(proto, random).run();
  return proto.SerializeAsString();
}

}  // namespace onnxgrad::fuzz
