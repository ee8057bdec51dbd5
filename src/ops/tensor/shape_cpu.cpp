#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// Reference kernels of the operators that create tensors from shapes and scalars.

namespace onnxgrad::ops::shape_cpu {
namespace {

// Output that is a constant at plan time.
struct NumbersData {
  std::vector<std::int64_t> numbers;
};

void run_numbers(const NumbersData& data, KernelArgs args) {
  const auto& numbers = data.numbers;
  if (numbers.empty()) return;
  std::memcpy(args[1], numbers.data(), numbers.size() * sizeof(std::int64_t));
}

KernelOffer offer_shape(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const auto rank = static_cast<std::int64_t>(dims.rank());
  const auto clamped = [rank](std::int64_t axis) {
    return std::clamp<std::int64_t>(axis < 0 ? axis + rank : axis, 0, rank);
  };
  const std::int64_t start = clamped(request.node.int_attribute("start"));
  const std::int64_t end = std::max(start, clamped(request.node.int_attribute("end", rank)));
  return prepared<run_numbers>(NumbersData{{dims.begin() + start, dims.begin() + end}}, "shape");
}

KernelOffer offer_size(const KernelRequest& request) {
  return prepared<run_numbers>(NumbersData{{request.inputs[0].dims.num_elements()}}, "size");
}

// y = one value, in every element.
struct FillData {
  std::array<std::byte, 16> element = {};
  std::int64_t element_bytes = 0;
  std::int64_t count = 0;
};

void run_fill(const FillData& fill, KernelArgs args) {
  if (fill.element_bytes == 16) {
    for (std::int64_t i = 0; i < fill.count; ++i) {
      std::memcpy(args[1] + 16 * i, fill.element.data(), 16);
    }
    return;
  }
  with_element_type(fill.element_bytes, [&](auto element) {
    std::memcpy(&element, fill.element.data(), sizeof(element));
    std::fill_n(args.at<decltype(element)>(1), fill.count, element);
  });
}

KernelOffer offer_constant_of_shape(const KernelRequest& request) {
  FillData data{.element_bytes = element_bytes(request.outputs[0].dtype),
                .count = request.outputs[0].dims.num_elements()};
  if (data.element_bytes == 0) return decline_dtype(request, request.outputs[0].dtype);
  const ir::AttributeValue* attribute = request.node.find_attribute("value");
  if (const auto* value = attribute == nullptr ? nullptr : std::get_if<Tensor>(attribute)) {
    if (value->num_elements() != 1 || value->dtype() != request.outputs[0].dtype) {
      throw ModelError({.what = "attribute 'value' must have one element",
                        .where = {.node = request.node.name, .op_type = request.node.op_type},
                        .hint = "Give the one number that fills the result."});
    }
    std::memcpy(data.element.data(), value->raw(), static_cast<std::size_t>(data.element_bytes));
  }
  return prepared<run_fill>(data, "fill");
}

// y [rows, columns] = 1 on diagonal k.
struct EyeData {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t k = 0;
};

template <class T>
void run_eye(const EyeData& eye, KernelArgs args) {
  T* y = args.at<T>(1);
  std::fill_n(y, eye.rows * eye.columns, T{0});
  // k is in [-rows, columns], so nothing overflows.
  for (std::int64_t i = std::max<std::int64_t>(0, -eye.k); i < eye.rows; ++i) {
    if (i + eye.k >= eye.columns) break;
    y[i * eye.columns + i + eye.k] = T{1};
  }
}

KernelOffer offer_eye(const KernelRequest& request) {
  const Dims& dims = request.outputs[0].dims;
  if (dims.rank() != 2) {
    throw ShapeError({.what = "shape " + dims.to_string() + ", expected a matrix",
                      .where = {.node = request.node.name, .op_type = "EyeLike"},
                      .hint = "Reshape the input to two axes."});
  }
  const std::int64_t k = std::clamp(request.node.int_attribute("k"), -dims[0], dims[1]);
  const EyeData data{.rows = dims[0], .columns = dims[1], .k = k};
  return offer_for_types<float, double, std::int64_t, std::int32_t, bool>(
      request, request.outputs[0].dtype,
      [&]<class T>(T) { return prepared<run_eye<T>>(data, "plain eye"); });
}

[[noreturn]] void refuse_range(const DynamicCall& call, const char* what, const char* hint) {
  throw ShapeError(
      {.what = what, .where = {.node = call.node.name, .op_type = "Range"}, .hint = hint});
}

// Returns max(ceil((limit - start) / delta), 0), the number of elements as defined by ONNX.
template <class T>
std::vector<Tensor> make_range(const DynamicCall& call) {
  const T start = call.inputs.at(0).data<T>()[0];
  const T limit = call.inputs.at(1).data<T>()[0];
  const T delta = call.inputs.at(2).data<T>()[0];
  if (delta == 0) refuse_range(call, "the step is zero", "Give a delta that is not 0.");
  // Extended precision is exact enough to divide integers below 2^63.
  const long double steps =
      std::ceil((static_cast<long double>(limit) - static_cast<long double>(start)) /
                static_cast<long double>(delta));
  if (!(steps < 0x1p62L)) {
    refuse_range(call, "there are too many numbers", "Use a larger delta or a closer limit.");
  }
  const auto count = static_cast<std::int64_t>(std::max(steps, 0.0L));
  Tensor y = Tensor::empty(dtype_of<T>(), Dims{count});
  const auto out = y.mutable_data<T>();
  for (std::size_t i = 0; i < out.size(); ++i) {
    if constexpr (std::is_floating_point_v<T>) {
      out[i] = start + static_cast<T>(i) * delta;
    } else {  // wraps around
      out[i] = static_cast<T>(static_cast<std::uint64_t>(start) +
                              static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(delta));
    }
  }
  return {y};
}

std::vector<Tensor> run_range(const DynamicCall& call) {
  for (const Tensor& number : call.inputs) {
    if (number.num_elements() != 1) {
      refuse_range(call, "start, limit and delta must be one number each", "Give three numbers.");
    }
  }
  std::vector<Tensor> results;
  const DataType dtype = call.inputs.at(0).dtype();
  if (!base::visit_types<float, double, std::int64_t, std::int32_t, std::int16_t>(
          dtype, [&]<class T>(T) { results = make_range<T>(call); })) {
    throw UnsupportedOperatorError({.what = "no kernel for " + std::string(dtype_name(dtype)),
                                    .where = {.node = call.node.name, .op_type = "Range"},
                                    .hint = "Use float32, float64, int16, int32 or int64."});
  }
  return results;
}

}  // namespace

void register_shape_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Shape", 0, offer_shape);
  registry.add("", "Size", 0, offer_size);
  registry.add("", "ConstantOfShape", 0, offer_constant_of_shape);
  registry.add("", "EyeLike", 0, offer_eye);
  registry.add_dynamic("", "Range", run_range);
}

}  // namespace onnxgrad::ops::shape_cpu
