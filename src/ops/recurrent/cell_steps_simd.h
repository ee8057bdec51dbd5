#ifndef ONNXGRAD_OPS_RECURRENT_CELL_STEPS_SIMD_H_
#define ONNXGRAD_OPS_RECURRENT_CELL_STEPS_SIMD_H_

#include <cstdint>

#include "device/isa.h"
#include "ops/recurrent/cell.h"

// Element-wise part of one step of a recurrent operator, with SIMD, for some rows (sequences). All
// arrays are dense: [rows, hidden] unless a shape is given; optional arrays may be nullptr. The
// formulas are in lstm.cpp, gru.cpp and rnn.cpp.

namespace onnxgrad::ops::recurrent {

/// Activation functions of one direction.
struct CellFunctions {
  Activation f = {};
  Activation g = {};
  Activation h = {};
  double clip = 0;  ///< 0: none
  bool input_forget = false;
};

template <class T>
struct LstmForward {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  T* gates = nullptr;            ///< s_i, s_o, s_f, s_c: [rows, 4 hidden]
  bool keeps_values = false;     ///< replaces `gates` by i, o, u, n
  const T* peepholes = nullptr;  ///< optional: [3 hidden]
  T* c = nullptr;                ///< c of the step before; updated in place
  T* h = nullptr;                ///< receives y
  T* y = nullptr;                ///< optional: a second copy of y
  T* cells = nullptr;            ///< optional: a copy of c
};

template <class T>
struct LstmBackward {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  const T* gates = nullptr;      ///< [rows, 4 hidden]
  bool has_values = false;       ///< `gates` are i, o, u, n of the default functions; no peepholes
  const T* peepholes = nullptr;  ///< optional: [3 hidden]
  const T* before = nullptr;     ///< optional: c of the step before, else zero
  const T* cells = nullptr;      ///< c
  const T* dy = nullptr;         ///< optional
  const T* dh = nullptr;         ///< cotangent from the following step
  T* dc = nullptr;               ///< cotangent of c; replaced by that of the step before
  T* dgates = nullptr;           ///< [rows, 4 hidden]
  // Optional: a copy in packed panels as wide as a vector, if `hidden` is a multiple of that.
  T* panels = nullptr;  ///< [4 hidden / lanes, panel_size]: rows one after another
  std::int64_t panel_size = 0;
};

template <class T>
struct GruForward {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  const T* gates = nullptr;   ///< s_z, s_r, s_n: [rows, 3 hidden]
  const T* linear = nullptr;  ///< optional: m, for linear_before_reset
  T* h = nullptr;             ///< y of the step before; updated in place
  T* y = nullptr;             ///< optional: a second copy of y
};

template <class T>
struct GruBackward {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  const T* gates = nullptr;   ///< [rows, 3 hidden]
  const T* linear = nullptr;  ///< optional: m
  const T* before = nullptr;  ///< y of the step before
  const T* dy = nullptr;      ///< optional
  T* dh = nullptr;            ///< replaced by the part that bypasses the gates
  T* dzr = nullptr;           ///< [rows, 2 hidden]; only z without m
  T* dn = nullptr;
  T* dm = nullptr;  ///< only with m
  // Second phase, without m.
  const T* dq = nullptr;  ///< cotangent of q = r y'
  T* q = nullptr;         ///< receives r y'
};

template <class T>
struct RnnStep {
  std::int64_t rows = 0;
  std::int64_t hidden = 0;
  const T* gates = nullptr;
  T* h = nullptr;         ///< forward: receives y
  T* y = nullptr;         ///< forward, optional: a second copy of y
  const T* dy = nullptr;  ///< backward, optional
  const T* dh = nullptr;  ///< backward
  T* dgates = nullptr;    ///< backward
};

/// Functions of one instruction set for T.
template <class T>
struct StepTable {
  void (*lstm)(const CellFunctions& functions, const LstmForward<T>& at) = nullptr;
  void (*lstm_back)(const CellFunctions& functions, const LstmBackward<T>& at) = nullptr;
  void (*gru)(const CellFunctions& functions, const GruForward<T>& at) = nullptr;
  /// Without m: computes q = r y', from which s_n of this step is computed before gru().
  void (*gru_reset)(const CellFunctions& functions, const GruForward<T>& at, T* q) = nullptr;
  /// With m, the whole backward step; without, all but the phase of gru_reset_back(), which needs
  /// dq.
  void (*gru_back)(const CellFunctions& functions, const GruBackward<T>& at) = nullptr;
  void (*gru_reset_back)(const CellFunctions& functions, const GruBackward<T>& at) = nullptr;
  void (*rnn)(const CellFunctions& functions, const RnnStep<T>& at) = nullptr;
  void (*rnn_back)(const CellFunctions& functions, const RnnStep<T>& at) = nullptr;
  /// sums[j] += sum over i of x[i, j] * y[i, j]: x has row stride `x_row`; y is [rows, columns], or
  /// nullptr for ones.
  void (*column_sums)(const T* x, std::int64_t x_row, const T* y, std::int64_t rows,
                      std::int64_t columns, T* sums) = nullptr;
};

/// Returns the table of an instruction set.
template <class T>
const StepTable<T>& step_table(device::Isa isa);

}  // namespace onnxgrad::ops::recurrent

#endif  // ONNXGRAD_OPS_RECURRENT_CELL_STEPS_SIMD_H_
