#ifndef ONNXGRAD_OPS_MATH_PRODUCT_CUDA_H_
#define ONNXGRAD_OPS_MATH_PRODUCT_CUDA_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "opdef/expr.h"
#include "opdef/kernel.h"

// Products of matrices on a card: by cuBLASLt, or as tiles of our own (takes_tiles()).

namespace onnxgrad::ops {

/// C[i] = op(A) op(B) for each i of a batch, then an element-wise epilogue.
struct ProductTask {
  /// An axis of the batch, with the matrices of A and B from one element to the next.
  struct Axis {
    std::int64_t size = 1;
    std::int64_t a_step = 0;
    std::int64_t b_step = 0;
  };

  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  int a = 0;  ///< inputs
  int b = 1;
  std::vector<Axis> batch = {};  ///< at most three, the outermost first; none: one product
  /// Operand 0 is the product, the others are `epilogue_inputs`, broadcast to output 0. Its results
  /// are the first outputs.
  std::optional<opdef::ExprProgram> epilogue = {};
  std::vector<int> epilogue_inputs = {};
  bool flushes_denormals = false;  ///< of the results of the epilogue
  bool sums_columns = false;       ///< output 1 is the sum of each column of output 0
  /// (input, output) pairs of the epilogue that may share memory.
  std::vector<std::pair<int, int>> in_place = {};

  std::int64_t matrices() const;
  double flops() const;
};

/// Reads m, n, k of op(A) op(B), where leading axes of A collapse into m. A and B have at least
/// rank 2 if they are transposed, else B has rank 2. nullopt if the shapes do not match.
std::optional<ProductTask> product_task(const opdef::KernelRequest& request, int a, int b,
                                        bool transpose_a, bool transpose_b);

/// Whether our own tiles are faster than cuBLASLt.
bool takes_tiles(const ProductTask& task);

opdef::KernelOffer offer_product(const opdef::KernelRequest& request, const ProductTask& task);

/// Text of `og_main`; og_tile, 16 or 64, the types og_a, og_b, og_p and og_s of A, B, the product
/// and its sums, og_get_a, og_get_b and og_set_p, and og_element (elementwise_text) precede it.
/// `operands` and `results` are those of og_element; 0 results: there is no epilogue.
std::string product_tiles_text(std::size_t operands, std::size_t results);
/// Words of og_main before the addresses of the epilogue: A, B, product; m, n, k; strides of rows
/// and columns of A and B; matrices; sizes of two inner axes; steps of three axes in A and in B.
inline constexpr int kProductWords = 19;

/// Text of `og_columns` (C, to, rows, columns, parts): sums of columns, of each part of the rows,
/// and of `og_parts` (parts, to, columns, parts), which adds them up. og_c, og_r: types of C and of
/// the sums in memory, with og_get_c and og_set_r; parts are in float64.
std::string column_sums_text();

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_MATH_PRODUCT_CUDA_H_
