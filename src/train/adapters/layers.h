#ifndef ONNXGRAD_TRAIN_ADAPTERS_LAYERS_H_
#define ONNXGRAD_TRAIN_ADAPTERS_LAYERS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "train/adapters/packed_matrix.h"

// Search for the layers of a file's graph that an adapter can be added to, and for what they are
// in an attention or an MLP: by what is computed with their results, not by names.

namespace onnxgrad::train {

enum class LayerKind : std::uint8_t { kLinear, kConvolution, kEmbedding };

/// A weight and the nodes that compute a layer with it.
struct AdaptableLayer {
  LayerKind kind = LayerKind::kLinear;
  const ir::Value* weight = nullptr;  ///< an initializer, or the output of a Constant
  std::vector<ir::Node*> nodes = {};  ///< Gemm, MatMul, Conv or Gather, in graph order
  std::int64_t inputs = 0;            ///< columns of x, channels, or rows of the table
  std::int64_t outputs = 0;
  bool is_transposed = false;  ///< the matrix is stored as [outputs, inputs]
  bool is_computed = false;    ///< converted or dequantized: the layer reads other numbers
  /// Matrix of a linear layer with integers of 2, 4 or 8 bits, whose codes are `weight`; else
  /// nullptr.
  std::shared_ptr<const PackedMatrix> packed = {};
  DataType dtype = DataType::kUndefined;  ///< of x and of the results
  std::string module = {};
  std::vector<std::string> names = {};  ///< of weight, module and nodes, for patterns
  /// "query", "key", "value", "qkv", "attention_output", "mlp_up", "mlp_down", "head", "linear",
  /// "conv" or "embedding".
  std::string role = {};
};

/// The tensor of an initializer or of a Constant; nullptr for any other value.
const Tensor* numbers_of(const ir::Value* value);

/// The layers of `file`, a graph in the file's own operator set, and of its subgraphs, in graph
/// order; `working` has the names that the exporting program used. Layers that no adapter fits
/// (groups of channels, factors of a Gemm, matrices that are computed from inputs) are not listed.
std::vector<AdaptableLayer> find_layers(const ir::Model& file, const ir::Model& working);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_ADAPTERS_LAYERS_H_
