#ifndef ONNXGRAD_TRANSFER_H_
#define ONNXGRAD_TRANSFER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/model.h"
#include "onnxgrad/weights.h"

// Transfer of a trained model to another task: a new head, features, normalisations put back.

namespace [[gnu::visibility("default")]] onnxgrad {

struct HeadOptions {
  std::int64_t classes = 0;  ///< width of the new head: classes, or columns of a regression
  /// The heads to replace: names of a layer, its weight, its node, its result or an output that it
  /// is computed for; {"all"}. Empty or {"auto"}: the only head.
  std::vector<std::string> at = {};
  InitScheme scheme = InitScheme::kAuto;  ///< of weights and bias, as initialize() draws them
  /// The labels of the classes, int64 or string [classes], for models that return labels.
  /// Undefined: 0, 1, ...; as texts if those of the file are.
  Tensor labels = {};
  std::uint64_t seed = 0;
};

/// `model` with a new last layer of another width. A head is a layer (MatMul, Gemm, Conv,
/// ConvTranspose, LinearClassifier, LinearRegressor) whose results reach the outputs of the model
/// through biases, probabilities, labels, and what moves or averages them; layers whose results are
/// summed up are one head. What depends on the number of classes there is put right: biases,
/// constant shapes, ZipMap, LabelEncoder, lists of labels, declared shapes. Probabilities of one
/// score (a Sigmoid) become a Softmax, unless it tells apart the two new classes. All other weights
/// are shared, not copied. Throws: ModelError (no head; several and no choice; labels for a model
/// that returns none), OptionError.
Model replace_head(const Model& model, const HeadOptions& options);

/// `model` with these values of its main graph as outputs, in this order, and without the nodes,
/// weights and inputs that they do not need: a feature extractor. `at`: names of values, or of
/// nodes (their first outputs); "head": what the only head reads. Throws: ModelError (unknown
/// name).
Model features(const Model& model, const std::vector<std::string>& at);

/// A matrix of the main graph of which a row may belong to each place of a sequence.
struct PlaceTable {
  std::string weight;     ///< its name
  std::int64_t rows = 0;  ///< dimension before the last
  std::string value;      ///< what a Gather or Slice takes of it
};

/// Tables that may limit the length of sequences: those of rank >= 2 and at most 16384 rows, of
/// which a Gather takes rows or a Slice takes a part, not those that tokens select rows of.
std::vector<PlaceTable> place_tables(const Model& model);

/// `model` cut to the values of these tables; at least one. May have adapters.
Model place_values(const Model& model, const std::vector<PlaceTable>& tables);

struct UnfoldOptions {
  /// Statistics of the results of each convolution over these rows (all inputs of the model);
  /// empty: mean 0, variance 1.
  NamedTensors rows = {};
  double epsilon = 1e-5;
};

/// `model` with a BatchNormalization behind each convolution that has a bias and no normalisation:
/// exporters fold it into the convolution. The outputs are the same up to rounding: scale and
/// shift undo the normalisation by the statistics. Throws: ModelError (no such convolution).
Model unfold_batch_norm(const Model& model, const UnfoldOptions& options = {});

}  // namespace onnxgrad

#endif  // ONNXGRAD_TRANSFER_H_
