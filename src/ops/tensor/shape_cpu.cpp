#include <algorithm>
#include <cstring>

#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// Plain kernels of the operators that make tensors from shapes and numbers.

namespace onnxgrad::ops {
namespace {

using opdef::KernelOffer;
using opdef::KernelRequest;

// The whole output is known at plan time.
struct NumbersData {
  std::vector<std::int64_t> numbers;
};

void run_numbers(const void* data, std::byte* const* args, const opdef::Launch&) {
  const auto& numbers = static_cast<const NumbersData*>(data)->numbers;
  if (numbers.empty()) return;
  std::memcpy(args[1], numbers.data(), numbers.size() * sizeof(std::int64_t));
}

KernelOffer offer_shape(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const auto rank = static_cast<std::int64_t>(dims.rank());
  const auto clamped = [rank](std::int64_t axis) {
    return std::clamp<std::int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const std::int64_t start = clamped(request.node.int_attribute("start", 0));
  const std::int64_t end = std::max(start, clamped(request.node.int_attribute("end", rank)));
  return prepared(run_numbers, NumbersData{{dims.begin() + start, dims.begin() + end}}, "shape");
}

KernelOffer offer_size(const KernelRequest& request) {
  return prepared(run_numbers, NumbersData{{request.inputs[0].dims.num_elements()}}, "size");
}

// y = one element, everywhere.
struct FillData {
  std::array<std::byte, 16> element = {};
  std::int64_t element_bytes = 0;
  std::int64_t count = 0;
};

void run_fill(const void* data, std::byte* const* args, const opdef::Launch&) {
  const auto& fill = *static_cast<const FillData*>(data);
  if (fill.element_bytes == 16) {
    for (std::int64_t i = 0; i < fill.count; ++i) {
      std::memcpy(args[1] + 16 * i, fill.element.data(), 16);
    }
    return;
  }
  with_element_type(fill.element_bytes, [&](auto element) {
    std::memcpy(&element, fill.element.data(), sizeof(element));
    std::fill_n(reinterpret_cast<decltype(element)*>(args[1]), fill.count, element);
  });
}

KernelOffer offer_constant_of_shape(const KernelRequest& request) {
  FillData data{.element_bytes = element_bytes(request.outputs[0].dtype),
                .count = request.outputs[0].dims.num_elements()};
  if (data.element_bytes == 0) return decline_dtype(request, request.outputs[0].dtype);
  const ir::AttributeValue* attribute = request.node.find_attribute("value");
  if (const auto* value = attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute)) {
    if (value->num_elements() != 1 || value->dtype() != request.outputs[0].dtype) {
      throw ModelError({.what = "attribute 'value' must hold one element",
                        .where = {.node = request.node.name, .op_type = request.node.op_type}});
    }
    std::memcpy(data.element.data(), value->raw(), static_cast<std::size_t>(data.element_bytes));
  }
  return prepared(run_fill, data, "fill");
}

// y [rows, columns] = 1 on diagonal k.
struct EyeData {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t k = 0;
};

template <class T>
void run_eye(const void* data, std::byte* const* args, const opdef::Launch&) {
  const auto& eye = *static_cast<const EyeData*>(data);
  T* y = reinterpret_cast<T*>(args[1]);
  std::fill_n(y, eye.rows * eye.columns, T{0});
  // k lies in [-rows, columns], so nothing overflows.
  for (std::int64_t i = std::max<std::int64_t>(0, -eye.k); i < eye.rows; ++i) {
    if (i + eye.k >= eye.columns) break;
    y[i * eye.columns + i + eye.k] = T{1};
  }
}

KernelOffer offer_eye(const KernelRequest& request) {
  const Dims& dims = request.outputs[0].dims;
  if (dims.rank() != 2) {
    throw ShapeError({.what = "shape " + dims.to_string() + ", expected a matrix",
                      .where = {.node = request.node.name, .op_type = "EyeLike"}});
  }
  const std::int64_t k = std::clamp(request.node.int_attribute("k", 0), -dims[0], dims[1]);
  const EyeData data{.rows = dims[0], .columns = dims[1], .k = k};
  switch (request.outputs[0].dtype) {
    case DataType::kFloat32:
      return prepared(run_eye<float>, data, "plain eye");
    case DataType::kFloat64:
      return prepared(run_eye<double>, data, "plain eye");
    case DataType::kInt64:
      return prepared(run_eye<std::int64_t>, data, "plain eye");
    case DataType::kInt32:
      return prepared(run_eye<std::int32_t>, data, "plain eye");
    case DataType::kBool:
      return prepared(run_eye<bool>, data, "plain eye");
    default:
      return decline_dtype(request, request.outputs[0].dtype);
  }
}

struct RangeData {
  std::int64_t count = 0;
};

template <class T>
void run_range(const void* data, std::byte* const* args, const opdef::Launch&) {
  const std::int64_t count = static_cast<const RangeData*>(data)->count;
  const T start = *reinterpret_cast<const T*>(args[0]);
  const T delta = *reinterpret_cast<const T*>(args[2]);
  T* y = reinterpret_cast<T*>(args[3]);
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      y[i] = start + static_cast<T>(i) * delta;
    } else {  // wraps around
      y[i] = static_cast<T>(static_cast<std::uint64_t>(start) +
                            static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(delta));
    }
  }
}

KernelOffer offer_range(const KernelRequest& request) {
  const RangeData data{.count = request.outputs[0].dims.num_elements()};
  switch (request.outputs[0].dtype) {
    case DataType::kFloat32:
      return prepared(run_range<float>, data, "plain range");
    case DataType::kFloat64:
      return prepared(run_range<double>, data, "plain range");
    case DataType::kInt64:
      return prepared(run_range<std::int64_t>, data, "plain range");
    case DataType::kInt32:
      return prepared(run_range<std::int32_t>, data, "plain range");
    case DataType::kInt16:
      return prepared(run_range<std::int16_t>, data, "plain range");
    default:
      return decline_dtype(request, request.outputs[0].dtype);
  }
}

}  // namespace

void register_shape_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Shape", 0, offer_shape);
  registry.add("", "Size", 0, offer_size);
  registry.add("", "ConstantOfShape", 0, offer_constant_of_shape);
  registry.add("", "EyeLike", 0, offer_eye);
  registry.add("", "Range", 0, offer_range);
}

}  // namespace onnxgrad::ops
