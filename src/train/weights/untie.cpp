#include "train/weights/untie.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "ir/pattern.h"
#include "ir/uses.h"
#include "onnx/file_edit.h"
#include "onnx/separate.h"
#include "train/weights/constant_evidence.h"
#include "train/weights/program_names.h"
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
  bool has_own_values = false;
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

/// Relations of the parameters behind two reads of one tensor, from an exported file.
enum class Relation : std::uint8_t { kUnknown, kSame, kDifferent };

// "encoder.layers.#.norm" of "encoder.layers.1.norm": the layers of a stack are copies of one.
std::string without_digits(std::string_view name) {
  std::string text;
  for (const char c : name) {
    const bool is_digit = c >= '0' && c <= '9';
    if (!is_digit) text += c;
    if (is_digit && !text.ends_with('#')) text += '#';
  }
  return text;
}

// "enc.fc" of "enc.fc_1" or "enc.fc@1", the second call of a module.
std::string without_calls(std::string_view path) {
  std::string text;
  while (true) {
    const std::size_t end = std::min(path.find('.'), path.size());
    const std::string_view part = path.substr(0, end);
    const std::size_t last = part.find_last_not_of("0123456789");
    const bool is_counted = last != std::string_view::npos && last + 1 < part.size() &&
                            (part[last] == '_' || part[last] == '@');
    text += is_counted ? part.substr(0, last) : part;
    if (end == path.size()) return text;
    text += '.';
    path.remove_prefix(end + 1);
  }
}

bool is_identity_read(const onnx_io::TensorRead& read) {
  return ir::is_op(*read.node, {"Identity"});
}

/// The names that torch's exporters leave at the reads of a tensor.
class ProgramReads {
 public:
  ProgramReads(const TensorReads& tensor, bool has_own_values, const ParameterNames& names,
               bool is_from_torch)
      : has_own_values_(has_own_values), names_(names) {
    // TorchScript writes an Identity for each parameter but the first of equal ones.
    has_identities_ = is_from_torch && std::ranges::any_of(tensor.reads, is_identity_read);
    for (const onnx_io::TensorRead& read : tensor.reads) {
      const bool is_moved = is_identity_read(read);
      const std::string& name = is_moved ? read.node->output(0)->name : tensor.value->name;
      const Node* node = is_moved ? reader_behind(*read.node) : read.node;
      reads_.push_back(
          {.name = has_identities_ && !has_constant_name(name) ? name : "", .is_moved = is_moved});
      if (node != nullptr) describe(reads_.back(), *node, static_cast<int>(read.input));
    }
  }

  /// The weight of a read, for a node before it that says nothing.
  void set_weight(std::size_t read, const Weight& weight) {
    if (weight.reader == nullptr || !reads_[read].parameters.empty()) return;
    describe(reads_[read], *weight.reader, weight.input);
  }

  Relation relation(std::size_t a, std::size_t b) const {
    const ProgramRead& one = reads_[a];
    const ProgramRead& other = reads_[b];
    if (!one.parameters.empty() && !other.parameters.empty()) {
      return by_calls(one.parameters, other.parameters);
    }
    if (!one.name.empty() && !other.name.empty()) {
      return one.name == other.name ? Relation::kSame : Relation::kDifferent;
    }
    if (!one.arguments.empty() && !other.arguments.empty()) {
      if (!one.argument.empty() && one.argument == other.argument) return Relation::kSame;
      if (one.node == other.node && !one.argument.empty()) {
        return has_own_values_ ? Relation::kUnknown : Relation::kDifferent;
      }
      if (have_common(one.arguments, other.arguments)) return Relation::kUnknown;
    } else if (!one.is_moved && !other.is_moved) {
      if (has_identities_) return Relation::kSame;
      if (has_own_values_) return Relation::kUnknown;  // computed once, read by several layers
    }
    if (one.module.empty() || other.module.empty() || one.module == other.module) {
      return Relation::kUnknown;
    }
    return by_modules(one.module, other.module);
  }

  bool has_different() const {
    for (std::size_t i = 0; i < reads_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (relation(i, j) == Relation::kDifferent) return true;
      }
    }
    return false;
  }

 private:
  struct ProgramRead {
    std::string name = {};                     ///< of an Identity that stands for a parameter
    bool is_moved = false;                     ///< by an Identity
    std::vector<std::string> parameters = {};  ///< of the call, from metadata
    std::vector<std::string> arguments = {};   ///< of the call
    std::string argument = {};                 ///< the one that is read
    const Node* node = nullptr;
    std::string module = {};
  };

  static bool have_common(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    return std::ranges::find_first_of(a, b) != a.end();
  }

  static const Node* reader_behind(const Node& identity) {
    for (const Node* node : identity.graph->nodes) {
      if (std::ranges::find(node->inputs, identity.output(0)) != node->inputs.end()) return node;
    }
    return nullptr;
  }

  static Relation by_calls(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    if (a == b) return a.size() == 1 ? Relation::kSame : Relation::kUnknown;
    return have_common(a, b) ? Relation::kUnknown : Relation::kDifferent;
  }

  // Elements that are one parameter's are those of a tied one in other modules, if these are not
  // the layers of a stack.
  Relation by_modules(std::string_view a, std::string_view b) const {
    const bool are_copies = without_digits(a) == without_digits(b);
    return !has_own_values_ || are_copies ? Relation::kDifferent : Relation::kUnknown;
  }

  void describe(ProgramRead& read, const Node& node, int input) const {
    const bool is_add = ir::is_op(node, {"Add"});
    const Site site = site_of({.reader = &node, .input = input, .layer = is_add ? &node : nullptr});
    const ProgramCall call = program_call(node);
    std::vector<std::string> all;
    read.parameters.clear();
    for (const std::string& parameter : call.parameters) {
      all.push_back(names_.in_program(parameter));
      if (fits_role(all.back(), site.role)) read.parameters.push_back(all.back());
    }
    if (read.parameters.empty()) read.parameters = std::move(all);
    read.arguments = call.arguments;
    read.node = &node;
    const bool is_in_order = call.arguments.size() == node.inputs.size();
    read.argument = is_in_order ? call.arguments[static_cast<std::size_t>(input)] : "";
    if (node.name.starts_with('/') || !call.target.empty()) {
      read.module = without_calls(module_around(node).path);
    }
  }

  bool has_own_values_;
  bool has_identities_ = false;
  const ParameterNames& names_;
  std::vector<ProgramRead> reads_;
};

std::vector<Candidate> find_candidates(const TensorIndex& index, const ir::Model& working,
                                       const opdef::OpRegistry& registry) {
  std::vector<Candidate> candidates;
  const ParameterNames names(*working.graph);
  const bool is_from_torch = working.producer_name == "pytorch";
  for (const Weight& weight : find_weights(working, registry)) {
    const TensorReads* tensor = is_state(weight) ? index.find(*weight.value) : nullptr;
    if (tensor == nullptr || tensor->reads.size() < 2) continue;
    const bool is_own = has_own_values(weight.value->initializer);
    if (is_own && !ProgramReads(*tensor, true, names, is_from_torch).has_different()) continue;
    candidates.push_back({.tensor = tensor, .has_own_values = is_own});
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
      own->metadata = value->metadata;
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
  Groups(std::size_t size, const ProgramReads& program) : program_(program), groups_(size) {
    for (std::size_t i = 0; i < size; ++i) groups_[i] = {i};
  }
  /// Joins the groups of two reads, unless the program has different parameters there.
  void join(std::size_t a, std::size_t b) {
    a = find(a);
    b = find(b);
    if (a == b || are_different(groups_[a], groups_[b])) return;
    if (a > b) std::swap(a, b);
    groups_[a].insert(groups_[a].end(), groups_[b].begin(), groups_[b].end());
    groups_[b].clear();
    std::ranges::sort(groups_[a]);
  }
  /// Each in increasing order, by its first.
  std::vector<std::vector<std::size_t>> list() const {
    std::vector<std::vector<std::size_t>> result;
    for (const auto& group : groups_) {
      if (!group.empty()) result.push_back(group);
    }
    return result;
  }

 private:
  std::size_t find(std::size_t read) const {
    const auto found = std::ranges::find_if(
        groups_, [read](const auto& group) { return std::ranges::binary_search(group, read); });
    return static_cast<std::size_t>(found - groups_.begin());
  }
  bool are_different(const std::vector<std::size_t>& a, const std::vector<std::size_t>& b) const {
    return std::ranges::any_of(a, [&](std::size_t i) {
      return std::ranges::any_of(
          b, [&](std::size_t j) { return program_.relation(i, j) == Relation::kDifferent; });
    });
  }

  const ProgramReads& program_;
  std::vector<std::vector<std::size_t>> groups_;
};

// Groups the reads of a candidate that share a tensor: those of one parameter by the names in the
// file, those of layers that are shared, and of elements that no two parameters have by accident,
// all others.
std::vector<std::vector<std::size_t>> group_reads(
    const Candidate& candidate, const std::unordered_map<std::string, const Weight*>& weights,
    const Ties& ties, const ProgramReads& program) {
  const std::size_t size = candidate.names.size();
  Groups groups(size, program);
  std::map<std::pair<std::string, const Value*>, std::pair<std::size_t, const Node*>> by_key;
  std::vector<std::size_t> states;
  std::optional<std::size_t> constant;  // the first read as a constant
  for (std::size_t i = 0; i < size; ++i) {
    const auto found = weights.find(candidate.names[i]);
    if (found != weights.end() && is_state(*found->second)) {
      states.push_back(i);
    } else if (constant) {
      groups.join(*constant, i);
    } else {
      constant = i;
    }
  }
  for (const std::size_t i : states) {
    for (const std::size_t j : states) {
      if (j >= i) break;
      if (program.relation(i, j) == Relation::kSame) groups.join(j, i);
    }
  }
  for (const std::size_t i : states) {
    for (const Ties::Key& key : ties.keys(*weights.at(candidate.names[i]))) {
      const auto [known, is_new] = by_key.try_emplace({key.place, key.shared}, i, key.layer);
      if (!is_new && known->second.second != key.layer) groups.join(known->second.first, i);
    }
  }
  if (candidate.has_own_values) {
    for (const std::size_t i : states) {
      for (const std::size_t j : states) {
        if (j < i) groups.join(j, i);
      }
      if (constant) groups.join(*constant, i);
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
  const ParameterNames parameters(*trial.graph);

  UntiedFile result;
  ir::NameAuthority names = file.model->graph->names();
  for (const Candidate& candidate : candidates) {
    ProgramReads program(*candidate.tensor, candidate.has_own_values, parameters,
                         trial.producer_name == "pytorch");
    for (std::size_t i = 0; i < candidate.names.size(); ++i) {
      const auto weight = by_name.find(candidate.names[i]);
      if (weight != by_name.end()) program.set_weight(i, *weight->second);
    }
    const auto groups = group_reads(candidate, by_name, ties, program);
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
