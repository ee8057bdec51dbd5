#ifndef ONNXGRAD_ERROR_H_
#define ONNXGRAD_ERROR_H_

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace [[gnu::visibility("default")]] onnxgrad {

/// The place of an error; empty fields are unknown or do not apply.
struct Place {
  std::string file = {};     ///< path of the model, checkpoint or data file
  std::string graph = {};    ///< name of the graph or function
  std::string node = {};     ///< name of the node
  std::string op_type = {};  ///< operator of the node, e.g. "MatMul"
  std::string value = {};    ///< input, output, weight or column
};

/// Advice to the user about a problem, in one or two sentences. It has no default, so a Problem
/// without one does not compile; neither does an empty literal.
class Hint {
 public:
  template <class Text>
    requires(std::is_convertible_v<Text, std::string> &&
             !std::is_same_v<std::remove_cvref_t<Text>, Hint>)
  Hint(Text&& text) : text_(std::forward<Text>(text)) {  // NOLINT: from texts as if it were one
    using Literal = std::remove_reference_t<Text>;
    static_assert(!std::is_array_v<Literal> || sizeof(Literal) > 1, "say what the user can do");
  }
  const std::string& text() const { return text_; }
  operator const std::string&() const { return text_; }  // NOLINT: to texts as if it were one

 private:
  std::string text_;
};

/// The parts of a message: problem, place, expected and actual values, advice.
struct Problem {
  std::string what = {};  ///< e.g. "shape [12, 4], expected [10, *]"; self-contained
  Place where = {};
  std::string detail = {};  ///< expected and actual, the reason; may be empty
  Hint hint;                ///< advice to the user; required
};

/// Base of everything that onnxgrad throws. what() has at most six lines: "<where>: <what>", the
/// detail, the hint.
class Error : public std::runtime_error {
 public:
  explicit Error(Problem problem);
  ~Error() override;
  const Problem& problem() const { return problem_; }
  const Place& place() const { return problem_.where; }
  /// Name of the class: "ShapeError", ...; also the name of the Python class.
  virtual std::string_view kind() const { return "Error"; }

 private:
  Problem problem_;
};

/// The file or graph is not a valid ONNX model, or a name in it is unknown.
class ModelError : public Error {
 public:
  using Error::Error;
  ~ModelError() override;
  std::string_view kind() const override { return "ModelError"; }
};

/// An operator that the engine cannot run, or cannot run with these types or attributes.
class UnsupportedOperatorError : public Error {
 public:
  using Error::Error;
  ~UnsupportedOperatorError() override;
  std::string_view kind() const override { return "UnsupportedOperatorError"; }
};

/// A requested gradient does not exist; names every node that blocks it.
class GradientError : public Error {
 public:
  using Error::Error;
  ~GradientError() override;
  std::string_view kind() const override { return "GradientError"; }
};

/// Shapes that do not match, or that are too large.
class ShapeError : public Error {
 public:
  using Error::Error;
  ~ShapeError() override;
  std::string_view kind() const override { return "ShapeError"; }
};

/// Data that cannot be fed to a model: wrong dtype, NaN, label out of range, missing column.
class DataError : public Error {
 public:
  using Error::Error;
  ~DataError() override;
  std::string_view kind() const override { return "DataError"; }
};

/// A checkpoint or output file that cannot be written or read, or belongs to another model.
class CheckpointError : public Error {
 public:
  using Error::Error;
  ~CheckpointError() override;
  std::string_view kind() const override { return "CheckpointError"; }
};

/// A loss or a weight became NaN or infinite.
class ConvergenceError : public Error {
 public:
  using Error::Error;
  ~ConvergenceError() override;
  std::string_view kind() const override { return "ConvergenceError"; }
};

/// A device is not available, or the memory budget is exhausted.
class DeviceError : public Error {
 public:
  using Error::Error;
  ~DeviceError() override;
  std::string_view kind() const override { return "DeviceError"; }
};

/// A bug in onnxgrad itself; the message asks to report it.
class InternalError : public Error {
 public:
  explicit InternalError(std::string what);
  ~InternalError() override;
  std::string_view kind() const override { return "InternalError"; }
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_ERROR_H_
