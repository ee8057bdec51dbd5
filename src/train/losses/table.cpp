#include "train/losses/table.h"

#include <array>
#include <variant>

#include "base/check.h"

namespace onnxgrad::train {
namespace {

/// The rule of one loss as a function of the variant.
template <class Spec, Elements (*kWrite)(ir::GraphBuilder&, const Spec&, const LossInputs&)>
Elements rule(ir::GraphBuilder& g, const LossFunction& function, const LossInputs& in) {
  return kWrite(g, std::get<Spec>(function), in);
}

Elements refuse_automatic(ir::GraphBuilder&, const LossFunction&, const LossInputs&) {
  throw InternalError("AutoLoss was not resolved before the loss was written");
}

using enum TargetKind;

// In the order of LossFunction: description, targets, shape of scores, takes_scores, rule.
constexpr std::array<LossKind, std::variant_size_v<LossFunction>> kKinds{{
    {"automatic loss", kByOptions, ScoreShape::kAny, false, refuse_automatic},
    {"squared error", kNumbers, ScoreShape::kAny, false, rule<SquaredError, write_squared_error>},
    {"absolute error", kNumbers, ScoreShape::kAny, false,
     rule<AbsoluteError, write_absolute_error>},
    {"Huber loss", kNumbers, ScoreShape::kAny, false, rule<Huber, write_huber>},
    {"smooth L1 loss", kNumbers, ScoreShape::kAny, false, rule<SmoothL1, write_smooth_l1>},
    {"elastic loss", kNumbers, ScoreShape::kAny, false, rule<Elastic, write_elastic>},
    {"Poisson loss", kNumbers, ScoreShape::kAny, false, rule<Poisson, write_poisson>},
    {"cosine loss", kNumbers, ScoreShape::kMatrix, false, rule<Cosine, write_cosine>},
    {"softmax cross-entropy", kByOptions, ScoreShape::kClassesPlaces, true,
     rule<SoftmaxCrossEntropy, write_softmax_cross_entropy>},
    {"binary cross-entropy", kByColumns, ScoreShape::kAny, true,
     rule<BinaryCrossEntropy, write_binary_cross_entropy>},
    {"log loss", kByColumns, ScoreShape::kAny, false, rule<LogLoss, write_log_loss>},
    {"negative log-likelihood", kClasses, ScoreShape::kClassesPlaces, false,
     rule<NegativeLogLikelihood, write_negative_log_likelihood>},
    {"Kullback-Leibler divergence", kNumbers, ScoreShape::kClassesPlaces, true,
     rule<KlDivergence, write_kl_divergence>},
    {"one-vs-rest log loss", kClasses, ScoreShape::kBinaryOrKnown, true,
     rule<OneVsRest, write_one_vs_rest>},
    {"user loss", kByOptions, ScoreShape::kAny, false, rule<UserLoss, write_user_loss>},
    {"the model's own loss", kNumbers, ScoreShape::kAny, false,
     rule<OutputLoss, write_output_loss>},
}};

LossFunction one_vs_rest(OneVsRest::Kind kind) { return OneVsRest{.kind = kind}; }

}  // namespace

const LossKind& kind_of(const LossFunction& function) { return kKinds.at(function.index()); }

std::span<const LossName> known_losses() {
  static const std::array<LossName, 17> names{{
      {"absolute_error", AbsoluteError{}, {"mae", "l1"}},
      {"auto", AutoLoss{}},
      {"binary_cross_entropy", BinaryCrossEntropy{}, {"bce"}},
      {"cosine", Cosine{}},
      {"elastic", Elastic{}},
      {"hinge", one_vs_rest(OneVsRest::Kind::kHinge)},
      {"huber", Huber{}},
      {"kl_divergence", KlDivergence{}, {"kl"}},
      {"log_loss", LogLoss{}},
      {"modified_huber", one_vs_rest(OneVsRest::Kind::kModifiedHuber)},
      {"negative_log_likelihood", NegativeLogLikelihood{}, {"nll"}},
      {"one_vs_rest_log", OneVsRest{}},
      {"poisson", Poisson{}},
      {"smooth_l1", SmoothL1{}},
      {"softmax_cross_entropy", SoftmaxCrossEntropy{}, {"cross_entropy"}},
      {"squared_error", SquaredError{}, {"mse", "l2"}},
      {"squared_hinge", one_vs_rest(OneVsRest::Kind::kSquaredHinge)},
  }};
  return names;
}

}  // namespace onnxgrad::train
