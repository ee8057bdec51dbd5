#ifndef ONNXGRAD_ONNX_TRAINING_INFO_H_
#define ONNXGRAD_ONNX_TRAINING_INFO_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "onnx/model_io.h"

// TrainingInfoProto: the training that a file describes itself. Its graph `algorithm` continues the
// model's graph, and each binding names the initializer that an output is assigned to after a step.

namespace onnxgrad::onnx_io {

struct TrainingBinding {
  std::string initializer;
  std::string output;
};

/// One TrainingInfoProto of a file.
struct TrainingInfo {
  /// The model's graph followed by `algorithm`, field by field, as ONNX defines a step. The
  /// initializers that a binding of the file changes are inputs with a default.
  FileModel step;
  std::vector<TrainingBinding> updates;
  /// Names of the initializers of `algorithm`.
  std::unordered_set<std::string> own_initializers = {};
  /// The graph `initialization` as a model; nullopt: it has no nodes and nothing is bound.
  std::optional<FileModel> initialization = {};
  std::vector<TrainingBinding> initial_values = {};
};

/// Whether the file has training information.
bool has_training_info(const FileModel& file);

/// Reads all TrainingInfoProtos, in order; file.bytes must be there. Throws: ModelError naming the
/// place: graphs that do not continue the model's, initialization with inputs, bindings of unknown
/// initializers or outputs, initializers that are bound twice, or that nothing updates.
std::vector<TrainingInfo> read_training_info(const FileModel& file);

/// The place of an initializer of algorithm `index`, for WeightOrigin::function and FileIndex.
std::string algorithm_scope(std::size_t index);

/// The key of the entry of ModelProto.metadata_props that is_initialized() looks for.
inline constexpr std::string_view kInitializedKey = "onnxgrad.initialized";
/// The serialized entry of ModelProto.metadata_props that notes that `initialization` has been run
/// and its results trained; appended to the bytes of a file.
std::string initialized_note();
/// True if the file has the entry of initialized_note(): its values are no initial values.
bool is_initialized(const FileModel& file);
/// Whether `initialization` changes something.
bool has_initial_values(const FileModel& file);

/// The key of an entry of algorithm.metadata_props: the target is a class number, and the value is
/// the name of the output that has the labels (empty: the model's).
inline constexpr std::string_view kClassesKey = "onnxgrad.classes_of";

/// A serialized TrainingInfoProto. Values of the model's graph are in no list of `algorithm`.
std::string write_training_info(const ir::Graph& algorithm,
                                const std::vector<TrainingBinding>& updates);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_TRAINING_INFO_H_
