#ifndef ONNXGRAD_OPS_TESTING_OP_CASE_H_
#define ONNXGRAD_OPS_TESTING_OP_CASE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxgrad/dims.h"
#include "onnxgrad/dtype.h"
#include "onnxgrad/tensor.h"

// One list of sample cases per operator, from which every property is tested: values, gradients
// against finite differences, fused against unfused, float32 against float64, symbolic dimensions,
// stock onnxruntime on the exported model and gradient, and completeness.
//
// <stem>_test.cpp defines, in namespace onnxgrad::ops_test, exactly these two functions (the build
// collects them through onnxgrad_add_op; nothing is instantiated by hand):
//
//   std::vector<OpCase> softmax_cases() {
//     return {
//         {.name = "last_axis", .model = "y = Softmax <axis = -1> (x)",
//          .inputs = {uniform({3, 5}, -2, 2)}},
//         {.name = "scalar_weight", .model = "y = Mul (x, w)",
//          .inputs = {uniform({3}, -2, 2), uniform({}, -2, 2)}},
//     };
//   }
//   std::vector<ErrorCase> softmax_error_cases() {
//     return {{.name = "axis", .model = "[head] y = Softmax <axis = 2> (x)",
//              .inputs = {uniform({3, 5}, -2, 2)}, .error = "ShapeError",
//              .fragments = {"head", "axis"}}};
//   }
//
// Everything else in a test file is an ordinary TEST. Test files are unity-built:
// helpers are in a namespace with the stem's name, not in an anonymous one.

namespace onnxgrad::ops_test {

/// The numbers of one input.
struct CaseInput {
  enum class Source : std::uint8_t { kUniform, kNormal, kIntegers, kValues };

  Dims dims = {};
  Source source = Source::kUniform;
  /// kUndefined: the floating type under test (float64 for gradients, float32 besides).
  DataType dtype = DataType::kUndefined;
  double low = -1;
  double high = 1;
  std::vector<double> numbers = {};
  /// Default: the model's names that no node produces, in order of appearance.
  std::string name = {};
  /// An initializer of the model; otherwise a graph input.
  bool is_constant = false;

  CaseInput as(DataType wanted) const;
  CaseInput named(std::string wanted) const;
  /// An initializer of the model instead of a graph input.
  CaseInput constant() const;
  /// A graph input; for ints(), which makes initializers.
  CaseInput fed() const;
};

/// Uniform in [low, high), of the floating type under test.
CaseInput uniform(Dims dims, double low, double high);
/// Normal with this standard deviation, of the floating type under test.
CaseInput normal(Dims dims, double deviation = 1);
/// Integers in [low, high], both included; graph input.
CaseInput integers(Dims dims, std::int64_t low, std::int64_t high,
                   DataType dtype = DataType::kInt64);
/// Exactly these numbers, of the floating type under test unless `dtype` is given.
CaseInput values(std::vector<double> numbers, Dims dims, DataType dtype = DataType::kUndefined);
/// int64 [n] with these numbers as an initializer: axes, shapes, pads, ...
CaseInput ints(const std::vector<std::int64_t>& numbers);
/// int64 [] as an initializer.
CaseInput int_scalar(std::int64_t number);

/// One model of one or a few nodes with its inputs.
struct OpCase {
  /// Unique within the stem, lower case with underscores.
  std::string name;
  /// The body in ONNX's text syntax, statements separated by newlines; header, opset 26 and the
  /// types of the inputs are added. "$T" stands for the floating type under test ("double",
  /// "float").
  std::string model;
  std::vector<CaseInput> inputs;
  /// Default: all outputs of the last statement.
  std::vector<std::string> outputs = {};
  /// Inputs to differentiate by; default: all graph inputs of the floating type under test.
  std::vector<std::string> wrt = {};
  /// Why no gradient is checked; empty: it is. Cases without a floating output or input give that
  /// as the reason.
  std::string no_gradient = {};
  /// Relative tolerance of the gradient in float64 (absolute below 1); if not 1e-6, explain why.
  double tolerance = 1e-6;
  std::string tolerance_reason = {};
  /// Relative tolerance of float32 against float64, values and gradients, in units of the largest
  /// magnitude of the tensor (at least 1).
  double tolerance_float32 = 2e-5;
  /// By hand, one list per output; empty: other implementations give the expected values.
  std::vector<std::vector<double>> expected = {};
  /// Why the case does not run with all dimensions of its graph inputs symbolic; empty: it does.
  std::string static_only = {};
  /// Why neither onnxruntime nor the ONNX reference evaluator computes it; `expected` is then
  /// given.
  std::string no_oracle = {};
  /// Further opset imports, e.g. {"ai.onnx.ml", 5}.
  std::vector<std::pair<std::string, std::int64_t>> domains = {};
  /// Model-local functions in ONNX's text syntax, appended to the graph.
  std::string functions = {};
};

/// A model that must be refused, when it is loaded, differentiated, planned or run.
struct ErrorCase {
  std::string name;
  std::string model;  ///< name nodes: "[node] y = MatMul (a, b)"
  std::vector<CaseInput> inputs;
  std::string error;                   ///< kind: "ShapeError", "ModelError", "DataError", ...
  std::vector<std::string> fragments;  ///< each must be in the message: node and input names
  std::vector<std::pair<std::string, std::int64_t>> domains = {};
};

/// The floating type under test and how the dimensions of the graph inputs are declared.
struct CaseVariant {
  DataType dtype = DataType::kFloat64;
  bool symbolic = false;  ///< each dimension of each graph input has a different symbol
};

/// Names of the inputs (given or found in the model) and of the outputs, in order.
std::vector<std::string> input_names(const OpCase& op_case);
std::vector<std::string> output_names(const OpCase& op_case);

/// The whole model in ONNX's text syntax. Initializers have the case's numbers.
std::string model_text(const OpCase& op_case, const CaseVariant& variant);

/// The numbers of input `index`, the same for float32 and float64 (all are float32 numbers); fixed
/// by the case's name. Elements of types other than the one under test are converted.
Tensor make_input(const OpCase& op_case, std::size_t index, DataType floating_type);

/// An ErrorCase as an OpCase without expectations.
OpCase as_op_case(const ErrorCase& error_case);
/// A case that is refused, with a message that names its first node, "head", and has `fragments`.
ErrorCase as_error_case(OpCase op_case, std::string error, std::vector<std::string> fragments);

/// "y = com.microsoft.<call>"; a call is "QuickGelu <alpha = 0.5> (x)".
OpCase contrib_call(std::string name, const std::string& call, std::vector<CaseInput> inputs);
ErrorCase contrib_refused(std::string name, const std::string& call, std::vector<CaseInput> inputs,
                          std::string error, std::string fragment);
/// "y = ai.onnx.ml.<call>"
OpCase ml_call(std::string name, const std::string& call, std::vector<CaseInput> inputs,
               std::string no_gradient = "");
ErrorCase ml_refused(std::string name, const std::string& call, std::vector<CaseInput> inputs,
                     std::string error, std::string fragment);

/// The body with blanks in place of attributes <...>, node names [...] and strings: of the
/// same length, with only the names, commas and brackets of the statements.
std::string mask_attributes(const std::string& body);

/// All cases of all operators with the stem before the name ("softmax.last_axis").
/// Those with absent inputs and outputs are derived from the others: see absent_cases.h. The bodies
/// are generated by the build from the onnxgrad_add_op() lines.
std::vector<OpCase> all_op_cases();
std::vector<ErrorCase> all_error_cases();

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_OP_CASE_H_
