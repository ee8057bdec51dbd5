#ifndef ONNXGRAD_DEVICE_CPU_ELEMENTWISE_H_
#define ONNXGRAD_DEVICE_CPU_ELEMENTWISE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "device/cpu/tile_ops.h"
#include "device/isa.h"
#include "opdef/expr.h"
#include "opdef/kernel.h"

// One kernel for all element-wise work: a program over broadcast operands, an optional reduction of
// some of its results, and an optional second program over the reduced space. Start reading at
// ElementwiseSpec. elementwise_space.h works out how indices map to memory, elementwise_code.h
// turns the program into instructions over tiles, elementwise_run.cpp runs them, tile_ops.h has the
// instructions.

namespace onnxgrad::device {

struct ElementwiseSpec {
  /// The program over the first program.num_inputs of `inputs`, broadcast to their common shape F.
  opdef::ExprProgram program;
  DataType compute = DataType::kFloat32;  ///< float32, float64, int64 or uint64
  /// Operands of `program`, then those of `post`. Any of bool, integers, float16, bfloat16,
  /// float32, float64 (int64, uint64: integers and bool only).
  std::vector<opdef::TensorDesc> inputs = {};
  /// Stored results (shape F), then reduced or post results (F without the reduced axes, or with 1
  /// there). Absent: not computed.
  std::vector<opdef::TensorDesc> outputs = {};
  std::int64_t stored = 0;       ///< number of first results to store; the others are reduced
  std::vector<Fold> folds = {};  ///< one per reduced result
  std::vector<std::int64_t> reduce_axes = {};  ///< in [0, rank of F)
  /// The second program, over the reduced results and then the rest of `inputs`.
  std::optional<opdef::ExprProgram> post = {};
  int threads = 1;
  /// Blocks for which the kernel is also prepared, even with sums over all rows: threads, and parts
  /// of the rows. 0: without sums.
  int block_threads = 1;
  std::int64_t block_parts = 0;
  Isa isa = best_isa();
  bool flush_denormals = false;  ///< while `program` runs, see FlushDenormals
};

/// Prepares a kernel whose arguments are spec.inputs, spec.outputs, scratch. A stored result may
/// overwrite an operand of `program` of its shape and type, a post result one of `post`. The order
/// of sums depends only on shapes and threads. Declines unsupported types and sizes, with
/// the reason.
opdef::KernelOffer prepare_elementwise(const ElementwiseSpec& spec);

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_ELEMENTWISE_H_
