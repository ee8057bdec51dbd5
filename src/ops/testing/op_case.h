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

/// Shape, type and values of one input.
struct CaseInput {
  enum class Source : std::uint8_t { kUniform, kNormal, kIntegers, kValues };

  Dims dims = {};
  Source source = Source::kUniform;
  /// kUndefined: the floating type under test (float64 for gradients, float32 besides).
  DataType dtype = DataType::kUndefined;
  double low = -1;
  double high = 1;
  std::vector<double> numbers = {};
  /// Name of the input; default: the model's names that no node produces, in order of appearance.
  std::string name = {};
  /// True for an initializer of the model, false for a graph input.
  bool is_constant = false;

  CaseInput as(DataType wanted) const;
  CaseInput named(std::string wanted) const;
  /// Returns the input as an initializer of the model instead of a graph input.
  CaseInput constant() const;
  /// Returns the input as a graph input; for ints(), which makes initializers.
  CaseInput fed() const;
};

/// Uniform elements in [low, high), of the floating type under test.
CaseInput uniform(Dims dims, double low, double high);
/// Normal elements with this standard deviation, of the floating type under test.
CaseInput normal(Dims dims, double deviation = 1);
/// Integer elements in [low, high], both included; graph input.
CaseInput integers(Dims dims, std::int64_t low, std::int64_t high,
                   DataType dtype = DataType::kInt64);
/// Exactly these elements, of the floating type under test unless `dtype` is given.
CaseInput values(std::vector<double> numbers, Dims dims, DataType dtype = DataType::kUndefined);
/// int64 [n] initializer with these elements: axes, shapes, pads, ...
CaseInput ints(const std::vector<std::int64_t>& numbers);
/// int64 scalar as an initializer.
CaseInput int_scalar(std::int64_t number);

/// Model of one or a few nodes with its inputs.
struct OpCase {
  /// Name, unique within the stem, lower case with underscores.
  std::string name;
  /// Body in ONNX's text syntax, statements separated by newlines; header, opset 26 and the types
  /// of the inputs are added. "$T" stands for the floating type under test ("double", "float").
  std::string model;
  std::vector<CaseInput> inputs;
  /// Output names; default: all outputs of the last statement.
  std::vector<std::string> outputs = {};
  /// Inputs to differentiate by; default: all graph inputs of the floating type under test.
  std::vector<std::string> wrt = {};
  /// Reason why no gradient is checked; empty: it is. Cases without a floating output or input give
  /// that as the reason.
  std::string no_gradient = {};
  /// Relative tolerance of the gradient in float64 (absolute below 1); if not 1e-6, explain why.
  double tolerance = 1e-6;
  std::string tolerance_reason = {};
  /// Relative tolerance of float32 against float64, values and gradients, in units of the largest
  /// magnitude of the tensor (at least 1).
  double tolerance_float32 = 2e-5;
  /// Expected values computed by hand, one list per output; empty: other implementations give them.
  std::vector<std::vector<double>> expected = {};
  /// Reason why the case does not run with all dimensions of its graph inputs symbolic; empty: it
  /// does.
  std::string static_only = {};
  /// Reason why neither onnxruntime nor the ONNX reference evaluator computes the case; `expected`
  /// is then given.
  std::string no_oracle = {};
  /// Further opset imports, e.g. {"ai.onnx.ml", 5}.
  std::vector<std::pair<std::string, std::int64_t>> domains = {};
  /// Model-local functions in ONNX's text syntax, appended to the graph.
  std::string functions = {};
};

/// Model that must be refused, when it is loaded, differentiated, planned or run.
struct ErrorCase {
  std::string name;
  std::string model;  ///< name nodes: "[node] y = MatMul (a, b)"
  std::vector<CaseInput> inputs;
  std::string error;                   ///< kind: "ShapeError", "ModelError", "DataError", ...
  std::vector<std::string> fragments;  ///< parts of the message: node and input names
  std::vector<std::pair<std::string, std::int64_t>> domains = {};
};

/// Floating type under test and declaration of the dimensions of the graph inputs.
struct CaseVariant {
  DataType dtype = DataType::kFloat64;
  bool symbolic = false;  ///< each dimension of each graph input has a different symbol
};

/// Returns the names of the inputs (given or found in the model) and of the outputs, in order.
std::vector<std::string> input_names(const OpCase& op_case);
std::vector<std::string> output_names(const OpCase& op_case);

/// Returns the whole model in ONNX's text syntax. Initializers have the case's values.
std::string model_text(const OpCase& op_case, const CaseVariant& variant);

/// Returns the values of input `index`, equal for float32 and float64 (all are float32 values) and
/// determined by the case's name. Elements of types other than the one under test are converted.
Tensor make_input(const OpCase& op_case, std::size_t index, DataType floating_type);

/// Converts an ErrorCase to an OpCase without expectations.
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

/// Returns the body with blanks in place of attributes <...>, node names [...] and strings: it
/// keeps its length, and only the names, commas and brackets of the statements remain.
std::string mask_attributes(const std::string& body);

/// Returns all cases of all operators, with the stem before the name ("softmax.last_axis"). Cases
/// with absent inputs and outputs are derived from the others: see absent_cases.h. The bodies are
/// generated by the build from the onnxgrad_add_op() lines.
std::vector<OpCase> all_op_cases();
std::vector<ErrorCase> all_error_cases();

}  // namespace onnxgrad::ops_test

#endif  // ONNXGRAD_OPS_TESTING_OP_CASE_H_
