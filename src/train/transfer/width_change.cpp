#include "train/transfer/width_change.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "ir/pattern.h"
#include "ir/uses.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

bool has_subgraph_reading(const Node& node, const WidthChange& change) {
  for (const Value* value : ir::captured_values(node)) {
    if (change.find(value) != nullptr) return true;
  }
  return false;
}

// `numbers` with `width` elements along `axis`; where there is one element, it is repeated.
Tensor with_width(const Tensor& numbers, std::size_t axis, std::int64_t width,
                  WidthChange::Fill fill) {
  std::vector<std::int64_t> dims(numbers.dims().begin(), numbers.dims().end());
  const std::vector<double> old = numbers.to_doubles();
  const auto inner = static_cast<std::size_t>(numbers.dims().product(axis + 1, dims.size()));
  const auto before = static_cast<std::size_t>(dims[axis]);
  dims[axis] = width;
  Tensor result = Tensor::zeros(DataType::kFloat64, Dims(dims));
  auto out = result.mutable_data<double>();
  const auto count = static_cast<std::size_t>(width);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t outer = i / (inner * count);
    if (fill == WidthChange::Fill::kZeros) continue;
    out[i] = fill == WidthChange::Fill::kOnes ? 1 : old[(outer * before * inner) + (i % inner)];
  }
  return result.cast(numbers.dtype());
}

}  // namespace

WidthChange::WidthChange(ir::Model& file, const ir::Model& working, std::int64_t classes,
                         Tensor labels)
    : file_(file), working_(working), classes_(classes), labels_(std::move(labels)) {}

const Carried* WidthChange::find(const Value* value) const {
  const auto found = carried_.find(value);
  return found == carried_.end() ? nullptr : &found->second;
}

ir::Type WidthChange::type_of(const Value* value) const {
  if (value == nullptr) return {};
  if (const Tensor* numbers = constant(value)) {
    return ir::Type::tensor(numbers->dtype(), numbers->dims());
  }
  const Value* inferred = working_.graph->find(value->name);
  const bool is_known = inferred != nullptr && inferred->type.has_rank();
  return is_known ? inferred->type : value->type;
}

std::optional<std::int64_t> WidthChange::rank_of(const Value* value) const {
  const ir::Type type = type_of(value);
  if (!type.has_rank()) return std::nullopt;
  return static_cast<std::int64_t>(type.rank());
}

const Tensor* WidthChange::constant(const Value* value) {
  if (value == nullptr) return nullptr;
  if (value->is_constant()) return &value->initializer;
  if (!ir::is_op(value->producer, "Constant")) return nullptr;
  const ir::AttributeValue* attribute = value->producer->find_attribute("value");
  return attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute);
}

Value* WidthChange::new_initializer(Value* old, Tensor numbers) {
  Value* const made = graph().add_initializer(old->name, std::move(numbers));
  // In the place of the old one.
  auto& all = graph().initializers;
  const auto place = std::ranges::find(all, old);
  if (place != all.end()) std::rotate(place + 1, all.end() - 1, all.end());
  made->doc_string = old->doc_string;
  made->metadata = old->metadata;
  renamed_.emplace_back(old, made);
  drop(old);
  return made;
}

void WidthChange::replace_input(Node& node, std::size_t input, Tensor numbers) {
  edit([this, &node, input, numbers = std::move(numbers)] {
    Value* const old = node.inputs[input];
    node.inputs[input] = new_initializer(old, numbers);
    const auto is_this = [&](const auto& bias) {
      return bias.first == &node && bias.second == input;
    };
    if (std::ranges::any_of(biases_, is_this)) new_biases_.push_back(node.inputs[input]);
  });
}

void WidthChange::resize(Node& node, std::size_t input, std::size_t axis, Fill fill) {
  replace_input(node, input, with_width(*constant(node.inputs[input]), axis, new_width_, fill));
}

Tensor WidthChange::labels(DataType old) const {
  if (labels_.is_defined()) {
    const bool is_number = labels_.dtype() != DataType::kString;
    return is_number && old != DataType::kString ? labels_.cast(old) : labels_;
  }
  if (old == DataType::kString) {
    std::vector<std::string> names;
    for (std::int64_t i = 0; i < classes_; ++i) names.push_back(std::to_string(i));
    return Tensor::from_strings(std::move(names), Dims{classes_});
  }
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = 0; i < classes_; ++i) numbers.push_back(i);
  return Tensor::from(numbers, Dims{classes_}).cast(old);
}

std::string WidthChange::refuse_operand(const Node& node, const Value* operand) {
  other_ = operand;
  return fmt::format("{} combines its results with '{}'", node.describe(), operand->name);
}

std::string WidthChange::start(const ScoreLayer& layer) {
  for (Node* node : layer.nodes) {
    const Value* output = node->output(0);
    switch (layer.kind) {
      case ScoreLayer::Kind::kClassifier:
        carry(output, {.rank = 1, .is_label = true});
        note_labels();
        if (node->output(1) != nullptr) {
          carry(node->output(1), {.has_classes = true, .axis = 1, .rank = 2});
        }
        continue;
      case ScoreLayer::Kind::kRegressor:
        carry(output, {.has_classes = true, .axis = 1, .rank = 2});
        continue;
      default:
        break;
    }
    auto rank = rank_of(output);
    if (!rank && ir::is_op(*node, {"Gemm"})) rank = 2;
    if (!rank) rank = rank_of(node->input(0));
    if (!rank || *rank < 1) {
      return fmt::format("the rank of its result '{}' is not known", output->name);
    }
    const bool is_linear =
        layer.kind == ScoreLayer::Kind::kLinear || layer.kind == ScoreLayer::Kind::kStacked;
    Carried state{.has_classes = true, .axis = is_linear ? *rank - 1 : 1, .rank = *rank};
    if (node->domain.empty() && node->input(2) != nullptr)
      state.scores = node->output(0);  // it has its bias
    carry(output, state);
  }
  return "";
}

std::string WidthChange::follow_once(const std::vector<const ScoreLayer*>& layers) {
  carried_.clear();
  edits_.clear();
  biases_.clear();
  other_ = nullptr;
  std::unordered_set<const Node*> own;
  for (const ScoreLayer* layer : layers) {
    own.insert(layer->nodes.begin(), layer->nodes.end());
    if (std::string reason = start(*layer); !reason.empty()) return reason;
  }
  for (Node* node : graph().nodes) {
    const bool reads = std::ranges::any_of(
        node->inputs, [&](const Value* value) { return find(value) != nullptr; });
    if (own.contains(node)) {
      if (reads) return "one of these layers reads another one";
      continue;
    }
    if (!node->subgraphs().empty() && (reads || has_subgraph_reading(*node, *this))) {
      return fmt::format("{} reads its results", node->describe());
    }
    if (!reads) continue;
    if (std::string reason = pass_node(*node, *this); !reason.empty()) return reason;
  }
  const bool is_output = std::ranges::any_of(
      graph().outputs, [&](const Value* value) { return find(value) != nullptr; });
  return is_output ? "" : "no output of the model depends on it";
}

std::string WidthChange::follow(const std::vector<const ScoreLayer*>& layers) {
  old_width_ = layers.front()->outputs;
  for (const ScoreLayer* layer : layers) {
    if (layer->outputs != old_width_) return "it is combined with a layer of another width";
  }
  new_width_ = classes_;
  wants_one_score_ = false;
  std::string reason = follow_once(layers);
  if (reason.empty() && wants_one_score_) {
    new_width_ = 1;
    reason = follow_once(layers);
  }
  return reason;
}

namespace {

ir::Type with_label_type(const ir::Type& type, DataType dtype) {
  ir::Type changed = type;
  if (type.kind == ir::Type::Kind::kTensor || type.kind == ir::Type::Kind::kMap) {
    changed.dtype = dtype;
  } else if (type.element != nullptr) {
    changed.element = std::make_shared<const ir::Type>(with_label_type(*type.element, dtype));
  }
  return changed;
}

// Erases what computes these values alone, unless something still reads it.
void erase_unread(ir::Graph& graph, std::vector<const Value*> values) {
  while (!values.empty()) {
    const ir::Uses uses(graph);
    std::vector<const Value*> next;
    for (const Value* value : values) {
      if (value->is_input || uses.count(value) > 0) continue;
      std::erase(graph.initializers, value);
      Node* const node = value->producer;
      const auto is_read = [&](const Value* output) {
        return output != nullptr && uses.count(output) > 0;
      };
      if (node == nullptr || std::ranges::any_of(node->outputs, is_read)) continue;
      if (std::erase(graph.nodes, node) == 0) continue;
      next.insert(next.end(), node->inputs.begin(), node->inputs.end());
    }
    std::erase(next, nullptr);
    values = std::move(next);
  }
}

}  // namespace

void WidthChange::set_types() {
  const std::unordered_set<const Value*> outputs(graph().outputs.begin(), graph().outputs.end());
  std::vector<Value*> values;
  for (const Node* node : graph().nodes) {
    std::ranges::copy_if(node->outputs, std::back_inserter(values),
                         [this](const Value* value) { return find(value) != nullptr; });
  }
  for (Value* const changed : values) {
    const Carried& state = *find(changed);
    if (state.is_label && labels_.is_defined()) {
      const bool is_text = labels_.dtype() == DataType::kString;
      const ir::Type& type = changed->type;
      const bool was_text =
          with_label_type(type, DataType::kString).to_string() == type.to_string();
      if (is_text || was_text) {
        changed->type = with_label_type(type, is_text ? DataType::kString : DataType::kInt64);
      }
    }
    if (!state.has_classes || !changed->type.has_rank()) continue;
    ir::SymbolicShape& shape = *changed->type.shape;
    if (static_cast<std::int64_t>(shape.size()) != state.rank) {
      const ir::Type old = changed->type;
      shape.assign(static_cast<std::size_t>(state.rank), ir::Dim());
      for (std::size_t i = 0; i < shape.size() && i < old.shape->size(); ++i) {
        shape[i] = old.shape->at(i);
      }
      shape[static_cast<std::size_t>(state.axis)] = new_width_;
      continue;
    }
    ir::Dim& dim = shape[static_cast<std::size_t>(state.axis)];
    if (dim.is_static() || outputs.contains(changed)) dim = new_width_;
  }
}

void WidthChange::apply() {
  for (const auto& change : edits_) change();
  set_types();
  erase_unread(graph(), dropped_);
  for (const auto& [old, made] : renamed_) {
    const bool is_gone = std::ranges::find(graph().initializers, old) == graph().initializers.end();
    const bool is_left = old->producer != nullptr &&
                         std::ranges::find(graph().nodes, old->producer) != graph().nodes.end();
    if (!is_gone || is_left || graph().find(old->name) != old) continue;
    std::string name = old->name;
    graph().rename(old, graph().names().unique(name + "_before"));
    graph().rename(made, std::move(name));
  }
}

}  // namespace onnxgrad::train
