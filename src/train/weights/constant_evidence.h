#ifndef ONNXGRAD_TRAIN_CONSTANT_EVIDENCE_H_
#define ONNXGRAD_TRAIN_CONSTANT_EVIDENCE_H_

#include <string_view>

#include "onnxgrad/tensor.h"

// Evidence of elements and names for whether a tensor is a parameter or a constant of a formula,
// which a file does not record; readers of a tensor are handled in train/weights/weights.cpp.

namespace onnxgrad::train {

/// The kind of formula behind these floating-point elements: "a mask", "evenly spaced numbers",
/// "sines and cosines"; empty if nothing indicates a formula. A tensor of equal elements, as in
/// initial layers, is none of these. Stops at the first number that does not match.
std::string_view formula_behind(const Tensor& numbers);

/// True for numbers that people write into formulas: with at most four decimal digits, roots of
/// such numbers, multiples of pi, logarithms of 2 and 10, and numbers that no training converges to
/// (beyond 1e4).
bool is_formula_number(double number);

/// False for elements that are equal in every new network, so that two tensors with them are no
/// evidence of one weight: all equal, all rows equal, or zeros and one other number (an identity);
/// and single numbers as in formulas.
bool has_own_values(const Tensor& numbers);

/// True if all elements are `number`; or equal to each other.
bool is_all(const Tensor& numbers, double number);
bool are_all_equal(const Tensor& numbers);

/// True for a small round number that its name calls an epsilon.
bool is_epsilon(std::string_view name, double number);

/// True for names that exporters give to constants and intermediate results, while parameters
/// have their name in the program: "val_12", "onnx::Mul_5",
/// "/layer/Constant_output_0".
bool has_constant_name(std::string_view name);

/// The role that the last parts of a name indicate for a tensor that is not a parameter
/// ("layer.running_mean": "running statistics"; "attn_mask": "a mask"), else empty.
std::string_view role_in_name(std::string_view name);

/// True for names of torch operators with or without a number ("exp", "mul_3"), which its exporter
/// gives to values computed from constants.
bool is_operator_name(std::string_view name);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_CONSTANT_EVIDENCE_H_
