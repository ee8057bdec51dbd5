#include "train/tools/collectives.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "ir/uses.h"
#include "opdef/collectives.h"
#include "opdef/random_stream.h"
#include "opdef/registry.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Node;
using ir::Value;
using opdef::Collective;

std::vector<Value*> call_collective(GraphBuilder& g, const Collective& collective,
                                    std::vector<Value*> values, std::size_t count, Value* when) {
  if (when != nullptr) values.insert(values.begin(), when);
  Collective called = collective;
  called.is_conditional = when != nullptr;
  return g.call(called.op_type(), std::move(values), count, called.attributes());
}

std::int64_t gradient_bytes(const Value* value) {
  const auto dims = value->type.static_dims();
  return dims ? dims->size_bytes(value->dtype()) : 0;
}

/// Gradients by number that are sent together, with the position of the node that computes the
/// last of them.
struct Bucket {
  std::vector<std::size_t> members;
  std::int64_t bytes = 0;
};

// In the order in which they are computed; one type each, and all divisible or none.
std::vector<Bucket> make_buckets(std::span<Value* const> gradients,
                                 const std::vector<std::size_t>& order,
                                 const std::vector<bool>& is_divisible,
                                 const WorkerGraphOptions& options) {
  std::vector<Bucket> full;
  std::map<std::pair<DataType, bool>, Bucket> open;
  for (const std::size_t i : order) {
    const std::int64_t bytes = gradient_bytes(gradients[i]);
    Bucket& bucket = open[{gradients[i]->dtype(), is_divisible[i]}];
    const std::int64_t most = full.empty() ? options.first_bucket_bytes : options.bucket_bytes;
    if (!bucket.members.empty() && bucket.bytes + bytes > most) {
      full.push_back(std::exchange(bucket, {}));
    }
    bucket.members.push_back(i);
    bucket.bytes += bytes;
  }
  for (auto& [kind, bucket] : open) {
    // The last bucket should be small: no computation is left to hide it.
    Bucket last;
    while (bucket.bytes > options.first_bucket_bytes && bucket.members.size() > 1) {
      const std::int64_t bytes = gradient_bytes(gradients[bucket.members.back()]);
      if (last.bytes + bytes > options.first_bucket_bytes) break;
      last.members.insert(last.members.begin(), bucket.members.back());
      last.bytes += bytes;
      bucket.bytes -= bytes;
      bucket.members.pop_back();
    }
    full.push_back(std::move(bucket));
    if (!last.members.empty()) full.push_back(std::move(last));
  }
  return full;
}

// Moves nodes from position `first` on to after `place`.
void move_nodes(ir::Graph& graph, std::size_t first, std::size_t place) {
  const auto begin = graph.nodes.begin();
  std::rotate(begin + static_cast<std::ptrdiff_t>(place) + 1,
              begin + static_cast<std::ptrdiff_t>(first), graph.nodes.end());
}

bool is_training_normalization(const Node& node) {
  return node.domain.empty() && node.op_type == "BatchNormalization" &&
         node.int_attribute("training_mode", 0) != 0;
}

// [C] as [C, 1, ...].
Value* per_channel(GraphBuilder& g, Value* vector, std::size_t rank) {
  std::vector<std::int64_t> axes(rank - 2);
  std::iota(axes.begin(), axes.end(), 1);
  return axes.empty() ? vector : g.unsqueeze(vector, axes);
}

// Mean and variance over all workers:
//   n = sum of the workers' counts, mean = sum of x / n, variance = sum of (x - mean)^2 / n,
//   y = scale * (x - mean) / sqrt(variance + epsilon) + bias,
//   running = old * momentum + batch * (1 - momentum).
void sync_normalization(GraphBuilder& g, const Node& node, Value* weight,
                        std::unordered_map<const Value*, Value*>& replaced) {
  Value* x = node.inputs[0];
  const std::size_t rank = x->type.rank();
  std::vector<std::int64_t> axes(rank);
  std::iota(axes.begin(), axes.end(), 0);
  axes.erase(axes.begin() + 1);
  const auto epsilon = static_cast<double>(node.float_attribute("epsilon", 1e-5F));
  const auto momentum = static_cast<double>(node.float_attribute("momentum", 0.9F));
  // 16-bit floats are summed in float32.
  Value* wide = is_f16(x->dtype()) ? g.cast(x, DataType::kFloat32) : x;
  Value* share = g.cast_like(weight, wide);
  Value* channels = g.gather(g.shape_of(x), g.int_scalar(1), 0);
  Value* count = g.mul(g.cast_like(g.div(g.size_of(x), channels), wide), share);
  const auto sums = add_up(g, {g.mul(g.reduce_sum(wide, axes, false), share),
                               g.reshape(count, std::vector<std::int64_t>{1})});
  Value* mean = g.div(sums[0], sums[1]);
  Value* centred = g.sub(wide, per_channel(g, mean, rank));
  Value* squares = g.mul(g.reduce_sum(g.mul(centred, centred), axes, false), share);
  Value* variance = g.div(add_up(g, squares), sums[1]);
  Value* deviation = g.sqrt(g.add(variance, g.scalar_like(variance, epsilon)));
  Value* slope = g.div(g.cast_like(node.inputs[1], wide), deviation);
  Value* y = g.add(g.mul(centred, per_channel(g, slope, rank)),
                   per_channel(g, g.cast_like(node.inputs[2], wide), rank));
  replaced[node.outputs[0]] = wide == x ? y : g.cast_like(y, x);
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    if (node.output(i) == nullptr) continue;
    Value* old = node.inputs[i + 2];
    Value* batch = g.cast_like(i == 1 ? mean : variance, old);
    replaced[node.outputs[i]] = g.add(g.scale(old, momentum), g.scale(batch, 1 - momentum));
  }
}

}  // namespace

WorkerInputs add_worker_inputs(ir::Graph& graph) {
  const ir::Type number = ir::Type::tensor(DataType::kFloat64, Dims{});
  return {.weight = graph.add_input("worker_weight", number),
          .signal = graph.add_input("worker_signal", number)};
}

std::vector<Value*> add_up(GraphBuilder& g, std::vector<Value*> values) {
  const std::size_t count = values.size();
  return call_collective(g, {}, std::move(values), count, nullptr);
}

Value* add_up(GraphBuilder& g, Value* value) { return add_up(g, std::vector{value}).front(); }

Value* add_up_for_owners(GraphBuilder& g, Value* value) {
  return call_collective(g, {.is_for_others = true}, {value}, 1, nullptr).front();
}

namespace {

/// A bucket, and where its collective is to be.
struct PlacedBucket {
  Bucket bucket;
  std::size_t place = 0;  ///< after this node
};

// From the last place on: a collective moved to one leaves the places before it what they are.
std::vector<PlacedBucket> place_buckets(const ir::Graph& graph, std::span<Value* const> gradients,
                                        const std::vector<bool>& is_divisible,
                                        const WorkerGraphOptions& options, const Value* when) {
  std::unordered_map<const Node*, std::size_t> positions;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) positions.emplace(graph.nodes[i], i);
  const auto position = [&](const Value* value) -> std::size_t {
    return value->producer == nullptr ? 0 : positions.at(value->producer);
  };
  std::vector<std::size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
    return position(gradients[a]) < position(gradients[b]);
  });
  std::vector<PlacedBucket> placed;
  for (Bucket& bucket : make_buckets(gradients, order, is_divisible, options)) {
    std::size_t last = when == nullptr ? 0 : position(when);
    for (const std::size_t i : bucket.members) last = std::max(last, position(gradients[i]));
    placed.push_back({.bucket = std::move(bucket), .place = last});
  }
  std::ranges::stable_sort(placed, std::greater<>(), &PlacedBucket::place);
  return placed;
}

std::vector<Value*> select(std::span<Value* const> values, const Bucket& bucket) {
  std::vector<Value*> selected;
  for (const std::size_t i : bucket.members) selected.push_back(values[i]);
  return selected;
}

std::int64_t num_elements(const Value* value) { return value->type.fixed_dims().num_elements(); }

// The end of `elements` of a bucket, at a place that kernels can begin at: the nearest multiple of
// 16 in its weight, or the weight's end.
std::int64_t rounded_bound(std::int64_t elements, std::span<const std::int64_t> sizes) {
  constexpr std::int64_t kUnit = 16;
  std::int64_t begin = 0;
  for (const std::int64_t size : sizes) {
    if (elements >= begin + size) {
      begin += size;
      continue;
    }
    const std::int64_t below = (elements - begin) / kUnit * kUnit;
    const std::int64_t above = std::min(below + kUnit, size);
    const bool is_nearer_below = elements - begin - below <= above - (elements - begin);
    return begin + (is_nearer_below ? below : above);
  }
  return begin;
}

// Each worker owns as many elements of a bucket, or, of weights that cannot be divided, as many of
// all: those of a bucket are sorted by owner.
class Divider {
 public:
  Divider(std::span<Value* const> weights, const std::vector<bool>& is_divisible, int workers)
      : weights_(weights), is_divisible_(is_divisible), workers_(workers) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      if (!is_divisible[i]) order.push_back(i);
    }
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](std::size_t i) { return num_elements(weights[i]); });
    std::vector<std::int64_t> loads(static_cast<std::size_t>(workers), 0);
    owners_.resize(weights.size());
    for (const std::size_t i : order) {
      const auto least = std::ranges::min_element(loads);
      *least += num_elements(weights[i]);
      owners_[i] = least - loads.begin();
    }
  }

  SharedBucket divide(Bucket bucket) const {
    SharedBucket shared{.members = std::move(bucket.members), .bounds = {0}};
    const bool is_divisible = is_divisible_[shared.members.front()];
    if (!is_divisible) {
      std::ranges::stable_sort(shared.members, std::less<>(),
                               [&](std::size_t i) { return owners_[i]; });
    }
    std::vector<std::int64_t> sizes;
    for (const std::size_t i : shared.members) sizes.push_back(num_elements(weights_[i]));
    const std::int64_t total = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    for (std::int64_t worker = 1; worker <= workers_; ++worker) {
      if (is_divisible) {
        const std::int64_t even = total / workers_ * worker + total % workers_ * worker / workers_;
        shared.bounds.push_back(worker == workers_ ? total : rounded_bound(even, sizes));
        continue;
      }
      std::int64_t end = 0;
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        if (owners_[shared.members[k]] < worker) end += sizes[k];
      }
      shared.bounds.push_back(end);
    }
    return shared;
  }

 private:
  std::span<Value* const> weights_;
  const std::vector<bool>& is_divisible_;
  std::int64_t workers_;
  std::vector<std::int64_t> owners_;  // owners of weights that are not divisible
};

// The collective of a bucket of `weights`, without its kind.
Collective collective_of(const SharedBucket& bucket, std::span<Value* const> weights,
                         const WorkerGraphOptions& options) {
  Collective collective{
      .is_for_others = true, .rank = options.rank, .sizes = {}, .bounds = bucket.bounds};
  for (const std::size_t i : bucket.members) collective.sizes.push_back(num_elements(weights[i]));
  return collective;
}

ir::Type part_type(const Value* whole, const Collective::Range& range) {
  const bool is_whole = range.count() == num_elements(whole);
  return is_whole ? whole->type : ir::Type::tensor(whole->dtype(), Dims{range.count()});
}

}  // namespace

std::vector<Value*> add_up_gradients(GraphBuilder& g, std::span<Value* const> gradients,
                                     const WorkerGraphOptions& options, Value* when) {
  const std::vector<bool> is_divisible(gradients.size(), true);
  std::vector<Value*> sums(gradients.size(), nullptr);
  for (const auto& [bucket, place] :
       place_buckets(g.graph(), gradients, is_divisible, options, when)) {
    const std::size_t first_new = g.graph().nodes.size();
    const auto got = call_collective(g, {.as_bfloat16 = options.as_bfloat16},
                                     select(gradients, bucket), bucket.members.size(), when);
    move_nodes(g.graph(), first_new, place);
    for (std::size_t k = 0; k < got.size(); ++k) sums[bucket.members[k]] = got[k];
  }
  return sums;
}

std::vector<Value*> send_gradients_to_owners(GraphBuilder& g, std::span<Value* const> gradients,
                                             std::span<Value* const> weights,
                                             const std::vector<bool>& is_divisible,
                                             const WorkerGraphOptions& options,
                                             SharedWeights& shared, Value* when) {
  const Divider divider(weights, is_divisible, options.size);
  std::vector<Value*> parts(gradients.size(), nullptr);
  shared.bounds.assign(gradients.size(), {});
  for (auto& [bucket, place] : place_buckets(g.graph(), gradients, is_divisible, options, when)) {
    const SharedBucket one = divider.divide(std::move(bucket));
    Collective collective = collective_of(one, weights, options);
    collective.kind = Collective::Kind::kReduceScatter;
    collective.as_bfloat16 = options.as_bfloat16;
    const std::size_t first_new = g.graph().nodes.size();
    const auto got = call_collective(g, collective, select(gradients, {.members = one.members}),
                                     one.members.size(), when);
    move_nodes(g.graph(), first_new, place);
    const auto ranges = collective.own_ranges();
    std::int64_t begin = 0;
    for (std::size_t k = 0; k < got.size(); ++k) {
      const std::size_t i = one.members[k];
      got[k]->type = part_type(weights[i], ranges[k]);
      if (ranges[k].count() > 0) parts[i] = got[k];
      for (const std::int64_t bound : one.bounds) {
        shared.bounds[i].push_back(std::clamp<std::int64_t>(bound - begin, 0, collective.sizes[k]));
      }
      begin += collective.sizes[k];
    }
    shared.buckets.push_back(one);
  }
  return parts;
}

std::vector<Value*> gather_from_owners(GraphBuilder& g, std::span<Value* const> weights,
                                       std::span<Value* const> parts, const SharedWeights& shared,
                                       const WorkerGraphOptions& options, Value* when) {
  std::vector<Value*> results(weights.size(), nullptr);
  for (const SharedBucket& bucket : shared.buckets) {
    Collective collective = collective_of(bucket, weights, options);
    collective.kind = Collective::Kind::kAllGather;
    auto values = select(weights, {.members = bucket.members});
    for (const std::size_t i : bucket.members) {
      if (parts[i] != nullptr) values.push_back(parts[i]);
    }
    const auto got = call_collective(g, collective, std::move(values), bucket.members.size(), when);
    for (std::size_t k = 0; k < got.size(); ++k) {
      got[k]->type = weights[bucket.members[k]]->type;
      results[bucket.members[k]] = got[k];
    }
  }
  return results;
}

void sync_normalizations(GraphBuilder& g, const WorkerInputs& inputs,
                         std::vector<ir::StateBinding>& statistics) {
  ir::Graph& graph = g.graph();
  std::unordered_map<const Value*, Value*> replaced;
  std::vector<Node*> nodes;
  g.set_scope("sync");
  for (Node* node : std::exchange(graph.nodes, {})) {
    // Nodes before this one have replaced results, which it may read.
    for (Value*& input : node->inputs) {
      if (const auto other = replaced.find(input); other != replaced.end()) input = other->second;
    }
    if (is_training_normalization(*node) && node->inputs[0]->type.has_rank()) {
      sync_normalization(g, *node, inputs.weight, replaced);
      std::ranges::move(std::exchange(graph.nodes, {}), std::back_inserter(nodes));
    } else {
      nodes.push_back(node);
    }
  }
  g.set_scope("");
  graph.nodes = std::move(nodes);
  ir::replace_uses(graph, replaced);
  for (ir::StateBinding& binding : statistics) {
    if (const auto other = replaced.find(binding.output); other != replaced.end()) {
      binding.output = other->second;
    }
  }
}

void keep_statistics_without_rows(GraphBuilder& g, const WorkerInputs& inputs,
                                  std::vector<ir::StateBinding>& statistics) {
  if (statistics.empty()) return;
  Value* has_rows = g.greater(inputs.weight, g.scalar_like(inputs.weight, 0));
  for (ir::StateBinding& binding : statistics) {
    binding.output = g.where(has_rows, binding.output, binding.input);
  }
}

void mark_rows_of_draws(ir::Graph& graph, const opdef::OpRegistry& registry) {
  std::string symbol;
  for (const Value* input : graph.inputs) {
    if (!input->is_initializer() && input->type.has_rank() && input->type.rank() > 0 &&
        symbol.empty()) {
      symbol = input->type.shape->front().symbol();
    }
  }
  for (Node* node : graph.nodes) {
    const opdef::OpDef* def = registry.find(*node);
    if (def == nullptr || !def->is_random || node->domain == ir::kFunctionDomain) continue;
    const auto output =
        std::ranges::find_if(node->outputs, [](const Value* v) { return v != nullptr; });
    if (output == node->outputs.end() || !(*output)->type.has_rank()) continue;
    const ir::SymbolicShape& shape = *(*output)->type.shape;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      // A first axis of unknown size is one that rows were merged into.
      const bool has_rows =
          axis == 0 ? !shape[axis].is_static() : !symbol.empty() && shape[axis].symbol() == symbol;
      if (!has_rows) continue;
      opdef::set_row_axis(*node, static_cast<std::int64_t>(axis));
      break;
    }
  }
}

void number_collectives(ir::Graph& graph, Collective::Route route) {
  std::int64_t next = 0;
  for (Node* node : graph.nodes) {
    const bool is_collective =
        node->domain == ir::kFunctionDomain &&
        std::ranges::find(opdef::kCollectives, opdef::base_name(node->domain, node->op_type)) !=
            std::end(opdef::kCollectives);
    if (!is_collective) continue;
    node->set_attribute("number", next++);
    node->set_attribute("route", static_cast<std::int64_t>(route));
  }
}

}  // namespace onnxgrad::train
