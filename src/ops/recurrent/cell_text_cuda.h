#ifndef ONNXGRAD_OPS_RECURRENT_CELL_TEXT_CUDA_H_
#define ONNXGRAD_OPS_RECURRENT_CELL_TEXT_CUDA_H_

#include <string>

#include "ops/recurrent/cell.h"

// Texts of RNN, GRU and LSTM on a card. A block runs all steps of a few sequences of one direction,
// so that no step is a launch; products over all steps are other kernels. The formulas are in
// lstm.cpp, gru.cpp and rnn.cpp, the names in cell.h.

namespace onnxgrad::ops::recurrent {

/// Words of the kernels, by place.
enum CellWord : int {
  kWordR,  ///< forward: transposed [D, H, G H]
  kWordB,  ///< and the other operands; 0: absent
  kWordLengths,
  kWordInitialH,
  kWordInitialC,
  kWordP,
  kWordY,
  kWordGates,  ///< [D, T, N, G H]
  kWordKept,   ///< cells of LSTM, m of GRU: [D, T, N, H]
  kWordDY,
  kWordDYh,
  kWordDYc,
  kWordOutY,
  kWordOutYh,
  kWordOutYc,
  kWordH,       ///< states [D, N, H]: y, or the cotangent of y
  kWordC,       ///< c, or its cotangent
  kWordSide,    ///< GRU: [D, N, H] forward and without m backward
  kWordBefore,  ///< backward: y of the step before, [D, T, N, H]
  kWordDGates,  ///< backward: [D, T, N, G H]
  kWordDM,      ///< backward of GRU: dm, or q = r y' without m, [D, T, N, H]
  kWordDInitialH,
  kWordDInitialC,
  kWordCells,  ///< for lengths that are refused
  kWordRecord,
  kWordSteps,
  kWordBatch,
  kWordHidden,
  kWordDirections,
  kWordReverse,
  kWordLinear,   ///< linear_before_reset
  kWordCoupled,  ///< input_forget
  kWordClip,     ///< real; 0: none
  kWordActs,     ///< kind, alpha, beta (real) of three functions of two directions
};

/// Sequences of a block.
inline constexpr int kCellRows = 4;

/// Text of og_forward and og_backward of a cell. The type og_t precedes it.
std::string cell_text(Cell cell);

/// Text of og_transpose (from, to, matrices, rows and columns of `to`), og_bias (gates, B, rows of
/// a direction, width, directions, width that both biases have), og_pad (X, to, lengths, elements,
/// inputs, batch), og_copy and og_add_to (from, to, elements) and og_sums (a, b, to, to again,
/// rows, columns, row of a, width), the sums of columns of a, or of a b. The type og_t and
/// block_text() precede it.
std::string cell_sums_text();

}  // namespace onnxgrad::ops::recurrent

#endif  // ONNXGRAD_OPS_RECURRENT_CELL_TEXT_CUDA_H_
