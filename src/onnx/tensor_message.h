#ifndef ONNXGRAD_ONNX_TENSOR_MESSAGE_H_
#define ONNXGRAD_ONNX_TENSOR_MESSAGE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "ir/graph.h"
#include "onnx/file_bytes.h"
#include "onnxgrad/tensor.h"

// Tensors of a file: positions of their data, and the data. No other code decodes TensorProto.

namespace onnxgrad::onnx_io {

/// Part of a typed field (float_data, ...): packed elements, or one element.
struct DataChunk {
  bool is_packed = false;
  std::string_view bytes;
};

/// The location of external data: the `external_data` entries of a tensor, well-formed.
struct ExternalLocation {
  std::string location;
  std::int64_t offset = 0;
  std::optional<std::int64_t> length;
};

/// A TensorProto as views into the file.
struct TensorMessage {
  std::string_view name;
  std::string_view doc_string;
  ir::Metadata metadata;
  DataType dtype = DataType::kUndefined;
  Dims dims;
  std::optional<std::string_view> raw;
  int typed_field = 0;  ///< number of the one typed field that has data; 0: none
  std::vector<DataChunk> typed;
  std::optional<ExternalLocation> external;
  std::string_view whole;  ///< all bytes of the message
};

/// Parses a TensorProto. Throws: ModelError (unknown element type, two storage forms, segments,
/// malformed entries), ShapeError (dimensions).
TensorMessage read_tensor_message(std::string_view bytes);

/// The typed field that ONNX's specification assigns to `dtype`.
int typed_field_of(DataType dtype);

/// Parses a StringStringEntryProto.
std::pair<std::string, std::string> read_entry(std::string_view bytes);

/// Decodes tensors of one file.
class TensorDecoder {
 public:
  /// `owner` keeps the file's bytes alive; `external_root` empty: external data is refused. With
  /// `file`, the messages are in it, each is decoded once, and large tensors are aligned there.
  TensorDecoder(std::shared_ptr<const void> owner, std::string external_root,
                FileBytes* file = nullptr)
      : owner_(std::move(owner)), external_root_(std::move(external_root)), file_(file) {}

  /// The data: a view into the file's bytes if they are aligned and in the in-memory form, else a
  /// copy. Throws: ModelError (wrong number of elements or bytes, external data that is missing,
  /// outside its folder or too short), DeviceError (memory budget).
  Tensor decode(const TensorMessage& message);

 private:
  Tensor decode_raw(const TensorMessage& message, std::string_view raw) const;
  const base::ReadableFile& open_external(const TensorMessage& message,
                                          const std::string& location);
  Tensor decode_external(const TensorMessage& message, const ExternalLocation& external);

  std::shared_ptr<const void> owner_;
  std::string external_root_;
  FileBytes* file_;
  std::map<std::string, base::ReadableFile> files_;
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_TENSOR_MESSAGE_H_
