#ifndef ONNXGRAD_ONNX_FILE_KIND_H_
#define ONNXGRAD_ONNX_FILE_KIND_H_

#include <optional>
#include <string>
#include <string_view>

namespace onnxgrad::onnx_io {

/// What a file is that was given for a model.
struct FileKind {
  std::string what;  ///< "a text: its first line is 'a,b,c'"
  std::string hint;
};

/// By its first bytes. Only for files that are no ONNX model; nullopt: nothing that is known.
std::optional<FileKind> kind_of_file(std::string_view bytes);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_FILE_KIND_H_
