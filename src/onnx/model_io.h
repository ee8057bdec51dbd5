#ifndef ONNXGRAD_ONNX_MODEL_IO_H_
#define ONNXGRAD_ONNX_MODEL_IO_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "onnx/file_bytes.h"
#include "opdef/gradient_at.h"
#include "opdef/kernel.h"
#include "opdef/registry.h"

// Reading and writing of model files. A FileModel keeps the bytes of the file with the graph, so
// that training returns the same file with only the values of the weights replaced.

namespace onnxgrad::onnx_io {

struct LoadOptions {
  /// Folder that must contain external data; empty: the real folder of the model file.
  std::string external_root;
  /// Maximum size of a file; protobuf's limit for one message.
  std::int64_t max_file_bytes = std::numeric_limits<std::int32_t>::max();
};

/// A model as in its file: own opset, names, functions. Immutable, shareable.
struct FileModel {
  std::string path;                        ///< empty if it came from bytes
  std::shared_ptr<const FileBytes> bytes;  ///< the serialized ModelProto
  std::shared_ptr<const ir::Model> model;  ///< large tensors are views into the memory of `bytes`
  std::string external_root = {};          ///< folder of its external data; empty: it has none
};

/// Reads, checks (own checks: structure, names, cycles, types, attribute forms, tensor sizes) and
/// imports. Throws: ModelError naming file and position, DeviceError (memory budget).
FileModel load_file(const std::string& path, const LoadOptions& options = {});
FileModel load_bytes(std::string bytes, const LoadOptions& options = {},
                     const std::string& path = "");
/// Parses ONNX's text syntax (for tests). Throws: ModelError.
FileModel load_text(std::string_view text);

/// The serialized ModelProto. Throws: ModelError (more than 2 GiB).
std::string to_bytes(const ir::Model& model);
/// Writes a file atomically (temporary name, flush, rename). Above 2 GiB in total, the tensors go
/// to a new file `<path>.data` (`<path>.<n>.data` if that exists: external data is never
/// overwritten).
void save_file(const ir::Model& model, const std::string& path);

class OperatorTable;  // operator_table.h

/// Operators that users registered.
struct RegisteredOperators {
  const OperatorTable* table = nullptr;  ///< null: none
  bool keeps_calls = true;  ///< keep calls of operators with a gradient; false: expand all
};

/// A working copy: internal opset, Constant nodes as initializers, operators with a lowering rule
/// replaced (their weights have a WeightOrigin), functions of the model expanded if `registry`
/// has no operator for them, operators that it lacks expanded to ONNX's definition, types
/// inferred. Weights are shared with `file`, not copied; those of subgraphs and functions become
/// initializers of the main graph. An If whose condition is known becomes its branch; `evaluator`
/// computes conditions; without one, only constants of the file are known. Nodes of the operator
/// Gradient become what `gradient_at` writes; without one they remain. Opsets 7 to 28 are
/// supported. Throws: ModelError (an operator that cannot be upgraded faithfully), ShapeError;
/// GradientError (a Gradient node through operators without a gradient).
ir::Model to_internal(const FileModel& file, const opdef::OpRegistry& registry,
                      const opdef::Evaluator* evaluator = nullptr,
                      const RegisteredOperators& operators = {},
                      const opdef::GradientAtFn& gradient_at = nullptr);

/// The body of a function for files of an opset that lacks operators of its usual body, which
/// replaces calls of the function; nullopt: there is none.
using OlderBodyFn = std::optional<ir::Function> (*)(const ir::Node& call, std::int64_t opset);

/// Converts a model for other runtimes: ai.onnx opset `opset` (17 to 26; 9 to 16 as far as
/// operators allow) and the IR version of its time, at most 10; with `inline_functions` no local
/// functions remain. `model` may be of any opset. Newer operators are expanded to their bodies;
/// those that stock onnxruntime does not run (in float64, or in the version of that opset) are
/// rewritten. `older_body`: see OlderBodyFn. Throws: ModelError naming a node that this opset
/// cannot express.
ir::Model to_target_opset(const ir::Model& model, std::int64_t opset, bool inline_functions,
                          OlderBodyFn older_body = nullptr);

/// The bytes of `file` with new values for these weights (by name of the working copy's value; its
/// origin has the location) and nothing else changed: a weight's data is overwritten in place,
/// whatever form it is stored in. dtype and shape must be unchanged. Weights are whole
/// initializers: one that a frozen node also reads changes for that node as well. Data in
/// external files moves into the bytes, which are self-contained. Throws:
/// ModelError (unknown weight, different dtype or shape, more than 2 GiB), with names.
/// `note`, serialized fields of a ModelProto, is appended.
std::string with_weights(const FileModel& file, const ir::Model& working,
                         std::span<const std::pair<std::string, Tensor>> weights,
                         std::string_view note = {});

/// Whether tensors of the file have their data in other files.
bool has_external_data(const FileModel& file);

/// Writes the result of with_weights() to `path`, atomically. Weights with external data go to a
/// new external file next to it (`<path>.data`, or `<path>.<n>.data`), and so does all other
/// external data if `path` is not in the original's folder; no existing external file is
/// overwritten. Throws: ModelError.
void save_with_weights(const FileModel& file, const ir::Model& working,
                       std::span<const std::pair<std::string, Tensor>> weights,
                       const std::string& path, std::string_view note = {});

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_MODEL_IO_H_
