#include <algorithm>
#include <array>
#include <cstring>

#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/tensor/strided_copy_cpu.h"

// Reference kernels of the scattering operators: copy the data, then apply the updates in order
// (the result is the same on every run; the last of several overwriting updates wins). Every index
// is checked when the step runs.

namespace onnxgrad::ops::scatter_cpu {
namespace {

struct Overwrite {
  template <class T>
  static T apply(T, T update) {
    return update;
  }
};
// Unsigned type for integers, which wrap around.
template <class T>
using Arithmetic =
    std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>;
struct Add {
  template <class T>
  static T apply(T old, T update) {
    using A = Arithmetic<T>::type;
    return static_cast<T>(static_cast<A>(old) + static_cast<A>(update));
  }
};
struct Multiply {
  template <class T>
  static T apply(T old, T update) {
    using A = Arithmetic<T>::type;
    return static_cast<T>(static_cast<A>(old) * static_cast<A>(update));
  }
};
struct Larger {
  template <class T>
  static T apply(T old, T update) {
    return old > update || old != old ? old : update;
  }
};
struct Smaller {
  template <class T>
  static T apply(T old, T update) {
    return old < update || old != old ? old : update;
  }
};

void copy_data(const std::byte* data, std::byte* y, std::int64_t bytes) {
  if (data != y) std::memcpy(y, data, static_cast<std::size_t>(bytes));
}

// y[i with i_axis = indices[i]] gets updates[i]; updates are traversed in rows along the last axis.
struct ScatterElementsData {
  std::vector<std::int64_t> sizes;           // sizes of the updates
  std::vector<std::int64_t> target_strides;  // elements; 0 along the axis
  std::int64_t axis_stride = 0;
  std::int64_t length = 0;
  std::int64_t data_bytes = 0;
  bool has_wide_indices = true;
  IndexSource source;
};

template <class T, class Operation, class Index>
void scatter_elements(const ScatterElementsData& scatter, KernelArgs args) {
  const auto* const begin = args.at<Index>(1);
  const Index* indices = begin;
  const auto* updates = args.at<T>(2);
  auto* y = args.at<T>(3);
  if (std::ranges::find(scatter.sizes, 0) != scatter.sizes.end()) return;
  const std::size_t outer = scatter.sizes.size() - 1;
  const std::int64_t step = scatter.target_strides[outer];
  std::array<std::int64_t, Dims::kMaxRank> position;
  std::fill_n(position.begin(), outer, 0);
  while (true) {
    for (std::int64_t i = 0; i < scatter.sizes[outer]; ++i) {
      const std::int64_t index = checked_index(static_cast<std::int64_t>(*indices), scatter.length,
                                               scatter.source, indices - begin);
      ++indices;
      T& target = y[index * scatter.axis_stride + i * step];
      target = Operation::apply(target, *updates++);
    }
    std::size_t axis = outer;
    while (axis > 0) {
      y += scatter.target_strides[axis - 1];
      if (++position[axis - 1] < scatter.sizes[axis - 1]) break;
      y -= scatter.target_strides[axis - 1] * scatter.sizes[axis - 1];
      position[axis - 1] = 0;
      --axis;
    }
    if (axis == 0) return;
  }
}

template <class T, class Operation>
void run_scatter_elements(const ScatterElementsData& scatter, KernelArgs args) {
  copy_data(args[0], args[3], scatter.data_bytes);
  if (scatter.has_wide_indices)
    scatter_elements<T, Operation, std::int64_t>(scatter, args);
  else
    scatter_elements<T, Operation, std::int32_t>(scatter, args);
}

// y[indices[t, :]] gets block t of the updates.
struct ScatterNdData {
  std::int64_t tuples = 0;
  std::vector<std::int64_t> sizes;    // sizes of the indexed axes
  std::vector<std::int64_t> strides;  // strides of the indexed axes, elements
  std::int64_t block = 0;             // elements
  std::int64_t data_bytes = 0;
  IndexSource source;
};

template <class T, class Operation>
void run_scatter_nd(const ScatterNdData& scatter, KernelArgs args) {
  copy_data(args[0], args[3], scatter.data_bytes);
  const auto* const begin = args.at<std::int64_t>(1);
  const std::int64_t* indices = begin;
  const auto* updates = args.at<T>(2);
  auto* y = args.at<T>(3);
  for (std::int64_t t = 0; t < scatter.tuples; ++t) {
    std::int64_t offset = 0;
    for (std::size_t k = 0; k < scatter.sizes.size(); ++k) {
      offset += checked_index(*indices, scatter.sizes[k], scatter.source, indices - begin) *
                scatter.strides[k];
      ++indices;
    }
    T* target = y + offset;
    for (std::int64_t i = 0; i < scatter.block; ++i) {
      target[i] = Operation::apply(target[i], updates[i]);
    }
    updates += scatter.block;
  }
}

struct Elements {
  template <class T, class Operation>
  static constexpr opdef::KernelFn kFn = kKernel<run_scatter_elements<T, Operation>>;
};
struct Blocks {
  template <class T, class Operation>
  static constexpr opdef::KernelFn kFn = kKernel<run_scatter_nd<T, Operation>>;
};

template <class Form, class T>
opdef::KernelFn choose_operation(const std::string& reduction) {
  if (reduction == "add") return Form::template kFn<T, Add>;
  if (reduction == "mul") return Form::template kFn<T, Multiply>;
  if (reduction == "max") return Form::template kFn<T, Larger>;
  return Form::template kFn<T, Smaller>;
}

// Offers a kernel that overwrites, which needs only the size of an element.
template <class Form>
opdef::KernelFn choose(const std::string& reduction, DataType dtype) {
  const std::int64_t bytes = element_bytes(dtype);
  if (reduction == "none") {
    if (bytes == 1) return Form::template kFn<std::uint8_t, Overwrite>;
    if (bytes == 2) return Form::template kFn<std::uint16_t, Overwrite>;
    if (bytes == 4) return Form::template kFn<std::uint32_t, Overwrite>;
    if (bytes == 8) return Form::template kFn<std::uint64_t, Overwrite>;
    return nullptr;
  }
  if (dtype == DataType::kFloat32) return choose_operation<Form, float>(reduction);
  if (dtype == DataType::kFloat64) return choose_operation<Form, double>(reduction);
  if (dtype == DataType::kInt64) return choose_operation<Form, std::int64_t>(reduction);
  if (dtype == DataType::kInt32) return choose_operation<Form, std::int32_t>(reduction);
  return nullptr;
}

[[noreturn]] void refuse_shapes(const KernelRequest& request) {
  throw ShapeError({.what = "indices of shape " + request.inputs[1].dims.to_string() +
                            " and updates of shape " + request.inputs[2].dims.to_string() +
                            " do not match data of shape " + request.inputs[0].dims.to_string(),
                    .where = {.node = request.node.name, .op_type = request.node.op_type},
                    .hint = "Give indices and updates of the shapes that the operator requires."});
}

template <class Data>
KernelOffer prepared_in_place(const KernelRequest& request, opdef::KernelFn fn, Data data,
                              const std::vector<std::int64_t>& sizes) {
  KernelOffer offer = prepared(fn, std::move(data), "plain scatter");
  offer.kernel.in_place = {{0, 0}};
  note_index_check(request, offer, 1, sizes);
  return offer;
}

KernelOffer offer_scatter_elements(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const Dims& from = request.inputs[1].dims;
  const DataType dtype = request.inputs[0].dtype;
  const auto fn = choose<Elements>(request.node.string_attribute("reduction"), dtype);
  if (fn == nullptr) return decline_dtype(request, dtype);
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  if (from.rank() != dims.rank() || from != request.inputs[2].dims) refuse_shapes(request);
  for (std::size_t i = 0; i < dims.rank(); ++i) {
    if (i != axis && from[i] > dims[i]) refuse_shapes(request);
  }
  ScatterElementsData data{.sizes = {from.begin(), from.end()},
                           .target_strides = dense_strides(dims.values()),
                           .axis_stride = 0,
                           .length = dims[axis],
                           .data_bytes = dims.size_bytes(dtype),
                           .has_wide_indices = request.inputs[1].dtype == DataType::kInt64,
                           .source = index_source(request, 1)};
  data.axis_stride = std::exchange(data.target_strides[axis], 0);
  return prepared_in_place(request, fn, std::move(data), {dims[axis]});
}

KernelOffer offer_scatter_nd(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const Dims& index_dims = request.inputs[1].dims;
  const Dims& update_dims = request.inputs[2].dims;
  const DataType dtype = request.inputs[0].dtype;
  const auto fn = choose<Blocks>(request.node.string_attribute("reduction"), dtype);
  if (fn == nullptr) return decline_dtype(request, dtype);
  const std::size_t last = index_dims.rank() - 1;
  if (index_dims.rank() == 0 || static_cast<std::size_t>(index_dims[last]) > dims.rank()) {
    refuse_shapes(request);
  }
  const auto depth = static_cast<std::size_t>(index_dims[last]);
  std::vector<std::int64_t> expected(index_dims.begin(), index_dims.end() - 1);
  expected.insert(expected.end(), dims.begin() + static_cast<std::ptrdiff_t>(depth), dims.end());
  if (update_dims != Dims(expected)) refuse_shapes(request);
  ScatterNdData data{.tuples = index_dims.product(0, last),
                     .sizes = {},
                     .strides = {},
                     .block = dims.product(depth, dims.rank()),
                     .data_bytes = dims.size_bytes(dtype),
                     .source = index_source(request, 1)};
  for (std::size_t k = 0; k < depth; ++k) {
    data.sizes.push_back(dims[k]);
    data.strides.push_back(dims.product(k + 1, dims.rank()));
  }
  const std::vector<std::int64_t> sizes = data.sizes;
  return prepared_in_place(request, fn, std::move(data), sizes);
}

}  // namespace

void register_scatter_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "ScatterElements", 0, offer_scatter_elements);
  registry.add("", "ScatterND", 0, offer_scatter_nd);
}

}  // namespace onnxgrad::ops::scatter_cpu
