#include "train/losses/table.h"

#include "base/check.h"

namespace onnxgrad::train {
namespace {

Elements refuse_automatic(ir::GraphBuilder&, const AutoLoss&, const LossInputs&) {
  throw InternalError("AutoLoss was not resolved before the loss was written");
}

}  // namespace

void register_regression(LossTable& table);
void register_classification(LossTable& table);
void register_language(LossTable& table);
void register_users(LossTable& table);
void register_distillation(LossTable& table);
void register_contrastive(LossTable& table);

const LossTable& loss_rows() {
  static const LossTable table = [] {
    LossTable made;
    made.add<refuse_automatic>({.target = TargetKind::kByOptions},
                               Described<AutoLoss>{
                                   .type = "AutoLoss",
                                   .python_name = "Auto",
                                   .summary = "automatic loss",
                                   .formula = "Chosen by the head of the model: squared error for "
                                              "a regression output; softmax, binary or one-vs-rest "
                                              "cross-entropy for the scores before Softmax or "
                                              "Sigmoid; the negative log of the probability where "
                                              "there are no scores. Scores of tokens "
                                              "[N, T, V] whose first labels are the tokens that "
                                              "the model reads get `CausalLm`, if the model is a "
                                              "decoder.",
                                   .names = {{"auto", {}}},
                               });
    register_regression(made);
    register_classification(made);
    register_language(made);
    register_users(made);
    register_distillation(made);
    register_contrastive(made);
    made.finish();
    return made;
  }();
  return table;
}

const PenaltyTable& penalty_rows() {
  static const PenaltyTable table = [] {
    PenaltyTable made("penalty");
    made.add(Described<Penalty>{
        .type = "Penalty",
        .summary = "Penalty on weights",
        .source = "Hoerl and Kennard 1970 for l2, Tibshirani 1996 for l1, Zou and Hastie 2005 for "
                  "both: the elastic net",
        .formula = "l1 sum abs(w) + l2 sum w^2, added to the loss and so in its gradient. An "
                   "optimizer's weight decay of 2 l2 (not decoupled) gives the same gradient.",
        .fields = {field("l1", &Penalty::l1, kAtLeastZero), field("l2", &Penalty::l2, kAtLeastZero),
                   field("weights", &Penalty::weights,
                         "Names or glob patterns. None means the trainable weights of two or more "
                         "dimensions that the loss depends on (not the biases).")},
    });
    return made;
  }();
  return table;
}

}  // namespace onnxgrad::train
