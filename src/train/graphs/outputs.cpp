#include "train/graphs/outputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ir/pattern.h"
#include "onnx/map_inputs.h"
#include "runtime/kernel_selection.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;

// Follows nodes that pass on labels, to the lookup in a constant list of strings.
void find_label_lookup(RunnableOutput& output) {
  static const ir::NodeTest kPasses = builtin_ops().passing(opdef::Passage::kReshaped);
  const Value* value = ir::look_through(std::exchange(output.value, nullptr), kPasses);
  const Node* lookup = value == nullptr ? nullptr : value->producer;
  if (lookup == nullptr ||
      (lookup->op_type != "ArrayFeatureExtractor" && !ir::is_op(lookup, "Gather"))) {
    return;
  }
  const Value* table = lookup->input(0);
  if (table == nullptr || lookup->input(1) == nullptr || !table->is_initializer() ||
      table->initializer.dtype() != DataType::kString) {
    return;
  }
  output.labels = table->initializer.reshaped(Dims{table->initializer.num_elements()});
  output.value = lookup->input(1);
}

// Texts that an operator computes, not a lookup, or constants; those of subgraphs the engine has
// not.
bool computes_texts(const Value* value) {
  static const ir::NodeTest kPasses = builtin_ops().passing(opdef::Passage::kReshaped);
  static const ir::NodeTest kPassesTexts = [](const Node& node) {  // not a Cast of numbers
    return kPasses(node) && node.input(0)->dtype() == DataType::kString;
  };
  const Value* source = ir::look_through(value, kPassesTexts);
  const Node* node = source == nullptr ? nullptr : source->producer;
  if (node == nullptr) return source != nullptr && source->is_initializer();
  return node->subgraphs().empty() &&
         (cpu_engine().kernels.dynamic(node->domain, node->op_type) != nullptr ||
          cpu_engine().kernels.dynamic(ir::kFusedDomain, node->op_type) != nullptr);
}

Problem not_computed(const Value& output) {
  const std::string node = output.producer == nullptr ? "it" : output.producer->describe();
  return {.what = fmt::format("{} has {}, which the engine does not compute there", node,
                              output.type.is_tensor() ? "texts" : "elements of this type"),
          .hint = "Compute them from another output."};
}

// The keys of a ZipMap; undefined: it has none.
Tensor keys_of(const Node& zip_map) {
  const auto numbers = zip_map.ints_attribute("classlabels_int64s");
  if (!numbers.empty()) {
    return Tensor::from(numbers, {static_cast<std::int64_t>(numbers.size())});
  }
  const ir::AttributeValue* given = zip_map.find_attribute("classlabels_strings");
  const auto* texts = given == nullptr ? nullptr : std::get_if<std::vector<std::string>>(given);
  if (texts == nullptr) return {};
  return Tensor::from_strings(*texts, {static_cast<std::int64_t>(texts->size())});
}

}  // namespace

Tensor RunnableOutput::finish(Tensor computed) const {
  if (!labels.is_defined()) return computed;
  const auto table = labels.strings();
  std::vector<std::string> texts;
  for (const std::int64_t number : computed.to_int64s()) {
    if (number < 0 || number >= static_cast<std::int64_t>(table.size())) {
      throw DataError(
          {.what = "class number " + std::to_string(number) + " has no label",
           .where = {.value = name},
           .hint = "Request the scores instead: the model has more classes than labels."});
    }
    texts.push_back(table[static_cast<std::size_t>(number)]);
  }
  const auto count = static_cast<std::int64_t>(texts.size());
  return Tensor::from_strings(std::move(texts), is_text ? computed.dims() : Dims{count});
}

std::vector<RunnableOutput> runnable_outputs(const ir::Graph& graph) {
  std::vector<RunnableOutput> outputs;
  for (Value* value : graph.outputs) {
    RunnableOutput output{.name = value->name, .value = value};
    const Node* producer = value->producer;
    if (producer != nullptr && producer->op_type == "ZipMap") {
      output.value = producer->input(0);
      output.keys = keys_of(*producer);
    } else if (value->type.is_tensor() && value->dtype() == DataType::kString) {
      find_label_lookup(output);
      if (output.value == nullptr && computes_texts(value)) output.value = value;
    } else if (!value->type.is_tensor() && value->type.kind != ir::Type::Kind::kUnknown) {
      output.value = nullptr;
    }
    if (output.value == nullptr) output.problem = not_computed(*value);
    outputs.push_back(std::move(output));
  }
  return outputs;
}

void leave_out_unsupported(const ir::Model& model, std::vector<RunnableOutput>& outputs) {
  for (RunnableOutput& output : outputs) {
    if (output.value == nullptr) continue;
    output.problem = runtime::find_unsupported(model, cpu_engine(), {&output.value, 1});
    if (output.problem) output.value = nullptr;
  }
}

std::vector<std::size_t> choose_outputs(std::span<const RunnableOutput> outputs,
                                        std::span<const std::string> names) {
  std::vector<std::string> known;
  for (const RunnableOutput& output : outputs) known.push_back(output.name);
  std::vector<std::size_t> chosen;
  for (const std::string& name : names.empty() ? known : names) {
    const auto place = std::ranges::find(known, name);
    if (place == known.end()) {
      throw DataError({.what = "there is no output '" + name + "'",
                       .where = {.value = name},
                       .detail = "Outputs: " + base::quote_list(known) + ".",
                       .hint = base::nearest_or(name, known)});
    }
    const auto index = static_cast<std::size_t>(place - known.begin());
    if (outputs[index].value == nullptr) {
      std::vector<std::string> others;
      for (const RunnableOutput& output : outputs) {
        if (output.value != nullptr) others.push_back(output.name);
      }
      const Problem reason = outputs[index].problem.value_or(Problem{.hint = "Ask for others."});
      throw UnsupportedOperatorError(
          {.what = fmt::format("output '{}' cannot be computed: {}", name, reason.what),
           .where = reason.where,
           .detail = others.empty() ? "" : "These can be: " + base::quote_list(others) + ".",
           .hint = others.empty() ? reason.hint : Hint("Name the outputs that you need.")});
    }
    chosen.push_back(index);
  }
  return chosen;
}

ValueInfo value_info(const std::string& name, const ir::Type& type) {
  ValueInfo info{.name = name, .is_tensor = type.is_tensor(), .type = type.to_string()};
  if (!type.is_tensor()) return info;
  info.dtype = type.dtype;
  if (!type.shape) return info;
  info.shape.emplace();
  for (const ir::Dim& dim : *type.shape) {
    info.shape->push_back(
        {.value = dim.is_static() ? dim.value() : -1, .symbol = dim.is_open() ? "" : dim.symbol()});
  }
  return info;
}

ValueInfo describe_output(RunnableOutput& output, const ir::Value& declared,
                          const TextCodes* texts) {
  const bool is_text = texts != nullptr && declared.type.is_tensor() &&
                       declared.dtype() == DataType::kString && output.value != nullptr &&
                       !output.labels.is_defined();
  if (is_text) {
    output.labels = texts->table();
    output.is_text = true;
  }
  const bool is_number = output.value != nullptr && !output.labels.is_defined();
  ValueInfo info = value_info(output.name, is_number ? output.value->type : declared.type);
  if (!output.keys.is_defined()) return info;
  info.keys = output.keys;
  info.type = declared.type.to_string();
  return info;
}

void describe_map_inputs(const ir::Model* file, std::vector<ValueInfo>& inputs) {
  if (file == nullptr) return;
  const ir::Graph& graph = *file->graph;
  for (const onnx_io::MapInput& map : onnx_io::find_map_inputs(graph)) {
    const auto input = std::ranges::find(inputs, map.name, &ValueInfo::name);
    if (input == inputs.end()) continue;
    input->keys = map.keys;
    input->type = graph.find(map.name)->type.to_string();
  }
}

}  // namespace onnxgrad::train
