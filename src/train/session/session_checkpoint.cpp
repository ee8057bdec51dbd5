#include "train/session/session_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/checksum.h"
#include "onnxgrad/version.h"
#include "train/graphs/graph_description.h"
#include "train/session/shared_slots.h"

namespace onnxgrad::train {
namespace {

constexpr std::string_view kLabelForms = "session/label_forms";
constexpr const char* kHint =
    "Resume with the model, loss, optimizer and options of the first run; to load only weights "
    "into a model use set_weights.";

[[noreturn]] void refuse_state(const Checkpoint& checkpoint, const std::string& what,
                               const std::string& value = {}, const std::string& detail = {}) {
  throw CheckpointError({.what = what,
                         .where = {.file = checkpoint.path, .value = value},
                         .detail = detail,
                         .hint = kHint});
}

std::unordered_set<std::string> weight_names(const Session& session) {
  std::unordered_set<std::string> names;
  for (const WeightInfo& weight : session.graph().state_weights()) names.insert(weight.name);
  return names;
}

std::string type_text(const Tensor& tensor) {
  return fmt::format("{}{}", dtype_name(tensor.dtype()), tensor.dims().to_string());
}

Tensor text_tensor(const std::string& text) {
  const std::span<const std::uint8_t> bytes(reinterpret_cast<const std::uint8_t*>(text.data()),
                                            text.size());
  return Tensor::from(bytes, Dims{static_cast<std::int64_t>(text.size())});
}

std::string text_of(const Tensor* tensor) {
  if (tensor == nullptr || tensor->dtype() != DataType::kUint8) return {};
  const auto bytes = tensor->data<std::uint8_t>();
  return {bytes.begin(), bytes.end()};
}

std::string metadata_text(const Checkpoint& checkpoint, const std::string& key) {
  const auto found = checkpoint.metadata.find(key);
  return found == checkpoint.metadata.end() ? std::string() : found->second;
}

/// Splits off the first line.
std::string take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  std::string line(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

// The first line that differs, of texts that are known to differ.
[[noreturn]] void refuse_graph(const Checkpoint& checkpoint, std::string_view here) {
  const std::string stored = text_of(checkpoint.find(fmt::format("{}graph", kReservedPrefix)));
  std::string_view there = stored;
  constexpr std::size_t kMostShown = 160;
  while (!here.empty() || !there.empty()) {
    const std::string mine = take_line(here).substr(0, kMostShown);
    const std::string theirs = take_line(there).substr(0, kMostShown);
    if (mine == theirs) continue;
    refuse_state(checkpoint, "the checkpoint is of another model", {},
                 fmt::format(R"(First difference: it has "{}", this model "{}".)", theirs, mine));
  }
  refuse_state(checkpoint, "the checkpoint is of another model");
}

// Names, types and shapes of all state, before the graph: the most informative difference.
std::vector<Tensor> ordered_state(const Session& session, const NamedTensors& state,
                                  const std::unordered_set<std::string>& weights,
                                  const Checkpoint& checkpoint) {
  std::unordered_map<std::string, const Tensor*> stored;
  for (const NamedTensor& entry : checkpoint.tensors) stored.emplace(entry.name, &entry.tensor);
  std::vector<Tensor> ordered;
  std::unordered_set<std::string> expected;
  for (const NamedTensor& entry : state) {
    const std::string name = stored_state_name(entry.name, weights.contains(entry.name));
    const char* what = weights.contains(entry.name) ? "weight" : "optimizer state";
    expected.insert(name);
    const auto found = stored.find(name);
    if (found == stored.end()) {
      refuse_state(
          checkpoint,
          fmt::format("the checkpoint lacks the {} '{}' of this session", what, entry.name),
          entry.name);
    }
    Tensor tensor = own_part(session.graph(), entry.name, *found->second, entry.tensor);
    if (tensor.dtype() != entry.tensor.dtype() || tensor.dims() != entry.tensor.dims()) {
      refuse_state(checkpoint,
                   fmt::format("{} '{}' is {} in the checkpoint, {} in this session", what,
                               entry.name, type_text(tensor), type_text(entry.tensor)),
                   entry.name);
    }
    ordered.push_back(std::move(tensor));
  }
  std::set<std::string> unknown;
  for (const NamedTensor& entry : checkpoint.tensors) {
    const auto state_name = state_of(entry.name);
    if (!state_name || expected.contains(entry.name)) continue;
    if (is_elsewhere(session.graph(), *state_name)) continue;
    unknown.insert(*state_name);
  }
  if (!unknown.empty()) {
    const std::string& first = *unknown.begin();
    refuse_state(checkpoint,
                 fmt::format("the checkpoint has '{}', which this session does not have", first),
                 first);
  }
  return ordered;
}

void check_graphs(const Session& session, const Checkpoint& checkpoint) {
  // Another version may import the same file as a different graph.
  if (metadata_text(checkpoint, "onnxgrad") != onnxgrad::kVersion) return;
  const std::string graph = describe_model(*session.source().working, weight_names(session));
  if (metadata_text(checkpoint, "graph_hash") != base::checksum_hex(graph)) {
    refuse_graph(checkpoint, graph);
  }
  if (metadata_text(checkpoint, "optimizer_hash") == session.checksum()) {
    return;
  }
  const std::string loss = metadata_text(checkpoint, "loss");
  if (loss != session.loss().line) {
    refuse_state(checkpoint, "the checkpoint was written with another loss", {},
                 fmt::format(R"(It has "{}", this session "{}".)", loss, session.loss().line));
  }
  refuse_state(checkpoint,
               "the checkpoint was written with different options of loss or optimizer");
}

constexpr std::int64_t kSoftTargets = 1;
constexpr std::int64_t kColumnsAreScores = 2;
constexpr std::int64_t kTargetsAreValues = 4;
constexpr std::int64_t kOneHot = 8;
constexpr std::int64_t kIsCausal = 16;

// The label forms as a tensor: the class axis of each loss (-1: none) and the kinds of its targets
// and columns, one after another.
Tensor label_forms_tensor(const LabelForms& forms) {
  std::vector<std::int64_t> numbers;
  for (const LabelForm& form : forms) {
    numbers.push_back(form.class_axis.value_or(-1));
    numbers.push_back((form.soft_targets ? kSoftTargets : 0) |
                      (form.columns_are_scores ? kColumnsAreScores : 0) |
                      (form.targets_are_values ? kTargetsAreValues : 0) |
                      (form.one_hot ? kOneHot : 0) | (form.is_causal ? kIsCausal : 0));
  }
  return Tensor::from(numbers, Dims{std::ssize(numbers)});
}

// Empty: a checkpoint from before this was stored.
LabelForms stored_label_forms(const Checkpoint& checkpoint) {
  if (checkpoint.find(fmt::format("{}{}", kReservedPrefix, kLabelForms)) == nullptr) return {};
  const auto numbers = checkpoint.get_ints(kLabelForms);
  LabelForms forms;
  for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) {
    forms.push_back({.soft_targets = (numbers[i + 1] & kSoftTargets) != 0,
                     .columns_are_scores = (numbers[i + 1] & kColumnsAreScores) != 0,
                     .targets_are_values = (numbers[i + 1] & kTargetsAreValues) != 0,
                     .one_hot = (numbers[i + 1] & kOneHot) != 0,
                     .is_causal = (numbers[i + 1] & kIsCausal) != 0});
    if (numbers[i] >= 0) forms.back().class_axis = numbers[i];
  }
  return forms;
}

// Name of state `number` of OuterStep; states that differ between workers are only in their parts.
std::string outer_name(std::size_t number) {
  return fmt::format("{}outer/{}", kReservedPrefix, number);
}

void restore_outer(OuterStep& outer, const Checkpoint& checkpoint) {
  std::vector<Tensor> state = outer.state();
  outer.restart();
  for (std::size_t i = 0; i < state.size(); ++i) {
    const Tensor* stored = checkpoint.find(outer_name(i));
    const bool is_momentum = i < outer.num_weights();
    if (stored == nullptr && is_momentum) return;
    // The checkpoint is of another number of workers: these begin at the weights, with its momenta.
    state[i] = stored == nullptr ? outer.state()[i] : *stored;
  }
  outer.set_state(state);
}

void restore_settled(Session& session, const Checkpoint& checkpoint) {
  const NamedTensors state = session.runner().state().read();
  const auto ordered = ordered_state(session, state, weight_names(session), checkpoint);
  check_graphs(session, checkpoint);
  const std::int64_t steps = checkpoint.get_int("session/steps");
  const std::int64_t seed = checkpoint.get_int("session/seed");
  const double learning_rate = checkpoint.get_double("session/learning_rate");
  if (steps < 0) refuse_state(checkpoint, fmt::format("the checkpoint has done {} steps", steps));

  NamedTensors loaded;
  for (std::size_t i = 0; i < state.size(); ++i) {
    loaded.push_back({.name = state[i].name, .tensor = ordered[i]});
  }
  session.runner().state().load(loaded);
  if (OuterStep* outer = session.runner().state().outer()) restore_outer(*outer, checkpoint);
  session.runner().set_steps(steps);
  session.runner().set_seed(static_cast<std::uint64_t>(seed));
  session.runner().set_learning_rate(learning_rate);
}

}  // namespace

Checkpoint checkpoint_of(const Session& session, bool of_worker) {
  const auto weights = weight_names(session);
  const std::string graph = describe_model(*session.source().working, weights);
  Checkpoint checkpoint;
  for (const NamedTensor& entry : session.runner().state().read()) {
    add_state(checkpoint, session.graph(), entry.name,
              stored_state_name(entry.name, weights.contains(entry.name)), entry.tensor);
  }
  if (const OuterStep* outer = session.runner().state().outer()) {
    const std::vector<Tensor> state = outer->state();
    // A checkpoint is made when the workers have met.
    const std::size_t count = of_worker ? state.size() : outer->num_weights();
    for (std::size_t i = 0; i < count; ++i) checkpoint.set(outer_name(i), state[i]);
  }
  checkpoint.set(fmt::format("{}graph", kReservedPrefix), text_tensor(graph));
  checkpoint.set(fmt::format("{}{}", kReservedPrefix, kLabelForms),
                 label_forms_tensor(label_forms(session)));
  checkpoint.set_int("session/steps", session.runner().steps());
  checkpoint.set_int("session/seed", static_cast<std::int64_t>(session.runner().seed()));
  checkpoint.set_double("session/learning_rate", session.runner().learning_rate());
  checkpoint.metadata.insert({{"graph_hash", base::checksum_hex(graph)},
                              {"optimizer_hash", session.checksum()},
                              {"loss", session.loss().line},
                              {"step", std::to_string(session.runner().steps())}});
  return checkpoint;
}

void restore_session(Session& session, const Checkpoint& checkpoint) {
  const Loss asked = session.asked_loss();
  const LabelForms before = label_forms(session);
  set_label_forms(session, stored_label_forms(checkpoint));
  try {
    restore_settled(session, checkpoint);
  } catch (...) {
    if (label_forms(session) != before) session.ask_loss(asked);
    throw;
  }
}

}  // namespace onnxgrad::train
