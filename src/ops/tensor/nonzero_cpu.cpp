#include <cstring>

#include "opdef/kernel.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::nonzero_cpu {
namespace {

// Returns the row-major indices of the nonzero elements (NaN is one).
std::vector<std::int64_t> nonzero_places(const Tensor& x) {
  std::vector<std::int64_t> places;
  const auto scan = [&](const auto& elements) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (elements[i] != 0) places.push_back(static_cast<std::int64_t>(i));
    }
  };
  if (x.dtype() == DataType::kFloat32)
    scan(x.data<float>());
  else if (is_floating(x.dtype()))
    scan(x.to_doubles());
  else
    scan(x.to_int64s());
  return places;
}

// y [rank, count]: y[a, n] is the index along axis a of the n-th nonzero element. A scalar is read
// as a tensor with one axis of size 1, which ONNX does not keep: y is [0, count].
std::vector<Tensor> run_nonzero(const DynamicCall& call) {
  const Tensor& x = call.inputs.at(0);
  const std::vector<std::int64_t> places = nonzero_places(x);
  const auto count = static_cast<std::int64_t>(places.size());
  const auto rank = static_cast<std::int64_t>(x.dims().rank());
  Tensor y = Tensor::empty(DataType::kInt64, Dims{rank, count});
  const auto out = y.mutable_data<std::int64_t>();
  const std::vector<std::int64_t> strides = x.dims().strides();
  for (std::int64_t a = 0; a < rank; ++a) {
    const auto axis = static_cast<std::size_t>(a);
    for (std::int64_t n = 0; n < count; ++n) {
      const std::int64_t place = places[static_cast<std::size_t>(n)];
      out[static_cast<std::size_t>(a * count + n)] = place / strides[axis] % x.dims()[axis];
    }
  }
  return {y};
}

std::vector<Tensor> run_compress(const DynamicCall& call) {
  Tensor x = call.inputs.at(0);
  const Tensor& condition = call.inputs.at(1);
  const std::int64_t bytes = element_bytes(x.dtype());
  if (bytes == 0) {
    throw UnsupportedOperatorError({.what = "no kernel for " + std::string(dtype_name(x.dtype())),
                                    .where = {.node = call.node.name, .op_type = "Compress"},
                                    .hint = "Put a Cast to float32 or int64 before it."});
  }
  std::size_t axis = 0;
  if (call.node.find_attribute("axis") == nullptr) {
    x = x.reshaped(Dims{x.num_elements()});
  } else {
    axis =
        static_cast<std::size_t>(normalize_axis(call.node.int_attribute("axis"), x.dims().rank()));
  }
  if (condition.dims().rank() != 1 || condition.num_elements() > x.dims()[axis]) {
    throw ShapeError({.what = "condition of shape " + condition.dims().to_string() +
                              " for an axis of size " + std::to_string(x.dims()[axis]),
                      .where = {.node = call.node.name, .op_type = "Compress"},
                      .hint = "Give a condition with at most one boolean per element."});
  }
  const std::vector<std::int64_t> taken = nonzero_places(condition);
  std::vector<std::int64_t> dims(x.dims().begin(), x.dims().end());
  dims[axis] = static_cast<std::int64_t>(taken.size());
  Tensor y = Tensor::empty(x.dtype(), Dims(dims));
  const std::int64_t block = x.dims().product(axis + 1, x.dims().rank()) * bytes;
  const std::int64_t outer = x.dims().product(0, axis);
  std::byte* target = y.mutable_raw();
  for (std::int64_t o = 0; o < outer; ++o) {
    const std::byte* source = x.raw() + o * x.dims()[axis] * block;
    for (const std::int64_t place : taken) {
      std::memcpy(target, source + place * block, static_cast<std::size_t>(block));
      target += block;
    }
  }
  return {y};
}

}  // namespace

void register_nonzero_cpu(opdef::KernelRegistry& registry) {
  registry.add_dynamic("", "NonZero", run_nonzero);
  registry.add_dynamic("", "Compress", run_compress);
}

}  // namespace onnxgrad::ops::nonzero_cpu
