#ifndef ONNXGRAD_ONNX_FILE_KIND_H_
#define ONNXGRAD_ONNX_FILE_KIND_H_

#include <optional>
#include <string>
#include <string_view>

namespace onnxgrad::onnx_io {

/// The kind of a file that was given instead of a model.
struct FileKind {
  std::string what;  ///< "text whose first line is 'a,b,c'"
  std::string hint;
};

/// Recognises a file that is not an ONNX model by its first bytes; nullopt: not recognised.
std::optional<FileKind> kind_of_file(std::string_view bytes);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_FILE_KIND_H_
