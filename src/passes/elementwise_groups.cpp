#include "passes/elementwise_groups.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "passes/reduction.h"

// Greedy, in graph order: a node joins the group of one of its producers if it has the same space
// (or the reduced one) and if no path leaves the group and comes back through the node.

namespace onnxgrad::passes {
namespace {

constexpr std::size_t kMaxGroupSize = 48;
constexpr std::size_t kMaxVisited = 512;  // of the search for paths; beyond it a node does not join

struct Membership {
  std::size_t group;
  Role role;
};

class Grouper {
 public:
  Grouper(const ir::Graph& graph, const opdef::OpRegistry& registry, bool merge)
      : graph_(graph), registry_(registry), merge_(merge) {
    for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
      position_.emplace(graph.nodes[i], i);
      for (const ir::Value* input : graph.nodes[i]->inputs) {
        if (input != nullptr) readers_[input].push_back(graph.nodes[i]);
      }
    }
    for (const ir::Value* output : graph.outputs) readers_[output].push_back(nullptr);
  }

  std::vector<ElementwiseGroup> run() {
    for (ir::Node* node : graph_.nodes) {
      const opdef::OpDef* def = registry_.find(*node);
      if (def != nullptr && def->expression != nullptr) {
        if (merge_ && can_wait(*node)) {
          waiting_.insert(node);
        } else {
          place_elementwise(node);
        }
      } else if (merge_) {
        place_reduction(node);
      }
    }
    for (ir::Node* node : graph_.nodes) {
      if (waiting_.contains(node)) place_elementwise(node);
    }
    std::erase_if(groups_, [](const ElementwiseGroup& group) { return group.size() == 0; });
    return std::move(groups_);
  }

 private:
  bool is_elementwise(const ir::Node* node) const {
    if (node == nullptr) return false;
    const opdef::OpDef* def = registry_.find(*node);
    return def != nullptr && def->expression != nullptr;
  }

  // A boolean of one stored value, read by one element-wise node over the same space.
  bool can_wait(const ir::Node& node) const {
    const ir::Value* output = node.outputs[0];
    const auto readers = readers_.find(output);
    if (output->dtype() != DataType::kBool || readers == readers_.end() ||
        readers->second.size() != 1 || !is_elementwise(readers->second.front()) ||
        readers->second.front()->outputs[0]->type.static_dims() != output->type.static_dims()) {
      return false;
    }
    const ir::Value* source = nullptr;
    for (const ir::Value* input : node.inputs) {
      if (input == nullptr || input->is_constant()) continue;
      if (source != nullptr) return false;
      source = input;
    }
    // Stored anyway: someone reads it who is not element-wise.
    return source != nullptr && source->type.static_dims() == output->type.static_dims() &&
           std::ranges::any_of(readers_.at(source),
                               [this](const ir::Node* reader) { return !is_elementwise(reader); });
  }

  // Takes the waiting producers of `node`, which is in group g, into the group.
  void take_waiting(const ir::Node& node, std::size_t g) {
    for (const ir::Value* input : node.inputs) {
      if (input == nullptr || waiting_.erase(input->producer) == 0) continue;
      ir::Node* producer = input->producer;
      const bool fits = type_fits(groups_[g].compute, *producer, compute_type(*producer)) &&
                        std::ranges::all_of(producer->inputs, [&](const ir::Value* v) {
                          const Membership* home = v == nullptr ? nullptr : find(v->producer);
                          if (home != nullptr && home->group == g) return home->role == Role::kMain;
                          return v == nullptr || !depends_on(v, g);
                        });
      if (!fits) {
        place_elementwise(producer);
        continue;
      }
      add(producer, g, Role::kMain);
      splice(groups_[g].main, {});
      ranges_[g].first = std::min(ranges_[g].first, position_.at(producer));
    }
  }

  // Some schemas leave it to the kernel whether the operands fit (PRelu).
  static void check_operands(const ir::Node& node, const Dims& dims) {
    const auto refuse = [&node](const std::string& what) {
      throw ShapeError(
          {.what = what,
           .where = {.node = node.name, .op_type = node.op_type},
           .mend = "Make the operands' dimensions equal, counted from the last, or 1."});
    };
    try {
      Dims spanned;
      for (const ir::Value* input : node.inputs) {
        if (input != nullptr) spanned = broadcast_dims(spanned, *input->type.static_dims());
      }
      if (spanned != dims) {
        refuse("operands of shape " + spanned.to_string() + " for an output of shape " +
               dims.to_string());
      }
    } catch (const ShapeError& error) {
      if (!error.place().node.empty()) throw;
      refuse(error.problem().what);
    }
  }

  void place_elementwise(ir::Node* node) {
    const auto dims = node->outputs[0]->type.static_dims();
    DataType compute = compute_type(*node);
    if (!dims || compute == DataType::kUndefined) return;
    check_operands(*node, *dims);
    if (merge_ && (join_post(node, *dims, compute) || join_main(node, *dims, compute))) return;
    groups_.push_back({.compute = compute, .space = *dims});
    ranges_.emplace_back(position_.at(node), position_.at(node));
    add(node, groups_.size() - 1, Role::kMain);
    take_waiting(*node, groups_.size() - 1);
  }

  bool join_main(ir::Node* node, const Dims& dims, DataType compute) {
    for (const ir::Value* input : node->inputs) {
      const Membership* home = input == nullptr ? nullptr : find(input->producer);
      if (home == nullptr || home->role != Role::kMain) continue;
      const std::size_t g = home->group;
      if (!can_join_main(g, *node, dims, compute)) continue;
      add(node, g, Role::kMain);
      take_waiting(*node, g);
      merge_other_producers(g, *node);
      return true;
    }
    return false;
  }

  // After a reduction is the better place: the update of a bias goes where its gradient is summed.
  bool join_post(ir::Node* node, const Dims& dims, DataType compute) {
    for (const ir::Value* input : node->inputs) {
      const Membership* home = input == nullptr ? nullptr : find(input->producer);
      if (home == nullptr || home->role == Role::kMain) continue;
      const std::size_t g = home->group;
      if (!can_join_post(g, *node, dims, compute)) continue;
      add(node, g, Role::kPost);
      absorb_into_post(g, *node, dims);
      return true;
    }
    return false;
  }

  // Groups without reduction that feed `node`, a post member of g, become post members too.
  void absorb_into_post(std::size_t g, const ir::Node& node, const Dims& dims) {
    for (const ir::Value* input : node.inputs) {
      const Membership* home = input == nullptr ? nullptr : find(input->producer);
      if (home == nullptr || home->group == g || home->role != Role::kMain) continue;
      const std::size_t other = home->group;
      ElementwiseGroup& from = groups_[other];
      const bool fits =
          from.space == dims && from.compute == groups_[g].compute && from.reductions.empty() &&
          from.size() + groups_[g].size() <= kMaxGroupSize &&
          std::ranges::all_of(from.main,
                              [&](const ir::Node* member) { return is_flat(*member, dims, g); });
      if (!fits || reaches(other, g)) continue;
      for (ir::Node* member : from.main) home_[member] = {g, Role::kPost};
      splice(groups_[g].post, from.main);
      ranges_[g] = {std::min(ranges_[g].first, ranges_[other].first),
                    std::max(ranges_[g].second, ranges_[other].second)};
      from = {};
    }
  }

  // True if all operands of `node` are one number or of the shape `dims`, and none depends on group
  // g.
  bool is_flat(const ir::Node& node, const Dims& dims, std::size_t g) {
    return std::ranges::all_of(node.inputs, [&](const ir::Value* input) {
      if (input == nullptr) return true;
      const auto given = input->type.static_dims();
      return given && (given->num_elements() == 1 || given == dims) && !depends_on(input, g);
    });
  }

  void place_reduction(ir::Node* node) {
    const std::optional<Reduction> reduction = match_reduction(*node);
    if (!reduction) return;
    const Membership* home = find(node->inputs[0]->producer);
    if (home != nullptr && home->role == Role::kMain) {
      ElementwiseGroup& group = groups_[home->group];
      const bool fits = group.compute == node->outputs[0]->dtype() &&
                        (group.reduce_axes.empty() || group.reduce_axes == reduction->axes) &&
                        group.size() < kMaxGroupSize;
      if (fits) {
        group.reduce_axes = reduction->axes;
        add(node, home->group, Role::kReduce);
        return;
      }
    }
    groups_.push_back({.compute = node->outputs[0]->dtype(),
                       .space = *node->inputs[0]->type.static_dims(),
                       .reduce_axes = reduction->axes});
    ranges_.emplace_back(position_.at(node), position_.at(node));
    add(node, groups_.size() - 1, Role::kReduce);
  }

  // Masks (boolean in and out) are computed in any type.
  static bool type_fits(DataType group, const ir::Node& node, DataType node_type) {
    if (group == node_type) return true;
    return node_type == DataType::kInt64 &&
           std::ranges::all_of(
               node.inputs,
               [](const ir::Value* v) { return v == nullptr || v->dtype() == DataType::kBool; }) &&
           node.outputs[0]->dtype() == DataType::kBool;
  }

  bool can_join_main(std::size_t g, const ir::Node& node, const Dims& dims, DataType compute) {
    const ElementwiseGroup& group = groups_[g];
    if (group.space != dims || !type_fits(group.compute, node, compute)) return false;
    if (group.size() >= kMaxGroupSize) return false;
    return std::ranges::all_of(node.inputs, [&](const ir::Value* input) {
      if (input == nullptr) return true;
      const Membership* home = find(input->producer);
      if (home != nullptr && home->group == g) return home->role == Role::kMain;
      return !depends_on(input, g);
    });
  }

  bool can_join_post(std::size_t g, const ir::Node& node, const Dims& dims, DataType compute) {
    const ElementwiseGroup& group = groups_[g];
    if (!type_fits(group.compute, node, compute) || group.size() >= kMaxGroupSize) return false;
    return std::ranges::all_of(node.inputs, [&](const ir::Value* input) {
      if (input == nullptr) return true;
      const auto given = input->type.static_dims();
      const Membership* home = find(input->producer);
      if (home != nullptr && home->group == g) return home->role != Role::kMain && given == dims;
      // The reduced space is flat: an operand is one number or has the very shape.
      return given && (given->num_elements() == 1 || given == dims) && !depends_on(input, g);
    });
  }

  // The other groups that feed `node`, now in group g, join g where that makes no cycle.
  void merge_other_producers(std::size_t g, const ir::Node& node) {
    for (const ir::Value* input : node.inputs) {
      const Membership* home = input == nullptr ? nullptr : find(input->producer);
      if (home == nullptr || home->group == g || home->role != Role::kMain) continue;
      const std::size_t other = home->group;
      ElementwiseGroup& from = groups_[other];
      ElementwiseGroup& to = groups_[g];
      const bool fits = from.space == to.space && from.compute == to.compute &&
                        (from.reduce_axes.empty() || to.reduce_axes.empty() ||
                         from.reduce_axes == to.reduce_axes) &&
                        from.size() + to.size() <= kMaxGroupSize;
      if (!fits || reaches(other, g) || reaches(g, other)) continue;
      for (ir::Node* member : from.main) home_[member] = {g, Role::kMain};
      for (ir::Node* member : from.reductions) home_[member] = {g, Role::kReduce};
      for (ir::Node* member : from.post) home_[member] = {g, Role::kPost};
      splice(to.main, from.main);
      splice(to.reductions, from.reductions);
      splice(to.post, from.post);
      if (to.reduce_axes.empty()) to.reduce_axes = from.reduce_axes;
      ranges_[g] = {std::min(ranges_[g].first, ranges_[other].first),
                    std::max(ranges_[g].second, ranges_[other].second)};
      from = {};
    }
  }

  void splice(std::vector<ir::Node*>& to, const std::vector<ir::Node*>& from) {
    to.insert(to.end(), from.begin(), from.end());
    std::ranges::sort(to, {}, [this](const ir::Node* node) { return position_.at(node); });
  }

  // True if a path leads from group `from` to group `to` through a node outside both.
  bool reaches(std::size_t from, std::size_t to) {
    const ElementwiseGroup& group = groups_[to];
    for (const auto* list : {&group.main, &group.reductions, &group.post}) {
      for (const ir::Node* member : *list) {
        for (const ir::Value* input : member->inputs) {
          if (input == nullptr) continue;
          const Membership* home = find(input->producer);
          if (home != nullptr &&
              (home->group == to || (home->group == from && home->role == Role::kMain))) {
            continue;
          }
          if (depends_on(input, from)) return true;
        }
      }
    }
    return false;
  }

  // True if `value` may depend on group g; whole groups are units of the search, since they become
  // one node each. Gives up with true after kMaxVisited nodes.
  bool depends_on(const ir::Value* value, std::size_t g) {
    const std::size_t first = ranges_[g].first;
    std::unordered_set<const ir::Node*> seen;
    std::unordered_set<std::size_t> seen_groups;
    std::vector<const ir::Node*> work;
    const auto push = [&](const ir::Value* v) {
      if (v != nullptr && v->producer != nullptr && seen.insert(v->producer).second) {
        work.push_back(v->producer);
      }
    };
    const auto push_inputs = [&](const ir::Node* node) {
      for (const ir::Value* input : node->inputs) push(input);
      if (!node->subgraphs().empty()) {
        for (const ir::Value* captured : ir::captured_values(*node)) push(captured);
      }
    };
    push(value);
    while (!work.empty()) {
      if (seen.size() > kMaxVisited) return true;
      const ir::Node* node = work.back();
      work.pop_back();
      const Membership* home = find(node);
      if (home == nullptr) {
        const auto at = position_.find(node);
        if (at != position_.end() && at->second > first) push_inputs(node);
        continue;
      }
      if (home->group == g) return true;
      if (ranges_[home->group].second < first || !seen_groups.insert(home->group).second) continue;
      const ElementwiseGroup& unit = groups_[home->group];
      for (const auto* list : {&unit.main, &unit.reductions, &unit.post}) {
        for (const ir::Node* member : *list) push_inputs(member);
      }
    }
    return false;
  }

  const Membership* find(const ir::Node* node) const {
    const auto found = home_.find(node);
    return node == nullptr || found == home_.end() ? nullptr : &found->second;
  }

  void add(ir::Node* node, std::size_t g, Role role) {
    ElementwiseGroup& group = groups_[g];
    (role == Role::kMain     ? group.main
     : role == Role::kReduce ? group.reductions
                             : group.post)
        .push_back(node);
    home_[node] = {g, role};
    ranges_[g].second = std::max(ranges_[g].second, position_.at(node));
  }

  const ir::Graph& graph_;
  const opdef::OpRegistry& registry_;
  bool merge_;
  std::unordered_map<const ir::Node*, std::size_t> position_;
  std::unordered_map<const ir::Value*, std::vector<const ir::Node*>>
      readers_;                                  // nullptr: an output
  std::unordered_set<const ir::Node*> waiting_;  // for their reader's group
  std::vector<ElementwiseGroup> groups_;
  std::vector<std::pair<std::size_t, std::size_t>> ranges_;  // positions of a group's members
  std::unordered_map<const ir::Node*, Membership> home_;
};

}  // namespace

DataType compute_type(const ir::Node& node) {
  bool has_float32 = false;
  bool has_float64 = false;
  for (const auto* list : {&node.inputs, &node.outputs}) {
    for (const ir::Value* value : *list) {
      if (value == nullptr) continue;
      const DataType dtype = value->dtype();
      has_float32 = has_float32 || dtype == DataType::kFloat32;
      has_float64 = has_float64 || dtype == DataType::kFloat64;
      const bool is_known = dtype == DataType::kFloat32 || dtype == DataType::kFloat64 ||
                            is_integer(dtype) || dtype == DataType::kBool;
      if (!is_known || !value->type.static_dims()) return DataType::kUndefined;
    }
  }
  if (has_float64) return DataType::kFloat64;
  return has_float32 ? DataType::kFloat32 : DataType::kInt64;
}

std::vector<ElementwiseGroup> group_elementwise(const ir::Graph& graph,
                                                const opdef::OpRegistry& registry, bool merge) {
  return Grouper(graph, registry, merge).run();
}

}  // namespace onnxgrad::passes
