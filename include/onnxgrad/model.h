#ifndef ONNXGRAD_MODEL_H_
#define ONNXGRAD_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxgrad/tensor.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// A tensor with the name of the input, output, weight or state that it belongs to.
struct NamedTensor {
  std::string name;
  Tensor tensor;
};
using NamedTensors = std::vector<NamedTensor>;

/// One dimension of a declared shape: a number, a symbol such as "N", or neither (unknown).
struct Dimension {
  std::int64_t value = -1;  ///< -1: not a fixed number
  std::string symbol = {};
  bool is_fixed() const { return value >= 0; }
  bool operator==(const Dimension&) const = default;
};

/// An input or output of a model as its file declares it.
struct ValueInfo {
  std::string name;
  bool is_tensor = true;                             ///< false: sequences, maps, optionals
  DataType dtype = DataType::kUndefined;             ///< element type of a tensor
  std::optional<std::vector<Dimension>> shape = {};  ///< shape of a tensor; nullopt: unknown rank
  std::string type = {};  ///< text: "float32[N, 4]", "sequence(map(int64, float32[]))"
  /// Keys of the columns, int64 or string [C], if a session reads or returns maps as a tensor [N,
  /// C] with one row for each map. In a row of an input, a key that the map does not have is 0 (or
  /// ""). `type` is that of the file then. Undefined: there are no maps, or (an input of type
  /// "map(...)") each row has the values of its map in the order of the keys.
  Tensor keys = {};
};

/// A weight: an initializer, a Constant node's value, or numbers in attributes (LinearClassifier).
struct WeightInfo {
  enum class Storage { kInitializer, kConstantNode, kAttribute };
  std::string name;
  DataType dtype = DataType::kUndefined;
  Dims dims = {};
  Storage storage = Storage::kInitializer;
  /// True if it is trained by default: floating, and a parameter as far as the file shows. That
  /// covers the parameters of layers (MatMul, Gemm, Conv, an Add after these, normalisations,
  /// embeddings, ...), and any other tensor that scales, shifts or is concatenated to values (class
  /// tokens, position embeddings, layer scales, temperatures) if neither its name nor its elements
  /// are those of a constant. Masks, scalers of the model's inputs, running statistics, tables
  /// computed by a formula and single numbers of formulas are not parameters.
  bool trainable = false;
  std::string reason = {};   ///< reason for which it is not trainable, a few words
  std::string op_type = {};  ///< the operator that reads it
  std::string node = {};     ///< the name of that node
  /// Layers on the longest path from that node to the end of the model: 0 in the head, 1 in the
  /// layer before it and the normalisation behind that; -1: nothing reads it.
  std::int64_t level = -1;
  /// Names in the program that the file was exported from, if the exporter renamed the weight:
  /// "encoder.layer.0.attention.self.query.weight" of "val_92" or "onnx::MatMul_356". Taken from
  /// the metadata of the node that reads it, else from the bias that is added next ("fc.bias"),
  /// else from the name of that node ("/encoder/layer.0/MatMul"). Every option that takes names or
  /// patterns of weights takes these. Several: the parameters that a weight of an LSTM, GRU or RNN
  /// is put together from. Unique in the model, and never the name of a value.
  std::vector<std::string> aliases = {};
};

/// A tensor of a file that several layers read and that training splits: exporters write equal
/// tensors once, and these elements are equal in every new network (all zeros, all ones).
struct SeparatedWeight {
  std::string name;
  /// Names of the tensors that it is split into, `name` first: "b", "b_1", "b_2", in the order in
  /// which the file reads them.
  std::vector<std::string> parts;
};

struct LoadOptions {
  /// Folder that must contain external data; empty: the real folder of the model file.
  std::string external_root = {};
  /// Bytes that loading may use; 0: three quarters of the machine's (or cgroup's) memory.
  std::int64_t memory_limit_bytes = 0;
};

/// An ONNX model. Immutable; a copy costs a reference count and shares all data. Thread-safe.
class Model {
 public:
  /// Reads and checks a file. Throws: ModelError (not a valid ONNX model; names file and position),
  /// DeviceError (memory limit).
  static Model load(const std::string& path, const LoadOptions& options = {});
  /// Loads a serialized ModelProto. `bytes` is kept, not copied, when moved in.
  static Model from_bytes(std::string bytes, const LoadOptions& options = {});
  /// Parses ONNX's text syntax ("agraph (float[N, 2] x) => (float[N, 1] y) { ... }" with its
  /// header). Throws: ModelError.
  static Model from_text(std::string_view text);

  /// Writes the file atomically: temporary name, flush, rename. Above 2 GiB, tensors go to a new
  /// `<path>.data`. Throws: CheckpointError.
  void save(const std::string& path) const;
  /// The serialized ModelProto: byte for byte as loaded, if it was, with external data
  /// included. Throws: ModelError (2 GiB).
  std::string to_bytes() const;
  /// Readable text: one line per node, with types.
  std::string to_text() const;

  /// Graph inputs that the caller must feed, in order.
  const std::vector<ValueInfo>& inputs() const;
  const std::vector<ValueInfo>& outputs() const;
  /// All weights in file order, floating or not. The first call examines every node.
  /// Throws: ModelError (an operator that cannot be converted to the internal opset).
  const std::vector<WeightInfo>& weights() const;
  /// The value of a weight: a view. Throws: ModelError naming the nearest.
  Tensor weight(std::string_view name) const;

  /// Path of the file; empty if there is none.
  const std::string& path() const;
  /// Version of the operator set of `domain` ("" is ai.onnx); 0 if it is not imported.
  std::int64_t opset(std::string_view domain = "") const;
  std::int64_t ir_version() const;
  const std::string& producer_name() const;
  const std::vector<std::pair<std::string, std::string>>& metadata() const;

  struct Impl;  ///< private to the library
  explicit Model(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_MODEL_H_
