#ifndef ONNXGRAD_ONNX_MAP_INPUTS_H_
#define ONNXGRAD_ONNX_MAP_INPUTS_H_

#include <string>
#include <vector>

#include "ir/graph.h"

// DictVectorizer and CastMap (ai.onnx.ml 1) read one map, an input of the model, and return a row.
// A working copy has rows [N, C] instead, with a column for each key, so that such a model runs and
// is trained on many maps at once like any other. The caller writes the rows: 0, or "", for a key
// that a map does not have.

namespace onnxgrad::onnx_io {

/// An input that is a map, as a tensor [N, C].
struct MapInput {
  std::string name;
  DataType dtype = DataType::kFloat32;
  /// int64 or string [C]: the keys of the columns. Undefined: the values of each map in the order
  /// of its keys, which must be equally many in all maps (CastMap, DENSE).
  Tensor keys = {};
};

/// The inputs of `graph`, of a file, that are maps and become tensors. A map that is read otherwise
/// stays one.
std::vector<MapInput> find_map_inputs(const ir::Graph& graph);

/// Makes the inputs of find_map_inputs() tensors. No other type is inferred.
void replace_map_inputs(ir::Model& model);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_MAP_INPUTS_H_
