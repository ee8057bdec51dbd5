#include "ops/control/iteration.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
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
  return value != nullptr &&
         (value->dtype() == DataType::kUndefined || is_floating(value->dtype()));
}

std::vector<Value*> reads(const Node& node) {
  std::vector<Value*> values = node.inputs;
  if (!node.subgraphs().empty()) {
    const std::vector<Value*> captured = ir::captured_values(node);
    values.insert(values.end(), captured.begin(), captured.end());
  }
  return values;
}

// What of the body depends on `sources` in a differentiable way, these included.
Values reached_from(const ir::Graph& body, Values sources) {
  for (const Node* node : body.nodes) {
    const std::vector<Value*> inputs = reads(*node);
    if (std::ranges::none_of(inputs, [&](const Value* v) { return sources.contains(v); })) continue;
    for (const Value* output : node->outputs) {
      if (can_have_gradient(output)) sources.insert(output);
    }
  }
  return sources;
}

// What of the body `targets` depend on, these included.
Values needed_for(const ir::Graph& body, Values targets) {
  for (std::size_t n = body.nodes.size(); n-- > 0;) {
    const Node& node = *body.nodes[n];
    const auto is_target = [&](const Value* v) { return targets.contains(v); };
    if (std::ranges::none_of(node.outputs, is_target)) continue;
    for (const Value* input : reads(node)) {
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
        num_stacked_(node_.outputs.size() - roles.num_states) {}

  std::vector<Value*> run() {
    find_wanted();
    std::vector<Value*> gradients(node_.inputs.size() + captured_.size(), nullptr);
    if (states_.empty() && scanned_.empty() && sums_.empty()) return gradients;
    check_shapes();
    write_body();
    carry();
    if (sequences_.empty()) add_any_sequence();
    extend_directions();
    const std::vector<Value*> results = roles_.may_be_empty ? write_loop() : write_scan();
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
  Value* stacked(std::size_t k) const { return next_state(roles_.num_states + k); }
  Value* stacked_cotangent(std::size_t k) const {
    return can_have_gradient(stacked(k)) ? ctx_.cotangent(roles_.num_states + k) : nullptr;
  }

  // States on the way from something wanted to something that a gradient comes to.
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

  // Marks further states until `follow`, from `seeds` and start(s) of what is marked, finds no
  // end(s) of another one.
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

  // What an iteration makes of a state's shape, by another inference with the shapes that the
  // states begin with: a state of another shape cannot be stacked with those of other iterations.
  void check_shapes() const {
    const auto is_open = [this](std::size_t s) {
      return node_.input(roles_.first_input + s)->type.static_dims().has_value() &&
             !next_state(s)->type.static_dims().has_value();
    };
    const bool runs_once = roles_.length.is_static() && roles_.length.value() <= 1;
    if (runs_once || std::ranges::none_of(states_, is_open)) return;
    ir::Graph first;
    std::unordered_map<const Value*, Value*> map;
    for (std::size_t i = 0; i < body_.inputs.size(); ++i) {
      const Value* formal = body_.inputs[i];
      const bool is_state = i >= roles_.first_formal && i < roles_.first_formal + roles_.num_states;
      const Value* given =
          is_state ? node_.input(roles_.first_input + i - roles_.first_formal) : formal;
      map[formal] = first.add_input(formal->name, given->type);
    }
    ir::append_nodes(body_, first, map);
    try {
      for (Node* node : first.nodes) {
        for (Value* output : node->outputs) {
          if (output != nullptr) output->type = {};
        }
        g_.inferer().infer(*node);
      }
    } catch (const Error&) {
      return;  // what is wrong is said when the body runs
    }
    for (const std::size_t s : states_) {
      const Value* initial = node_.input(roles_.first_input + s);
      const auto found = map.find(next_state(s));
      const auto after = found == map.end() ? std::nullopt : found->second->type.static_dims();
      const auto before = initial->type.static_dims();
      if (!before || !after || *before == *after) continue;
      throw GradientError(
          {.what = "no gradient through a state that changes its shape",
           .where = {.node = node_.name, .op_type = node_.op_type, .value = initial->name},
           .detail = "It is " + before->to_string() + " before the first iteration and " +
                     after->to_string() + " after it.",
           .hint =
               "Collect what is appended as an output of the body, which is stacked, or keep it "
               "in a tensor of the full size."});
    }
  }

  // The gradient of one iteration: from those of the states after it and of what it stacks to
  // those of the states before it, the growing sums and those of the rows that it reads.
  void write_body() {
    std::vector<Value*> results;
    std::vector<Value*> wrt;
    for (const std::size_t s : states_) {
      results.push_back(next_state(s));
      wrt.push_back(state_formal(s));
      Value* cotangent = ctx_.cotangent(s);
      initial_.push_back(cotangent != nullptr
                             ? cotangent
                             : zero_gradient(g_, node_.input(roles_.first_input + s)));
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
      for (const std::size_t s : states_) seeds.push_back(formal(state_formal(s)));
      for (const std::size_t k : sums_) totals.push_back(formal(captured_[k]));
      for (const std::size_t k : stacked_) seeds.push_back(formal(stacked(k)));
      std::vector<Value*> outputs = ctx_.differentiate(inner, body_, results, seeds, wrt);
      for (std::size_t i = 0; i < totals.size(); ++i) {
        Value*& total = outputs[states_.size() + i];
        total = inner.add(totals[i], total);
      }
      // onnxruntime 1.31 stacks a value once, however many outputs it is.
      for (auto output = outputs.begin(); output != outputs.end(); ++output) {
        if (std::find(outputs.begin(), output, *output) != output)
          *output = inner.identity(*output);
      }
      return outputs;
    });
  }

  void add_sequence(Value* value, bool backward) {
    sequences_.push_back(value);
    directions_.push_back(backward ? 1 : 0);
  }

  // Makes values of the old body that the new one reads available, row by row.
  void carry() {
    GraphBuilder inner = g_.inside(*backward_);
    ctx_.carry(inner, body_, [&](Value* value) { return save(inner, value); });
    check_draws(*backward_);
  }

  Value* save(GraphBuilder& inner, Value* value) {
    if (value->producer != nullptr && value->producer->op_type == "Shape" &&
        value->producer->domain.empty()) {
      std::vector<Value*> outer = node_.inputs;
      outer.insert(outer.end(), captured_.begin(), captured_.end());
      if (Value* shape = find_shape(inner, *value->producer, outer)) return shape;
    }
    if (!value->type.is_tensor() || value->dtype() == DataType::kString) return nullptr;
    if (may_differ_in_length(*value)) return nullptr;
    save_rows(value);
    return backward_->add_input(value->name + "_at", value->type);
  }

  // What an inner Loop stacks may have another length in each iteration: it is run again.
  static bool may_differ_in_length(const Value& value) {
    if (value.producer == nullptr || value.producer->subgraphs().empty()) return false;
    return !value.type.shape || std::ranges::any_of(*value.type.shape, [](const ir::Dim& dim) {
      return !dim.is_static() && !dim.is_symbolic();
    });
  }

  // Iterations have draws of their own, and the gradient runs them in another order.
  void check_draws(const ir::Graph& graph) const {
    for (const Node* node : graph.nodes) {
      if (opdef::draws_like_another(*node)) {
        throw GradientError(
            {.what = "what " + node->op_type + " draws at random in an iteration cannot be kept",
             .where = {.node = node_.name, .op_type = node_.op_type},
             .hint = "Give the values in the body fixed shapes, or move the node out of it."});
      }
      for (const ir::Graph* inner : node->subgraphs()) check_draws(*inner);
    }
  }

  // The rows of `value` become a sequence of the new Scan.
  void save_rows(Value* value) {
    const auto formal = std::ranges::find(body_.inputs, value) - body_.inputs.begin();
    const auto first_scanned = static_cast<std::ptrdiff_t>(roles_.first_formal + roles_.num_states);
    if (formal >= first_scanned && formal < std::ssize(body_.inputs)) {
      const auto k = static_cast<std::size_t>(formal - first_scanned);
      return add_sequence(node_.input(scan_input(k)), !roles_.scans_backward[k]);
    }
    for (std::size_t k = 0; k < node_.outputs.size() - roles_.num_states; ++k) {
      Value* output = node_.output(roles_.num_states + k);
      if (stacked(k) != value || output == nullptr) continue;
      return add_sequence(output, k >= num_stacked_ || !roles_.stacks_backward[k]);
    }
    ir::Type type = value->type;
    if (type.shape) type.shape->insert(type.shape->begin(), roles_.length);
    // Inputs go out through a node, as runtimes want it; and onnxruntime 1.31 loses what a node
    // with subgraphs gives where that is stacked at once.
    const bool is_plain = value->producer != nullptr && value->producer->subgraphs().empty() &&
                          std::ranges::find(body_.outputs, value) == body_.outputs.end();
    body_.outputs.push_back(is_plain ? value : g_.inside(body_).identity(value));
    add_sequence(ctx_.add_output(std::move(type), value->name + "_all"), true);
  }

  // A Scan needs one that determines how often it runs.
  void add_any_sequence() {
    Value* formal = roles_.scans_backward.empty() ? body_.inputs.at(0) : scan_formal(0);
    save_rows(formal);
    backward_->add_input(formal->name + "_at", formal->type);
  }

  // The rows are picked by number, from the last one on.
  std::vector<Value*> write_loop() {
    ONNXGRAD_ASSERT(scanned_.empty());
    GraphBuilder inner = g_.inside(*backward_);
    Value* count = g_.squeeze(dim_value(g_, sequences_.front(), 0), {0});
    Value* last = g_.sub(count, g_.int_scalar(1));
    const auto first_new = std::ssize(backward_->nodes);
    Value* number = backward_->add_input("iteration", ir::Type::tensor(DataType::kInt64, Dims{}));
    Value* goes_on = backward_->add_input("goes_on", ir::Type::tensor(DataType::kBool, Dims{}));
    Value* row = inner.sub(last, number);
    std::unordered_map<const Value*, Value*> picked;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const Value* formal = backward_->inputs[initial_.size() + i];
      Value* value = inner.gather(sequences_[i], row, 0);
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
    return g_.ops("Loop", std::move(inputs), initial_.size(), {{"body", backward_}});
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

  // A list of the node that has one entry per stacked output has one for each new one too.
  void extend_directions() {
    const std::vector<Value*>& outputs = node_.outputs;
    const auto there =
        std::ranges::find_if(outputs, [](const Value* output) { return output != nullptr; });
    ONNXGRAD_ASSERT(there != outputs.end());
    Node& primal = *(*there)->producer;  // of which ctx.node() is a copy
    for (const char* name : {"scan_output_directions", "scan_output_axes"}) {
      std::vector<std::int64_t> list = primal.ints_attribute(name);
      if (list.empty()) continue;
      list.resize(outputs.size() - roles_.num_states, 0);
      primal.set_attribute(name, list);
    }
  }

  VjpContext& ctx_;
  GraphBuilder& g_;
  const IterationRoles& roles_;
  const Node& node_;
  ir::Graph& body_;
  std::vector<Value*> captured_;
  std::size_t num_stacked_;  // before the gradient stacked more
  // What takes part, by number: states, captured values, scanned inputs, stacked outputs.
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
