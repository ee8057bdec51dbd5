#ifndef ONNXGRAD_ONNX_EDITED_FILE_H_
#define ONNXGRAD_ONNX_EDITED_FILE_H_

#include <memory>

#include "ir/graph.h"
#include "onnx/model_io.h"

namespace onnxgrad::onnx_io {

/// A file whose graph is `edited`, a changed clone of `base.model`. No tensor is copied: those of
/// `base` stay in its memory, and where their bytes are asked for, a tensor that `edited` still has
/// under its name is written as it is in `base`, external data as the same place of the same file.
/// `base` must have bytes.
FileModel edited_file(const FileModel& base, std::shared_ptr<const ir::Model> edited);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_EDITED_FILE_H_
