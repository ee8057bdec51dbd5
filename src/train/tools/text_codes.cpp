#include "train/tools/text_codes.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace onnxgrad::train {

std::int64_t TextCodes::add(const std::string& text) {
  const auto [place, is_new] = codes_.emplace(text, static_cast<std::int64_t>(texts_.size()));
  if (is_new) texts_.push_back(text);
  return place->second;
}

std::int64_t TextCodes::find(const std::string& text) const {
  const auto found = codes_.find(text);
  return found == codes_.end() ? kUnknown : found->second;
}

Tensor TextCodes::encode(const Tensor& texts) const {
  Tensor codes = Tensor::empty(DataType::kInt64, texts.dims());
  std::ranges::transform(texts.strings(), codes.mutable_data<std::int64_t>().begin(),
                         [this](const std::string& text) { return find(text); });
  return codes;
}

Tensor TextCodes::encode_growing(const Tensor& texts) {
  for (const std::string& text : texts.strings()) add(text);
  return encode(texts);
}

Tensor TextCodes::table() const {
  return Tensor::from_strings(texts_, {static_cast<std::int64_t>(texts_.size())});
}

NamedTensors encode_texts(const TextCodes* texts, const NamedTensors& feeds) {
  NamedTensors encoded = feeds;
  if (texts == nullptr) return encoded;
  for (NamedTensor& feed : encoded) {
    if (feed.tensor.dtype() == DataType::kString) feed.tensor = texts->encode(feed.tensor);
  }
  return encoded;
}

namespace {

using ir::Node;
using ir::Value;
using Strings = std::vector<std::string>;

bool is_text(const Value* value) {
  return value != nullptr && value->type.is_tensor() && value->dtype() == DataType::kString;
}

// Operators that do the same to numbers as to the texts that these stand for.
bool takes_numbers(const Node& node) {
  constexpr std::array<std::string_view, 20> kMoving = {"ArrayFeatureExtractor",
                                                        "Compress",
                                                        "Concat",
                                                        "Equal",
                                                        "Expand",
                                                        "Flatten",
                                                        "Gather",
                                                        "GatherElements",
                                                        "GatherND",
                                                        "Identity",
                                                        "Reshape",
                                                        "ScatterElements",
                                                        "ScatterND",
                                                        "Shape",
                                                        "Size",
                                                        "Slice",
                                                        "Split",
                                                        "Squeeze",
                                                        "Tile",
                                                        "Transpose"};
  // A reduction compares texts; their numbers do not tell which of two is smaller.
  if (node.string_attribute("reduction", "none") != "none") return false;
  return std::ranges::find(kMoving, node.op_type) != kMoving.end() || node.op_type == "Unsqueeze" ||
         node.op_type == "Where";
}

class Numberer {
 public:
  explicit Numberer(ir::Model& model) : model_(model) {}

  // False if there is nothing to number, or a node computes with the texts themselves.
  bool run() {
    number_graph(*model_.graph);
    return has_texts_ && is_possible_;
  }

  TextCodes codes;

 private:
  void number_graph(ir::Graph& graph) {
    for (Value* input : graph.inputs) {
      if (is_text(input)) mark(input);
    }
    for (Node* node : graph.nodes) {
      const bool reads = std::ranges::any_of(
          node->inputs, [this](const Value* v) { return numbered_.contains(v); });
      if (node->op_type == "LabelEncoder" && (reads || is_text(node->output(0)))) {
        number_label_encoder(*node, reads);
      } else if (reads && node->op_type == "OneHotEncoder") {
        number_one_hot_encoder(*node);
      } else if (reads && takes_numbers(*node)) {
        number_operands(*node);
      } else if (reads) {
        is_possible_ = false;
      }
      for (const ir::Graph* body : node->subgraphs()) {
        for (const Value* captured : ir::captured_values(*body)) {
          if (numbered_.contains(captured)) is_possible_ = false;
        }
      }
    }
  }

  void mark(Value* value) {
    value->type.dtype = DataType::kInt64;
    if (value->is_initializer()) value->initializer = codes_of(value->initializer);
    numbered_.insert(value);
    has_texts_ = true;
  }

  Tensor codes_of(const Tensor& texts) { return codes.encode_growing(texts); }

  std::vector<std::int64_t> codes_of(const Strings& texts) {
    std::vector<std::int64_t> numbers;
    for (const std::string& text : texts) numbers.push_back(codes.add(text));
    return numbers;
  }

  // All texts among the operands and results of one node.
  void number_operands(Node& node) {
    for (Value*& input : node.inputs) {
      if (!is_text(input)) continue;
      if (!input->is_constant()) {
        is_possible_ = false;
        return;
      }
      // Others may read the texts: classes by their labels.
      input = node.graph->add_initializer(input->name + ".codes", codes_of(input->initializer));
    }
    for (Value* output : node.outputs) {
      if (is_text(output)) mark(output);
    }
  }

  void move_strings(Node& node, const std::string& from, const std::string& to) {
    const ir::AttributeValue* given = node.find_attribute(from);
    if (given == nullptr) return;
    const auto numbers = codes_of(std::get<Strings>(*given));
    node.set_attribute(to, numbers);
    node.remove_attribute(from);
  }

  void number_tensor(Node& node, const std::string& name) {
    const ir::AttributeValue* given = node.find_attribute(name);
    const auto* tensor = given == nullptr ? nullptr : std::get_if<Tensor>(given);
    if (tensor == nullptr || tensor->dtype() != DataType::kString) return;
    node.set_attribute(name, codes_of(*tensor));
  }

  void number_label_encoder(Node& node, bool reads) {
    if (reads) {
      move_strings(node, "keys_strings", "keys_int64s");
      number_tensor(node, "keys_tensor");
    }
    if (!is_text(node.output(0))) return;
    move_strings(node, "values_strings", "values_int64s");
    number_tensor(node, "values_tensor");
    number_tensor(node, "default_tensor");
    node.set_attribute("default_int64",
                       codes.add(node.string_attribute("default_string", "_Unused")));
    mark(node.output(0));
  }

  void number_one_hot_encoder(Node& node) { move_strings(node, "cats_strings", "cats_int64s"); }

  ir::Model& model_;
  std::unordered_set<const Value*> numbered_;
  bool has_texts_ = false;
  bool is_possible_ = true;
};

bool reads_texts(const ir::Graph& graph) {
  return std::ranges::any_of(graph.inputs, is_text) ||
         std::ranges::any_of(graph.nodes, [](const Node* node) {
           return node->op_type == "LabelEncoder" && is_text(node->output(0));
         });
}

}  // namespace

NumberedModel number_texts(std::shared_ptr<const ir::Model> model) {
  if (!reads_texts(*model->graph)) return {.model = std::move(model), .texts = nullptr};
  auto numbered = std::make_shared<ir::Model>(ir::clone(*model));
  Numberer numberer(*numbered);
  if (!numberer.run()) return {.model = std::move(model), .texts = nullptr};
  return {.model = std::move(numbered),
          .texts = std::make_shared<const TextCodes>(std::move(numberer.codes))};
}

}  // namespace onnxgrad::train
