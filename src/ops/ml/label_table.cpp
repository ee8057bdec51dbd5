#include "ops/ml/label_table.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <variant>

#include "onnxgrad/error.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops {
namespace {

// Returns the elements of the first of these attributes that the node has; undefined if it has
// none.
Tensor first_list(const ir::Node& node, const std::string& prefix) {
  if (const auto* value = node.find_attribute(prefix + "_strings")) {
    const auto& list = std::get<std::vector<std::string>>(*value);
    return Tensor::from_strings(list, {static_cast<std::int64_t>(list.size())});
  }
  if (const auto* value = node.find_attribute(prefix + "_tensor")) {
    if (const auto* tensor = std::get_if<Tensor>(value)) return *tensor;
  }
  if (const auto* value = node.find_attribute(prefix + "_int64s")) {
    const auto& list = std::get<std::vector<std::int64_t>>(*value);
    return Tensor::from(list, {static_cast<std::int64_t>(list.size())});
  }
  if (const auto* value = node.find_attribute(prefix + "_floats")) {
    const auto& list = std::get<std::vector<float>>(*value);
    return Tensor::from(list, {static_cast<std::int64_t>(list.size())});
  }
  return {};
}

Tensor default_value(const ir::Node& node, DataType dtype) {
  if (const auto* value = node.find_attribute("default_tensor")) {
    if (const auto* tensor = std::get_if<Tensor>(value); tensor->num_elements() == 1) {
      return tensor->cast(dtype);
    }
  }
  if (is_floating(dtype)) {
    return Tensor::scalar(node.float_attribute("default_float")).cast(dtype);
  }
  return Tensor::scalar(node.int_attribute("default_int64")).cast(dtype);
}

}  // namespace

LabelTable read_label_table(const opdef::KernelRequest& request) {
  const DataType dtype = request.outputs[0].dtype;
  const Tensor keys = first_list(request.node, "keys");
  const Tensor given = first_list(request.node, "values");
  if (!keys.is_defined() || !given.is_defined() || keys.num_elements() != given.num_elements()) {
    throw ModelError(
        {.what = fmt::format("{} keys for {} values", keys.is_defined() ? keys.num_elements() : 0,
                             given.is_defined() ? given.num_elements() : 0),
         .where = {.node = request.node.name, .op_type = request.node.op_type},
         .hint = "Give one value for each key."});
  }
  const Tensor converted = given.cast(dtype);
  const Tensor fallback = default_value(request.node, dtype);
  Tensor values = Tensor::empty(dtype, {given.num_elements() + 1});
  std::memcpy(values.mutable_raw(), converted.raw(),
              static_cast<std::size_t>(converted.size_bytes()));
  std::memcpy(values.mutable_raw() + converted.size_bytes(), fallback.raw(),
              static_cast<std::size_t>(fallback.size_bytes()));
  return {.keys = keys, .values = std::move(values)};
}

}  // namespace onnxgrad::ops
