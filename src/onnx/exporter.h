#ifndef ONNXGRAD_ONNX_EXPORTER_H_
#define ONNXGRAD_ONNX_EXPORTER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "onnx/wire.h"

// Serialization of a graph as a ModelProto.

namespace onnxgrad::onnx_io {

/// Tensors that go to a separate file.
struct ExternalTensors {
  std::string location;  ///< name of the file, next to the model
  std::int64_t size_bytes = 0;
  /// The tensors in order, each at its offset (a multiple of 64).
  std::vector<std::pair<std::int64_t, Tensor>> tensors = {};
};

/// The TensorProto to write for an initializer; empty: it is serialized.
using TensorTextFn = std::function<std::string_view(const ir::Value&)>;

/// Serializes a model. Initializers of at least kMinExternalBytes go to `external`, if given,
/// instead of the message. Throws: ModelError (a value that cannot be written).
std::string export_model(const ir::Model& model, ExternalTensors* external = nullptr,
                         const TensorTextFn& text_of = nullptr);

inline constexpr std::int64_t kMinExternalBytes = 1024;

/// Runs save_file() with a different limit for the bytes of tensors stored in the model's file.
void save_model(const ir::Model& model, const std::string& path, std::int64_t max_inline_bytes);

/// Path for external data: `<model_path>.data`, or `<model_path>.<n>.data` if that exists: existing
/// external data is never overwritten.
std::string free_data_path(const std::string& model_path);

/// Assigns `tensor` a place in `external` and appends the TensorProto fields that locate it.
void write_external_fields(WireWriter& out, ExternalTensors& external, const Tensor& tensor);

/// Writes the tensors to a new file. Throws: Error.
void write_external(const std::string& path, const ExternalTensors& external);

/// Bytes of all tensors of the main graph, for choosing how to write.
std::int64_t initializer_bytes(const ir::Model& model);

/// Serialize single messages.
std::string export_function(const ir::Function& function);
std::string export_node(const ir::Node& node);
std::string export_graph(const ir::Graph& graph);
void write_tensor(WireWriter& out, int field, const Tensor& tensor, std::string_view name = "");

/// Runs `write`; errors of files that leave it are ModelError.
template <class Write>
void as_model_error(const Write& write) {
  try {
    write();
  } catch (const ModelError&) {
    throw;
  } catch (const DeviceError&) {
    throw;
  } catch (const InternalError&) {
    throw;
  } catch (const Error& error) {
    throw ModelError(error.problem());
  }
}

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_EXPORTER_H_
