#include "train/session/session_values.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "ir/uses.h"
#include "train/graphs/file_training.h"
#include "train/graphs/loss_parts.h"
#include "train/tools/feeds.h"

namespace onnxgrad::train {
namespace {

using runtime::Port;

class Finder {
 public:
  explicit Finder(const CompiledParts& parts) : parts_(parts) {}
  SessionValues find() && {
    find_inputs();
    find_outputs();
    return std::move(found_);
  }

 private:
  bool is_own_input(const ir::Value* value) const;
  bool needs_targets(const RunnableOutput& output) const;
  void find_inputs();
  void find_outputs();
  void find_constants();

  const CompiledParts& parts_;
  SessionValues found_;
};

// With a loss in the model, its targets and weights are inputs of the model.
bool Finder::is_own_input(const ir::Value* value) const {
  return std::holds_alternative<OutputLoss>(parts_.loss.function) &&
         (value->name == parts_.step.graph().loss.target.name ||
          value->name == parts_.step.graph().sample_weight);
}

void Finder::find_inputs() {
  const ir::Graph& working = *parts_.source.working->graph;
  const auto ports = parts_.step.data_ports();
  const auto names = names_of(ports);
  for (const ir::Value* input : working.inputs) {
    if (input->is_initializer()) continue;
    if (!is_own_input(input)) {
      found_.inputs.push_back(value_info(input->name, parts_.given.graph->find(input->name)->type));
    }
    if (std::ranges::find(names, input->name) == names.end())
      found_.unused_inputs.push_back(input->name);
  }
  for (const Port& port : ports) {  // of other algorithms of the file than the one with the loss
    if (parts_.training == nullptr || working.find(port.name) != nullptr) continue;
    found_.inputs.push_back(value_info(port.name, port.type));
  }
  describe_map_inputs(parts_.source.file.model.get(), found_.inputs);
  const auto siblings = sibling_inputs(found_.inputs, parts_.loss);
  found_.inputs.insert(found_.inputs.end(), siblings.begin(), siblings.end());
  find_constants();
}

void Finder::find_outputs() {
  auto all = runnable_outputs(*parts_.source.working->graph);
  if (parts_.training != nullptr) all.resize(parts_.training->num_model_outputs());
  for (std::size_t i = 0; i < all.size(); ++i) {
    RunnableOutput& output = all[i];
    const ir::Value& declared = *parts_.given.graph->outputs[i];
    if (needs_targets(output)) continue;
    found_.outputs.push_back(describe_output(output, declared, parts_.texts));
    found_.runnable.push_back(std::move(output));
  }
  leave_out_unsupported(*parts_.source.working, found_.runnable);
}

// Predictions are made without targets: an output that depends on them is none of the session's.
bool Finder::needs_targets(const RunnableOutput& output) const {
  if (!std::holds_alternative<OutputLoss>(parts_.loss.function) || output.value == nullptr)
    return false;
  const auto needed = ir::ancestors_of({&output.value, 1});
  return std::ranges::any_of(needed, [this](const auto* value) { return is_own_input(value); });
}

// Inputs whose first dimension is a number, if others have rows.
void Finder::find_constants() {
  const auto has_own_rows = [this](const ValueInfo& input) {
    if (std::ranges::find(parts_.batch.inputs, input.name) != parts_.batch.inputs.end())
      return true;
    const bool is_open = !input.shape || (!input.shape->empty() && !(*input.shape)[0].is_fixed());
    return !input.is_tensor || is_open || input.keys.is_defined();
  };
  if (std::ranges::none_of(found_.inputs, has_own_rows)) return;
  for (const ValueInfo& input : found_.inputs) {
    if (!has_own_rows(input)) found_.constants.push_back(input.name);
  }
}

}  // namespace

SessionValues find_session_values(const CompiledParts& parts) { return Finder(parts).find(); }

}  // namespace onnxgrad::train
