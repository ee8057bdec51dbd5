#include "train/weights/untie.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "ir/uses.h"
#include "onnx/file_edit.h"
#include "onnx/separate.h"
#include "train/weights/constant_evidence.h"
#include "train/weights/weight_roles.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {
namespace {

using ir::Node;
using ir::Value;
using onnx_io::TensorReads;

/// A weight that may be shared by accident.
struct Candidate {
  const TensorReads* tensor = nullptr;
  std::vector<std::string> names = {};  ///< in the trial: of the tensor of each read
};

/// The file's tensors, by the location in a WeightOrigin.
class TensorIndex {
 public:
  explicit TensorIndex(const ir::Model& file) : tensors_(onnx_io::collect_tensor_reads(file)) {
    for (const auto& [value, reads] : tensors_) {
      by_place_.emplace(std::pair(reads.scope, value->name), &reads);
    }
  }

  /// Whether several nodes read one tensor. (To look at the numbers of all weights takes longer.)
  bool has_shared_tensors() const {
    return std::ranges::any_of(tensors_,
                               [](const auto& entry) { return entry.second.reads.size() > 1; });
  }

  /// nullptr: in a function, in an attribute, or made by the import.
  const TensorReads* find(const Value& weight) const {
    std::string scope;
    std::string name = weight.name;
    if (weight.origin != nullptr) {
      const ir::WeightOrigin& origin = *weight.origin;
      const bool is_tensor = origin.kind == ir::WeightOrigin::Kind::kInitializer ||
                             origin.kind == ir::WeightOrigin::Kind::kConstantNode;
      if (!is_tensor || !origin.function.empty() || !origin.index.empty()) return nullptr;
      scope = onnx_io::FileIndex::scope_of("", origin.path);
      name = origin.name;
    }
    const auto found = by_place_.find({scope, name});
    return found == by_place_.end() ? nullptr : found->second;
  }

 private:
  std::unordered_map<const Value*, TensorReads> tensors_;
  std::map<std::pair<std::string, std::string>, const TensorReads*> by_place_;
};

// Running statistics are not parameters, but change in a training.
bool is_state(const Weight& weight) { return weight.trainable || weight.is_statistic; }

Tensor numbers_of(const Value& value) {
  if (value.is_initializer()) return value.initializer;
  return std::get<Tensor>(*value.producer->find_attribute("value"));
}

std::vector<Candidate> find_candidates(const TensorIndex& index, const ir::Model& working,
                                       const opdef::OpRegistry& registry) {
  std::vector<Candidate> candidates;
  for (const Weight& weight : find_weights(working, registry)) {
    if (!is_state(weight) || has_own_values(weight.value->initializer)) continue;
    const TensorReads* tensor = index.find(*weight.value);
    if (tensor != nullptr && tensor->reads.size() > 1) candidates.push_back({.tensor = tensor});
  }
  return candidates;
}

// The file with a tensor for each read of a candidate, as a working copy.
ir::Model make_trial(const onnx_io::FileModel& file, std::vector<Candidate>& candidates,
                     const opdef::OpRegistry& registry,
                     const onnx_io::RegisteredOperators& operators) {
  std::unordered_map<const Value*, Value*> map;
  auto trial = std::make_shared<ir::Model>(ir::clone(*file.model, &map));
  auto reads = onnx_io::collect_tensor_reads(*trial);
  for (Candidate& candidate : candidates) {
    const Value* value = map.at(candidate.tensor->value);
    const Tensor numbers = numbers_of(*value);
    for (const onnx_io::TensorRead& read : reads.at(value).reads) {
      // Tensors are distinguished by where their numbers are.
      Value* own = trial->graph->add_initializer(value->name, numbers.clone());
      read.node->inputs[read.input] = own;
      candidate.names.push_back(own->name);
    }
  }
  onnx_io::FileModel trial_file = file;
  trial_file.model = std::move(trial);
  return onnx_io::to_internal(trial_file, registry, nullptr, operators);
}

/// Finds layers of a trial that are one layer, used several times.
class Ties {
 public:
  Ties(const ir::Model& trial, const std::vector<Weight>& weights, const RoleFinder& roles)
      : roles_(roles), uses_(*trial.graph) {
    for (const Weight& weight : weights) {
      const Tensor& numbers = weight.value->initializer;
      if (!is_floating(numbers.dtype()) || !has_own_values(numbers)) continue;
      for (const Reading& reading : roles.readings(weight.value)) {
        own_weights_[reading.node].push_back(weight.value);
      }
    }
  }

  /// The key of a reader: readers with an equal key and a different `layer` may share a weight.
  struct Key {
    std::string place = {};  ///< operators from the reader to the layer
    const Value* shared = nullptr;
    const Node* layer = nullptr;
  };
  std::vector<Key> keys(const Weight& weight) const {
    const Node* node = weight.layer != nullptr ? weight.layer : weight.reader;
    const std::string start = weight.reader->op_type + std::to_string(weight.input);
    std::vector<Key> result;
    add_keys(node, start, result);
    if (!result.empty()) return result;
    follow(node, start + "<", &Ties::before, result);
    follow(node, start + ">", &Ties::behind, result);
    return result;
  }

 private:
  void add_keys(const Node* node, const std::string& place, std::vector<Key>& keys) const {
    const auto own = own_weights_.find(node);
    if (own == own_weights_.end()) return;
    for (const Value* value : own->second) {
      keys.push_back({.place = place, .shared = value, .layer = node});
    }
  }

  void follow(const Node* node, std::string place, const Node* (Ties::*next)(const Node&) const,
              std::vector<Key>& keys) const {
    constexpr int kMostSteps = 16;
    const std::size_t before = keys.size();
    for (int i = 0; i < kMostSteps && keys.size() == before; ++i) {
      node = (this->*next)(*node);
      if (node == nullptr) return;
      place += node->op_type + " ";
      add_keys(node, place, keys);
    }
  }

  const Node* before(const Node& node) const {
    for (const Value* input : node.inputs) {
      if (input != nullptr && !roles_.is_constant(input)) return input->producer;
    }
    return nullptr;
  }
  const Node* behind(const Node& node) const { return uses_.first_reader(node.output(0)); }

  const RoleFinder& roles_;
  std::unordered_map<const Node*, std::vector<const Value*>> own_weights_;
  ir::Uses uses_;
};

/// Groups reads.
class Groups {
 public:
  explicit Groups(std::size_t size) : parents_(size) {
    std::iota(parents_.begin(), parents_.end(), std::size_t{0});
  }
  // The first of a group represents it.
  std::size_t find(std::size_t i) const {
    while (parents_[i] != i) i = parents_[i];
    return i;
  }
  void join(std::size_t a, std::size_t b) {
    a = find(a);
    b = find(b);
    parents_[std::max(a, b)] = std::min(a, b);
  }
  /// Each in increasing order, by its first.
  std::vector<std::vector<std::size_t>> list() const {
    std::map<std::size_t, std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < parents_.size(); ++i) groups[find(i)].push_back(i);
    std::vector<std::vector<std::size_t>> result;
    for (auto& [first, members] : groups) result.push_back(std::move(members));
    return result;
  }

 private:
  std::vector<std::size_t> parents_;
};

// Groups the reads of a candidate that share a tensor.
std::vector<std::vector<std::size_t>> group_reads(
    const Candidate& candidate, const std::unordered_map<std::string, const Weight*>& weights,
    const Ties& ties) {
  Groups groups(candidate.names.size());
  std::map<std::pair<std::string, const Value*>, std::pair<std::size_t, const Node*>> by_key;
  std::optional<std::size_t> constant;  // the first read as a constant
  for (std::size_t i = 0; i < candidate.names.size(); ++i) {
    const auto found = weights.find(candidate.names[i]);
    if (found == weights.end() || !is_state(*found->second)) {
      if (constant) groups.join(*constant, i);
      if (!constant) constant = i;
      continue;
    }
    for (const Ties::Key& key : ties.keys(*found->second)) {
      const auto [known, is_new] = by_key.try_emplace({key.place, key.shared}, i, key.layer);
      if (!is_new && known->second.second != key.layer) groups.join(known->second.first, i);
    }
  }
  std::vector<std::vector<std::size_t>> list = groups.list();
  if (candidate.tensor->is_output && constant) {
    // A returned value keeps its name and is the constant itself.
    const auto first = std::ranges::find_if(list, [&](const auto& group) {
      return std::ranges::find(group, *constant) != group.end();
    });
    std::rotate(list.begin(), first, first + 1);
  } else if (candidate.tensor->is_output) {
    list.insert(list.begin(), std::vector<std::size_t>{});
  }
  return list;
}

}  // namespace

bool may_untie(const onnx_io::FileModel& file, const ir::Model& working,
               const opdef::OpRegistry& registry) {
  const TensorIndex index(*file.model);
  return index.has_shared_tensors() && !find_candidates(index, working, registry).empty();
}

std::optional<UntiedFile> untie(const onnx_io::FileModel& file, const ir::Model& working,
                                const opdef::OpRegistry& registry,
                                const onnx_io::RegisteredOperators& operators) {
  const TensorIndex index(*file.model);
  std::vector<Candidate> candidates = find_candidates(index, working, registry);
  if (candidates.empty()) return std::nullopt;
  const auto bytes = file.bytes->whole();
  onnx_io::TensorSeparator separator(*bytes);
  std::erase_if(candidates, [&](const Candidate& candidate) {
    return !separator.can_separate(*candidate.tensor);
  });
  const ir::Model trial = make_trial(file, candidates, registry, operators);
  const std::vector<Weight> weights = find_weights(trial, registry);
  std::unordered_map<std::string, const Weight*> by_name;
  for (const Weight& weight : weights) by_name.emplace(weight.value->name, &weight);
  const RoleFinder roles(trial, registry);
  const Ties ties(trial, weights, roles);

  UntiedFile result;
  ir::NameAuthority names = file.model->graph->names();
  for (const Candidate& candidate : candidates) {
    const auto groups = group_reads(candidate, by_name, ties);
    if (groups.size() < 2) continue;
    const std::string& name = candidate.tensor->value->name;
    onnx_io::Separation separation{.tensor = candidate.tensor};
    SeparatedWeight separated{.name = name, .parts = {name}};
    for (auto group = groups.begin() + 1; group != groups.end(); ++group) {
      separated.parts.push_back(names.unique(name));
      separation.parts.emplace_back(separated.parts.back(), *group);
    }
    separator.separate(separation);
    result.weights.push_back(std::move(separated));
  }
  if (result.weights.empty()) return std::nullopt;
  result.bytes = separator.apply();
  return result;
}

}  // namespace onnxgrad::train
