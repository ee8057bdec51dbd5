#include "onnx/separate.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "onnx/wire.h"

namespace onnxgrad::onnx_io {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

using Tensors = std::unordered_map<const Value*, TensorReads>;

std::string first_output(const Node& node) {
  for (const Value* output : node.outputs) {
    if (output != nullptr) return output->name;
  }
  return "";
}

bool is_constant_node(const Node& node) {
  return node.op_type == "Constant" && (node.domain.empty() || node.domain == "ai.onnx") &&
         node.outputs.size() == 1 && node.outputs[0] != nullptr;
}

class Collector {
 public:
  Tensors run(const ir::Model& file) {
    collect(*file.graph);
    return std::move(tensors_);
  }

 private:
  void collect(const Graph& graph) {
    const std::string scope = FileIndex::scope_of("", path_);
    for (const Value* value : graph.initializers) {
      tensors_[value] = {.value = value, .scope = scope};
    }
    for (Node* node : graph.nodes) {
      if (is_constant_node(*node)) {
        tensors_[node->outputs[0]] = {.value = node->outputs[0], .scope = scope};
      }
      for (std::size_t i = 0; i < node->inputs.size(); ++i) {
        const auto tensor = tensors_.find(node->inputs[i]);
        if (tensor == tensors_.end()) continue;
        tensor->second.reads.push_back({.node = node, .input = i, .scope = scope});
      }
      for (const ir::Attribute& attribute : node->attributes) {
        const auto* body = std::get_if<ir::GraphPtr>(&attribute.value);
        if (body == nullptr) continue;
        path_.emplace_back(first_output(*node), attribute.name);
        collect(**body);
        path_.pop_back();
      }
    }
    for (const Value* output : graph.outputs) {
      const auto tensor = tensors_.find(output);
      if (tensor != tensors_.end()) tensor->second.is_output = true;
    }
  }

  Tensors tensors_;
  std::vector<std::pair<std::string, std::string>> path_;
};

// The fields of a TensorProto or ValueInfoProto with a different name.
std::string renamed(std::string_view message, int name_field, const std::string& name) {
  std::string result;
  std::string_view rest = message;
  for (WireReader in(message); in.next();) {
    const auto size =
        static_cast<std::size_t>(in.raw_value().data() + in.raw_value().size() - rest.data());
    if (in.field() != name_field) result += rest.substr(0, size);
    rest.remove_prefix(size);
  }
  WireWriter(result).bytes(name_field, name);
  return result;
}

// The entries that the file keeps beside a tensor, as fields of a TensorProto that has none.
std::string metadata_fields(std::string_view tensor, const ir::Metadata& metadata) {
  using Entry = onnx::StringStringEntryProto;
  constexpr int kField = onnx::TensorProto::kMetadataPropsFieldNumber;
  std::string fields;
  for (WireReader in(tensor); in.next();) {
    if (in.field() == kField) return fields;
  }
  for (const auto& [key, value] : metadata) {
    WireWriter(fields).message(kField, [&, &key = key, &value = value](WireWriter& entry) {
      entry.bytes(Entry::kKeyFieldNumber, key);
      entry.bytes(Entry::kValueFieldNumber, value);
    });
  }
  return fields;
}

}  // namespace

// Adds fields to the message `around` after that of `place`, which is not otherwise edited.
void TensorSeparator::append_after(const PlacePath& around, const MessagePlace& place,
                                   const std::string& fields) {
  ONNXGRAD_ASSERT(place.size > 0);
  const std::size_t last = place.offset + place.size - 1;
  edit_.replace(around, last, 1, index_.bytes()[last] + fields);
}

std::optional<TensorSeparator::Place> TensorSeparator::find(const TensorReads& tensor) const {
  const std::string& name = tensor.value->name;
  if (const PlacePath* place = index_.initializer(tensor.scope, name)) {
    return Place{.graph = {place->begin(), place->end() - 1},
                 .after = place->back(),
                 .tensor = index_.text_at(place->back())};
  }
  const PlacePath* node = index_.node(tensor.scope, name);
  const PlacePath* attribute = index_.attribute(tensor.scope, name, "value");
  if (node == nullptr || attribute == nullptr) return std::nullopt;
  for (WireReader in(index_.text_at(attribute->back())); in.next();) {
    if (in.field() != onnx::AttributeProto::kTFieldNumber) continue;
    return Place{
        .graph = {node->begin(), node->end() - 1}, .after = node->back(), .tensor = in.bytes()};
  }
  return std::nullopt;
}

bool TensorSeparator::can_separate(const TensorReads& tensor) const {
  const auto is_found = [this](const TensorRead& read) {
    return index_.node(read.scope, first_output(*read.node)) != nullptr;
  };
  return find(tensor).has_value() && std::ranges::all_of(tensor.reads, is_found);
}

void TensorSeparator::separate(const Separation& separation) {
  const std::optional<Place> place = find(*separation.tensor);
  ONNXGRAD_ASSERT(place.has_value());
  std::string fields;
  const std::string metadata = metadata_fields(place->tensor, separation.tensor->value->metadata);
  for (const auto& [name, reads] : separation.parts) {
    WireWriter(fields).bytes(
        onnx::GraphProto::kInitializerFieldNumber,
        renamed(place->tensor, onnx::TensorProto::kNameFieldNumber, name) + metadata);
    for (const std::size_t i : reads) redirect(separation.tensor->reads[i], name);
  }
  append_after(place->graph, place->after, fields);
  if (separation.tensor->value->is_input) add_inputs(separation, place->graph);
}

// The parts of an initializer that is listed as an input (all are before IR version 4) are too.
void TensorSeparator::add_inputs(const Separation& separation, const PlacePath& graph) {
  using Field = onnx::GraphProto;
  constexpr int kName = onnx::ValueInfoProto::kNameFieldNumber;
  for (WireReader in(index_.text_at(graph.back())); in.next();) {
    if (in.field() != Field::kInputFieldNumber) continue;
    const std::string_view info = in.bytes();
    std::string_view name;
    for (WireReader part(info); part.next();) {
      if (part.field() == kName) name = part.bytes();
    }
    if (name != separation.tensor->value->name) continue;
    std::string fields;
    for (const auto& [part, reads] : separation.parts) {
      WireWriter(fields).bytes(Field::kInputFieldNumber, renamed(info, kName, part));
    }
    const auto offset = static_cast<std::size_t>(info.data() - index_.bytes().data());
    append_after(graph, {.offset = offset, .size = info.size()}, fields);
  }
}

void TensorSeparator::redirect(const TensorRead& read, const std::string& name) {
  const PlacePath* node = index_.node(read.scope, first_output(*read.node));
  ONNXGRAD_ASSERT(node != nullptr);
  std::size_t input = 0;
  for (WireReader in(index_.text_at(node->back())); in.next();) {
    if (in.field() != onnx::NodeProto::kInputFieldNumber || input++ != read.input) continue;
    const auto place_of = [this](std::string_view part) {
      return static_cast<std::size_t>(part.data() - index_.bytes().data());
    };
    PlacePath path = *node;
    path.push_back({.prefix_offset = place_of(in.length_prefix()),
                    .offset = place_of(in.bytes()),
                    .size = in.bytes().size()});
    return edit_.replace(path, path.back().offset, path.back().size, name);
  }
}

Tensors collect_tensor_reads(const ir::Model& file) { return Collector().run(file); }

}  // namespace onnxgrad::onnx_io
