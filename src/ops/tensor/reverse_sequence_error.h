#ifndef ONNXGRAD_OPS_TENSOR_REVERSE_SEQUENCE_ERROR_H_
#define ONNXGRAD_OPS_TENSOR_REVERSE_SEQUENCE_ERROR_H_

#include <cstdint>
#include <string>

namespace onnxgrad::ops {

/// Throws: DataError for the length of a sequence that ReverseSequence cannot reverse.
[[noreturn]] void throw_sequence_length(std::int64_t length, std::int64_t times,
                                        const std::string& node);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_TENSOR_REVERSE_SEQUENCE_ERROR_H_
