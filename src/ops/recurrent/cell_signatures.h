#ifndef ONNXGRAD_OPS_RECURRENT_CELL_SIGNATURES_H_
#define ONNXGRAD_OPS_RECURRENT_CELL_SIGNATURES_H_

#include <array>

#include "ops/recurrent/cell_cpu.h"

// Operands of RNN, GRU and LSTM, of the functions of their gradients, and of the operators of
// domain onnxgrad.fused, which have the results of <operator>Gates as additional outputs. The
// kernels of all devices read them.

namespace onnxgrad::ops::recurrent {

namespace lstm {
using enum Operand;
inline constexpr std::array kInputs = {kX, kW, kR, kB, kLengths, kInitialH, kInitialC, kP, kY};
inline constexpr std::array kOutputs = {kOutY, kOutYh, kOutYc, kOutGates, kOutKept};
inline constexpr std::array kGatesOutputs = {kOutGates, kOutKept};
inline constexpr std::array kGradientInputs = {
    kX, kW, kR, kLengths, kInitialH, kInitialC, kP, kY, kGates, kKept, kDY, kDYh, kDYc};
inline constexpr std::array kGradientOutputs = {kDX, kDW, kDR, kDB, kDInitialH, kDInitialC, kDP};
}  // namespace lstm

namespace gru {
using enum Operand;
inline constexpr std::array kInputs = {kX, kW, kR, kB, kLengths, kInitialH, kY};
inline constexpr std::array kOutputs = {kOutY, kOutYh, kOutGates, kOutKept};
inline constexpr std::array kGatesOutputs = {kOutGates, kOutKept};
inline constexpr std::array kGradientInputs = {kX, kW,     kR,    kLengths, kInitialH,
                                               kY, kGates, kKept, kDY,      kDYh};
inline constexpr std::array kGradientOutputs = {kDX, kDW, kDR, kDB, kDInitialH};
}  // namespace gru

namespace rnn {
using enum Operand;
inline constexpr std::array kInputs = {kX, kW, kR, kB, kLengths, kInitialH, kY};
inline constexpr std::array kOutputs = {kOutY, kOutYh, kOutGates};
inline constexpr std::array kGatesOutputs = {kOutGates};
inline constexpr std::array kGradientInputs = {kX, kW,     kR,  kLengths, kInitialH,
                                               kY, kGates, kDY, kDYh};
inline constexpr std::array kGradientOutputs = {kDX, kDW, kDR, kDB, kDInitialH};
}  // namespace rnn

}  // namespace onnxgrad::ops::recurrent

#endif  // ONNXGRAD_OPS_RECURRENT_CELL_SIGNATURES_H_
