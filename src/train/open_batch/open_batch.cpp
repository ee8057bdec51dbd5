#include "train/open_batch/open_batch.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "onnxgrad/error.h"
#include "train/open_batch/batch_edits.h"
#include "train/open_batch/batch_proof.h"
#include "train/open_batch/batch_tracker.h"

namespace onnxgrad::train {
namespace {

constexpr std::size_t kMostAttempts = 12;  // at what an export leaves open

std::vector<ir::Value*> fed_inputs(const ir::Graph& graph) {
  std::vector<ir::Value*> inputs = graph.inputs;
  std::erase_if(inputs, [](const ir::Value* value) { return value->is_initializer(); });
  return inputs;
}

bool has_first_dim(const ir::Value* value) {
  return value->type.is_tensor() && value->type.rank() > 0;
}

// A batch that is a number: that of the outputs, if inputs have it too, or of the first input.
BatchForm declared_batch(const std::shared_ptr<const ir::Model>& working) {
  BatchForm form{.model = working};
  std::vector<ir::Value*> inputs = fed_inputs(*working->graph);
  std::erase_if(inputs, [](const ir::Value* value) { return !has_first_dim(value); });
  if (inputs.empty()) return form;
  const auto first_of = [](const ir::Value* value) { return (*value->type.shape)[0]; };
  const auto is_open = [&](const ir::Value* value) { return !first_of(value).is_static(); };
  if (std::ranges::any_of(inputs, is_open)) return form;
  std::int64_t rows = first_of(inputs.front()).value();
  const auto& outputs = working->graph->outputs;
  const auto output = std::ranges::find_if(outputs, has_first_dim);
  const auto is_of_inputs = [&](const ir::Dim& dim) {
    return dim.is_static() && std::ranges::find(inputs, dim, first_of) != inputs.end();
  };
  if (output != outputs.end() && is_of_inputs(first_of(*output))) {
    rows = first_of(*output).value();
  }
  for (const ir::Value* input : inputs) {
    if (first_of(input) == ir::Dim(rows)) form.inputs.push_back(input->name);
  }
  if (!form.inputs.empty() && rows > 0) form.rows = rows;
  return form;
}

bool reads_strings(const ir::Model& model) {
  return std::ranges::any_of(model.graph->inputs, [](const ir::Value* input) {
    return !input->is_initializer() && input->dtype() == DataType::kString;
  });
}

// All inputs with this number in front; else those of more than one axis; else all but one.
std::vector<std::vector<std::string>> possible_inputs(const BatchForm& form) {
  std::vector<std::vector<std::string>> sets{form.inputs};
  if (form.inputs.size() < 2) return sets;
  const auto add_without = [&](const std::function<bool(const std::string&)>& is_left_out) {
    std::vector<std::string> left = form.inputs;
    std::erase_if(left, is_left_out);
    if (!left.empty() && std::ranges::find(sets, left) == sets.end()) sets.push_back(left);
  };
  add_without(
      [&](const std::string& name) { return form.model->graph->find(name)->type.rank() < 2; });
  for (auto name = form.inputs.rbegin(); name != form.inputs.rend(); ++name) {
    add_without([&](const std::string& other) { return other == *name; });
  }
  return sets;
}

// The next combination of choices, the last ones first; false: all have been tried.
bool advance(std::vector<std::size_t>& choices, const std::vector<std::size_t>& possibilities) {
  choices.resize(possibilities.size(), 0);
  for (std::size_t i = choices.size(); i-- > 0;) {
    if (++choices[i] < possibilities[i]) return true;
    choices[i] = 0;
  }
  return false;
}

}  // namespace

BatchForm keep_batch(const std::shared_ptr<const ir::Model>& working) {
  BatchForm form = declared_batch(working);
  if (form.rows > 0) form.obstacle = "open_batch is off";
  return form;
}

BatchForm open_batch(const std::shared_ptr<const ir::Model>& working) {
  BatchForm form = declared_batch(working);
  if (form.rows == 0) return form;
  if (reads_strings(*working)) {
    form.obstacle = "it reads texts";
    return form;
  }
  std::size_t attempts = 0;
  for (const std::vector<std::string>& inputs : possible_inputs(form)) {
    std::vector<std::size_t> choices;
    std::vector<std::size_t> possibilities;
    do {
      std::string obstacle;
      BatchTracker tracker(*working, form.rows, inputs, choices);
      try {
        std::shared_ptr<ir::Model> open = tracker.open();
        obstacle = disprove(working, open, form.rows, inputs);
        if (obstacle.empty()) {
          return {.model = std::move(open),
                  .rows = form.rows,
                  .inputs = inputs,
                  .edits = tracker.edits()};
        }
      } catch (const BatchObstacle& found) {
        obstacle = found.reason;
      } catch (const Error& error) {
        obstacle = error.problem().what;
      }
      if (form.obstacle.empty()) form.obstacle = obstacle;  // the first attempt is the best guess
      possibilities = tracker.possibilities();
    } while (++attempts < kMostAttempts && advance(choices, possibilities));
    if (attempts >= kMostAttempts) break;
  }
  return form;
}

namespace {

ir::Node* find_node(const ir::Graph& graph, const std::string& output) {
  for (ir::Node* node : graph.nodes) {
    for (const ir::Value* value : node->outputs) {
      if (value != nullptr && value->name == output) return node;
    }
    for (const ir::Graph* body : node->subgraphs()) {
      if (ir::Node* const inner = find_node(*body, output)) return inner;
    }
  }
  return nullptr;
}

// Types that follow from the open working copy; unknown where it has no such value.
using ByName = std::unordered_map<std::string_view, const ir::Value*>;

void collect(const ir::Graph& graph, ByName& values) {
  for (const ir::Value* input : graph.inputs) values.emplace(input->name, input);
  for (const ir::Node* node : graph.nodes) {
    for (const ir::Value* output : node->outputs) {
      if (output != nullptr) values.emplace(output->name, output);
    }
    for (const ir::Graph* body : node->subgraphs()) collect(*body, values);
  }
}

void take_types(ir::Graph& graph, const ByName& open) {
  const auto take = [&](ir::Value* value, bool is_declared) {
    if (value == nullptr || !value->type.is_tensor() || !value->type.shape) return;
    const auto known = open.find(value->name);
    const ir::Value* const other = known == open.end() ? nullptr : known->second;
    const bool is_same = other != nullptr && other->type.shape &&
                         other->type.shape->size() == value->type.shape->size();
    if (is_same) {
      for (std::size_t axis = 0; axis < value->type.shape->size(); ++axis) {
        const ir::Dim& dim = (*other->type.shape)[axis];
        if (!dim.is_static()) (*value->type.shape)[axis] = dim;
      }
    } else if (!is_declared) {
      value->type = {};
      value->has_value_info = false;
    }
  };
  for (ir::Value* input : graph.inputs) take(input, true);
  for (ir::Node* node : graph.nodes) {
    for (ir::Value* output : node->outputs) {
      const bool is_output = std::ranges::find(graph.outputs, output) != graph.outputs.end();
      take(output, is_output);
    }
    for (ir::Graph* body : node->subgraphs()) take_types(*body, open);
  }
}

}  // namespace

namespace {

// A file whose nodes the working copy has in another form, by a walk of its own.
std::optional<ir::Model> open_by_itself(const ir::Model& file, const BatchForm& form) {
  constexpr std::int64_t kFirst = 13;  // shape arithmetic has the form of the internal opset
  if (file.opset() < kFirst || !file.functions.empty()) return std::nullopt;
  try {
    BatchTracker tracker(file, form.rows, form.inputs);
    return *tracker.open();
  } catch (const BatchObstacle&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

ir::Model open_file_graph(const ir::Model& file, const BatchForm& form) {
  ir::Model copy = ir::clone(file);
  ir::Graph& graph = *copy.graph;
  BatchEditor editor(graph, graph.find(form.inputs.front()));
  for (const BatchEdit& edit : form.edits) {
    ir::Node* const node = find_node(graph, edit.value);
    const bool has_operand =
        node != nullptr && (edit.operand < node->inputs.size() || node->op_type == "Slice");
    if (!has_operand) {
      if (auto own = open_by_itself(file, form)) return *std::move(own);
      throw ModelError(
          {.what = "the batch dimension cannot be opened in the file: '" + edit.value +
                   "' is computed otherwise there",
           .where = {.value = edit.value},
           .hint = "Train with open_batch=\"auto\", which writes the file's own shape, or export "
                   "the model with a dynamic batch: dynamic_shapes={\"x\": {0: \"batch\"}}."});
    }
    editor.apply(edit, *node);
  }
  constexpr std::int64_t kFirstWithConstants = 4;  // initializers that are no inputs
  if (editor.has_new_constants()) {
    copy.ir_version = std::max(copy.ir_version, kFirstWithConstants);
  }
  ByName open;
  collect(*form.model->graph, open);
  take_types(graph, open);
  return copy;
}

}  // namespace onnxgrad::train
