#include <algorithm>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "ir/inline.h"
#include "ir/uses.h"
#include "opdef/shape_values.h"
#include "passes/passes.h"
#include "passes/widen_f16.h"
#include "runtime/bodies.h"
#include "runtime/evaluator.h"
#include "runtime/exchanges.h"
#include "runtime/kernel_selection.h"
#include "runtime/packed_graph.h"
#include "runtime/program.h"
#include "runtime/recompute.h"

namespace onnxgrad::runtime {
namespace {

using ValueSet = std::unordered_set<const ir::Value*>;

bool is_static(const ir::Value* value) {
  return value == nullptr || (value->type.is_tensor() && value->type.has_rank() &&
                              std::ranges::all_of(*value->type.shape, &ir::Dim::is_static));
}

class Compiler {
 public:
  Compiler(const Program& program, const std::vector<FeedInfo>& feeds, const Engine& engine,
           const ExecutorOptions& options, MaxArenaBytes max_arena_bytes)
      : program_(program),
        feeds_(feeds),
        engine_(engine),
        options_(options),
        max_arena_bytes_(std::move(max_arena_bytes)),
        evaluator_(engine) {}

  CompiledRegion run() {
    specialise();
    const std::unique_ptr<ir::TypeInferer> inferer = engine_.make_inferer(*region_.model);
    passes::PassContext context{engine_.ops, *inferer, evaluator_};
    context.inferred = &inferred_;
    for (const StateUpdate& update : binding_.updates) context.next_states.insert(update.value);
    context.has_kernel = [this](const ir::Node& node) { return has_kernel(node); };
    context.prefers = [this](const ir::Node& node) {
      return has_kernel(node, engine_.kernels, /*is_candidate=*/true);
    };
    context.is_left_to_cpu = [this](const ir::Node& node) {
      return !engine_.device.is_host() && has_kernel(node, engine_.on_host());
    };
    lower(*inferer);
    passes::fold_constants(graph(), context);
    context.is_inferred = true;
    while (expand_calls(*inferer) || lower(*inferer)) {
      lower(*inferer);
      passes::fold_constants(graph(), context);
    }
    ir::eliminate_dead_nodes(graph());  // sequences whose elements are read as tensors
    follow_updates();
    const bool is_whole = split();
    if (!is_whole) make_tail();
    if (options_.collectives != nullptr) begin_exchanges(graph(), engine_.device.alignment());
    passes::run_passes(graph(), context, options_.fuse);
    follow_updates();
    const int threads = options_.threads;
    const PlannedBodies* bodies = region_.bodies.get();
    if (!engine_.device.is_host()) {
      binding_.layouts = place_layouts(graph(), engine_, threads, bodies);
      follow_updates();
    }
    region_.plan = max_arena_bytes_ ? make_plan_within(graph(), binding_, engine_, threads, bodies,
                                                       max_arena_bytes_)
                                    : make_plan(graph(), binding_, engine_, threads,
                                                PlanMemory::kFree, bodies, options_.packed.get());
    if (bodies != nullptr) region_.plan.recomputed += bodies->recomputed();
    if (region_.dynamic.empty() && !region_.bodies) region_.model.reset();
    return std::move(region_);
  }

 private:
  ir::Graph& graph() { return *region_.model->graph; }

  // A copy of the program's model with the types and values of this run.
  void specialise() {
    std::unordered_map<const ir::Value*, ir::Value*> map;
    region_.model = std::make_shared<ir::Model>(ir::clone(*program_.model, &map));
    if (program_.is_given) pack_values(graph(), engine_.on_host());
    ValueSet fed;
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      ir::Value* input = graph().inputs[i];
      const InputSource& source = program_.inputs[i];
      if (source.is_constant) {
        input->is_input = false;
        continue;
      }
      if (source.is_state) {
        binding_.states.emplace(input, source.index);
        if (input->is_initializer()) {
          input->type = ir::Type::tensor(input->dtype(), input->initializer.dims());
        }
        input->initializer = {};  // the state's memory holds the value, not the graph
        continue;
      }
      fed.insert(input);
      const FeedInfo& feed = feeds_[source.index];
      input->type = ir::Type::tensor(feed.desc.dtype, feed.desc.dims);
      if (feed.value.is_defined()) {
        input->initializer = feed.value;
        input->is_input = false;  // a constant from now on
        graph().initializers.push_back(input);
      } else {
        input->initializer = {};
        binding_.feeds.emplace(input, source.index);
      }
    }
    std::erase_if(graph().inputs, [](const ir::Value* v) { return !v->is_input; });
    std::erase_if(graph().initializers, [](const ir::Value* v) { return !v->is_initializer(); });
    binding_.output_blocks = program_.output_blocks;
    binding_.keeps_state_if_thrown = program_.keeps_state_if_thrown;
    for (const StateUpdate& update : program_.updates) {
      binding_.updates.push_back({.input = map.at(update.input), .value = map.at(update.value)});
      // Passes preserve outputs: the new state is one too.
      if (program_.is_given) graph().outputs.push_back(map.at(update.value));
    }
    if (program_.is_given) ir::eliminate_dead_nodes(graph());
    if (program_.is_inferred) find_settled_nodes(fed);
  }

  void find_settled_nodes(const ValueSet& fed) {
    const auto is_settled = [&](const ir::Value* value) {
      return value == nullptr || (!fed.contains(value) && is_static(value));
    };
    for (const ir::Node* node : graph().nodes) {
      if (node->subgraphs().empty() && std::ranges::all_of(node->inputs, is_settled) &&
          std::ranges::all_of(node->outputs, is_settled)) {
        inferred_.insert(node);
      }
    }
  }

  // The last outputs are the new state; rewrites replace them by other values.
  void follow_updates() {
    const std::size_t first = graph().outputs.size() - binding_.updates.size();
    for (std::size_t u = 0; u < binding_.updates.size(); ++u) {
      binding_.updates[u].value = graph().outputs[first + u];
    }
  }

  // Replaces calls of functions that no kernel takes by their bodies.
  bool expand_calls(const ir::TypeInferer& inferer) {
    bool changed = false;
    for (ir::Node* node : std::vector<ir::Node*>(graph().nodes)) {
      const ir::Function* function = region_.model->find_function(node->domain, node->op_type);
      if (function == nullptr || is_exchanged(*node) || runs_natively(*node, *function)) continue;
      ir::inline_call(*node, *function, inferer);
      changed = true;
    }
    return changed;
  }

  // Function bodies may contain operators that have a lowering (CastLike). Nodes with very many
  // inputs become several.
  // True if there was one.
  bool lower(const ir::TypeInferer& inferer) {
    ir::GraphBuilder g(*region_.model, graph(), inferer, engine_.ops);
    std::unordered_map<const ir::Value*, ir::Value*> replaced;
    std::vector<ir::Node*> nodes;
    for (ir::Node* node : std::exchange(graph().nodes, {})) {
      const opdef::OpDef* def = engine_.ops.find(*node);
      std::optional<std::vector<ir::Value*>> results;
      if (def != nullptr) opdef::complete_attributes(*node, *def);
      if (def != nullptr && def->lower != nullptr) results = def->lower(*node, g);
      if (def != nullptr && def->split != nullptr) results = def->split(*node, g);
      if (!results) {
        nodes.push_back(node);
        continue;
      }
      for (std::size_t i = 0; i < results->size(); ++i) replaced[node->outputs[i]] = (*results)[i];
      for (ir::Node* fresh : std::exchange(graph().nodes, {})) nodes.push_back(fresh);
    }
    graph().nodes = std::move(nodes);
    if (!replaced.empty()) ir::replace_uses(graph(), replaced);
    return !replaced.empty();
  }

  // A collective with other workers.
  bool is_exchanged(const ir::Node& node) const {
    return options_.collectives != nullptr && is_collective(node);
  }

  bool has_kernel(const ir::Node& node, const opdef::KernelRegistry& kernels,
                  bool is_candidate = false) const {
    if (kernels.offers(node.domain, node.op_type).empty()) return false;
    auto request = make_request(engine_, node, options_.threads, region_.bodies.get());
    request.is_candidate = is_candidate;
    return select_kernel(kernels, request).has_value();
  }

  // Whether the node is run as it is. One that the device has no kernel for goes to the CPU, unless
  // it is fused, or the device takes it in float32.
  bool has_kernel(const ir::Node& node) const {
    if (!node.subgraphs().empty()) {
      return select_kernel(engine_,
                           make_request(engine_, node, options_.threads, region_.bodies.get()))
          .has_value();
    }
    if (has_kernel(node, engine_.kernels)) return true;
    if (engine_.device.is_host() || node.domain == ir::kFusedDomain) return false;
    if (!has_kernel(node, engine_.on_host())) return false;
    if (!passes::touches_f16(node)) return true;
    const passes::WidenedNode in_float32(node);
    return !has_kernel(in_float32.node(), engine_.kernels);
  }

  // Whether the device has kernels for all nodes of a body, as far as their operators say.
  bool runs_on_device(const ir::Graph& body) const {
    return std::ranges::all_of(body.nodes, [this](const ir::Node* node) {
      const opdef::OpDef* def = engine_.ops.find(*node);
      const ir::Function* called = region_.model->find_function(node->domain, node->op_type);
      return !engine_.kernels.offers(node->domain, node->op_type).empty() ||
             (def != nullptr && (def->expression != nullptr || def->is_view() ||
                                 def->lower != nullptr || def->fold_types != nullptr)) ||
             (called != nullptr && runs_on_device(*called->body));
    });
  }

  // A kernel replaces a function only if the body is what the registry builds for this call. A
  // kernel of the CPU does, for another device, only if the device cannot run the body.
  bool runs_natively(ir::Node& node, const ir::Function& function) {
    const opdef::OpDef* def = engine_.ops.find(node);
    const bool has_own = !engine_.kernels.offers(node.domain, node.op_type).empty();
    if (def == nullptr || def->function_body == nullptr ||
        (!has_own && engine_.on_host().offers(node.domain, node.op_type).empty()) ||
        (!has_own && runs_on_device(*function.body))) {
      return false;
    }
    const bool all_static =
        std::ranges::all_of(node.inputs, is_static) && std::ranges::all_of(node.outputs, is_static);
    if (!all_static) return false;
    if (!has_kernel(node)) {
      if (!passes::touches_f16(node)) return false;
      const passes::WidenedNode in_float32(node);
      if (!has_kernel(in_float32.node())) return false;
    }
    auto [known, is_new] = genuine_.try_emplace(function.name, false);
    if (is_new) known->second = is_genuine(node, function);
    return known->second;
  }

  // Whether the registry builds this body for the call: from the shapes of the plan, or where they
  // are not known, as they may not have been when the call was made.
  bool is_genuine(const ir::Node& node, const ir::Function& function) const {
    const auto builds = [&](const std::vector<ir::Value*>& inputs) {
      const ir::Function expected = engine_.ops.specialise(
          opdef::base_name(node.domain, node.op_type), inputs, node.attributes);
      return expected.name == function.name &&
             ir::to_text(*expected.body) == ir::to_text(*function.body);
    };
    if (builds(node.inputs)) return true;
    std::vector<ir::Value> unknown(node.inputs.size());
    std::vector<ir::Value*> inputs(node.inputs.size(), nullptr);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (node.inputs[i] == nullptr) continue;
      unknown[i].type = node.inputs[i]->type;
      std::ranges::fill(*unknown[i].type.shape, ir::Dim());
      inputs[i] = &unknown[i];
    }
    return builds(inputs);
  }

  // Keeps the nodes that can be planned now in the graph, the others in rest_. True if that is
  // all.
  bool split() {
    ValueSet available(graph().inputs.begin(), graph().inputs.end());
    available.insert(graph().initializers.begin(), graph().initializers.end());
    std::vector<ir::Node*> now;
    for (ir::Node* node : std::vector<ir::Node*>(graph().nodes)) {  // closed forms are made in it
      const std::vector<ir::Value*> inputs = ir::values_read(*node);
      const bool has_inputs = std::ranges::all_of(
          inputs, [&](const ir::Value* v) { return available.contains(v) && is_static(v); });
      const bool is_dynamic = engine_.on_host().dynamic(node->domain, node->op_type) != nullptr;
      ir::Node* closed = has_inputs && is_dynamic ? closed_form(*node) : nullptr;
      std::string reason;
      if (closed != nullptr && take_over(*closed, reason)) {
        now.push_back(closed);
        available.insert(closed->outputs.begin(), closed->outputs.end());
      } else if (has_inputs && !is_dynamic && has_planned_values(*node) &&
                 !(is_exchanged(*node) && leaves_exchange_) &&
                 std::ranges::all_of(node->outputs, is_static)) {
        now.push_back(node);
        available.insert(node->outputs.begin(), node->outputs.end());
      } else if (has_inputs && is_dynamic) {
        // Bodies that are submitted to a device have no form for the host.
        region_.dynamic.push_back({.node = node,
                                   .closed = engine_.device.is_host() ? closed : nullptr,
                                   .inputs = {inputs.begin(), inputs.end()},
                                   .reason = std::move(reason)});
      } else {
        rest_.push_back(node);
        leaves_exchange_ = leaves_exchange_ || is_exchanged(*node);
      }
    }
    if (rest_.empty() && region_.dynamic.empty()) {
      graph().nodes = std::move(now);
      return true;
    }
    if (now.empty() && region_.dynamic.empty() && program_.is_tail) {
      throw_undetermined(*rest_.front());
    }
    graph().nodes = std::move(now);
    return false;
  }

  // The closed form of a node with subgraphs that kernels can run, else nullptr.
  ir::Node* closed_form(ir::Node& node) {
    if (node.subgraphs().empty() ||
        engine_.on_host().offers(ir::kFusedDomain, node.op_type).empty()) {
      return nullptr;
    }
    if (!region_.bodies) {
      region_.bodies = std::make_shared<PlannedBodies>(*region_.model, engine_, options_);
    }
    return close_node(node);
  }

  // True if a kernel runs the node: it computes the outputs from now on.
  bool take_over(ir::Node& closed, std::string& reason) {
    if (!std::ranges::all_of(closed.inputs, is_static) ||
        !std::ranges::all_of(closed.outputs, is_static)) {
      reason = "its shapes depend on values";
      return false;
    }
    const auto request = make_request(engine_, closed, options_.threads, region_.bodies.get());
    if (!select_kernel(engine_, request, &reason)) return false;
    for (std::size_t i = 0; i < closed.outputs.size(); ++i) {
      if (closed.outputs[i] != nullptr) ir::Graph::set_output(&closed, i, closed.outputs[i]);
    }
    return true;
  }

  bool has_planned_values(const ir::Node& node) const {
    const opdef::OpDef* def = engine_.ops.find(node);
    if (def == nullptr) return true;
    return std::ranges::all_of(def->planned_inputs, [&](int i) {
      const ir::Value* input = node.input(static_cast<std::size_t>(i));
      return input == nullptr || input->is_constant();
    });
  }

  [[noreturn]] static void throw_undetermined(const ir::Node& node) {
    throw UnsupportedOperatorError(
        {.what = "the shape of the output cannot be determined from the inputs",
         .where = {.graph = node.graph->name, .node = node.name, .op_type = node.op_type},
         .hint = "Give shapes, axes and sizes as constants or as small integer inputs."});
  }

  // The tail computes everything that is left, and all outputs; the plan's outputs are what it
  // needs.
  void make_tail() {
    auto tail = std::make_unique<Program>();
    const auto model = std::make_shared<ir::Model>();
    ir::Graph& from = graph();
    ir::Graph& to = *model->graph;
    model->functions = region_.model->functions;
    model->opset_imports = region_.model->opset_imports;
    to.name = from.name;
    tail->model = model;
    tail->is_tail = true;
    tail->keeps_state_if_thrown = program_.keeps_state_if_thrown;

    std::vector<ir::Value*> plan_outputs;
    std::unordered_map<const ir::Value*, std::size_t> output_index;
    const auto plan_output = [&](ir::Value* value) {
      const auto [entry, is_new] = output_index.try_emplace(value, plan_outputs.size());
      if (is_new) plan_outputs.push_back(value);
      return entry->second;
    };
    for (const DynamicNode& dynamic : region_.dynamic) {
      for (const ir::Value* input : dynamic.inputs) {
        region_.plan_outputs[input] = plan_output(const_cast<ir::Value*>(input));  // NOLINT: ours
      }
    }
    std::unordered_map<const ir::Value*, TailFeed> dynamic_outputs;
    for (std::size_t d = 0; d < region_.dynamic.size(); ++d) {
      const std::vector<ir::Value*>& outputs = region_.dynamic[d].node->outputs;
      for (std::size_t o = 0; o < outputs.size(); ++o) {
        if (outputs[o] == nullptr) continue;
        dynamic_outputs[outputs[o]] = {.kind = TailFeed::Kind::kDynamic, .index = d, .output = o};
      }
    }
    ValueSet inside;
    for (const ir::Node* node : rest_) inside.insert(node->outputs.begin(), node->outputs.end());

    const auto by_value =
        opdef::shape_values(rest_, *region_.model, engine_.ops, engine_.on_host());
    std::unordered_map<const ir::Value*, ir::Value*> map;
    const auto import = [&](ir::Value* value) {
      if (value == nullptr || inside.contains(value) || map.contains(value)) return;
      if (value->is_constant()) return;  // append_nodes copies initializers too
      ir::Value* input = to.add_input(value->name, value->type);
      map.emplace(value, input);
      if (const auto state = binding_.states.find(value); state != binding_.states.end()) {
        tail->inputs.push_back({.is_state = true, .index = state->second});
        return;
      }
      tail->inputs.push_back({.is_state = false, .index = tail->num_feeds++});
      const auto dynamic = dynamic_outputs.find(value);
      TailFeed feed =
          dynamic != dynamic_outputs.end()
              ? dynamic->second
              : TailFeed{.kind = TailFeed::Kind::kPlanOutput, .index = plan_output(value)};
      feed.gives_shape = by_value.contains(value);
      region_.tail_feeds.push_back(feed);
    };
    for (const ir::Node* node : rest_) {
      for (ir::Value* value : ir::values_read(*node)) import(value);
    }
    for (ir::Value* output : from.outputs) import(output);
    for (const StateUpdate& update : binding_.updates) {
      import(update.input);
      import(update.value);
    }
    std::swap(from.nodes, rest_);
    ir::append_nodes(from, to, map);
    std::swap(from.nodes, rest_);
    for (const ir::Value* output : from.outputs) to.outputs.push_back(map.at(output));
    for (const StateUpdate& update : binding_.updates) {
      tail->updates.push_back({.input = map.at(update.input), .value = map.at(update.value)});
      binding_.updated_later.insert(binding_.states.at(update.input));
    }
    binding_.updates.clear();
    from.outputs = std::move(plan_outputs);
    binding_.output_blocks.clear();
    region_.tail = std::move(tail);
  }

  const Program& program_;
  const std::vector<FeedInfo>& feeds_;
  const Engine& engine_;
  const ExecutorOptions& options_;
  MaxArenaBytes max_arena_bytes_;
  KernelEvaluator evaluator_;
  CompiledRegion region_;
  GraphBinding binding_;
  std::vector<ir::Node*> rest_;
  ir::PointerSet<ir::Node> inferred_;              // see PassContext
  bool leaves_exchange_ = false;                   // a collective is in rest_
  std::unordered_map<std::string, bool> genuine_;  // functions by name
};

}  // namespace

bool gives_shape(const opdef::TensorDesc& desc) {
  const bool is_listed = is_integer(desc.dtype) || is_floating(desc.dtype);
  return is_listed && desc.dims.rank() <= 1 && desc.dims.num_elements() <= kMaxShapeElements;
}

CompiledRegion compile(const Program& program, const std::vector<FeedInfo>& feeds,
                       const Engine& engine, const ExecutorOptions& options,
                       MaxArenaBytes max_arena_bytes) {
  return Compiler(program, feeds, engine, options, std::move(max_arena_bytes)).run();
}

}  // namespace onnxgrad::runtime
