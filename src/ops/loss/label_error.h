#ifndef ONNXGRAD_OPS_LOSS_LABEL_ERROR_H_
#define ONNXGRAD_OPS_LOSS_LABEL_ERROR_H_

#include <cstdint>
#include <optional>
#include <string>

namespace onnxgrad::ops {

/// Throws: DataError for a label of a loss that is none of its classes and not `ignored`.
[[noreturn]] void throw_label_error(const std::string& node, std::int64_t classes,
                                    std::optional<std::int64_t> ignored, std::int64_t row,
                                    std::int64_t label);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_LOSS_LABEL_ERROR_H_
