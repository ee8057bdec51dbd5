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
void register_users(LossTable& table);

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
                                              "cross-entropy for the scores behind Softmax or "
                                              "Sigmoid; the negative log of the probability where "
                                              "there are no scores.",
                                   .names = {{"auto", {}}},
                               });
    register_regression(made);
    register_classification(made);
    register_users(made);
    made.finish();
    return made;
  }();
  return table;
}

}  // namespace onnxgrad::train
