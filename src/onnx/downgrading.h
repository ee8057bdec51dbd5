#ifndef ONNXGRAD_ONNX_DOWNGRADING_H_
#define ONNXGRAD_ONNX_DOWNGRADING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "ir/builder.h"

// Helpers of the rules that write older forms.

namespace onnxgrad::onnx_io {

/// Throws ModelError "<what>, which the target opset cannot express".
[[noreturn]] void refuse_downgrade(const ir::Node& node, const std::string& what);

/// The rank of an input. Throws: ModelError if it is not known.
std::size_t known_rank(const ir::Node& node, std::size_t input = 0);

/// All elements of an integer input. Throws: ModelError if they are not constant.
std::vector<std::int64_t> constant_ints(const ir::Node& node, std::size_t input, const char* what);

/// The number of elements of `value` along `axis`, int64 [1]: a constant if known.
ir::Value* length_of(ir::GraphBuilder& g, ir::Value* value, std::size_t axis);

/// The numbers 0, 1, ..., int64 [count]. `count`: int64 [1].
ir::Value* numbers_to(ir::GraphBuilder& g, ir::Value* count);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_DOWNGRADING_H_
