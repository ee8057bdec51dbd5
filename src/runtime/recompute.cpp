#include "runtime/recompute.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "opdef/fused.h"
#include "opdef/random_stream.h"
#include "runtime/bodies.h"
#include "runtime/exchanges.h"
#include "runtime/kernel_selection.h"

namespace onnxgrad::runtime {
namespace {

using ir::Node;
using ir::Value;

// Rates of a core, to compare products with passes over memory.
constexpr double kFlopsPerSecond = 5e10;
constexpr double kBytesPerSecond = 5e9;
// A state of at most this many bytes that the step overwrites early is copied first.
constexpr std::int64_t kMaxSavedState = std::int64_t{1} << 16;
constexpr std::size_t kMaxRepeatedTogether = 64;
constexpr int kMostRepeats = 4;  // repetitions of a node

/// When the bytes of a value are in use: positions of nodes.
struct Life {
  std::int64_t bytes = 0;
  std::size_t birth = 0;
  std::vector<std::size_t> uses = {};  ///< in increasing order
  bool is_kept = false;                ///< until the end: outputs, new states
  std::size_t last_use() const { return uses.empty() ? birth : uses.back(); }
};

/// Properties of a node's kernel.
struct Facts {
  double seconds = 0;
  double flops = 0;
  std::int64_t scratch = 0;
  std::vector<std::pair<int, int>> in_place = {};
  bool is_view = false;
  int repeats_left = 0;  ///< bounded, so that the search ends
};

/// Nodes to repeat together, right before position `before`.
struct Choice {
  std::size_t before = 0;
  std::set<std::size_t> nodes = {};                    ///< positions
  std::unordered_set<const Value*> extended = {};      ///< live longer for it
  std::unordered_set<const Value*> saved_states = {};  ///< read as they were at the start
  std::int64_t extension = 0;  ///< bytes of those that are not live at the peak
  double seconds = 0;
  std::int64_t saved = 0;  ///< bytes at the peak
  double score = 0;        ///< saved bytes per second
};

/// A choice by nodes instead of positions, which change.
struct Repetition {
  const Node* before = nullptr;
  std::vector<Node*> nodes = {};
  std::unordered_set<const Value*> saved_states = {};
};

/// Rewrites a graph step by step.
class Recompute {
 public:
  /// The arguments are those of make_plan and outlive this.
  Recompute(ir::Graph& graph, GraphBinding& binding, const Engine& engine, int threads,
            const opdef::BodyCompiler* bodies)
      : graph_(graph), binding_(binding), engine_(engine), threads_(threads), bodies_(bodies) {
    const ViewRoots roots(graph_, engine_.ops);
    const Scheduler scheduler(graph_, roots, binding_.updates);
    graph_.nodes = scheduler.schedule(UpdateNumbers::kEarly).order;
    for (const Node* node : graph_.nodes) facts_.emplace(node, facts_of(*node));
    find_lives();
  }

  /// Repeats nodes until at most `bytes` are live at once, as far as can be known before buffers
  /// are placed. False if nothing is left that would help; something may have been repeated then.
  bool reduce_to(std::int64_t bytes) {
    while (peak_bytes() > bytes) {
      std::vector<Choice> choices = find_choices();
      if (choices.empty()) return false;
      // The best ones together; those that are repeated last first.
      std::ranges::sort(choices, std::greater<>(), &Choice::score);
      choices.resize(number_wanted(choices, peak_bytes() - bytes));
      std::ranges::sort(choices, std::greater<>(), &Choice::before);
      std::vector<Repetition> repetitions;
      for (const Choice& choice : choices) repetitions.push_back(as_nodes(choice));
      for (const Repetition& repetition : repetitions) apply(repetition);
      find_lives();
    }
    return true;
  }

  /// The most bytes that are live at once.
  std::int64_t peak_bytes() const { return live_.empty() ? 0 : live_[peak_]; }
  const Recomputed& done() const { return done_; }

 private:
  const Value* root(const Value* value) const { return view_root(value, engine_.ops); }
  std::int64_t size_of(const Value* value) const { return binding_.layouts.bytes_of(value); }

  Facts facts_of(const Node& node) const {
    Facts facts;
    const opdef::OpDef* def = engine_.ops.find(node);
    facts.is_view = def != nullptr && def->is_view();
    if (facts.is_view) return facts;
    opdef::KernelRequest request = make_request(engine_, node, threads_, bodies_);
    binding_.layouts.describe(request);
    const auto selected = select_kernel(engine_, request);
    if (!selected) return facts;  // make_plan reports it
    const opdef::PreparedKernel* kernel = &selected->kernel;
    facts.scratch = kernel->scratch_bytes;
    facts.in_place = kernel->in_place;
    facts.flops = kernel->flops;
    std::int64_t bytes = 0;
    for (const Value* value : node.inputs) bytes += value == nullptr ? 0 : size_of(value);
    for (const Value* value : node.outputs) bytes += value == nullptr ? 0 : size_of(value);
    facts.seconds =
        (kernel->flops / kFlopsPerSecond) + (static_cast<double>(bytes) / kBytesPerSecond);
    const bool is_exchange = exchange_role(node).kind != ExchangeRole::Kind::kNone;
    facts.repeats_left = is_exchange ? 0 : node.subgraphs().empty() ? kMostRepeats : 1;
    return facts;
  }

  // Finds the lifetimes of all values and the position where most bytes are live.
  void find_lives() {
    lives_.clear();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = *graph_.nodes[i];
      if (facts_.at(&node).is_view) continue;
      for (const Value* input : node.inputs) {
        if (input == nullptr) continue;
        const auto life = lives_.find(root(input));
        if (life != lives_.end()) life->second.uses.push_back(i);
      }
      for (const Value* output : node.outputs) {
        if (output != nullptr) lives_.emplace(output, Life{.bytes = size_of(output), .birth = i});
      }
    }
    const auto keep = [&](const Value* value) {
      const auto life = lives_.find(root(value));
      if (life != lives_.end()) life->second.is_kept = true;
    };
    for (const Value* output : graph_.outputs) keep(output);
    for (const StateUpdate& update : binding_.updates) keep(update.value);
    find_writers();
    find_peak();
  }

  // Finds the positions where states are overwritten.
  void find_writers() {
    writers_.clear();
    for (const auto& [input, value] : binding_.updates) {
      const auto life = lives_.find(root(value));
      if (life != lives_.end()) writers_[input] = life->second.birth;
    }
  }

  void find_peak() {
    const std::size_t count = graph_.nodes.size();
    std::vector<std::int64_t> changes(count + 1, 0);
    std::unordered_set<const Value*> in_state;  // written over the old value, as a rule
    for (const StateUpdate& update : binding_.updates) in_state.insert(root(update.value));
    for (const auto& [value, life] : lives_) {
      if (in_state.contains(value)) continue;
      changes[life.birth] += life.bytes;
      if (!life.is_kept) changes[life.last_use() + 1] -= life.bytes;
    }
    live_.assign(count, 0);
    std::int64_t now = 0;
    peak_ = 0;
    for (std::size_t i = 0; i < count; ++i) {
      now += changes[i];
      live_[i] = now + facts_.at(graph_.nodes[i]).scratch - shared_bytes(i);
      if (live_[i] > live_[peak_]) peak_ = i;
    }
  }

  // Bytes that node `i` writes over those of an input that it is the last to read.
  std::int64_t shared_bytes(std::size_t i) const {
    const Node& node = *graph_.nodes[i];
    for (const auto& [from, to] : facts_.at(&node).in_place) {
      const Value* input = node.input(static_cast<std::size_t>(from));
      const Value* output = node.output(static_cast<std::size_t>(to));
      if (input == nullptr || output == nullptr) continue;
      const auto old = lives_.find(root(input));
      if (old == lives_.end() || old->second.is_kept || old->second.last_use() != i) continue;
      if (old->second.bytes == size_of(output)) return old->second.bytes;
    }
    return 0;
  }

  // The first reader after the peak of a value that nobody reads there; nullopt: it is in use, or
  // not read again.
  std::optional<std::size_t> next_use(const Life& life) const {
    if (life.is_kept || life.birth >= peak_) return std::nullopt;
    const auto next = std::ranges::lower_bound(life.uses, peak_);
    if (next == life.uses.end() || *next == peak_) return std::nullopt;
    return *next;
  }

  // Number of choices from the front to make before the peak is searched again: a small fraction of
  // those left, without a node in common.
  static std::size_t number_wanted(std::vector<Choice>& choices, std::int64_t excess) {
    const std::size_t most = std::max<std::size_t>(choices.size() / 8, 1);
    std::set<std::size_t> repeated;
    std::size_t wanted = 0;
    for (std::size_t i = 0; i < choices.size() && wanted < most && excess > 0; ++i) {
      const auto is_repeated = [&](std::size_t node) { return repeated.contains(node); };
      if (std::ranges::any_of(choices[i].nodes, is_repeated)) continue;
      repeated.insert(choices[i].nodes.begin(), choices[i].nodes.end());
      excess -= choices[i].saved;
      std::swap(choices[wanted++], choices[i]);
    }
    return wanted;
  }

  Repetition as_nodes(const Choice& choice) const {
    Repetition result{.before = graph_.nodes[choice.before], .saved_states = choice.saved_states};
    for (const std::size_t i : choice.nodes) result.nodes.push_back(graph_.nodes[i]);
    return result;
  }

  std::vector<Choice> find_choices() const {
    std::vector<Choice> choices;
    const std::int64_t least = std::max<std::int64_t>(peak_bytes() / 4096, 256);
    for (std::size_t i = 0; i < peak_; ++i) {
      if (facts_.at(graph_.nodes[i]).repeats_left == 0) continue;
      std::size_t before = graph_.nodes.size();
      for (const Value* output : graph_.nodes[i]->outputs) {
        const auto life = output == nullptr ? lives_.end() : lives_.find(output);
        if (life == lives_.end()) continue;
        if (const auto next = next_use(life->second)) before = std::min(before, *next);
      }
      if (before == graph_.nodes.size()) continue;
      Choice best;
      for (const bool with_matmuls : {false, true}) {
        Choice choice{.before = before};
        if (!add(i, choice, with_matmuls)) continue;
        choice.saved = saved_bytes(choice) - choice.extension;
        choice.score = static_cast<double>(choice.saved) / choice.seconds;
        if (choice.saved >= least && choice.score > best.score) best = std::move(choice);
      }
      if (best.score > 0) choices.push_back(std::move(best));
    }
    return choices;
  }

  // Bytes that are no longer live at the peak.
  std::int64_t saved_bytes(const Choice& choice) const {
    std::int64_t saved = 0;
    for (const std::size_t i : choice.nodes) {
      for (const Value* output : graph_.nodes[i]->outputs) {
        const auto life = output == nullptr ? lives_.end() : lives_.find(output);
        if (life == lives_.end() || choice.extended.contains(output)) continue;
        if (next_use(life->second)) saved += life->second.bytes;
      }
    }
    return saved;
  }

  bool add(std::size_t i, Choice& choice, bool with_matmuls) const {
    const Facts& facts = facts_.at(graph_.nodes[i]);
    if (facts.repeats_left == 0 || choice.nodes.size() >= kMaxRepeatedTogether) return false;
    if (!choice.nodes.insert(i).second) return true;
    choice.seconds += facts.seconds;
    return std::ranges::all_of(graph_.nodes[i]->inputs, [&](const Value* input) {
      return input == nullptr || make_available(root(input), choice, with_matmuls);
    });
  }

  // Sees to it that the bytes can be read at choice.before.
  bool make_available(const Value* value, Choice& choice, bool with_matmuls) const {
    const auto found = lives_.find(value);
    if (found == lives_.end()) return is_unchanged(value, choice);
    const Life& life = found->second;
    if (life.is_kept || life.last_use() >= choice.before) {
      // It may have been chosen to be read from a copy that is made later.
      return life.birth < choice.before;
    }
    const bool is_live = life.birth < peak_ && life.last_use() > peak_;
    const bool is_matmul = facts_.at(value->producer).flops > 0;
    if (!is_live && (with_matmuls || !is_matmul) && add(life.birth, choice, with_matmuls)) {
      return true;
    }
    if (choice.extended.insert(value).second && !is_live && life.birth < peak_) {
      choice.extension += life.bytes;
    }
    return life.birth < choice.before;
  }

  // Inputs, constants, and states before they are overwritten.
  bool is_unchanged(const Value* value, Choice& choice) const {
    const auto writer = writers_.find(value);
    if (writer == writers_.end() || writer->second >= choice.before) return true;
    if (size_of(value) > kMaxSavedState) return false;
    choice.saved_states.insert(value);
    return true;
  }

  // A copy of an overwritten state, made at the start.
  Value* saved_state(Value* state) {
    Value*& saved = saved_states_[state];
    if (saved != nullptr) return saved;
    opdef::Elementwise copy{.compute = state->dtype(), .stored = 1};
    copy.program.num_inputs = 1;
    copy.program.results = {copy.program.input(0)};
    saved = graph_.add_value(graph_.names().unique(state->name + "/before"), state->type);
    Node* node = graph_.make_node(opdef::kElementwise, {state}, {saved}, state->name + "/before",
                                  copy.attributes(), ir::kFusedDomain);
    graph_.nodes.insert(graph_.nodes.begin(), node);
    facts_.emplace(node, facts_of(*node));
    return saved;
  }

  void apply(const Repetition& repetition) {
    std::unordered_map<const Value*, Value*> map;
    for (const Value* state : repetition.saved_states) {
      map.emplace(state, saved_state(const_cast<Value*>(state)));  // NOLINT: of this graph
    }
    std::vector<Node*> copies;
    for (const Node* original : repetition.nodes) {
      Node* copy = repeat(*original, map, copies);
      copies.push_back(copy);
    }
    const auto at = std::ranges::find(graph_.nodes, repetition.before);
    ONNXGRAD_ASSERT(at != graph_.nodes.end());
    const auto position = static_cast<std::size_t>(at - graph_.nodes.begin());
    for (const Value* state : repetition.saved_states)
      map.erase(state);  // later readers are ordered
    std::vector<Node*> later(at, graph_.nodes.end());
    graph_.nodes.resize(position);
    graph_.nodes.insert(graph_.nodes.end(), copies.begin(), copies.end());
    for (Node* node : later) redirect(*node, map);
    graph_.nodes.insert(graph_.nodes.end(), later.begin(), later.end());
  }

  // A copy of the node; views that it reads through are added to `before`.
  Node* repeat(const Node& original, std::unordered_map<const Value*, Value*>& map,
               std::vector<Node*>& before) {
    std::vector<Value*> inputs;
    for (Value* input : original.inputs) inputs.push_back(seen_through(input, map, before));
    Node* copy = copy_of(original, std::move(inputs), map);
    const opdef::OpDef* def = engine_.ops.find(original);
    if (def != nullptr && def->is_random) opdef::draw_like(original, *copy);
    Facts facts = facts_.at(&original);
    --facts_.at(&original).repeats_left;
    facts.repeats_left = 0;
    facts_.emplace(copy, facts);
    ++done_.kernels;
    done_.flops += facts.flops;
    for (const Value* output : original.outputs) {
      const auto life = output == nullptr ? lives_.end() : lives_.find(output);
      if (life != lives_.end() && next_use(life->second)) {
        ++done_.values;
        done_.bytes += life->second.bytes;
      }
    }
    return copy;
  }

  Node* copy_of(const Node& original, std::vector<Value*> inputs,
                std::unordered_map<const Value*, Value*>& map) {
    std::vector<Value*> outputs;
    for (const Value* output : original.outputs) {
      Value* again = nullptr;
      if (output != nullptr) {
        again = graph_.add_value(graph_.names().unique(output->name + "/again"), output->type);
        binding_.layouts.set(again, binding_.layouts.of(output));
        map[output] = again;
      }
      outputs.push_back(again);
    }
    Node* copy = graph_.make_node(original.op_type, std::move(inputs), outputs,
                                  original.name + "/again", original.attributes, original.domain);
    copy->overload = original.overload;
    copy->metadata = original.metadata;
    return copy;
  }

  // The value to read instead of `value`, which may be a view of something that has been repeated.
  Value* seen_through(Value* value, std::unordered_map<const Value*, Value*>& map,
                      std::vector<Node*>& before) {
    if (value == nullptr) return nullptr;
    if (const auto known = map.find(value); known != map.end()) return known->second;
    const Node* producer = value->producer;
    if (producer == nullptr || value->graph != &graph_ || !facts_.at(producer).is_view)
      return value;
    std::vector<Value*> inputs = producer->inputs;
    inputs[0] = seen_through(inputs[0], map, before);
    if (inputs[0] == producer->inputs[0]) return value;
    Node* copy = copy_of(*producer, std::move(inputs), map);
    facts_.emplace(copy, facts_.at(producer));
    before.push_back(copy);
    return map.at(value);
  }

  // Reads what has been repeated.
  void redirect(Node& node, std::unordered_map<const Value*, Value*>& map) {
    if (!facts_.at(&node).is_view) {
      for (Value*& input : node.inputs) input = seen_through(input, map, graph_.nodes);
    } else if (map.contains(node.inputs[0])) {
      // Graph outputs may be views; they are of the first one, which is kept.
      const bool is_output =
          std::ranges::find(graph_.outputs, node.outputs[0]) != graph_.outputs.end();
      if (!is_output) node.inputs[0] = map.at(node.inputs[0]);
    }
  }

  ir::Graph& graph_;
  GraphBinding& binding_;
  const Engine& engine_;
  int threads_;
  const opdef::BodyCompiler* bodies_;
  std::unordered_map<const Node*, Facts> facts_;
  std::unordered_map<const Value*, Life> lives_;           // lifetimes of roots that nodes compute
  std::unordered_map<const Value*, std::size_t> writers_;  // positions that overwrite states
  std::unordered_map<const Value*, Value*> saved_states_;
  std::vector<std::int64_t> live_;  // by position
  std::size_t peak_ = 0;
  Recomputed done_;
};

}  // namespace

namespace {

/// Sizes in the error of a plan that does not fit.
struct Shortage {
  std::int64_t most = 0;   ///< bytes that the arena could have had, besides the kernels' tables
  std::int64_t least = 0;  ///< the smallest arena so far
};

// nullopt: it does not fit.
std::optional<Plan> reduce_plan(ir::Graph& graph, GraphBinding& binding, const Engine& engine,
                                int threads, const PlannedBodies* bodies,
                                const MaxArenaBytes& max_bytes, Recomputed& recomputed,
                                Shortage& shortage) {
  Recompute recompute(graph, binding, engine, threads, bodies);
  std::int64_t target = std::min(shortage.most, recompute.peak_bytes() - 1);
  std::optional<Plan> plan;
  for (bool can_reduce = true; can_reduce && !plan;) {
    can_reduce = recompute.reduce_to(target);
    plan = make_plan(graph, binding, engine, threads, PlanMemory::kLimited, bodies);
    shortage.most = max_bytes(*plan, bodies);
    shortage.least = std::min(shortage.least, plan->arena_bytes);
    const std::int64_t excess = plan->arena_bytes - shortage.most;
    if (excess <= 0) continue;
    // Buffers leave gaps: the next try is for as much less as this one was too large.
    target = recompute.peak_bytes() - std::max(excess, plan->arena_bytes / 100);
    plan.reset();
  }
  recomputed += recompute.done();
  return plan;
}

}  // namespace

Plan make_plan_within(ir::Graph& graph, GraphBinding& binding, const Engine& engine, int threads,
                      const PlannedBodies* bodies, const MaxArenaBytes& max_bytes) {
  std::optional<Plan> plan =
      make_plan(graph, binding, engine, threads, PlanMemory::kLimited, bodies);
  Shortage shortage{.most = max_bytes(*plan, bodies), .least = plan->arena_bytes};
  if (plan->arena_bytes <= shortage.most) return *std::move(plan);
  plan.reset();  // frees its kernels' tables, which count
  Recomputed recomputed;
  do {
    plan = reduce_plan(graph, binding, engine, threads, bodies, max_bytes, recomputed, shortage);
  } while (!plan && bodies != nullptr && bodies->shrink());
  if (!plan) {
    throw ArenaTooSmall{.max_bytes = shortage.most, .least_bytes = shortage.least};
  }
  plan->recomputed = recomputed;
  return *std::move(plan);
}

}  // namespace onnxgrad::runtime
