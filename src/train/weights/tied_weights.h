#ifndef ONNXGRAD_TRAIN_TIED_WEIGHTS_H_
#define ONNXGRAD_TRAIN_TIED_WEIGHTS_H_

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"

// One parameter that exporters write twice because one of its uses is transposed: a table of
// embeddings, and its transposition, folded, for the scores; or the matrix of a layer that is
// called twice, folded twice. Trained unchanged, the two would drift apart. For training they are
// one weight, whose values are written to both places.

namespace onnxgrad::train {

struct TiedWeight {
  ir::Value* main = nullptr;
  ir::Value* copy = nullptr;  ///< in the order of the file after `main`, or given by the exporter
  bool is_transposed = false;
};

/// Pairs of matrices of one dtype, both trained by default, or one beside adapters that freeze the
/// other, with equal elements (see has_own_values: elements that any new network has are no
/// evidence), where
/// - one is the transposition of the other, unless the metadata of their nodes name two parameters;
/// - or both have aliases for the same parameter.
/// `main` of a pair is no `copy` of another.
std::vector<TiedWeight> find_tied_weights(const ir::Model& working);

/// A matrix [rows, columns] as [columns, rows], of any type with whole bytes per element.
Tensor transposed_matrix(const Tensor& matrix);

/// The value of `copy` for a new value of `main`, or of `main` for that of `copy`.
Tensor tied_form(const TiedWeight& tied, const Tensor& numbers);

/// `working` with each copy computed from its main weight, which has the copy's names as aliases
/// too; `working` itself if there is none.
std::shared_ptr<const ir::Model> tie_weights(std::shared_ptr<const ir::Model> working);

/// "'logits.weight' is 'table' transposed", for each.
std::string tied_text(std::span<const TiedWeight> tied);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_TIED_WEIGHTS_H_
