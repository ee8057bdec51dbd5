#include "onnxgrad/error.h"

#include <utility>

#include "base/check.h"
#include "onnxgrad/option_error.h"

namespace onnxgrad {
namespace {

// "MatMul node 'dense_1/matmul', 'dense_1.weight'", from most to least specific; without what the
// problem itself names.
std::string describe(const Place& place, const std::string& what) {
  std::string text;
  const auto join = [&text](const std::string& part) {
    if (!text.empty()) text += ", ";
    text += part;
  };
  if (!place.op_type.empty() || !place.node.empty()) {
    std::string node = place.op_type.empty() ? "node" : base::printable(place.op_type) + " node";
    if (!place.node.empty()) node += " '" + base::printable(place.node) + "'";
    join(node);
  }
  const std::string value = "'" + base::printable(place.value) + "'";
  if (!place.value.empty() && what.find(value) == std::string::npos) join(value);
  return text;
}

std::string format(const Problem& problem) {
  const std::string place = describe(problem.where, problem.what);
  std::string text = place.empty() ? problem.what : place + ": " + problem.what;
  const auto add_line = [&text](const std::string& line) {
    if (!line.empty()) text += "\n  " + line;
  };
  add_line(problem.detail);
  std::string source;
  if (!problem.where.graph.empty()) {
    source += "In graph '" + base::printable(problem.where.graph) + "'";
  }
  if (!problem.where.file.empty()) {
    source +=
        (source.empty() ? "In file '" : " of file '") + base::printable(problem.where.file) + "'";
  }
  if (!source.empty()) source += '.';
  add_line(source);
  add_line(problem.hint.text());
  return text;
}

// Names in it may come from a file.
Problem as_printable(Problem problem) {
  problem.what = base::printable(problem.what);
  problem.detail = base::printable_lines(problem.detail);
  problem.hint = base::printable_lines(problem.hint.text());
  return problem;
}

}  // namespace

Error::Error(Problem problem)
    : std::runtime_error(format(problem = as_printable(std::move(problem)))),
      problem_(std::move(problem)) {}

InternalError::InternalError(std::string what)
    : Error({.what = "internal error: " + std::move(what),
             .hint = "This is a bug in onnxgrad: please report it with the model."}) {}

// Compiled here and not in every source that throws.
Error::~Error() = default;
ModelError::~ModelError() = default;
UnsupportedOperatorError::~UnsupportedOperatorError() = default;
GradientError::~GradientError() = default;
ShapeError::~ShapeError() = default;
DataError::~DataError() = default;
CheckpointError::~CheckpointError() = default;
ConvergenceError::~ConvergenceError() = default;
DeviceError::~DeviceError() = default;
InternalError::~InternalError() = default;
OptionError::~OptionError() = default;

}  // namespace onnxgrad
