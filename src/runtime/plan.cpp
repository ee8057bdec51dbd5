#include "runtime/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/rounding.h"
#include "ir/pointer_map.h"
#include "onnxgrad/error.h"
#include "runtime/arena.h"
#include "runtime/exchanges.h"
#include "runtime/joint_steps.h"
#include "runtime/plan_kernels.h"
#include "runtime/plan_text.h"
#include "runtime/segments.h"
#include "runtime/streams.h"

namespace onnxgrad::runtime {
namespace {

/// Lays out the memory of a graph whose nodes run in the order of a schedule.
class Planner {
 public:
  /// The arguments outlive this, but not what the planner returns. `is_tight`: the least memory
  /// counts, not that buffers are reused soon. `joins`: steps may run together, see joint_steps.h.
  Planner(const ir::Graph& graph, const GraphBinding& binding, const Engine& engine,
          const ViewRoots& roots, const PlanKernels& kernels, bool is_tight, bool joins)
      : graph_(graph),
        binding_(binding),
        engine_(engine),
        roots_(roots),
        kernels_(kernels),
        arena_(engine.device.alignment()),
        packed_(engine.device.alignment()),
        is_tight_(is_tight),
        joins_(joins),
        num_streams_(engine.device.num_compute_streams()),
        steps_(graph.nodes.size()),
        last_use_(graph.nodes.size()),
        locations_(graph.nodes.size()),
        buffers_(graph.nodes.size()) {}

  void run(const Schedule& schedule) {
    find_nodes(schedule.order);
    joint_ = joins_ ? JointSteps(nodes_, prepared_, roots_) : JointSteps(nodes_.size());
    find_last_uses();
    parts_.emplace(graph_, nodes_, roots_, engine_.device.alignment());
    find_updated_states();
    alias_state_updates(schedule);
    place_in_blocks();
    for (; now_ < nodes_.size(); ++now_) place(now_);
    add_outputs();
    add_copies();
    if (is_tight_) pack();
    plan_.arena_bytes = is_tight_ ? packed_.size_bytes() : arena_.size_bytes();
    plan_.threads = kernels_.threads();
    plan_.updates_state = !binding_.updates.empty();
  }

  /// After run(), once.
  Plan take_plan() {
    plan_.steps.reserve(nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      plan_.steps.push_back(make_step(i));
      plan_.kept_bytes += plan_.steps.back().kernel.kept_bytes;
    }
    if (!engine_.device.is_host()) {
      add_segments(plan_);
      assign_streams(plan_, num_streams_);
    }
    return std::move(plan_);
  }
  std::int64_t arena_bytes() const { return plan_.arena_bytes; }
  bool has_joint_steps() const { return joint_.has_groups(); }

 private:
  // A buffer of the arena that a value owns.
  struct Buffer {
    std::int64_t bytes = -1;  ///< -1: none
  };

  const ir::Value* root(const ir::Value* value) const { return roots_.of(value); }
  std::int64_t bytes_of(const ir::Value* value) const { return binding_.layouts.bytes_of(value); }
  const opdef::PreparedKernel& kernel(std::size_t i) const { return *prepared_[i]; }

  void find_nodes(const std::vector<ir::Node*>& order) {
    nodes_.reserve(order.size());
    prepared_.reserve(order.size());
    args_.reserve(6 * order.size());
    for (const ir::Node* node : order) {
      if (roots_.is_view(node)) continue;
      steps_[node] = nodes_.size();
      nodes_.push_back(node);
      prepared_.push_back(&kernels_.of(node));
    }
  }

  PlanStep make_step(std::size_t i) const {
    const ir::Node& node = *nodes_[i];
    const std::size_t end = i + 1 < nodes_.size() ? first_args_[i + 1] : args_.size();
    PlanStep step{.kernel = kernel(i),
                  .args = {args_.begin() + static_cast<std::ptrdiff_t>(first_args_[i]),
                           args_.begin() + static_cast<std::ptrdiff_t>(end)},
                  .op_type = node.op_type,
                  .node = node.name,
                  .results = {},
                  .operands = {},
                  .followers = joint_.is_follower(i) ? 0 : joint_.last(i) - i,
                  .is_exchange = exchange_role(node).kind != ExchangeRole::Kind::kNone};
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const ir::Value* output = node.outputs[o];
      if (output == nullptr || !is_floating(output->dtype())) continue;
      step.results.push_back({.arg = node.inputs.size() + o,
                              .name = output->name,
                              .desc = {.dtype = output->dtype(),
                                       .dims = output->type.fixed_dims(),
                                       .layout = binding_.layouts.of(output)}});
    }
    step.operands = describe_operands(node, step.args, binding_.layouts);
    if (!engine_.device.is_host()) {
      step.uses = uses_of(node, step.kernel);
      step.is_on_host = kernels_.is_on_host(&node);
      step.is_body = !step.is_on_host && !node.subgraphs().empty();
    }
    return step;
  }

  std::vector<device::Operand> uses_of(const ir::Node& node,
                                       const opdef::PreparedKernel& kernel) const {
    std::vector<device::Operand> uses;
    for (const ir::Value* input : node.inputs) {
      // Texts are on the host, whatever the device.
      const bool is_copied = input != nullptr && input->dtype() != DataType::kString;
      uses.push_back({.bytes = is_copied ? bytes_of(input) : 0, .is_read = true});
    }
    for (const ir::Value* output : node.outputs) {
      uses.push_back({.bytes = output == nullptr ? 0 : bytes_of(output), .is_written = true});
    }
    uses.push_back({.bytes = kernel.scratch_bytes, .is_written = true});
    return uses;
  }

  void find_last_uses() {
    constexpr auto kForever = std::numeric_limits<std::size_t>::max();
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
      for (const ir::Value* input : nodes_[i]->inputs) {
        if (input != nullptr) last_use_[root(input)] = i;
      }
    }
    for (const ir::Value* output : graph_.outputs) last_use_[root(output)] = kForever;
    for (const StateUpdate& update : binding_.updates) last_use_[root(update.value)] = kForever;
  }

  // A new value is written where the old one is: a file that describes its training may have one of
  // another shape for these batches.
  static void check_update(const ir::Value& input, const ir::Value& value) {
    if (input.dtype() == value.dtype() && input.type.shape == value.type.shape) return;
    throw ShapeError(
        {.what = fmt::format("the state '{}' is {}, but its next value is {}", input.name,
                             input.type.to_string(), value.type.to_string()),
         .where = {.value = input.name},
         .hint = "Let the step compute a value of the same type and shape."});
  }

  void find_updated_states() {
    for (const auto& [input, value] : binding_.updates) {
      check_update(*input, *value);
      if (root(value) == input) continue;
      updated_.insert(static_cast<std::int64_t>(binding_.states.at(input)));
    }
  }

  // The new value of a state is written over the old one, if the writer no longer needs the old
  // one or can work in place.
  void alias_state_updates(const Schedule& schedule) {
    for (const std::size_t u : schedule.in_place_updates) {
      const auto [input, value] = binding_.updates[u];
      const ir::Value* target = root(value);
      const std::size_t* step = steps_.find(target->producer);
      if (step == nullptr) continue;
      if (can_overwrite(*step, input, static_cast<std::size_t>(target->output_index))) {
        locations_[target] = {Location::Kind::kState,
                              static_cast<std::int64_t>(binding_.states.at(input))};
        aliased_.insert(u);
      }
    }
  }

  // Outputs that a kernel computes are in blocks from the start; nothing else is placed there but
  // what they are computed in place of.
  void place_in_blocks() {
    if (binding_.output_blocks.empty()) return;
    std::vector<ArenaLayout> layouts(1 + std::ranges::max(binding_.output_blocks),
                                     ArenaLayout(engine_.device.alignment()));
    for (std::size_t o = 0; o < binding_.output_blocks.size(); ++o) {
      const ir::Value* value = root(graph_.outputs.at(o));
      if (value->producer == nullptr || locations_.contains(value)) continue;
      const std::size_t block = binding_.output_blocks[o];
      place_chain(value, {Location::Kind::kBlock, layouts[block].allocate(bytes_of(value)), block});
    }
    for (const ArenaLayout& layout : layouts) plan_.block_bytes.push_back(layout.size_bytes());
  }

  // Places a value, the one that it may be written over, and so on.
  void place_chain(const ir::Value* value, const Location& location) {
    while (value != nullptr) {
      locations_[value] = location;
      const std::size_t* at = steps_.find(value->producer);
      if (at == nullptr) return;
      const std::size_t i = *at;
      const auto output = static_cast<std::size_t>(value->output_index);
      const ir::Value* before = nullptr;
      for (const auto& [from, to] : kernel(i).in_place) {
        const ir::Value* input = nodes_[i]->input(static_cast<std::size_t>(from));
        if (static_cast<std::size_t>(to) != output || input == nullptr) continue;
        const ir::Value* old = root(input);
        const bool is_free = steps_.contains(old->producer) && !locations_.contains(old) &&
                             *last_use_.find(old) == i && bytes_of(old) == bytes_of(value);
        if (is_free && can_overwrite(i, old, output)) before = old;
      }
      value = before;
    }
  }

  // True if step `i` may write output `output` over the bytes of `old`.
  bool can_overwrite(std::size_t i, const ir::Value* old, std::size_t output) const {
    const ir::Node& node = *nodes_[i];
    if (joint_.is_follower(i) && !is_read_by_blocks(i, old)) return false;
    const auto& pairs = kernel(i).in_place;
    for (std::size_t k = 0; k < node.inputs.size(); ++k) {
      if (node.inputs[k] == nullptr || root(node.inputs[k]) != old) continue;
      const std::pair pair(static_cast<int>(k), static_cast<int>(output));
      if (std::ranges::find(pairs, pair) == pairs.end()) return false;
    }
    return true;
  }

  // Whether step `i` and those that it follows read `old`, if they do, block by block: each block
  // before it is complete. The first of a group does so where it could work in place.
  bool is_read_by_blocks(std::size_t i, const ir::Value* old) const {
    const std::size_t first = joint_.first(i);
    const std::size_t* maker = steps_.find(old->producer);
    if (maker != nullptr && *maker >= first) return true;
    for (std::size_t j = first; j <= i; ++j) {
      const auto reads_block = [&](int input) {
        if (j > first) return std::ranges::count(kernel(j).by_blocks.inputs, input) > 0;
        return std::ranges::count(kernel(j).in_place, std::pair(input, 0)) > 0;
      };
      for (std::size_t k = 0; k < nodes_[j]->inputs.size(); ++k) {
        const ir::Value* input = nodes_[j]->inputs[k];
        if (input == nullptr || root(input) != old) continue;
        if (!reads_block(static_cast<int>(k))) return false;
      }
    }
    return true;
  }

  Location locate(const ir::Value* value) {
    if (value == nullptr) return {};
    const ir::Value* base = root(value);
    if (const Location* known = locations_.find(base)) return *known;
    Location location;
    if (const auto state = binding_.states.find(base); state != binding_.states.end()) {
      location = {Location::Kind::kState, static_cast<std::int64_t>(state->second)};
    } else if (const auto feed = binding_.feeds.find(base); feed != binding_.feeds.end()) {
      location = {Location::Kind::kFeed, static_cast<std::int64_t>(feed->second)};
      plan_.feed_bytes.resize(std::max(plan_.feed_bytes.size(), feed->second + 1), -1);
      plan_.feed_bytes[feed->second] = bytes_of(base);
    } else {
      ONNXGRAD_ASSERT(base->is_constant());
      location = {Location::Kind::kConstant, static_cast<std::int64_t>(plan_.constants.size())};
      plan_.constants.push_back(base->initializer);
    }
    return locations_[base] = location;
  }

  std::int64_t allocate(std::int64_t bytes) {
    return is_tight_ ? packed_.allocate(bytes, now_) : arena_.allocate(bytes);
  }
  void release(std::int64_t at, std::int64_t bytes) {
    if (is_tight_) {
      packed_.release(at, bytes, now_);
    } else if (num_streams_ > 1 || now_ < joint_.last(now_)) {
      freed_.push_back({.step = now_, .at = at, .bytes = bytes});
    } else {
      arena_.release(at, bytes);
    }
  }

  // Steps that follow one another shall not wait for each other only because they take turns in the
  // same memory; joint steps cannot take turns.
  void release_freed() {
    constexpr std::size_t kStepsApart = 4;
    const auto is_apart = [&](std::size_t step) {
      return num_streams_ > 1 ? step + kStepsApart <= now_ : joint_.last(step) < now_;
    };
    while (!freed_.empty() && is_apart(freed_.front().step)) {
      arena_.release(freed_.front().at, freed_.front().bytes);
      freed_.pop_front();
    }
  }

  // From names of buffers to places.
  void pack() {
    packed_.pack();
    const auto move = [&](Location& location) {
      if (location.kind == Location::Kind::kArena) location.at = packed_.offset_of(location.at);
    };
    for (Location& location : args_) move(location);
    for (auto& output : plan_.outputs) move(output.location);
    for (Copy& copy : plan_.copies) {
      move(copy.from);
      move(copy.to);
    }
  }

  // Assigns memory to the outputs of step i, then frees what it was the last to read.
  void place(std::size_t i) {
    const ir::Node& node = *nodes_[i];
    release_freed();
    first_args_.push_back(args_.size());
    for (const ir::Value* input : node.inputs) args_.push_back(locate(input));
    divide_buffer(i);
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const ir::Value* output = node.outputs[o];
      if (output != nullptr && !locations_.contains(output)) place_output(i, o);
      args_.push_back(output == nullptr ? Location{} : *locations_.find(output));
    }
    const std::int64_t scratch = kernel(i).scratch_bytes;
    Location scratch_location;
    if (scratch > 0) {
      scratch_location = {Location::Kind::kArena, allocate(scratch)};
      release(scratch_location.at, scratch);
    }
    args_.push_back(scratch_location);
    release_dead(i);
  }

  // The buffer of an exchange, from the first value on that is computed in it.
  Location buffer_at(const ir::Value* buffer) {
    if (const Location* known = locations_.find(buffer)) return *known;
    buffers_[buffer].bytes = bytes_of(buffer);
    return locations_[buffer] = {Location::Kind::kArena, allocate(bytes_of(buffer))};
  }

  // Gives the memory of an exchange's buffer to its outputs, part by part, and releases the rest.
  void divide_buffer(std::size_t i) {
    const ir::Node& node = *nodes_[i];
    const auto parts = BufferParts::received(node, engine_.device.alignment());
    if (parts.empty()) return;
    const ir::Value* buffer = parts.front().buffer;
    const std::int64_t start = locations_.find(buffer)->at;
    const std::int64_t bytes = std::exchange(buffers_[buffer].bytes, -1);
    const auto release_part = [&](std::int64_t begin, std::int64_t end) {
      if (end > begin) release(start + begin, end - begin);
    };
    const std::int64_t unit = engine_.device.alignment();
    std::int64_t done = 0;  // bytes of the buffer that are assigned or released
    for (std::size_t o = 0; o < parts.size(); ++o) {
      const ir::Value* output = node.output(o);
      if (parts[o].offset < 0 || output == nullptr || locations_.contains(output)) continue;
      release_part(done, parts[o].offset);
      const std::int64_t end = parts[o].offset + bytes_of(output);
      done = std::min(base::round_up(end, unit), bytes);
      if (done == parts[o].offset) continue;
      locations_[output] = {Location::Kind::kArena, start + parts[o].offset};
      buffers_[output].bytes = done - parts[o].offset;
    }
    release_part(done, bytes);
  }

  void place_output(std::size_t i, std::size_t o) {
    const ir::Node& node = *nodes_[i];
    const ir::Value* output = node.outputs[o];
    const std::int64_t bytes = bytes_of(output);
    if (const BufferParts::Part* part = parts_->find_sent(output)) {
      const Location buffer = buffer_at(part->buffer);
      locations_[output] = {Location::Kind::kArena, buffer.at + part->offset};
      return;
    }
    for (const auto& [from, to] : kernel(i).in_place) {
      if (static_cast<std::size_t>(to) != o) continue;
      const ir::Value* input = node.input(static_cast<std::size_t>(from));
      if (input == nullptr || bytes_of(input) != bytes) continue;
      const ir::Value* old = root(input);
      Buffer* owned = buffers_.find(old);
      const bool is_last = owned != nullptr && owned->bytes >= 0 && *last_use_.find(old) == i;
      if (!is_last || owned->bytes < bytes || !can_overwrite(i, old, o)) continue;
      if (num_streams_ > 1 && has_independent_reader(nodes_, roots_, i, old)) continue;
      const Location location = *locations_.find(old);
      const std::int64_t owned_bytes = std::exchange(owned->bytes, -1);
      locations_[output] = location;
      buffers_[output].bytes = owned_bytes;  // the buffer has a new owner
      return;
    }
    locations_[output] = {Location::Kind::kArena, allocate(bytes)};
    buffers_[output].bytes = bytes;
  }

  void release_dead(std::size_t i) {
    const ir::Node& node = *nodes_[i];
    const auto release_if_dead = [&](const ir::Value* value) {
      if (value == nullptr) return;
      const ir::Value* base = root(value);
      Buffer* owned = buffers_.find(base);
      if (owned == nullptr || owned->bytes < 0) return;
      const std::size_t* last = last_use_.find(base);
      if (last != nullptr && *last > i) return;
      release(locations_.find(base)->at, std::exchange(owned->bytes, -1));
    };
    for (const ir::Value* input : node.inputs) release_if_dead(input);
    for (const ir::Value* output : node.outputs) release_if_dead(output);  // not read
  }

  // A copy in the arena of a state that this step overwrites; other locations are kept.
  Location preserved(const ir::Value* value) {
    const Location at = locate(value);
    if (at.kind != Location::Kind::kState || !is_updated(at.at)) return at;
    const std::int64_t bytes = bytes_of(value);
    const Location to{Location::Kind::kArena, allocate(bytes)};
    plan_.copies.push_back({.from = at, .to = to, .bytes = bytes});
    return to;
  }

  bool is_updated(std::int64_t state) const {
    return updated_.contains(state) ||
           binding_.updated_later.contains(static_cast<std::size_t>(state));
  }

  void add_outputs() {
    for (const ir::Value* output : graph_.outputs) {
      // The root of an old value is the graph's input; new values stored in the state are
      // results.
      const bool is_old = root(output)->is_input;
      plan_.outputs.push_back(
          {.location = is_old ? preserved(output) : locate(output),
           .desc = {.dtype = output->dtype(), .dims = output->type.fixed_dims()}});
    }
  }

  // For new values that are not in the state already.
  void add_copies() {
    std::vector<Copy> commits;
    for (std::size_t u = 0; u < binding_.updates.size(); ++u) {
      const auto [input, value] = binding_.updates[u];
      if (aliased_.contains(u) || root(value) == input) continue;
      const Location target{Location::Kind::kState,
                            static_cast<std::int64_t>(binding_.states.at(input))};
      commits.push_back({.from = root(value)->is_input ? preserved(value) : locate(value),
                         .to = target,
                         .bytes = bytes_of(value)});
    }
    plan_.copies.insert(plan_.copies.end(), commits.begin(), commits.end());
  }

  const ir::Graph& graph_;
  const GraphBinding& binding_;
  const Engine& engine_;
  const ViewRoots& roots_;
  const PlanKernels& kernels_;
  Plan plan_;
  ArenaLayout arena_;
  PackedArena packed_;  // instead, if is_tight_
  bool is_tight_;
  bool joins_;
  int num_streams_;
  struct Freed {
    std::size_t step = 0;
    std::int64_t at = 0, bytes = 0;
  };
  std::deque<Freed> freed_;             // not released yet: on several streams, and by joint steps
  std::size_t now_ = 0;                 // the step being laid out
  std::vector<const ir::Node*> nodes_;  // one per step
  std::vector<const opdef::PreparedKernel*> prepared_;
  JointSteps joint_{0};
  std::vector<Location> args_;           // arguments of all steps
  std::vector<std::size_t> first_args_;  // one per step
  std::optional<BufferParts> parts_;
  ir::PointerMap<ir::Node, std::size_t> steps_;
  ir::PointerMap<ir::Value, std::size_t> last_use_;  // last step that uses each root
  ir::PointerMap<ir::Value, Location> locations_;    // locations of roots
  ir::PointerMap<ir::Value, Buffer> buffers_;        // by owner
  std::unordered_set<std::size_t> aliased_;          // updates by number
  std::unordered_set<std::int64_t> updated_;         // states by number
};

// Nodes that may throw, but for those whose checks an earlier one in the graph makes too: only the
// first one of these matters.
std::vector<const ir::Node*> throwing_nodes(const ir::Graph& graph, const ViewRoots& roots,
                                            const PlanKernels& kernels) {
  std::set<std::pair<const ir::Value*, std::vector<std::int64_t>>> known;
  std::vector<const ir::Node*> nodes;
  for (const ir::Node* node : graph.nodes) {
    if (roots.is_view(node)) continue;
    bool is_new = false;
    for (const opdef::ValueCheck& check : kernels.of(node).checks) {
      const ir::Value* value =
          check.input < 0 ? nullptr : node->input(static_cast<std::size_t>(check.input));
      is_new |= value == nullptr || known.emplace(roots.of(value), check.bounds).second;
    }
    if (is_new) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace

Plan make_plan(const ir::Graph& graph, const GraphBinding& binding, const Engine& engine,
               int threads, PlanMemory memory, const opdef::BodyCompiler* bodies,
               opdef::PackedConstants* packed) {
  const ViewRoots roots(graph, engine.ops);
  const bool is_tight = memory == PlanMemory::kLimited;
  const PlanKernels kernels(graph, roots, binding.layouts, engine, threads, !is_tight, bodies,
                            packed);
  std::vector<const ir::Node*> first;
  if (binding.keeps_state_if_thrown) first = throwing_nodes(graph, roots, kernels);
  const Scheduler scheduler(graph, roots, binding.updates, first);
  // Updates that run early free what they read, but may need scratch where most memory is in use.
  std::vector<Schedule> schedules{scheduler.schedule(UpdateNumbers::kEarly)};
  if (scheduler.has_numbers()) schedules.push_back(scheduler.schedule(UpdateNumbers::kInOrder));
  const auto lay_out = [&](bool joins) {
    std::unique_ptr<Planner> least;
    for (const Schedule& schedule : schedules) {
      auto planner =
          std::make_unique<Planner>(graph, binding, engine, roots, kernels, is_tight, joins);
      planner->run(schedule);
      if (least == nullptr || planner->arena_bytes() < least->arena_bytes()) {
        least = std::move(planner);
      }
    }
    return least;
  };
  // Joint steps keep their operands, and scratch, for longer, which may take this much more memory.
  constexpr double kJointMemory = 1.05;
  constexpr double kJointBytes = 4 << 20;
  auto planner = lay_out(engine.device.is_host() && !is_tight);
  if (planner->has_joint_steps()) {
    auto apart = lay_out(/*joins=*/false);
    const double most = kJointMemory * static_cast<double>(apart->arena_bytes()) + kJointBytes;
    if (static_cast<double>(planner->arena_bytes()) > most) planner = std::move(apart);
  }
  return planner->take_plan();
}

}  // namespace onnxgrad::runtime
