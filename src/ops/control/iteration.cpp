#include "ops/control/iteration.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "ir/uses.h"
#include "onnxgrad/error.h"
#include "opdef/gradient_type.h"
#include "opdef/random_stream.h"
#include "ops/control/outer_shape.h"

namespace onnxgrad::ops {
namespace {

using opdef::VjpContext;
using opdef::zero_gradient;
using Values = std::unordered_set<const Value*>;

bool can_have_gradient(const Value* value) {
  return value != nullptr && opdef::can_have_gradient(value->type);
}

// Returns the values of the body that depend on `sources` in a differentiable way, and `sources`.
Values reached_from(const ir::Graph& body, Values sources) {
  for (const Node* node : body.nodes) {
    const std::vector<Value*> inputs = ir::values_read(*node);
    if (std::ranges::none_of(inputs, [&](const Value* v) { return sources.contains(v); })) continue;
    for (const Value* output : node->outputs) {
      if (can_have_gradient(output)) sources.insert(output);
    }
  }
  return sources;
}

// Returns the values of the body that `targets` depend on, and `targets`.
Values needed_for(const ir::Graph& body, Values targets) {
  for (std::size_t n = body.nodes.size(); n-- > 0;) {
    const Node& node = *body.nodes[n];
    const auto is_target = [&](const Value* v) { return targets.contains(v); };
    if (std::ranges::none_of(node.outputs, is_target)) continue;
    for (const Value* input : ir::values_read(node)) {
      if (can_have_gradient(input)) targets.insert(input);
    }
  }
  return targets;
}

class IterationGradient {
 public:
  IterationGradient(VjpContext& ctx, GraphBuilder& g, const IterationRoles& roles)
      : ctx_(ctx),
        g_(g),
        roles_(roles),
        node_(ctx.node()),
        body_(*roles.body),
        captured_(ir::captured_values(node_)),
        num_states_(roles.num_states),
        num_stacked_(node_.outputs.size() - roles.num_states) {
    for (std::size_t k = 0; k < num_stacked_; ++k) {
      stacked_outputs_.push_back(node_.output(roles.num_states + k));
    }
  }

  std::vector<Value*> run() {
    find_wanted();
    std::vector<Value*> gradients(node_.inputs.size() + captured_.size(), nullptr);
    if (states_.empty() && scanned_.empty() && sums_.empty()) return gradients;
    find_symbols();
    write_body();
    carry();
    if (sequences_.empty()) add_any_sequence();
    extend_directions();
    const std::vector<Value*> results = needs_loop() ? write_loop() : write_scan();
    std::size_t next = 0;
    for (const std::size_t s : states_) gradients[roles_.first_input + s] = results[next++];
    for (const std::size_t k : sums_) gradients[node_.inputs.size() + k] = results[next++];
    for (const std::size_t k : scanned_) gradients[scan_input(k)] = results[next++];
    return gradients;
  }

 private:
  std::size_t scan_input(std::size_t k) const { return roles_.first_input + roles_.num_states + k; }
  Value* state_formal(std::size_t s) const { return body_.inputs[roles_.first_formal + s]; }
  Value* scan_formal(std::size_t k) const { return state_formal(roles_.num_states + k); }
  Value* next_state(std::size_t s) const { return body_.outputs[roles_.first_result + s]; }
  Value* stacked(std::size_t k) const { return next_state(num_states_ + k); }
  Value* stacked_cotangent(std::size_t k) const {
    return can_have_gradient(stacked(k)) ? ctx_.cotangent(roles_.num_states + k) : nullptr;
  }

  // Finds the states between an input whose gradient is wanted and an output that has a gradient.
  void find_wanted() {
    Values wanted;
    for (std::size_t k = 0; k < roles_.scans_backward.size(); ++k) {
      if (!ctx_.needs(scan_input(k))) continue;
      scanned_.push_back(k);
      wanted.insert(scan_formal(k));
    }
    for (std::size_t k = 0; k < captured_.size(); ++k) {
      if (!ctx_.needs(node_.inputs.size() + k) || !can_have_gradient(captured_[k])) continue;
      sums_.push_back(k);
      wanted.insert(captured_[k]);
    }
    std::vector<bool> varied(roles_.num_states);
    for (std::size_t s = 0; s < roles_.num_states; ++s) {
      varied[s] = ctx_.needs(roles_.first_input + s) && can_have_gradient(state_formal(s));
    }
    spread(
        varied, wanted, [this](std::size_t s) { return state_formal(s); },
        [this](std::size_t s) { return next_state(s); }, reached_from);

    Values results;
    for (std::size_t k = 0; k < num_stacked_; ++k) {
      if (stacked_cotangent(k) == nullptr) continue;
      stacked_.push_back(k);
      results.insert(stacked(k));
    }
    std::vector<bool> useful(roles_.num_states);
    for (std::size_t s = 0; s < roles_.num_states; ++s) {
      useful[s] = ctx_.cotangent(s) != nullptr && can_have_gradient(state_formal(s));
    }
    spread(
        useful, results, [this](std::size_t s) { return next_state(s); },
        [this](std::size_t s) { return state_formal(s); }, needed_for);
    for (std::size_t s = 0; s < roles_.num_states; ++s) {
      if (varied[s] && useful[s]) states_.push_back(s);
    }
  }

  // Marks states until nothing changes: a state is marked if end(s) is among the values that
  // `follow` finds from `seeds` and from start(s) of the states marked before.
  template <class Start, class End, class Follow>
  void spread(std::vector<bool>& marked, const Values& seeds, const Start& start, const End& end,
              const Follow& follow) const {
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      Values from = seeds;
      for (std::size_t s = 0; s < marked.size(); ++s) {
        if (marked[s]) from.insert(start(s));
      }
      const Values found = follow(body_, std::move(from));
      for (std::size_t s = 0; s < marked.size(); ++s) {
        if (marked[s] || !found.contains(end(s)) || !can_have_gradient(state_formal(s))) continue;
        marked[s] = true;
        has_changed = true;
      }
    }
  }

  void find_symbols() {
    std::vector<Value*> outer = node_.inputs;
    outer.insert(outer.end(), captured_.begin(), captured_.end());
    for (const Value* value : outer) {
      if (value == nullptr || !value->type.shape) continue;
      for (const ir::Dim& dim : *value->type.shape) {
        if (dim.is_symbolic()) symbols_.insert(dim.symbol());
      }
    }
  }

  // Returns true for a tensor of the body with the same shape in all iterations: the types of
  // states keep only the dimensions that no iteration changes.
  bool is_steady(const Value& value) const {
    return value.type.is_tensor() && value.type.shape &&
           std::ranges::all_of(*value.type.shape, [this](const ir::Dim& dim) {
             return dim.is_static() || (dim.is_symbolic() && symbols_.contains(dim.symbol()));
           });
  }

  bool changes(std::size_t s) const {
    const bool runs_once = roles_.length.is_static() && roles_.length.value() <= 1;
    return !is_steady(*next_state(s)) && (!runs_once || !next_state(s)->type.is_tensor());
  }

  // Returns the gradient of a state after the last iteration.
  Value* last_gradient(std::size_t s) {
    if (Value* cotangent = ctx_.cotangent(s)) return cotangent;
    if (!changes(s)) return zero_gradient(g_, node_.input(roles_.first_input + s));
    return zero_gradient(g_, ctx_.require_output(s));
  }

  // Builds the gradient of one iteration. Inputs: gradients of the states after the iteration and
  // of the rows that it stacks. Outputs: gradients of the states before it and of the rows that it
  // reads, and the sums for captured values.
  void write_body() {
    std::vector<Value*> results;
    std::vector<Value*> wrt;
    for (const std::size_t s : states_) {
      results.push_back(next_state(s));
      wrt.push_back(state_formal(s));
      initial_.push_back(last_gradient(s));
    }
    for (const std::size_t k : sums_) initial_.push_back(zero_gradient(g_, captured_[k]));
    for (const std::size_t k : stacked_) {
      results.push_back(stacked(k));
      add_sequence(stacked_cotangent(k), !roles_.stacks_backward[k]);
    }
    for (const std::size_t k : sums_) wrt.push_back(captured_[k]);
    for (const std::size_t k : scanned_) wrt.push_back(scan_formal(k));

    const std::string name = g_.graph().names().unique(body_.name + "_grad");
    backward_ = g_.subgraph(name, [&](GraphBuilder& inner) {
      const auto formal = [&](const Value* like) {
        return inner.graph().add_input(like->name + "_grad", opdef::gradient_type(like->type));
      };
      std::vector<Value*> seeds;
      std::vector<Value*> totals;
      for (const std::size_t s : states_) seeds.push_back(formal(next_state(s)));
      for (const std::size_t k : sums_) totals.push_back(formal(captured_[k]));
      for (const std::size_t k : stacked_) seeds.push_back(formal(stacked(k)));
      std::vector<Value*> outputs = ctx_.differentiate(inner, body_, results, seeds, wrt);
      for (std::size_t i = 0; i < totals.size(); ++i) {
        Value*& total = outputs[states_.size() + i];
        total = opdef::add_gradients(inner, totals[i], total);
      }
      // onnxruntime 1.31 stacks a value only once, even if it is several outputs.
      for (auto output = outputs.begin(); output != outputs.end(); ++output) {
        if (std::find(outputs.begin(), output, *output) != output)
          *output = inner.identity(*output);
      }
      return outputs;
    });
    ir::eliminate_dead_nodes(*backward_);  // gradients that were added to others in place
  }

  void add_sequence(Value* value, bool backward) {
    sequences_.push_back(value);
    directions_.push_back(backward ? 1 : 0);
  }

  // Saves the values of the primal body that the new body reads, and reads them there row by row.
  void carry() {
    GraphBuilder inner = g_.inside(*backward_);
    ctx_.carry(inner, body_, [&](Value* value) { return save(inner, value); });
    check_draws(*backward_);
  }

  Value* save(GraphBuilder& inner, Value* value) {
    const Node* producer = value->producer;
    if (value->type.kind == ir::Type::Kind::kSequence && producer == nullptr) {
      return save_elements(inner, value);
    }
    if (producer != nullptr && producer->op_type == "Shape" && producer->domain.empty() &&
        is_steady(*producer->inputs[0])) {
      std::vector<Value*> outer = node_.inputs;
      outer.insert(outer.end(), captured_.begin(), captured_.end());
      if (Value* shape = find_shape(inner, *producer, outer)) return shape;
    }
    if (!value->type.is_tensor() || value->dtype() == DataType::kString ||
        may_differ_in_length(*value)) {
      return not_saved(*value);
    }
    if (is_steady(*value) || is_input_of_scan(*value)) {
      save_rows(value);
    } else if (roles_.is_loop) {
      save_list(value);
    } else {
      return not_saved(*value);
    }
    return add_row_formal(value);
  }

  // ONNX: "All the output tensors (state variables as well as scan_output_element tensors) are
  // required to have the same shape in each iteration"; scanned rows are parts of one tensor.
  bool is_input_of_scan(const Value& value) const {
    return !roles_.is_loop && std::ranges::find(body_.inputs, &value) != body_.inputs.end();
  }

  // Inputs of the body cannot be recomputed.
  Value* not_saved(const Value& value) const {
    if (std::ranges::find(body_.inputs, &value) == body_.inputs.end()) return nullptr;
    throw GradientError({.what = "the gradient reads '" + value.name + "' of the body, " +
                                 value.type.to_string() + ", which cannot be kept",
                         .where = {.node = node_.name, .op_type = node_.op_type},
                         .hint = "Compute what depends on it before or after the node, or declare "
                                 "its type in the body."});
  }

  Value* add_row_formal(const Value* value) {
    return backward_->add_input(value->name + "_at", value->type);
  }

  // Adds a state to the Loop: a sequence, empty at first, that iterations append to. Returns the
  // input of the body; `output` receives the output of the node.
  Value* add_sequence_state(const Value& like, const ir::Type& element, Value*& output) {
    ir::Type type{.kind = ir::Type::Kind::kSequence,
                  .element = std::make_shared<const ir::Type>(ir::Type::tensor(element.dtype))};
    Node& primal = primal_node();
    GraphBuilder outside = g_.inside(*primal.graph);
    Value* empty =
        outside.op("SequenceEmpty", {}, {{"dtype", static_cast<std::int64_t>(element.dtype)}});
    std::vector<Node*>& nodes = primal.graph->nodes;
    std::rotate(std::ranges::find(nodes, &primal), std::prev(nodes.end()), nodes.end());

    const auto state = static_cast<std::ptrdiff_t>(num_states_++);
    primal.inputs.insert(
        primal.inputs.begin() + static_cast<std::ptrdiff_t>(roles_.first_input) + state, empty);
    Value* formal = body_.add_input(like.name + "_before", type);
    ONNXGRAD_ASSERT(body_.inputs.back() == state_formal(static_cast<std::size_t>(state)));
    body_.outputs.insert(
        body_.outputs.begin() + static_cast<std::ptrdiff_t>(roles_.first_result) + state, formal);
    primal.outputs.insert(primal.outputs.begin() + state, nullptr);
    for (std::size_t i = static_cast<std::size_t>(state) + 1; i < primal.outputs.size(); ++i) {
      if (primal.outputs[i] != nullptr) ir::Graph::set_output(&primal, i, primal.outputs[i]);
    }
    output = primal.graph->add_output(&primal, static_cast<std::size_t>(state), std::move(type),
                                      like.name + "_all");
    return formal;
  }

  // Collects `value` of all iterations in a sequence; the new body reads one element.
  void save_list(Value* value) {
    Value* all = nullptr;
    Value* before = add_sequence_state(*value, value->type, all);
    const std::size_t state = num_states_ - 1;
    body_.outputs[roles_.first_result + state] =
        g_.inside(body_).op("SequenceInsert", {before, value});
    add_sequence(all, true);
  }

  // Saves a sequence that the body reads: the elements of all iterations are collected in one
  // sequence, from which the new body takes those of its iteration, by their number and the number
  // of all elements before.
  Value* save_elements(GraphBuilder& inner, Value* sequence) {
    ONNXGRAD_ASSERT(roles_.is_loop && sequence->type.element);
    GraphBuilder body = g_.inside(body_);
    Value* count = body.op("SequenceLength", {sequence});
    Value* all = nullptr;
    Value* before = add_sequence_state(*sequence, *sequence->type.element, all);
    const std::size_t state = num_states_ - 1;
    body_.outputs[roles_.first_result + state] =
        append_elements(body, before, sequence, nullptr, count);
    save_rows(count);
    Value* counts = sequences_.back();
    Value* own_count = add_row_formal(count);
    add_sequence(g_.op("CumSum", {counts, g_.int_scalar(0)}, {{"exclusive", std::int64_t{1}}}),
                 true);
    Value* own_first = add_row_formal(count);
    const auto dtype = static_cast<std::int64_t>(sequence->type.element->dtype);
    Value* none = inner.op("SequenceEmpty", {}, {{"dtype", dtype}});
    return append_elements(inner, none, all, own_first, own_count);
  }

  // Appends `count` elements of `from`, starting at index `first` (nullptr: 0), to `to`.
  static Value* append_elements(GraphBuilder& g, Value* to, Value* from, Value* first,
                                Value* count) {
    ir::GraphPtr body = g.subgraph("append", [&](GraphBuilder& step) {
      Value* i = step.graph().add_input("i", ir::Type::tensor(DataType::kInt64, Dims{}));
      Value* goes_on = step.graph().add_input("goes_on", ir::Type::tensor(DataType::kBool, Dims{}));
      Value* so_far = step.graph().add_input("so_far", to->type);
      Value* element = step.op("SequenceAt", {from, first == nullptr ? i : step.add(first, i)});
      return std::vector{step.identity(goes_on), step.op("SequenceInsert", {so_far, element})};
    });
    return g.op("Loop", {count, nullptr, to}, {{"body", std::move(body)}});
  }

  // An inner Loop may stack a different number of rows in each iteration: it is run again.
  static bool may_differ_in_length(const Value& value) {
    if (value.producer == nullptr || value.producer->subgraphs().empty()) return false;
    return !value.type.shape || std::ranges::any_of(*value.type.shape, [](const ir::Dim& dim) {
      return !dim.is_static() && !dim.is_symbolic();
    });
  }

  // Each iteration draws its own random numbers, but the gradient runs in the opposite order.
  void check_draws(const ir::Graph& graph) const {
    for (const Node* node : graph.nodes) {
      if (opdef::draws_like_another(*node)) {
        throw GradientError(
            {.what = "random numbers of " + node->op_type + " in an iteration cannot be kept",
             .where = {.node = node_.name, .op_type = node_.op_type},
             .hint = "Give the values in the body fixed shapes, or move the node out of it."});
      }
      for (const ir::Graph* inner : node->subgraphs()) check_draws(*inner);
    }
  }

  // Makes the rows of `value` a scanned input of the new Scan.
  void save_rows(Value* value) {
    const auto formal = std::ranges::find(body_.inputs, value) - body_.inputs.begin();
    const auto first_scanned = static_cast<std::ptrdiff_t>(roles_.first_formal + roles_.num_states);
    if (!roles_.is_loop && formal >= first_scanned && formal < std::ssize(body_.inputs)) {
      const auto k = static_cast<std::size_t>(formal - first_scanned);
      return add_sequence(node_.input(scan_input(k)), !roles_.scans_backward[k]);
    }
    for (std::size_t k = 0; k < stacked_outputs_.size(); ++k) {
      Value* output = stacked_outputs_[k];
      if (stacked(k) != value || output == nullptr) continue;
      return add_sequence(output, k >= num_stacked_ || !roles_.stacks_backward[k]);
    }
    ir::Type type = value->type;
    if (type.shape) type.shape->insert(type.shape->begin(), roles_.length);
    // Runtimes require that an output is computed by a node, not an input; and onnxruntime 1.31
    // loses the output of a node with subgraphs if it is stacked directly.
    const bool is_plain = value->producer != nullptr && value->producer->subgraphs().empty() &&
                          std::ranges::find(body_.outputs, value) == body_.outputs.end();
    body_.outputs.push_back(is_plain ? value : g_.inside(body_).identity(value));
    stacked_outputs_.push_back(ctx_.add_output(std::move(type), value->name + "_all"));
    add_sequence(stacked_outputs_.back(), true);
  }

  // A Scan needs a scanned input, which determines the number of iterations.
  void add_any_sequence() {
    Value* formal = roles_.scans_backward.empty() ? body_.inputs.at(0) : scan_formal(0);
    save_rows(formal);
    backward_->add_input(formal->name + "_at", formal->type);
  }

  bool needs_loop() const {
    const auto is_other = [](const Value* value) { return !value->type.is_tensor(); };
    return roles_.may_be_empty || std::ranges::any_of(initial_, is_other) ||
           std::ranges::any_of(sequences_, is_other) ||
           std::ranges::any_of(states_, [this](std::size_t s) { return changes(s); });
  }

  // Builds a Loop whose body gathers its rows by index, from the last one to the first.
  std::vector<Value*> write_loop() {
    GraphBuilder inner = g_.inside(*backward_);
    Value* first = sequences_.front();
    Value* count = first->type.is_tensor() ? g_.squeeze(dim_value(g_, first, 0), {0})
                                           : g_.op("SequenceLength", {first});
    Value* last = g_.sub(count, g_.int_scalar(1));
    const auto first_new = std::ssize(backward_->nodes);
    Value* number = backward_->add_input("iteration", ir::Type::tensor(DataType::kInt64, Dims{}));
    Value* goes_on = backward_->add_input("goes_on", ir::Type::tensor(DataType::kBool, Dims{}));
    Value* row = inner.sub(last, number);
    std::unordered_map<const Value*, Value*> picked;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const Value* formal = backward_->inputs[initial_.size() + i];
      Value* at = directions_[i] == 1 ? row : number;
      Value* value = sequences_[i]->type.is_tensor() ? inner.gather(sequences_[i], at, 0)
                                                     : inner.op("SequenceAt", {sequences_[i], at});
      value->type = formal->type;
      picked.emplace(formal, value);
    }
    std::vector<Node*>& nodes = backward_->nodes;
    std::rotate(nodes.begin(), nodes.begin() + first_new, nodes.end());
    ir::replace_uses(*backward_, picked);
    std::vector<Value*> formals = {number, goes_on};
    for (std::size_t i = 0; i < initial_.size(); ++i) formals.push_back(backward_->inputs[i]);
    backward_->inputs = std::move(formals);
    backward_->outputs.insert(backward_->outputs.begin(), inner.identity(goes_on));
    std::vector<Value*> inputs = {count, nullptr};
    inputs.insert(inputs.end(), initial_.begin(), initial_.end());
    std::vector<Value*> results =
        g_.ops("Loop", std::move(inputs), initial_.size() + scanned_.size(), {{"body", backward_}});
    for (std::size_t i = 0; i < scanned_.size(); ++i) {
      Value*& rows = results[initial_.size() + i];
      if (!roles_.scans_backward[scanned_[i]]) rows = reversed(rows);
    }
    return results;
  }

  // Reverses the order of the rows.
  Value* reversed(Value* rows) {
    const std::int64_t before_first = std::numeric_limits<std::int64_t>::min();
    return g_.op("Slice",
                 {rows, g_.ints({-1}), g_.ints({before_first}), g_.ints({0}), g_.ints({-1})});
  }

  std::vector<Value*> write_scan() {
    std::vector<Value*> inputs = initial_;
    inputs.insert(inputs.end(), sequences_.begin(), sequences_.end());
    std::vector<ir::Attribute> attributes = {
        {"body", backward_},
        {"num_scan_inputs", static_cast<std::int64_t>(sequences_.size())},
        {"scan_input_directions", directions_}};
    std::vector<std::int64_t> directions;
    for (const std::size_t k : scanned_) directions.push_back(roles_.scans_backward[k] ? 0 : 1);
    if (!directions.empty()) attributes.push_back({"scan_output_directions", directions});
    return g_.ops("Scan", std::move(inputs), initial_.size() + scanned_.size(),
                  std::move(attributes));
  }

  // Attributes with one entry per stacked output get an entry for each new output.
  void extend_directions() {
    Node& primal = primal_node();
    for (const char* name : {"scan_output_directions", "scan_output_axes"}) {
      std::vector<std::int64_t> list = primal.ints_attribute(name);
      if (list.empty()) continue;
      list.resize(stacked_outputs_.size(), 0);
      primal.set_attribute(name, list);
    }
  }

  // Returns the node in the graph, of which ctx.node() is a copy.
  Node& primal_node() const {
    const auto there =
        std::ranges::find_if(node_.outputs, [](const Value* output) { return output != nullptr; });
    ONNXGRAD_ASSERT(there != node_.outputs.end());
    return *(*there)->producer;
  }

  VjpContext& ctx_;
  GraphBuilder& g_;
  const IterationRoles& roles_;
  const Node& node_;
  ir::Graph& body_;
  std::vector<Value*> captured_;
  std::size_t num_states_;   // including the sequences that the gradient reads
  std::size_t num_stacked_;  // before the gradient added stacked outputs
  std::vector<Value*> stacked_outputs_;
  std::unordered_set<std::string> symbols_;  // symbols of dimensions outside the body
  // Indices of the states, captured values, scanned inputs and stacked outputs that have a
  // gradient.
  std::vector<std::size_t> states_;
  std::vector<std::size_t> sums_;
  std::vector<std::size_t> scanned_;
  std::vector<std::size_t> stacked_;
  ir::GraphPtr backward_;
  std::vector<Value*> initial_;
  std::vector<Value*> sequences_;
  std::vector<std::int64_t> directions_;
};

}  // namespace

std::vector<Value*> iteration_vjp(VjpContext& ctx, GraphBuilder& g, const IterationRoles& roles) {
  return IterationGradient(ctx, g, roles).run();
}

}  // namespace onnxgrad::ops
