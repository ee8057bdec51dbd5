#ifndef ONNXGRAD_TRAIN_PLACE_LOSS_H_
#define ONNXGRAD_TRAIN_PLACE_LOSS_H_

#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/registry.h"
#include "train/graphs/teacher.h"
#include "train/heads/heads.h"
#include "train/losses/losses.h"

namespace onnxgrad::train {

/// Options of a loss over the rows of one of several workers.
struct LossOfWorker {
  ir::Value* weight = nullptr;  ///< see LossPlace; nullptr: one worker
  int workers = 1;              ///< number of workers that add up their losses
  bool updates_alone = false;   ///< see LossPlace
};

/// A loss with its inputs, in a graph.
struct PlacedLoss {
  ResolvedLoss resolved = {};          ///< with float32 scores if the model's have 16 bits
  ir::Value* stored_scores = nullptr;  ///< the scores of the model
  ir::Value* target = nullptr;         ///< nullptr: the model's own loss has none
  ir::Value* sample_weight = nullptr;  ///< or nullptr
  /// The whole loss: the sum of several losses and the penalties.
  WrittenLoss written = {};
  ir::Value* own_loss = nullptr;           ///< this loss alone, without its factor
  std::vector<ir::Value*> penalized = {};  ///< weights
  std::vector<PlacedLoss> others = {};     ///< Loss::others, without their WrittenLoss
  std::vector<PlacedLoss> matches = {};    ///< Loss::matches, likewise
  bool is_match = false;                   ///< `target` is a value of a model, not an input
  std::vector<ir::Value*> partners = {};   ///< embeddings beside the scores
  /// Values of the model that this loss alone reads, besides the scores.
  std::vector<ir::Value*> read_values = {};
  std::vector<ir::Value*> own = {};  ///< Loss::own_weights
  PlacedTeachers teachers = {};      ///< of this loss and its matches
  LossOfWorker worker = {};

  LossPlace place() const;
};

/// Adds to the graph, after prepare_loss(), the teachers of a loss, the inputs for targets and
/// sample weights, and the nodes of the loss. Penalties without patterns apply to the matrices
/// among `trained`, by name; nullptr: to those that are trainable. Throws: ModelError (see
/// resolve_loss and write_loss; a penalty or factor that is not a number of at least 0; a pattern
/// that matches no weight; others with their own penalties, weights or others).
PlacedLoss place_loss(ir::GraphBuilder& g, const opdef::OpRegistry& registry, const Loss& loss,
                      const std::vector<std::string>* trained = nullptr,
                      const LossOfWorker& worker = {});

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_PLACE_LOSS_H_
