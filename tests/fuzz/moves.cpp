#include "moves.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "opdef/registry.h"
#include "train/tools/engine.h"

namespace onnxgrad::fuzz {
namespace {

using onnx::AttributeProto;
using onnx::TensorProto;
using opdef::AttributeSpec;
using opdef::AttributeType;

template <class List>
auto* choose(List* list, Random& random) {
  return list->empty() ? nullptr
                       : list->Mutable(static_cast<int>(
                             random.below(static_cast<std::size_t>(list->size()))));
}

void clear_numbers(TensorProto& tensor) {
  tensor.clear_raw_data();
  tensor.clear_float_data();
  tensor.clear_double_data();
  tensor.clear_int32_data();
  tensor.clear_int64_data();
  tensor.clear_uint64_data();
  tensor.clear_string_data();
}

// Tensors of the graph: initializers and attributes.
std::vector<TensorProto*> tensors_of(onnx::GraphProto& graph, bool only_integers) {
  std::vector<TensorProto*> all;
  const auto add = [&](TensorProto& tensor) {
    if (!only_integers || integer_bytes(tensor.data_type()) > 0) all.push_back(&tensor);
  };
  for (TensorProto& tensor : *graph.mutable_initializer()) add(tensor);
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    for (AttributeProto& attribute : *node.mutable_attribute()) {
      if (attribute.has_t()) add(*attribute.mutable_t());
    }
  }
  return all;
}

bool is_list(const AttributeProto& attribute) {
  return attribute.ints_size() + attribute.floats_size() + attribute.strings_size() +
             attribute.tensors_size() >
         0;
}

bool is_unsigned(int data_type) {
  return data_type == TensorProto::UINT8 || data_type == TensorProto::UINT16 ||
         data_type == TensorProto::UINT32 || data_type == TensorProto::UINT64 ||
         data_type == TensorProto::BOOL;
}

std::int64_t as_integer(std::uint64_t bits, std::size_t bytes, bool unsigned_type) {
  if (unsigned_type || bytes == 8) return static_cast<std::int64_t>(bits);
  const auto shift = static_cast<unsigned>(64 - 8 * bytes);
  return static_cast<std::int64_t>(bits << shift) >> shift;
}

// Writes `count` elements of `bytes` each, from element `first` on.
void set_elements(TensorProto& tensor, std::size_t first, std::size_t count, std::size_t bytes,
                  std::uint64_t bits) {
  const bool unsigned_type = is_unsigned(tensor.data_type());
  for (std::size_t i = first; i < first + count; ++i) {
    const auto at = static_cast<int>(i);
    const std::int64_t value = as_integer(bits, bytes, unsigned_type);
    if (!tensor.raw_data().empty() && (i + 1) * bytes <= tensor.raw_data().size()) {
      std::memcpy(tensor.mutable_raw_data()->data() + i * bytes, &bits, bytes);
    } else if (at < tensor.int64_data_size()) {
      tensor.set_int64_data(at, value);
    } else if (at < tensor.int32_data_size()) {
      tensor.set_int32_data(at, static_cast<std::int32_t>(value));
    } else if (at < tensor.uint64_data_size()) {
      tensor.set_uint64_data(at, static_cast<std::uint64_t>(value));
    }
  }
}

std::size_t count_elements(const TensorProto& tensor, std::size_t bytes) {
  const int listed =
      std::max({tensor.int64_data_size(), tensor.int32_data_size(), tensor.uint64_data_size()});
  return tensor.raw_data().empty() ? static_cast<std::size_t>(listed)
                                   : tensor.raw_data().size() / bytes;
}

const std::vector<std::pair<std::string, std::string>>& foreign_operators() {
  static const auto names = [] {
    std::vector<std::pair<std::string, std::string>> all;
    for (const opdef::OpDef* def : train::builtin_ops().all()) {
      if (def->domain == "ai.onnx.ml" || def->domain == "com.microsoft") {
        all.emplace_back(def->domain, def->op_type);
      }
    }
    std::ranges::sort(all);
    return all;
  }();
  return names;
}

void import_domain(onnx::ModelProto& model, const std::string& domain) {
  for (const auto& import : model.opset_import()) {
    if (import.domain() == domain) return;
  }
  auto& import = *model.add_opset_import();
  import.set_domain(domain);
  import.set_version(domain == "ai.onnx.ml" ? 5 : 1);
}

std::int64_t near(std::int64_t bound, Random& random) {
  const auto steps = static_cast<std::uint64_t>(random.below(3)) - 1;
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(bound) + steps);
}

std::int64_t bounded_int(const AttributeSpec& spec, Random& random) {
  return near(random.one_in(2) ? spec.min : spec.max, random);
}

float bounded_float(const AttributeSpec& spec, Random& random) {
  const auto bound = static_cast<float>(random.one_in(2) ? spec.min_float : spec.max_float);
  const float step = random.one_in(2) ? std::numeric_limits<float>::infinity() : 0.0F;
  return random.one_in(3) ? bound : std::nextafter(bound, random.one_in(2) ? step : -step);
}

void set_to_bound(AttributeProto& attribute, const AttributeSpec& spec, Random& random) {
  std::size_t count = random.below(5);
  if (random.one_in(3)) count = std::min<std::size_t>(spec.min_count + random.below(2), 70);
  switch (spec.type) {
    case AttributeType::kInt:
      attribute.set_type(AttributeProto::INT);
      return attribute.set_i(bounded_int(spec, random));
    case AttributeType::kFloat:
      attribute.set_type(AttributeProto::FLOAT);
      return attribute.set_f(bounded_float(spec, random));
    case AttributeType::kString:
      attribute.set_type(AttributeProto::STRING);
      if (spec.choices.empty()) return attribute.set_s("");
      return attribute.set_s(std::string(spec.choices[random.below(spec.choices.size())]));
    case AttributeType::kInts:
      attribute.set_type(AttributeProto::INTS);
      for (std::size_t i = 0; i < count; ++i) attribute.add_ints(bounded_int(spec, random));
      return;
    case AttributeType::kFloats:
      attribute.set_type(AttributeProto::FLOATS);
      for (std::size_t i = 0; i < count; ++i) attribute.add_floats(bounded_float(spec, random));
      return;
    default:
      attribute.set_type(AttributeProto::STRINGS);
      for (std::size_t i = 0; i < count; ++i) attribute.add_strings(i == 0 ? "" : "a");
  }
}

TensorProto& add_position(onnx::GraphProto& graph, Random& random) {
  static const std::vector<std::int64_t> positions = {0,
                                                      0,
                                                      -1,
                                                      1,
                                                      2,
                                                      99,
                                                      std::numeric_limits<std::int64_t>::min(),
                                                      std::numeric_limits<std::int64_t>::max()};
  TensorProto& tensor = *graph.add_initializer();
  tensor.set_name("position_" + std::to_string(graph.initializer_size()));
  tensor.set_data_type(TensorProto::INT64);
  const std::size_t count = random.one_in(4) ? random.below(3) : 1;
  if (count != 1 || random.one_in(3)) tensor.add_dims(static_cast<std::int64_t>(count));
  for (std::size_t i = 0; i < count; ++i) tensor.add_int64_data(random.pick(positions));
  return tensor;
}

}  // namespace

std::size_t integer_bytes(int data_type) {
  switch (data_type) {
    case TensorProto::INT64:
    case TensorProto::UINT64:
      return 8;
    case TensorProto::INT32:
    case TensorProto::UINT32:
      return 4;
    case TensorProto::INT16:
    case TensorProto::UINT16:
      return 2;
    case TensorProto::INT8:
    case TensorProto::UINT8:
    case TensorProto::BOOL:
      return 1;
    default:
      return 0;
  }
}

std::uint64_t limit_bits(std::size_t bytes, bool unsigned_type, Random& random) {
  const auto bits = static_cast<unsigned>(8 * bytes);
  const std::uint64_t all = bits == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << bits) - 1;
  const std::uint64_t lowest = unsigned_type ? 0 : std::uint64_t{1} << (bits - 1);
  const std::uint64_t highest = unsigned_type ? all : all >> 1;
  const std::uint64_t half = std::uint64_t{1} << (bits / 2);
  switch (random.below(5)) {
    case 0:
      return lowest + random.below(3);
    case 1:
    case 2:
      return highest - random.below(3);
    case 3:
      return (half + random.below(3) - 1) & all;
    default:
      return (std::uint64_t{0} - random.below(4)) & all;  // 0, -1, -2, -3
  }
}

void empty_list(onnx::GraphProto& graph, Random& random) {
  std::vector<AttributeProto*> lists;
  for (onnx::NodeProto& node : *graph.mutable_node()) {
    for (AttributeProto& attribute : *node.mutable_attribute()) {
      if (is_list(attribute)) lists.push_back(&attribute);
    }
  }
  if (!lists.empty() && !random.one_in(3)) {
    AttributeProto& list = *random.pick(lists);
    list.clear_ints();
    list.clear_floats();
    list.clear_strings();
    return list.clear_tensors();
  }
  const std::vector<TensorProto*> tensors = tensors_of(graph, random.one_in(2));
  if (tensors.empty()) return;
  TensorProto& tensor = *random.pick(tensors);
  clear_numbers(tensor);
  if (tensor.dims_size() == 0 || random.one_in(3)) {
    tensor.clear_dims();
    return tensor.add_dims(0);
  }
  tensor.set_dims(static_cast<int>(random.below(static_cast<std::size_t>(tensor.dims_size()))), 0);
}

void open_initializer(onnx::ModelProto& model, onnx::GraphProto& graph, Random& random) {
  auto& tensors = *graph.mutable_initializer();
  if (tensors.empty()) return;
  const auto at = static_cast<int>(random.below(static_cast<std::size_t>(tensors.size())));
  const TensorProto& tensor = tensors.Get(at);
  auto inputs = graph.mutable_input();
  auto found = std::ranges::find(*inputs, tensor.name(), &onnx::ValueInfoProto::name);
  onnx::ValueInfoProto& info = found == inputs->end() ? *graph.add_input() : *found;
  info.set_name(tensor.name());
  auto& type = *info.mutable_type()->mutable_tensor_type();
  type.set_elem_type(tensor.data_type());
  type.clear_shape();
  if (!random.one_in(4)) {
    type.mutable_shape();
    for (const std::int64_t dim : tensor.dims()) {
      auto& open = *type.mutable_shape()->add_dim();
      if (random.one_in(2)) open.set_dim_value(dim);
      if (!open.has_dim_value() && random.one_in(2)) open.set_dim_param("K");
    }
  }
  if (random.one_in(2)) {
    tensors.DeleteSubrange(at, 1);
  } else if (!random.one_in(8) && model.ir_version() < 4) {
    model.set_ir_version(8);
  }
}

void resize(onnx::GraphProto& graph, Random& random) {
  const auto size = static_cast<std::int64_t>(random.below(10));
  if (random.one_in(3)) {
    onnx::ValueInfoProto* input = choose(graph.mutable_input(), random);
    if (input == nullptr) return;
    auto* dims = input->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim();
    if (auto* dim = choose(dims, random)) dim->set_dim_value(size);
    return;
  }
  TensorProto* tensor = choose(graph.mutable_initializer(), random);
  if (tensor == nullptr || tensor->dims_size() == 0 || tensor->raw_data().empty()) return;
  const auto axis = static_cast<int>(random.below(static_cast<std::size_t>(tensor->dims_size())));
  const std::int64_t old = tensor->dims(axis);
  const std::string bytes = tensor->raw_data();
  if (old < 1 || bytes.size() % static_cast<std::size_t>(old) != 0 || bytes.size() > 1 << 16) {
    return;
  }
  const std::size_t wanted =
      bytes.size() / static_cast<std::size_t>(old) * static_cast<std::size_t>(size);
  std::string changed = bytes;
  while (changed.size() < wanted) changed += bytes;
  changed.resize(wanted);
  tensor->set_raw_data(changed);
  tensor->set_dims(axis, size);
}

void go_to_limit(onnx::GraphProto& graph, Random& random) {
  const std::vector<TensorProto*> tensors = tensors_of(graph, /*only_integers=*/true);
  if (tensors.empty()) return resize(graph, random);
  TensorProto& tensor = *random.pick(tensors);
  const std::size_t bytes = integer_bytes(tensor.data_type());
  const std::size_t count = count_elements(tensor, bytes);
  if (count == 0) return;
  const std::uint64_t bits = limit_bits(bytes, is_unsigned(tensor.data_type()), random);
  if (random.one_in(3)) return set_elements(tensor, 0, count, bytes, bits);
  set_elements(tensor, random.below(count), 1, bytes, bits);
}

void go_to_bound(onnx::GraphProto& graph, Random& random) {
  onnx::NodeProto* node = choose(graph.mutable_node(), random);
  if (node == nullptr) return;
  const opdef::OpDef* def = train::builtin_ops().find(node->domain(), node->op_type());
  if (def == nullptr || def->attributes.empty()) return go_to_limit(graph, random);
  const AttributeSpec& spec = def->attributes[random.below(def->attributes.size())];
  if (spec.type == AttributeType::kTensor || spec.type >= AttributeType::kTensors ||
      spec.type == AttributeType::kGraph) {
    return empty_list(graph, random);
  }
  for (int i = 0; i < node->attribute_size(); ++i) {
    if (node->attribute(i).name() != spec.name) continue;
    node->mutable_attribute()->DeleteSubrange(i, 1);
    break;
  }
  AttributeProto& attribute = *node->add_attribute();
  attribute.set_name(std::string(spec.name));
  set_to_bound(attribute, spec, random);
}

void change_domain(onnx::ModelProto& model, onnx::GraphProto& graph, Random& random) {
  onnx::NodeProto* node = choose(graph.mutable_node(), random);
  if (node == nullptr) return;
  const auto& [domain, op_type] = random.pick(foreign_operators());
  node->set_domain(domain);
  node->set_op_type(op_type);
  if (random.one_in(2)) node->clear_attribute();
  import_domain(model, domain);
  if (random.one_in(2)) go_to_bound(graph, random);
}

void pass_through_sequence(onnx::GraphProto& graph, Random& random) {
  auto& nodes = *graph.mutable_node();
  if (nodes.empty()) return;
  const auto at = static_cast<int>(random.below(static_cast<std::size_t>(nodes.size())));
  if (nodes.Get(at).input_size() == 0) return;
  const auto operand =
      static_cast<int>(random.below(static_cast<std::size_t>(nodes.Get(at).input_size())));
  const std::string value = nodes.Get(at).input(operand);
  if (value.empty()) return;
  std::vector<onnx::NodeProto> way;
  const auto add = [&](const char* op_type, std::vector<std::string> inputs,
                       const std::string& output) -> onnx::NodeProto& {
    onnx::NodeProto& node = way.emplace_back();
    node.set_op_type(op_type);
    for (std::string& input : inputs) node.add_input(std::move(input));
    node.add_output(output);
    return node;
  };
  const auto set = [&](onnx::NodeProto& node, const char* name, std::int64_t number) {
    AttributeProto& attribute = *node.add_attribute();
    attribute.set_name(name);
    attribute.set_type(AttributeProto::INT);
    attribute.set_i(number);
  };
  const bool drops_axis = random.one_in(3);
  onnx::NodeProto& split = add("SplitToSequence", {value}, "sequence_of_parts");
  if (drops_axis) set(split, "keepdims", 0);
  std::string sequence = "sequence_of_parts";
  static const std::vector<const char*> kinds = {"SequenceInsert", "SequenceErase", "SequenceAt",
                                                 ""};
  const std::string kind = random.pick(kinds);
  std::string position;
  if (!random.one_in(4)) position = add_position(graph, random).name();
  const std::string result = "value_of_sequence";
  if (kind == "SequenceAt") {
    add("SequenceAt", {sequence, position}, result);
  } else {
    if (kind == "SequenceInsert") {
      add("SequenceInsert", {sequence, value, position}, "changed_sequence");
    } else if (kind == "SequenceErase") {
      add("SequenceErase", {sequence, position}, "changed_sequence");
    }
    if (!kind.empty()) sequence = "changed_sequence";
    onnx::NodeProto& join = add("ConcatFromSequence", {sequence}, result);
    set(join, "axis", random.one_in(8) ? -1 : 0);
    if (drops_axis) set(join, "new_axis", 1);
  }
  nodes.Mutable(at)->set_input(operand, result);
  // Before the reader.
  const int first = nodes.size();
  for (onnx::NodeProto& node : way) *nodes.Add() = std::move(node);
  for (int i = 0; i < static_cast<int>(way.size()); ++i) {
    for (int place = first + i; place > at + i; --place) nodes.SwapElements(place, place - 1);
  }
}

}  // namespace onnxgrad::fuzz
