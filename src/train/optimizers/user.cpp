#include <array>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/uses.h"
#include "train/optimizers/table.h"
#include "train/tools/user_graph.h"

// A user-defined update given as a model: its nodes are written once for each weight.

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

constexpr std::size_t kFirstSlot = 4;  // after weight, gradient, learning rate and step

const UserPart& optimizer_part() {
  static const UserPart optimizer{
      .subject = "user optimizer",
      .form =
          "An optimizer is a model with the inputs weight, gradient, learning rate, step and any "
          "slots, and the outputs new weight and new slots."};
  return optimizer;
}

[[noreturn]] void refuse_optimizer(const std::string& what, const std::string& hint) {
  refuse_user_part(optimizer_part(), what, hint);
}

// Throws if the model does not have the form of an optimizer.
ir::Model load(const UserOptimizer& spec) {
  ir::Model model = load_user_part(optimizer_part(), spec.model);
  const ir::Graph& graph = *model.graph;
  const auto& inputs = graph.inputs;
  if (inputs.size() < kFirstSlot || formal_inputs(graph).size() < kFirstSlot) {
    refuse_optimizer("the model has " + std::to_string(formal_inputs(graph).size()) +
                         " inputs without a default, expected at least 4",
                     "Make everything else an initializer.");
  }
  if (graph.outputs.size() != inputs.size() - kFirstSlot + 1) {
    refuse_optimizer("the model has " + std::to_string(inputs.size() - kFirstSlot) + " slots and " +
                         std::to_string(graph.outputs.size()) + " outputs",
                     "Give the new weight and the new value of each slot, in their order.");
  }
  const std::unordered_set<std::string> taken{"step_count", "accumulated"};
  for (std::size_t i = kFirstSlot; i < inputs.size(); ++i) {
    const Value& slot = *inputs[i];
    if (taken.contains(slot.name))
      refuse_optimizer("a slot cannot be called '" + slot.name + "'", "");
    if (slot.is_initializer() && slot.initializer.num_elements() != 1) {
      refuse_optimizer("the initial value of slot '" + slot.name + "' is not one number",
                       "Let it start from one number everywhere.");
    }
  }
  return model;
}

class UserRule : public UpdateRule {
 public:
  UserRule(StepWriter& writer, const UserOptimizer& spec)
      : writer_(writer), model_(load(spec)), readers_(*model_.graph) {}

  Value* update(const WeightStep& step) override {
    const auto& inputs = model_.graph->inputs;
    for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
      check_user_dtype(optimizer_part(), *inputs[i], step.weight->dtype(),
                       "weights such as '" + step.name + "'");
    }
    std::unordered_map<const Value*, Value*> given{
        {inputs[0], to_form(step.weight, step)},
        {inputs[1], to_form(writer_.decayed(step, StepWriter::Decay::kGradient).gradient, step)},
        {inputs[2], as_declared(writer_.rate(step), *inputs[2])}};
    const bool counts = readers_.count(inputs[3]) > 0;
    if (counts) given.emplace(inputs[3], as_declared(writer_.steps_after(step), *inputs[3]));
    std::vector<Value*> slots;
    for (std::size_t i = kFirstSlot; i < inputs.size(); ++i) {
      slots.push_back(make_slot(*inputs[i], step));
      given.emplace(inputs[i], to_form(slots.back(), step));
    }
    const auto outputs = write_user_part(writer_.g(), model_, std::move(given));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      writer_.bind(slots[i], from_form(outputs[i + 1], *slots[i], i + 1));
    }
    return from_form(outputs.front(), *step.weight, 0);
  }

 private:
  // A model that declares vectors reads each weight as one.
  bool is_flat(const WeightStep& step) const {
    const ir::Type& declared = model_.graph->inputs.front()->type;
    return declared.has_rank() && declared.rank() == 1 && step.weight->type.rank() != 1;
  }
  Value* to_form(Value* x, const WeightStep& step) {
    return is_flat(step) ? writer_.g().reshape(x, std::vector<std::int64_t>{-1}) : x;
  }

  // Back in the shape and type of `like`; refuses other types and sizes.
  Value* from_form(Value* x, const Value& like, std::size_t output) {
    const Dims dims = like.type.fixed_dims();
    const auto found = x->type.static_dims();
    const bool fits =
        x->dtype() == like.dtype() && (!found || found->num_elements() == dims.num_elements());
    if (!fits) {
      refuse_optimizer("output '" + model_.graph->outputs[output]->name + "' is " +
                           x->type.to_string() + ", but '" + like.name + "' is " +
                           like.type.to_string(),
                       "Give a new value of the same type and shape.");
    }
    if (found && *found == dims) return x;
    return writer_.g().reshape(x, std::vector<std::int64_t>(dims.begin(), dims.end()));
  }

  // A scalar in the type and rank that the model declares.
  Value* as_declared(Value* scalar, const Value& declared) {
    GraphBuilder& g = writer_.g();
    if (scalar->dtype() != declared.dtype()) scalar = g.cast(scalar, declared.dtype());
    const bool is_vector = declared.type.has_rank() && declared.type.rank() == 1;
    return is_vector ? g.unsqueeze(scalar, {0}) : scalar;
  }

  Value* make_slot(const Value& declared, const WeightStep& step) {
    check_user_dtype(optimizer_part(), declared, step.weight->dtype(), "weights and slots");
    const double first = declared.is_initializer() ? declared.initializer.to_doubles().front() : 0;
    return writer_.slot(declared.name, step, first);
  }

  StepWriter& writer_;
  ir::Model model_;
  ir::Uses readers_;
};

}  // namespace

void register_user(OptimizerTable& table) {
  table.add<UserRule>(Described<UserOptimizer>{
      .type = "UserOptimizer",
      .python_name = "",
      .summary = "A model of the user's",
      .fields = {rate_field<UserOptimizer>(), decay_field<UserOptimizer>()},
  });
}

}  // namespace onnxgrad::train
