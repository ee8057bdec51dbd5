#include "train/session/label_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "train/data/targets.h"
#include "train/losses/class_axis.h"
#include "train/losses/losses.h"
#include "train/session/session.h"
#include "train/tools/feeds.h"

namespace onnxgrad::train {
namespace {

using runtime::Port;

LossFunction with_soft_targets(LossFunction function) {
  if (auto* spec = std::get_if<BinaryCrossEntropy>(&function)) spec->soft_targets = true;
  if (auto* spec = std::get_if<LogLoss>(&function)) spec->soft_targets = true;
  return function;
}

// The loss and its others, besides what was made of them.
template <class AnyLoss, class Function>
void for_each_loss(AnyLoss& loss, const LossInfo& info, Function visit) {
  visit(loss, info, std::size_t{0});
  for (std::size_t i = 0; i < loss.others.size(); ++i) {
    visit(loss.others[i], info.others[i], i + 1);
  }
}

void settle(Loss& loss, const LossInfo& info, const LabelForm& form) {
  if (info.is_class_axis_open && form.class_axis) loss.class_axis = form.class_axis;
  if (form.soft_targets && can_take_fractions(info)) {
    loss.function = with_soft_targets(info.function);
  }
  if (const auto* user = std::get_if<UserLoss>(&info.function); user && form.targets_are_values) {
    UserLoss function = *user;
    function.targets_are_classes = false;
    loss.function = std::move(function);
  }
}

// Whether labels of a user's loss are none of the classes that the scores have columns for.
bool are_values(const LossInfo& loss, const Tensor& labels) {
  const bool may_be = loss.may_be_values && loss.is_classifier && loss.num_classes > 0;
  if (!may_be || labels.dtype() == DataType::kString) return false;
  return std::ranges::any_of(labels.to_doubles(), [&](double label) {
    return label < 0 || label >= static_cast<double>(loss.num_classes);
  });
}

// The size of dimension `places` in the inputs besides `port`: the port and the size.
struct GivenSize {
  std::size_t port = 0;
  std::int64_t size = 0;
};
std::optional<GivenSize> find_size(std::span<const Port> ports, const std::vector<Dims>& dims,
                                   std::size_t port, const ir::Dim& places) {
  if (!places.is_symbolic()) return std::nullopt;
  for (std::size_t other = 0; other < ports.size(); ++other) {
    const auto& shape = ports[other].type.shape;
    if (other == port || !shape || shape->size() != dims[other].rank()) continue;
    for (std::size_t axis = 0; axis < shape->size(); ++axis) {
      if ((*shape)[axis].surely_equals(places)) return GivenSize{other, dims[other][axis]};
    }
  }
  return std::nullopt;
}

// Before the first step, while no targets have been seen.
bool may_be_scores(const Session& session, const Loss& asked, const LossInfo& loss) {
  return session.runner().steps() == 0 && !session.is_fitting() &&
         std::holds_alternative<AutoLoss>(asked.function) && has_plain_columns(loss);
}

// Automatic losses that treated plain columns as quantities.
void take_columns_as_scores(Session& session, const LabelForms& forms) {
  Loss scores = session.asked_loss();
  bool is_any = false;
  for_each_loss(scores, session.loss(), [&](Loss& loss, const LossInfo& info, std::size_t i) {
    const bool is_automatic = std::holds_alternative<AutoLoss>(loss.function);
    if (!forms[i].columns_are_scores || !is_automatic || !has_plain_columns(info)) return;
    is_any = true;
    if (forms[i].is_causal) {
      loss.function = CausalLm{};
    } else {
      loss.function = SoftmaxCrossEntropy{};
    }
    loss.one_hot_targets = forms[i].one_hot;
    if (forms[i].one_hot) loss.class_axis = forms[i].class_axis;
    for (Loss& match : scores.matches) {
      if (!match.of_classes || match.output != info.scores) continue;
      match.function = *match.of_classes;
      const ir::Value* value = session.source().working->graph->find(match.output);
      if (value != nullptr && value->type.has_rank() && value->type.rank() > 2)
        match.class_axis = -1;
    }
  });
  if (is_any) session.ask_loss(std::move(scores));
}

// nullopt: the labels alone do not decide, and no rows are available.
std::optional<std::int64_t> find_class_axis(const Session& session, const LossInfo& loss,
                                            const Dims& labels, const FirstRows& rows) {
  const ir::Model& working = *session.source().working;
  ir::Value* const scores = working.graph->find(loss.scores);
  ONNXGRAD_ASSERT(scores != nullptr);
  ir::Type type = scores->type;
  auto fitting = axes_left_out(*type.shape, labels);
  if (!rows.inputs && fitting.size() != 1) return std::nullopt;
  if (fitting.size() > 1 && !type.static_dims()) {
    runtime::Executor executor =
        session.backend().executor(build_prediction(working, {scores}, {}));
    const Tensor computed = executor.run(rows.inputs(executor.inputs())).front();
    type = ir::Type::tensor(computed.dtype(), computed.dims());
    fitting = axes_left_out(*type.shape, labels);
  }
  if (fitting.size() == 1) return fitting.front();
  // Among several, the one that the model fixes: the number of classes does not vary with rows.
  const auto fixed = only_fixed_axis(*scores->type.shape);
  if (fixed && std::ranges::find(fitting, *fixed) != fitting.end()) return fixed;
  refuse_labels(loss, type.to_string(), labels, fitting);
}

// Labels that are the tokens [N, T] of an input, or -100: the number of that input.
std::optional<std::size_t> find_tokens(const std::vector<Tensor>& inputs, const Tensor& labels) {
  const auto numbers = labels.to_int64s();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& input = inputs[i];
    const bool fits = is_integer(input.dtype()) && input.dims().rank() == 2 &&
                      input.dims()[1] == labels.dims()[1];
    if (!fits) continue;
    const auto tokens = input.to_int64s();  // of the first rows
    const auto is_label = [](std::int64_t token, std::int64_t label) {
      return token == label || label == CausalLm{}.ignore_index;
    };
    const bool are_labels = tokens.size() <= numbers.size() &&
                            std::equal(tokens.begin(), tokens.end(), numbers.begin(), is_label);
    if (are_labels) return i;
  }
  return std::nullopt;
}

// Whether labels are the tokens that the model reads, and no score of scores [N, T, V] depends on a
// later token than its own: the scores of another last token are the same before it.
bool reads_labels_causally(const Session& session, const LossInfo& loss, const Tensor& labels,
                           const FirstRows& rows) {
  const bool are_places = labels.dims().rank() == 2 && labels.dims()[1] >= 2 &&
                          labels.dtype() != DataType::kString && loss.target.shape &&
                          loss.target.shape->size() == 3;
  if (!are_places || !rows.inputs) return false;
  const ir::Model& working = *session.source().working;
  ir::Value* const scores = working.graph->find(loss.scores);
  ONNXGRAD_ASSERT(scores != nullptr);
  runtime::Executor executor = session.backend().executor(build_prediction(working, {scores}, {}));
  std::vector<Tensor> inputs = rows.inputs(executor.inputs());
  const auto port = find_tokens(inputs, labels);
  if (!port) return false;
  const auto before = executor.run(inputs).front().to_doubles();
  const Dims dims = inputs[*port].dims();
  auto tokens = inputs[*port].to_int64s();
  const auto width = static_cast<std::size_t>(dims[1]);
  for (std::size_t i = width - 1; i < tokens.size(); i += width) {
    tokens[i] = tokens[i] == 0 ? 1 : 0;
  }
  inputs[*port] = Tensor::from(tokens, dims).cast(inputs[*port].dtype());
  const auto after = executor.run(inputs).front().to_doubles();
  const std::size_t row = before.size() / static_cast<std::size_t>(dims[0]);
  const std::size_t compared = row / width * (width - 1);
  for (std::size_t first = 0; first < before.size(); first += row) {
    for (std::size_t i = first; i < first + compared; ++i) {
      if (std::abs(before[i] - after[i]) > 1e-4 * (1 + std::abs(before[i]))) return false;
    }
  }
  return true;
}

}  // namespace

bool awaits_labels(const Session& session) {
  bool is_open = false;
  for_each_loss(session.asked_loss(), session.loss(),
                [&](const Loss& asked, const LossInfo& loss, std::size_t /*i*/) {
                  is_open |= loss.is_class_axis_open || may_be_scores(session, asked, loss);
                });
  return is_open;
}

LabelForms label_forms(const Session& session) {
  LabelForms forms;
  const auto add = [&](const LossInfo& info) {
    const auto* user = std::get_if<UserLoss>(&info.function);
    forms.push_back(
        {.class_axis = info.is_class_axis_open ? std::nullopt : info.class_axis,
         .soft_targets = has_soft_targets(info.function),
         .columns_are_scores = std::holds_alternative<SoftmaxCrossEntropy>(info.function) ||
                               std::holds_alternative<CausalLm>(info.function),
         .targets_are_values = user != nullptr && !user->targets_are_classes,
         .one_hot = info.one_hot_targets,
         .is_causal = std::holds_alternative<CausalLm>(info.function)});
  };
  add(session.loss());
  for (const LossInfo& other : session.loss().others) add(other);
  return forms;
}

void set_label_forms(Session& session, const LabelForms& forms) {
  if (session.is_fitting() || forms.size() != 1 + session.asked_loss().others.size()) return;
  take_columns_as_scores(session, forms);
  if (forms == label_forms(session)) return;
  Loss settled = session.asked_loss();
  for_each_loss(settled, session.loss(), [&](Loss& loss, const LossInfo& info, std::size_t i) {
    settle(loss, info, forms[i]);
  });
  session.ask_loss(std::move(settled));
}

void settle_by_labels(Session& session, const FirstRows& rows) {
  if (session.is_fitting()) return;
  const Loss& whole = session.asked_loss();
  LabelForms scores = label_forms(session);
  for_each_loss(whole, session.loss(), [&](const Loss& asked, const LossInfo& info, std::size_t i) {
    const Tensor* const labels = rows.labels(info);
    if (labels == nullptr || !labels->is_defined()) return;
    if (!may_be_scores(session, asked, info)) return;
    scores[i].columns_are_scores = target_asks_for_classes(info, *labels);
    scores[i].is_causal =
        scores[i].columns_are_scores && reads_labels_causally(session, info, *labels, rows);
    const auto axis = one_hot_axis(info, *labels);
    if (!axis) return;
    scores[i] = {.class_axis = axis, .columns_are_scores = true, .one_hot = true};
  });
  take_columns_as_scores(session, scores);
  LabelForms forms = label_forms(session);
  for_each_loss(whole, session.loss(), [&](const Loss&, const LossInfo& info, std::size_t i) {
    const Tensor* const labels = rows.labels(info);
    if (labels == nullptr || !labels->is_defined() || labels->num_elements() == 0) return;
    if (info.is_class_axis_open) {
      forms[i].class_axis = find_class_axis(session, info, labels->dims(), rows);
    }
    if (can_take_fractions(info) && has_fractions(*labels)) forms[i].soft_targets = true;
    if (are_values(info, *labels)) forms[i].targets_are_values = true;
  });
  set_label_forms(session, forms);
}

void settle_by_labels(Session& session, const Dataset& data) {
  const auto labels = [&](const LossInfo& one) -> const Tensor* {
    for (const NamedTensor& target : data.targets) {
      if (target.name == one.output || target.name == one.scores) return &target.tensor;
    }
    return data.targets.empty() && &one == &session.loss() ? &data.target : nullptr;
  };
  FirstRows rows{.labels = labels};
  if (!data.inputs.empty()) {
    rows.inputs = [&](std::span<const Port> ports) {
      return first_row_inputs(session.schema(), ports, data);
    };
  }
  settle_by_labels(session, rows);
}

bool needs_fitting(const Session& session, const NamedTensors& feeds) {
  if (awaits_labels(session)) return true;
  return std::ranges::any_of(feeds, [&](const NamedTensor& feed) {
    const LossInfo* loss = find_target(session.loss(), feed.name);
    return loss != nullptr && train::needs_fitting(*loss, feed.tensor);
  });
}

NamedTensors fit_feeds(Session& session, const NamedTensors& feeds) {
  const auto labels = [&](const LossInfo& loss) -> const Tensor* {
    const auto feed = std::ranges::find(feeds, loss.target.name, &NamedTensor::name);
    return feed == feeds.end() ? nullptr : &feed->tensor;
  };
  std::vector<std::string> names;
  for (const NamedTensor& feed : feeds) names.push_back(feed.name);
  const auto inputs = [&](std::span<const Port> ports) {
    std::vector<Tensor> tensors;
    for (const Tensor* tensor : order_feeds(feeds, ports, names)) tensors.push_back(*tensor);
    return tensors;
  };
  settle_by_labels(session, FirstRows{.labels = labels, .inputs = inputs});
  NamedTensors fitted = feeds;
  for (NamedTensor& feed : fitted) {
    const LossInfo* loss = find_target(session.loss(), feed.name);
    if (loss != nullptr) feed.tensor = fit_labels(*loss, feed.tensor);
  }
  return fitted;
}

void check_places(const LossInfo& whole, std::span<const Port> ports,
                  const std::vector<Dims>& dims) {
  for (std::size_t i = 0; i < ports.size(); ++i) {
    const LossInfo* loss = find_target(whole, ports[i].name);
    if (loss == nullptr || !loss->class_axis || !ports[i].type.shape) continue;
    const ir::SymbolicShape& places = *ports[i].type.shape;
    for (std::size_t axis = 1; axis < places.size() && axis < dims[i].rank(); ++axis) {
      const auto given = find_size(ports, dims, i, places[axis]);
      if (!given || given->size == dims[i][axis]) continue;
      throw ShapeError(
          {.what = fmt::format("labels {} have {} positions along axis {}, but '{}' {} has {}",
                               dims[i].to_string(), dims[i][axis], axis, ports[given->port].name,
                               dims[given->port].to_string(), given->size),
           .where = {.value = ports[i].name},
           .hint = "Give one label for each position; axis= of the loss sets the class axis of the "
                   "scores."});
    }
  }
}

}  // namespace onnxgrad::train
