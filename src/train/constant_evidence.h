#ifndef ONNXGRAD_TRAIN_CONSTANT_EVIDENCE_H_
#define ONNXGRAD_TRAIN_CONSTANT_EVIDENCE_H_

#include <string_view>

#include "onnxgrad/tensor.h"

// A file does not say which of its tensors are parameters and which are constants of a formula.
// What the numbers and the names say of it; readers of a tensor are handled in train/weights.cpp.

namespace onnxgrad::train {

/// What a formula made of these floating numbers: "a mask", "evenly spaced numbers", "sines and
/// cosines"; empty where nothing says that a formula did. A tensor of equal numbers, as layers
/// begin with, is none of these. Stops at the first number that does not fit.
std::string_view formula_behind(const Tensor& numbers);

/// True for numbers as people write them into formulas: of at most four decimal digits, roots of
/// such numbers, multiples of pi, logarithms of 2 and 10, and what no training ends at (beyond
/// 1e4).
bool is_formula_number(double number);

/// False for numbers that are alike in every new network, so that two tensors with them are not a
/// sign of one weight: all equal, all rows alike, or zeros and one other number (an identity); and
/// single numbers as in formulas.
bool has_own_values(const Tensor& numbers);

/// True for names that exporters give to constants and to intermediate results, where parameters
/// have the name that they have in the program: "val_12", "onnx::Mul_5",
/// "/layer/Constant_output_0".
bool has_constant_name(std::string_view name);

/// What the last parts of a name say of a tensor that is not a parameter ("layer.running_mean":
/// "running statistics"; "attn_mask": "a mask"), else empty.
std::string_view role_in_name(std::string_view name);

/// True for names of operators of torch with or without a number ("exp", "mul_3"), which its
/// exporter gives to what it computes from constants.
bool is_operator_name(std::string_view name);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_CONSTANT_EVIDENCE_H_
