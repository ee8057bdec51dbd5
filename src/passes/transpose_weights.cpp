#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "ir/uses.h"
#include "passes/passes.h"

namespace onnxgrad::passes {
namespace {

// A larger weight is read from memory row by row in any case, and would take it twice.
constexpr std::int64_t kMostBytes = std::int64_t{4} << 20;

template <class T>
Tensor transposed(const Tensor& weight) {
  constexpr std::int64_t kBlock = 16;
  const std::int64_t rows = weight.dims()[0];
  const std::int64_t columns = weight.dims()[1];
  Tensor result = Tensor::empty(weight.dtype(), Dims{columns, rows});
  const T* from = weight.data<T>().data();
  T* to = result.mutable_data<T>().data();
  for (std::int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    for (std::int64_t j0 = 0; j0 < columns; j0 += kBlock) {
      for (std::int64_t j = j0; j < std::min(j0 + kBlock, columns); ++j) {
        for (std::int64_t i = i0; i < std::min(i0 + kBlock, rows); ++i) {
          to[j * rows + i] = from[i * columns + j];
        }
      }
    }
  }
  return result;
}

bool is_transposed_weight(const ir::Node& node) {
  if (node.op_type != "Gemm" || !node.domain.empty() || node.int_attribute("transB", 0) == 0) {
    return false;
  }
  const ir::Value* weight = node.inputs[1];
  if (weight == nullptr || !weight->is_constant()) return false;
  const Tensor& tensor = weight->initializer;
  const bool is_float =
      tensor.dtype() == DataType::kFloat32 || tensor.dtype() == DataType::kFloat64;
  return is_float && tensor.dims().rank() == 2 && tensor.num_elements() > 0 &&
         tensor.size_bytes() <= kMostBytes;
}

}  // namespace

bool transpose_weights(ir::Graph& graph) {
  std::unordered_map<const ir::Value*, ir::Value*> known;
  bool changed = false;
  for (ir::Node* node : graph.nodes) {
    for (ir::Graph* body : node->subgraphs()) changed |= transpose_weights(*body);
    if (!is_transposed_weight(*node)) continue;
    const ir::Value* weight = node->inputs[1];
    ir::Value*& stored = known[weight];
    if (stored == nullptr) {
      const Tensor& tensor = weight->initializer;
      stored = graph.add_initializer(weight->name, tensor.dtype() == DataType::kFloat32
                                                       ? transposed<float>(tensor)
                                                       : transposed<double>(tensor));
    }
    node->inputs[1] = stored;
    node->set_attribute("transB", std::int64_t{0});
    changed = true;
  }
  return changed;
}

}  // namespace onnxgrad::passes
