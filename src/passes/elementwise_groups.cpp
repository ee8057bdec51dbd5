#include "passes/elementwise_groups.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ir/pattern.h"
#include "ir/pointer_map.h"
#include "ir/static_size.h"
#include "ir/uses.h"
#include "opdef/expr.h"
#include "passes/contraction.h"

// Greedy, in graph order: a node joins the group of one of its producers if it has the same space
// (or the reduced one), if it may read its operands there, and if the groups, which become one
// node each, stay acyclic (see Contraction).

namespace onnxgrad::passes {
namespace {

constexpr std::size_t kMaxNodes = 48;
// One less than a program may have: an operand that spans the space may be added.
constexpr std::size_t kMaxInstructions = opdef::ExprProgram::kMaxInstructions - 1;

struct Membership {
  std::size_t group;
  Role role;
};

class Grouper {
 public:
  Grouper(const ir::Graph& graph, const opdef::OpRegistry& registry, bool merge)
      : graph_(graph),
        registry_(registry),
        merge_(merge),
        contraction_(graph),
        uses_(graph),
        order_(graph.nodes.size()),
        home_(graph.nodes.size()) {
    std::size_t position = 0;
    for (const ir::Node* node : graph.nodes) order_[node] = position++;
  }

  std::vector<ElementwiseGroup> run() {
    for (ir::Node* node : graph_.nodes) {
      const opdef::OpDef* def = registry_.find(*node);
      if (def != nullptr && def->expression != nullptr) {
        if (merge_ && (can_wait(*node) || is_read_of_f16(*node) || is_guarded(*node))) {
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
    sort_members();
    return std::move(groups_);
  }

 private:
  bool is_elementwise(const ir::Node* node) const {
    if (node == nullptr) return false;
    const opdef::OpDef* def = registry_.find(*node);
    return def != nullptr && def->expression != nullptr;
  }

  // True for a Cast of a 16-bit value to float32 for one element-wise node over the same space: the
  // value is read where that node is computed, and its producer, a product with an epilogue, say,
  // ends with it.
  bool is_read_of_f16(const ir::Node& node) const {
    const ir::Value* output = node.outputs[0];
    const ir::Node* reader = uses_.only_reader(output);
    return node.op_type == "Cast" && node.domain.empty() && ir::holds_f16(node.inputs[0]) &&
           output->dtype() == DataType::kFloat32 && is_elementwise(reader) &&
           same_shape(*reader->outputs[0], *output);
  }

  // True for a Cast of a 16-bit value to float32 for a kernel that runs much later than its
  // producer.
  bool is_far_copy(const ir::Node& node) const {
    constexpr std::size_t kFar = 24;  // nodes
    if (node.op_type != "Cast" || !ir::holds_f16(node.input(0)) ||
        node.outputs[0]->dtype() != DataType::kFloat32) {
      return false;
    }
    const std::size_t* made = order_.find(node.inputs[0]->producer);
    return made != nullptr && *order_.find(&node) > *made + kFar;
  }

  // A boolean of one stored value, read by one element-wise node over the same space.
  bool can_wait(const ir::Node& node) const {
    const ir::Value* output = node.outputs[0];
    const ir::Node* reader = uses_.only_reader(output);
    if (output->dtype() != DataType::kBool || !is_elementwise(reader) ||
        !same_shape(*reader->outputs[0], *output)) {
      return false;
    }
    const ir::Value* source = nullptr;
    for (const ir::Value* input : node.inputs) {
      if (input == nullptr || input->is_constant()) continue;
      if (source != nullptr) return false;
      source = input;
    }
    // Stored anyway: in 16 bits, or for a node that is not element-wise.
    if (source != nullptr && source->producer != nullptr && is_read_of_f16(*source->producer) &&
        same_shape(*source, *output)) {
      return true;
    }
    return source != nullptr && same_shape(*source, *output) &&
           std::ranges::any_of(uses_.of(source),
                               [this](const ir::Use& use) { return !is_elementwise(use.node); });
  }

  // Computed for a Where whose one condition is known later, as of an update that a loss scale
  // guards: its operands are kept until then, not its results too.
  bool is_guarded(const ir::Node& node) const {
    constexpr int kLongest = 8;
    const ir::Node* at = &node;
    for (int i = 0; i < kLongest; ++i) {
      const ir::Value* output = at->outputs[0];
      const ir::Node* reader = uses_.only_reader(output);
      if (!is_elementwise(reader) || !same_shape(*reader->outputs[0], *output)) return false;
      if (ir::is_op(reader, "Where")) {
        const ir::Value* condition = reader->inputs[0];
        return condition != output && !condition->is_constant() &&
               ir::static_elements(*condition) == 1 && ir::static_elements(*output) != 1;
      }
      at = reader;
    }
    return false;
  }

  // Adds the waiting producers of `node`, a main member of group g, to the group.
  void take_waiting(const ir::Node& node, std::size_t g) {
    for (const ir::Value* input : node.inputs) {
      if (input == nullptr || waiting_.erase(input->producer) == 0) continue;
      ir::Node* producer = input->producer;
      if (!type_fits(groups_[g].compute, *producer, compute_type(*producer)) ||
          !join(producer, g, Role::kMain)) {
        place_elementwise(producer);
      } else {
        take_waiting(*producer, g);
      }
    }
  }

  static bool same_shape(const ir::Value& a, const ir::Value& b) {
    return a.type.shape == b.type.shape;
  }

  // Each operand has the shape of the output, or is one number; and one has that shape.
  static bool has_plain_operands(const ir::Node& node) {
    bool spans = false;
    for (const ir::Value* input : node.inputs) {
      if (input == nullptr) continue;
      if (same_shape(*input, *node.outputs[0])) {
        spans = true;
      } else if (!input->type.shape || !input->type.shape->empty()) {
        return false;
      }
    }
    return spans;
  }

  // Some schemas leave checking the operands' shapes to the kernel (PRelu).
  static void check_operands(const ir::Node& node, const Dims& dims) {
    if (has_plain_operands(node)) return;
    const auto refuse = [&node](const std::string& what) {
      throw ShapeError(
          {.what = what,
           .where = {.node = node.name, .op_type = node.op_type},
           .hint = "Make the operands' dimensions equal, counted from the last, or 1."});
    };
    try {
      Dims spanned;
      for (const ir::Value* input : node.inputs) {
        if (input != nullptr) spanned = broadcast_dims(spanned, input->type.fixed_dims());
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
    const DataType compute = compute_type(*node);
    if (!dims || compute == DataType::kUndefined) return;
    check_operands(*node, *dims);
    if (merge_ && !is_far_copy(*node) &&
        (join_post(node, *dims, compute) || join_main(node, *dims, compute)))
      return;
    add_group({.compute = compute, .space = *dims}, node, Role::kMain);
    take_waiting(*node, groups_.size() - 1);
  }

  bool join_main(ir::Node* node, const Dims& dims, DataType compute) {
    for (const ir::Value* input : node->inputs) {
      const Membership* home = input == nullptr ? nullptr : find(input->producer);
      if (home == nullptr || home->role != Role::kMain) continue;
      const std::size_t g = home->group;
      if (groups_[g].space != dims || !type_fits(groups_[g].compute, *node, compute) ||
          !join(node, g, Role::kMain)) {
        continue;
      }
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
      if (!type_fits(groups_[g].compute, *node, compute) || !is_flat(*node, dims) ||
          !join(node, g, Role::kPost)) {
        continue;
      }
      absorb_into_post(g, *node, dims);
      return true;
    }
    return false;
  }

  // The reduced space is flat: an operand is one number or has exactly its shape.
  static bool is_flat(const ir::Node& node, const Dims& dims) {
    return std::ranges::all_of(node.inputs, [&](const ir::Value* input) {
      if (input == nullptr) return true;
      const auto given = input->type.static_dims();
      return given && (given->num_elements() == 1 || given == dims);
    });
  }

  // Groups without reduction that feed `node`, a post member of g, become post members too.
  void absorb_into_post(std::size_t g, const ir::Node& node, const Dims& dims) {
    for (const ir::Value* input : node.inputs) {
      const Membership* home = input == nullptr ? nullptr : find(input->producer);
      if (home == nullptr || home->group == g || home->role != Role::kMain) continue;
      const ElementwiseGroup& from = groups_[home->group];
      const bool fits =
          from.space == dims && from.compute == groups_[g].compute && from.reductions.empty() &&
          std::ranges::all_of(from.main,
                              [&](const ir::Node* member) { return is_flat(*member, dims); });
      if (fits) unite(g, home->group, /*as_post=*/true);
    }
  }

  void place_reduction(ir::Node* node) {
    const std::optional<Reduction> reduction = match_reduction(*node);
    if (!reduction) return;
    const Membership* home = find(node->inputs[0]->producer);
    if (home != nullptr && home->role == Role::kMain) {
      ElementwiseGroup& group = groups_[home->group];
      const bool fits = group.compute == node->outputs[0]->dtype() &&
                        (group.reduce_axes.empty() || group.reduce_axes == reduction->axes);
      if (fits && join(node, home->group, Role::kReduce)) {
        group.reduce_axes = reduction->axes;
        return;
      }
    }
    add_group({.compute = node->outputs[0]->dtype(),
               .space = node->inputs[0]->type.fixed_dims(),
               .reduce_axes = reduction->axes},
              node, Role::kReduce);
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

  // Merges the groups that feed `node`, a main member of g, into g.
  void merge_other_producers(std::size_t g, const ir::Node& node) {
    for (const ir::Value* input : node.inputs) {
      const Membership* home = input == nullptr ? nullptr : find(input->producer);
      if (home == nullptr || home->group == g || home->role != Role::kMain) continue;
      const ElementwiseGroup& from = groups_[home->group];
      const ElementwiseGroup& to = groups_[g];
      const bool fits = from.space == to.space && from.compute == to.compute &&
                        (from.reduce_axes.empty() || to.reduce_axes.empty() ||
                         from.reduce_axes == to.reduce_axes);
      if (fits) unite(g, home->group, /*as_post=*/false);
    }
  }

  // The rule for reads inside a group: main members and reductions read main values,
  // post members read reduced and post values of the same shape.
  bool can_read(const ir::Node& node, Role role, const ir::Value& input, Role producer) const {
    if (role != Role::kPost) return producer == Role::kMain;
    return producer != Role::kMain && same_shape(input, *node.outputs[0]);
  }

  // True if `node` may read all its operands from members of group g, given their roles, or with
  // `as_post` as if all were post members.
  bool can_read_group(const ir::Node& node, Role role, std::size_t g, bool as_post = false) const {
    return std::ranges::all_of(node.inputs, [&](const ir::Value* input) {
      const Membership* home = input == nullptr ? nullptr : find(input->producer);
      if (home == nullptr || home->group != g) return true;
      return can_read(node, role, *input, as_post ? Role::kPost : home->role);
    });
  }

  // Puts `node` into group g if that is allowed.
  bool join(ir::Node* node, std::size_t g, Role role) {
    const ElementwiseGroup& group = groups_[g];
    if (group.size() >= kMaxNodes ||
        group.num_instructions + count_instructions(*node) > kMaxInstructions ||
        !can_read_group(*node, role, g) || !contraction_.merge(group.any_member(), node)) {
      return false;
    }
    add(node, g, role);
    return true;
  }

  // Merges group `other` into group g if that is allowed, with `as_post` all as post members.
  void unite(std::size_t g, std::size_t other, bool as_post) {
    ElementwiseGroup& to = groups_[g];
    ElementwiseGroup& from = groups_[other];
    if (to.size() + from.size() > kMaxNodes ||
        to.num_instructions + from.num_instructions > kMaxInstructions) {
      return;
    }
    const auto role_of = [&](Role role) { return as_post ? Role::kPost : role; };
    bool fits = true;
    from.for_each([&](const ir::Node* member, Role role) {
      fits = fits && can_read_group(*member, role_of(role), g);
    });
    to.for_each([&](const ir::Node* member, Role role) {
      fits = fits && can_read_group(*member, role, other, as_post);
    });
    if (!fits || !contraction_.merge(to.any_member(), from.any_member())) return;
    from.for_each([&](ir::Node* member, Role role) { add(member, g, role_of(role)); });
    if (to.reduce_axes.empty()) to.reduce_axes = from.reduce_axes;
    from = {};
  }

  std::size_t count_instructions(const ir::Node& node) const {
    const opdef::OpDef* def = registry_.find(node);
    if (def->expression == nullptr)
      return 3;  // a reduction: its operand, a product with a constant
    opdef::ExprProgram program;
    std::vector<std::int32_t> operands;
    for (const ir::Value* input : node.inputs) {
      operands.push_back(input == nullptr ? -1 : program.input(0));
    }
    def->expression(node, operands, program);
    return program.instructions.size();
  }

  const Membership* find(const ir::Node* node) const { return home_.find(node); }

  void add_group(ElementwiseGroup group, ir::Node* node, Role role) {
    groups_.push_back(std::move(group));
    add(node, groups_.size() - 1, role);
  }

  void add(ir::Node* node, std::size_t g, Role role) {
    groups_[g].members(role).push_back(node);
    groups_[g].num_instructions += count_instructions(*node);
    home_[node] = {g, role};
  }

  void sort_members() {
    for (ElementwiseGroup& group : groups_) {
      for (const Role role : {Role::kMain, Role::kReduce, Role::kPost}) {
        std::ranges::sort(group.members(role), {},
                          [&](const ir::Node* node) { return *order_.find(node); });
      }
    }
  }

  const ir::Graph& graph_;
  const opdef::OpRegistry& registry_;
  bool merge_;
  Contraction contraction_;
  ir::Uses uses_;
  ir::PointerMap<ir::Node, std::size_t> order_;  // positions in the graph
  std::unordered_set<const ir::Node*> waiting_;  // for their reader's group
  std::vector<ElementwiseGroup> groups_;
  ir::PointerMap<ir::Node, Membership> home_;  // has room for all nodes: addresses are stable
};

}  // namespace

DataType compute_type(const ir::Node& node) {
  bool has_float32 = false;
  bool has_float64 = false;
  bool has_uint64 = false;
  bool has_other = false;  // integers that are ordered as int64
  for (const auto* list : {&node.inputs, &node.outputs}) {
    for (const ir::Value* value : *list) {
      if (value == nullptr) continue;
      const DataType dtype = value->dtype();
      has_float32 = has_float32 || dtype == DataType::kFloat32 || is_f16(dtype);
      has_float64 = has_float64 || dtype == DataType::kFloat64;
      has_uint64 = has_uint64 || dtype == DataType::kUint64;
      has_other = has_other || (dtype != DataType::kUint64 && dtype != DataType::kBool);
      const bool is_known = is_floating(dtype) || is_integer(dtype) || dtype == DataType::kBool;
      if (!is_known || !ir::static_elements(*value)) return DataType::kUndefined;
    }
  }
  if (has_float64) return DataType::kFloat64;
  if (has_float32) return DataType::kFloat32;
  return has_uint64 && !has_other ? DataType::kUint64 : DataType::kInt64;
}

std::vector<ElementwiseGroup> ElementwiseGroup::singles() const {
  std::vector<ElementwiseGroup> groups;
  for_each([&](ir::Node* node, Role role) {
    if (role == Role::kReduce) {
      groups.push_back({.compute = node->outputs[0]->dtype(),
                        .space = space,
                        .reduce_axes = reduce_axes,
                        .reductions = {node}});
    } else {
      groups.push_back({.compute = compute_type(*node),
                        .space = node->outputs[0]->type.fixed_dims(),
                        .main = {node}});
    }
  });
  return groups;
}

std::vector<ElementwiseGroup> group_elementwise(const ir::Graph& graph,
                                                const opdef::OpRegistry& registry, bool merge) {
  return Grouper(graph, registry, merge).run();
}

namespace {

struct Row {
  std::string_view op_type;
  opdef::Fold fold;
  bool is_mean;
};

using opdef::Fold;

constexpr std::array kRows = {
    Row{"ReduceSum", Fold::kSum, false}, Row{"ReduceMean", Fold::kSum, true},
    Row{"ReduceMax", Fold::kMax, false}, Row{"ReduceMin", Fold::kMin, false}};

std::optional<std::vector<std::int64_t>> reduced_axes(const ir::Node& node, std::size_t rank) {
  const ir::Value* given = node.input(1);
  std::vector<std::int64_t> axes;
  if (given != nullptr) {
    if (!given->is_constant()) return std::nullopt;
    axes = given->initializer.to_int64s();
  }
  if (axes.empty()) {
    if (node.int_attribute("noop_with_empty_axes") != 0) return std::nullopt;
    axes.resize(rank);
    std::iota(axes.begin(), axes.end(), 0);
  }
  for (std::int64_t& axis : axes) axis = normalize_axis(axis, rank);
  std::ranges::sort(axes);
  return axes;
}

}  // namespace

std::optional<Reduction> match_reduction(const ir::Node& node) {
  const auto* const row = std::ranges::find(kRows, node.op_type, &Row::op_type);
  if (row == kRows.end() || !node.domain.empty()) return std::nullopt;
  const ir::Value* input = node.input(0);
  const bool is_float =
      input->dtype() == DataType::kFloat32 || input->dtype() == DataType::kFloat64;
  const auto dims = input->type.static_dims();
  if (!is_float || !dims || dims->num_elements() == 0 || !node.outputs[0]->type.static_dims()) {
    return std::nullopt;
  }
  auto axes = reduced_axes(node, dims->rank());
  if (!axes) return std::nullopt;
  Reduction reduction{.axes = {}, .fold = row->fold};
  for (const std::int64_t axis : *axes) {
    const std::int64_t length = (*dims)[static_cast<std::size_t>(axis)];
    if (row->is_mean) reduction.factor /= static_cast<double>(length);
    if (length > 1) reduction.axes.push_back(axis);
  }
  if (reduction.axes.empty()) return std::nullopt;
  return reduction;
}

}  // namespace onnxgrad::passes
