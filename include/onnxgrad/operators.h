#ifndef ONNXGRAD_OPERATORS_H_
#define ONNXGRAD_OPERATORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "onnxgrad/model.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// An operator, or a gradient, made of functions (FunctionProto) of a library.
struct OperatorSpec {
  /// "domain::Name"; "Name" of an operator of ai.onnx.
  std::string name = {};
  /// The function of the library that computes it, by the same form of name. Empty: the operator is
  /// one of ONNX, of the model, or registered before, and only its gradient is given here.
  std::string body = {};
  /// The function that computes its gradient; empty: the body is differentiated. Inputs: those of
  /// the operator, its outputs if the function reads them, then a cotangent for each output (zeros
  /// for an output that nothing reads). Outputs: the gradients of the inputs, each of its input's
  /// shape and dtype; fewer: the others have none. It may use attributes of the operator.
  std::string gradient = {};
  /// Indices of the inputs that the outputs of the gradient belong to; empty: the first ones.
  std::vector<int> gradient_inputs = {};
};

struct RegisteredOperator {
  std::string name;  ///< "domain::Name"
  bool has_body = false;
  bool has_gradient = false;
};

// User-defined operators. Models that are loaded while they are registered have them like those of
// ONNX: in training, gradients, predictions and reports. Files that are written contain the
// functions or their expansion, so that other runtimes run them. Functions use operators of ONNX,
// each other and registered operators. Thread-safe.

/// Registers functions of `library`, a model whose graph does not count. Without `specs` all:
/// "<Name>_grad" as the gradient of "<Name>" of its domain, the others as operators. With `specs`,
/// functions that these do not name are operators too. Returns a number for unregister_operators().
/// Throws: OptionError (a name that is registered already, unless `overwrite`; an operator of ONNX
/// as a body; an unknown function; a gradient with a wrong number of inputs), ModelError (functions
/// that call each other in a circle).
std::int64_t register_operators(const Model& library, const std::vector<OperatorSpec>& specs = {},
                                bool overwrite = false);

/// Ends a registration; operators that it replaced are used again. No effect on loaded models, or
/// if it has ended.
void unregister_operators(std::int64_t registration);

/// The operators registered now, sorted by name.
std::vector<RegisteredOperator> registered_operators();

}  // namespace onnxgrad

#endif  // ONNXGRAD_OPERATORS_H_
