#include "onnxgrad/distillation.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "api/model_impl.h"
#include "base/check.h"
#include "base/philox.h"
#include "onnxgrad/option_error.h"
#include "train/data/targets.h"
#include "train/graphs/attention_maps.h"
#include "train/graphs/teacher.h"
#include "train/graphs/training_mode.h"
#include "train/heads/heads.h"
#include "train/losses/losses.h"
#include "train/open_batch/open_batch.h"

namespace onnxgrad {
namespace {

using Outputs = DistillationOptions::Outputs;

constexpr std::array<std::pair<std::string_view, Outputs>, 4> kOutputNames = {
    {{"auto", Outputs::kAuto},
     {"kl", Outputs::kDivergence},
     {"mse", Outputs::kSquaredError},
     {"none", Outputs::kNone}}};

template <class T>
bool holds(const LossFunction& function) {
  return std::holds_alternative<T>(function);
}

void check_factor(const std::string& name, double value, double most) {
  if (value >= 0 && value <= most) return;  // false for NaN
  throw OptionError(
      {.what = fmt::format("distill: {} is {}, expected a number of at least 0{}", name, value,
                           std::isfinite(most) ? fmt::format(" and at most {}", most) : ""),
       .hint = "Leave it out for the usual one."});
}

void check_options(const DistillationOptions& options) {
  constexpr double kAny = std::numeric_limits<double>::max();
  check_factor("alpha", options.alpha, 1);
  check_factor("attention", options.attention, kAny);
  train::check_loss_options(Distillation{.temperature = options.temperature});
  for (const ValueMatch& match : options.values) {
    check_factor("the factor of '" + match.student + "'", match.factor, kAny);
    if (holds<SquaredError>(match.function) || holds<Cosine>(match.function)) continue;
    throw OptionError({.what = fmt::format("distill: {} for the value '{}', expected the squared "
                                           "error or the cosine",
                                           train::describe(match.function), match.student),
                       .hint = "Use squared_error or cosine."});
  }
}

std::string name_of_teacher(const Model& model) {
  const std::string& path = model.path();
  if (path.empty()) return "the teacher";
  return "the teacher '" + path.substr(path.find_last_of('/') + 1) + "'";
}

/// Makes the losses between a student and its teacher.
class Matcher {
 public:
  Matcher(const Model& student, const Model& teacher, const DistillationOptions& options,
          const Loss& task)
      : student_(student),
        teacher_(teacher),
        options_(options),
        task_(task),
        graph_(std::make_shared<TeacherGraph>()) {
    graph_->name = name_of_teacher(teacher);
    graph_->inputs = options.inputs;
    const train::BatchForm batch =
        train::open_batch(train::in_inference_form(teacher.impl().training_copy()));
    graph_->model = batch.model;
    graph_->fixed_rows = batch.fixed_rows();
  }

  std::vector<Loss> run() {
    if (options_.outputs != Outputs::kNone) {
      const LossInfo student = scores_of_student();
      match_scores(student, options_.teacher_output);
      for (const LossInfo& other : student.others) match_scores(other, "");
    }
    for (const ValueMatch& match : options_.values) match_values(match);
    if (options_.attention > 0) match_attention();
    if (matches_.empty()) {
      throw OptionError({.what = "distill: there is nothing that the student learns from the "
                                 "teacher",
                         .hint = "Leave out outputs='none', or name values or attention."});
    }
    for (Loss& match : matches_) match.factor *= options_.alpha;
    return std::move(matches_);
  }

 private:
  const ir::Graph& mine() const { return *student_.impl().training_copy()->graph; }
  const ir::Graph& theirs() const { return *graph_->model->graph; }

  void add(LossFunction function, const std::string& output, const std::string& target,
           double factor) {
    matches_.push_back({.function = std::move(function),
                        .output = output,
                        .factor = factor,
                        .target_value = target,
                        .teacher = graph_});
  }

  LossInfo scores_of_student() const {
    Loss task = task_;
    task.matches.clear();
    if (holds<OutputLoss>(task.function)) task = Loss{};
    return find_loss(student_, task);
  }

  // `output`: of the teacher; empty: that of the student's name, if there are several.
  LossInfo scores_of_teacher(const LossInfo& student, std::string output) const {
    const auto& outputs = teacher_.outputs();
    const auto is_same = [&](const ValueInfo& one) {
      return one.name == student.output || one.name == student.scores;
    };
    if (output.empty() && outputs.size() > 1) {
      const auto same = std::ranges::find_if(outputs, is_same);
      if (same != outputs.end()) output = same->name;
    }
    try {
      return find_loss(teacher_, {.output = output});
    } catch (const ModelError& error) {
      Problem problem = error.problem();
      problem.what = graph_->name + ": " + problem.what;
      problem.hint = "Name its scores: distill={'teacher_output': NAME}.";
      throw ModelError(std::move(problem));
    }
  }

  void match_scores(const LossInfo& student, const std::string& teacher_output) {
    const LossInfo teacher = scores_of_teacher(student, teacher_output);
    const LossFunction& function = student.function;
    const bool is_binary = holds<BinaryCrossEntropy>(function) || holds<OneVsRest>(function);
    const bool has_probabilities =
        holds<NegativeLogLikelihood>(function) || holds<LogLoss>(function);
    const bool are_classes = is_binary || has_probabilities || student.is_classifier ||
                             holds<SoftmaxCrossEntropy>(function) || holds<KlDivergence>(function);
    const bool divides = options_.outputs == Outputs::kDivergence ||
                         (options_.outputs == Outputs::kAuto && are_classes);
    const bool teaches_probabilities =
        holds<NegativeLogLikelihood>(teacher.function) || holds<LogLoss>(teacher.function);
    const Distillation divergence{.temperature = options_.temperature,
                                  .probabilities = teaches_probabilities,
                                  .binary = is_binary};
    if (!divides) {
      add(SquaredError{}, student.scores, teacher.scores, 1);
      const bool waits = options_.outputs == Outputs::kAuto && train::has_plain_columns(student);
      if (waits) matches_.back().of_classes = divergence;
      return;
    }
    if (has_probabilities) {
      throw ModelError({.what = "'" + student.scores +
                                "' of the student has probabilities, and no "
                                "scores before them were found",
                        .where = {.value = student.scores},
                        .hint = "Apply the loss to the scores, or learn numbers: outputs='mse'."});
    }
    add(divergence, student.scores, teacher.scores, 1);
    const ir::Value* scores = mine().find(student.scores);
    if (scores != nullptr && scores->type.has_rank() && scores->type.rank() > 2) {
      const bool is_settled = student.class_axis && !student.is_class_axis_open;
      matches_.back().class_axis = is_settled ? *student.class_axis : -1;
    }
  }

  static std::int64_t width_of(const ir::Value& value) {
    const ir::Type& type = value.type;
    if (!type.has_rank() || type.rank() < 2) return -1;
    const ir::Dim& width = type.rank() < 4 ? type.shape->back() : (*type.shape)[1];
    return width.is_static() ? width.value() : -1;
  }

  void match_values(const ValueMatch& match) {
    const std::string& theirs_name = match.teacher.empty() ? match.student : match.teacher;
    const ir::Value* own = train::find_loss_value(mine(), match.student);
    const ir::Value* other = find_in_teacher(theirs_name);
    add(match.function, match.student, theirs_name, match.factor);
    const std::int64_t from = width_of(*own);
    const std::int64_t to = width_of(*other);
    if (from > 0 && to > 0 && from != to) {
      matches_.back().own_weights = {projection(from, to, own->dtype())};
    }
  }

  const ir::Value* find_in_teacher(const std::string& name) const {
    try {
      return train::find_loss_value(theirs(), name);
    } catch (const ModelError& error) {
      Problem problem = error.problem();
      problem.what = graph_->name + ": " + problem.what;
      throw ModelError(std::move(problem));
    }
  }

  // Uniform in ±1/sqrt(inputs), as torch.nn.Linear.
  NamedTensor projection(std::int64_t from, std::int64_t to, DataType dtype) {
    base::PhiloxStream stream(options_.seed, base::RandomUse::kWeights, ++num_projections_);
    Tensor numbers = Tensor::empty(DataType::kFloat64, Dims{from, to});
    const double bound = 1 / std::sqrt(static_cast<double>(from));
    for (double& number : numbers.mutable_data<double>()) {
      number = bound * (2 * stream.uniform() - 1);
    }
    const DataType wide = dtype == DataType::kFloat64 ? DataType::kFloat64 : DataType::kFloat32;
    return {.name = fmt::format("distillation.projection_{}", num_projections_),
            .tensor = numbers.cast(wide)};
  }

  void match_attention() {
    auto pairs = options_.attention_maps;
    if (pairs.empty()) {
      const auto own = train::find_attention_maps(mine());
      const auto others = train::find_attention_maps(theirs());
      for (const auto* maps : {&own, &others}) {
        if (!maps->empty()) continue;
        throw ModelError({.what = (maps == &own ? std::string("the student") : graph_->name) +
                                  " has no attention map: no Softmax that a MatMul reads",
                          .hint = "Name values in pairs, the student's and the teacher's."});
      }
      for (std::size_t i = 0; i < own.size(); ++i) {
        const std::size_t end = (i + 1) * others.size() / own.size();
        pairs.emplace_back(own[i], others[std::max<std::size_t>(end, 1) - 1]);
      }
    }
    for (const auto& [own, other] : pairs) {
      find_in_teacher(other);
      train::find_loss_value(mine(), own);
      add(SquaredError{}, own, other, options_.attention / static_cast<double>(pairs.size()));
    }
  }

  const Model& student_;
  const Model& teacher_;
  const DistillationOptions& options_;
  const Loss& task_;
  std::shared_ptr<TeacherGraph> graph_;
  std::vector<Loss> matches_;
  std::uint32_t num_projections_ = 0;
};

}  // namespace

Outputs matched_outputs_from_name(std::string_view name) {
  std::vector<std::string> names;
  for (const auto& [known, outputs] : kOutputNames) {
    if (known == name) return outputs;
    names.emplace_back(known);
  }
  throw OptionError({.what = "distill: there is no outputs='" + std::string(name) + "'",
                     .detail = "There are " + base::quote_list(names) + ".",
                     .hint = base::nearest_or(name, names)});
}

Loss distill(const Model& student, const Model& teacher, const DistillationOptions& options,
             const Loss& task) {
  check_options(options);
  std::vector<Loss> matches = Matcher(student, teacher, options, task).run();
  Loss loss = task;
  if (options.alpha < 1) {
    loss.factor *= 1 - options.alpha;
    for (Loss& other : loss.others) other.factor *= 1 - options.alpha;
  } else {
    loss = std::move(matches.front());
    matches.erase(matches.begin());
    loss.sample_weight = task.sample_weight;
    loss.reduction = task.reduction;
    loss.penalties = task.penalties;
  }
  loss.matches.insert(loss.matches.end(), matches.begin(), matches.end());
  return loss;
}

}  // namespace onnxgrad
