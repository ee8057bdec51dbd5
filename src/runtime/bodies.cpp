#include "runtime/bodies.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "ir/builder.h"
#include "runtime/executor.h"
#include "runtime/planned_body.h"
#include "runtime/recompute.h"
#include "runtime/region.h"  // of TailCache
#include "runtime/submitted_body.h"
#include "runtime/tail_cache.h"

namespace onnxgrad::runtime {
namespace {

constexpr std::size_t kMaxKept = 64;

std::string key_of(const ir::Graph& body, std::span<const opdef::TensorDesc> inputs,
                   opdef::BodyForm form) {
  std::string key;
  append_bytes(key, &body);
  append_bytes(key, form.first_state);
  append_bytes(key, form.num_states);
  for (const opdef::TensorDesc& desc : inputs) append_desc(key, desc);
  return key;
}

// Whether nodes of a graph, or of functions that are not known here, may take random numbers.
bool may_draw(const ir::Graph& graph, const opdef::OpRegistry& ops) {
  return std::ranges::any_of(graph.nodes, [&](const ir::Node* node) {
    const opdef::OpDef* def = ops.find(*node);
    if (def == nullptr || def->is_random) return true;
    return std::ranges::any_of(node->subgraphs(),
                               [&](const ir::Graph* body) { return may_draw(*body, ops); });
  });
}

bool is_captured_input(const ir::Value* value) { return !value->is_constant(); }

// The program of a body: states are state, other outputs come first, each in a block of its own.
Program make_program(const ir::Graph& body, opdef::BodyForm form, ir::Model& model) {
  Program program;
  ir::Graph& graph = *model.graph;
  graph.name = body.name;
  std::unordered_map<const ir::Value*, ir::Value*> map;
  for (std::size_t i = 0; i < body.inputs.size(); ++i) {
    const ir::Value* input = body.inputs[i];
    // Shapes that all iterations have in common are known from the operands, not from the body.
    map[input] = graph.add_input(input->name, ir::Type::tensor(input->type.dtype));
    const bool is_state = i >= form.first_state && i - form.first_state < form.num_states;
    const std::size_t index = is_state ? i - form.first_state : program.num_feeds++;
    program.inputs.push_back({.is_state = is_state, .index = index});
  }
  ir::append_nodes(body, graph, map);
  for (std::size_t i = form.num_states; i < body.outputs.size(); ++i) {
    graph.outputs.push_back(map.at(body.outputs[i]));
  }
  for (std::size_t i = 0; i < form.num_states; ++i) {
    graph.outputs.push_back(map.at(body.outputs[i]));
    program.updates.push_back(
        {.input = graph.inputs[form.first_state + i], .value = graph.outputs.back()});
  }
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) program.output_blocks.push_back(i);
  return program;
}

// "" if a state's new value can take the old one's place.
std::string check_states(const Plan& plan, std::span<const opdef::TensorDesc> states) {
  const std::size_t first = plan.outputs.size() - states.size();
  for (std::size_t i = 0; i < states.size(); ++i) {
    const opdef::TensorDesc& next = plan.outputs[first + i].desc;
    const bool is_number = next.dims.num_elements() == 1 && states[i].dims.num_elements() == 1;
    if (next.dtype != states[i].dtype || (next.dims != states[i].dims && !is_number)) {
      return "the body changes the shape of its state from " + states[i].dims.to_string() + " to " +
             next.dims.to_string();
    }
  }
  return "";
}

}  // namespace

ir::GraphPtr close_body(const ir::Graph& body, std::span<ir::Value* const> captured) {
  auto closed = std::make_shared<ir::Graph>();
  closed->name = body.name;
  std::unordered_map<const ir::Value*, ir::Value*> map;
  for (const ir::Value* input : body.inputs) {
    map[input] = closed->add_input(input->name, input->type);
  }
  for (const ir::Value* value : captured) {
    map[value] = is_captured_input(value)
                     ? closed->add_input(value->name, value->type)
                     : closed->add_initializer(value->name, value->initializer);
  }
  ir::append_nodes(body, *closed, map);
  for (const ir::Value* output : body.outputs) closed->outputs.push_back(map.at(output));
  return closed;
}

ir::Node* close_node(ir::Node& node) {
  const std::vector<ir::Value*> captured = ir::captured_values(node);
  std::vector<ir::Value*> inputs = node.inputs;
  std::ranges::copy_if(captured, std::back_inserter(inputs), is_captured_input);
  const auto count = static_cast<std::int64_t>(inputs.size() - node.inputs.size());
  std::vector<ir::Attribute> attributes = node.attributes;
  for (ir::Attribute& attribute : attributes) {
    if (auto* body = std::get_if<ir::GraphPtr>(&attribute.value)) {
      *body = close_body(**body, captured);
    }
  }
  attributes.push_back({.name = "num_captured", .value = count});
  ir::Node* closed = node.graph->make_node(node.op_type, std::move(inputs), {}, node.name,
                                           std::move(attributes), ir::kFusedDomain);
  closed->name = node.name;
  closed->outputs = node.outputs;
  return closed;
}

PlannedBodies::PlannedBodies(const ir::Model& model, const Engine& engine,
                             const ExecutorOptions& options)
    : functions_(model.functions),
      opset_imports_(model.opset_imports),
      engine_(engine),
      options_(options) {}

std::shared_ptr<const opdef::CompiledBody> PlannedBodies::compile(
    const ir::Graph& body, std::span<const opdef::TensorDesc> inputs, opdef::BodyForm form,
    std::string& reason) const {
  std::string key = key_of(body, inputs, form);
  auto found = std::ranges::find(entries_, key, &Entry::key);
  if (found == entries_.end()) {
    Entry entry = make_entry(body, inputs, form);
    entry.key = std::move(key);
    if (entries_.size() >= kMaxKept) entries_.pop_back();
    entries_.push_front(std::move(entry));
    found = entries_.begin();
  } else {
    entries_.splice(entries_.begin(), entries_, found);
  }
  reason = found->reason;
  return found->body;
}

PlannedBodies::Entry PlannedBodies::make_entry(const ir::Graph& body,
                                               std::span<const opdef::TensorDesc> inputs,
                                               opdef::BodyForm form) const {
  ONNXGRAD_ASSERT(inputs.size() == body.inputs.size());
  std::vector<opdef::TensorDesc> states;
  std::vector<FeedInfo> feeds;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].dtype == DataType::kString) return {.reason = "it has strings"};
    const bool is_state = i >= form.first_state && i - form.first_state < form.num_states;
    if (is_state) {
      states.push_back(inputs[i]);
    } else {
      feeds.push_back({.desc = inputs[i], .value = {}});
    }
  }
  const auto model = std::make_shared<ir::Model>();
  Program program = make_program(body, form, *model);
  program.model = model;
  model->functions = functions_;
  model->opset_imports = opset_imports_;
  for (std::size_t i = 0; i < states.size(); ++i) {
    model->graph->inputs[form.first_state + i]->type =
        ir::Type::tensor(states[i].dtype, states[i].dims);
  }
  try {
    bool is_least = false;
    CompiledRegion region = compile_within(program, feeds, is_least);
    if (options_.tails) ++options_.tails->num_compiled;
    if (region.tail) return {.reason = "shapes in its body depend on values"};
    std::string misfit = check_states(region.plan, states);
    if (!misfit.empty()) return {.reason = std::move(misfit)};
    Entry entry{.arena_bytes = region.plan.arena_bytes,
                .is_least = is_least,
                .recomputed = region.plan.recomputed};
    for (const Tensor& constant : region.plan.constants) {
      entry.constant_bytes += constant.size_bytes();
    }
    entry.inner = region.bodies;
    if (submits()) {
      entry.submitted = std::make_shared<const SubmittedBody>(
          std::move(region.plan), states, engine_.device.alignment(), may_draw(body, engine_.ops));
      entry.body = entry.submitted;
    } else {
      entry.body = std::make_shared<const PlannedBody>(std::move(region.plan), std::move(states));
    }
    return entry;
  } catch (const ShapeError& error) {  // it is one of the run, if the body is run
    return {.reason = error.problem().what};
  } catch (const UnsupportedOperatorError& error) {
    return {.reason = error.problem().what};
  }
}

CompiledRegion PlannedBodies::compile_within(const Program& program,
                                             const std::vector<FeedInfo>& feeds,
                                             bool& is_least) const {
  if (!max_arena_) return runtime::compile(program, feeds, engine_, options_);
  std::int64_t most = *max_arena_;
  while (true) {
    try {
      return runtime::compile(program, feeds, engine_, options_,
                              [most](const Plan&, const PlannedBodies*) { return most; });
    } catch (const ArenaTooSmall& error) {
      is_least = true;
      most = std::max(error.least_bytes, most + 1);
    }
  }
}

bool PlannedBodies::shrink() const {
  std::int64_t largest = 0;
  for (const Entry& entry : entries_) {
    if (!entry.is_least) largest = std::max(largest, entry.arena_bytes);
  }
  if (largest == 0) return false;
  max_arena_ = largest - std::max<std::int64_t>(largest / 5, 1);
  entries_.clear();
  return true;
}

Recomputed PlannedBodies::recomputed() const {
  Recomputed total;
  for (const Entry& entry : entries_) total += entry.recomputed;
  return total;
}

std::int64_t PlannedBodies::num_plans() const { return std::ssize(entries_); }

std::int64_t PlannedBodies::memory_bytes() const {
  std::int64_t total = 0;
  for (const Entry& entry : entries_) {
    if (!submits()) total += entry.constant_bytes;
    if (entry.submitted) total += entry.submitted->memory_bytes();
    if (entry.inner) total += entry.inner->memory_bytes();
  }
  return total;
}

std::int64_t PlannedBodies::planned_bytes() const {
  std::int64_t total = 0;
  for (const Entry& entry : entries_) {
    if (entry.submitted) total += entry.submitted->planned_bytes(engine_.device);
    if (entry.inner) total += entry.inner->planned_bytes();
  }
  return total;
}

std::int64_t PlannedBodies::host_bytes() const {
  std::int64_t total = 0;
  for (const Entry& entry : entries_) {
    if (entry.submitted) total += entry.constant_bytes + entry.submitted->mirror_bytes();
    if (entry.inner) total += entry.inner->host_bytes();
  }
  return total;
}

BodyRunner::BodyRunner(const ir::Graph& body, std::span<ir::Value* const> captured,
                       const ir::Model& model, const Engine& engine, ExecutorOptions options) {
  auto runner = std::make_shared<ir::Model>();
  runner->functions = model.functions;
  runner->opset_imports = model.opset_imports;
  runner->graph = close_body(body, captured);
  options.output_blocks.clear();
  options.shape_inputs.clear();
  executor_ = std::make_unique<Executor>(std::move(runner), engine, std::move(options));
}

BodyRunner::~BodyRunner() = default;

std::vector<Tensor> BodyRunner::run(const std::vector<Tensor>& inputs,
                                    const opdef::StepCells& cells, std::int64_t iteration) {
  executor_->cells() = opdef::cells_of_iteration(cells, iteration);
  return executor_->run(inputs);
}

std::int64_t BodyRunner::memory_bytes() const {
  const MemoryUse use = executor_->memory();
  return use.state + use.arena + use.constants + use.dynamic + use.slots + use.cells;
}

std::int64_t BodyRunner::num_plans() const { return executor_->num_cached(); }

}  // namespace onnxgrad::runtime
