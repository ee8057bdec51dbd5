#include <cmath>
#include <concepts>
#include <limits>

#include "device/cpu_options.h"
#include "ops/kernel_support.h"
#include "ops/nn/softmax_rows_simd.h"

// Kernels of Softmax, LogSoftmax and Hardmax: reference kernels, and SIMD kernels for the last
// axis. A tensor is [outer, size, inner] around the axis.

namespace onnxgrad::ops::softmax_cpu {

namespace {

struct AxisShape {
  std::int64_t outer = 1;
  std::int64_t size = 1;
  std::int64_t inner = 1;
};

// Computes one column x[i * stride], i in [0, size), into y at the same positions; x and y may
// alias.
template <std::floating_point T>
using ColumnFn = void (*)(const T* x, T* y, std::int64_t size, std::int64_t stride);

// Returns the maximum; NaN if there is one.
template <std::floating_point T>
T largest(const T* x, std::int64_t size, std::int64_t stride) {
  T most = -std::numeric_limits<T>::infinity();
  for (std::int64_t i = 0; i < size; ++i) {
    const T number = x[i * stride];
    if (number > most || std::isnan(number)) most = number;
  }
  return most;
}

template <std::floating_point T>
void softmax_column(const T* x, T* y, std::int64_t size, std::int64_t stride) {
  const T most = largest(x, size, stride);
  T sum = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    y[i * stride] = std::exp(x[i * stride] - most);
    sum += y[i * stride];
  }
  for (std::int64_t i = 0; i < size; ++i) y[i * stride] /= sum;
}

template <std::floating_point T>
void log_softmax_column(const T* x, T* y, std::int64_t size, std::int64_t stride) {
  const T most = largest(x, size, stride);
  T sum = 0;
  for (std::int64_t i = 0; i < size; ++i) sum += std::exp(x[i * stride] - most);
  const T log_sum = most + std::log(sum);
  for (std::int64_t i = 0; i < size; ++i) y[i * stride] = x[i * stride] - log_sum;
}

template <std::floating_point T>
void hardmax_column(const T* x, T* y, std::int64_t size, std::int64_t stride) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < size; ++i) {
    if (x[i * stride] > x[best * stride]) best = i;
  }
  for (std::int64_t i = 0; i < size; ++i) y[i * stride] = i == best ? T{1} : T{0};
}

template <std::floating_point T, ColumnFn<T> kColumn>
void run_columns(const AxisShape& shape, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(1);
  for (std::int64_t o = 0; o < shape.outer; ++o) {
    const std::int64_t block = o * shape.size * shape.inner;
    for (std::int64_t i = 0; i < shape.inner; ++i) {
      kColumn(x + block + i, y + block + i, shape.size, shape.inner);
    }
  }
}

AxisShape axis_shape(const KernelRequest& request) {
  const Dims& dims = request.inputs[0].dims;
  const auto axis =
      static_cast<std::size_t>(normalize_axis(request.node.int_attribute("axis"), dims.rank()));
  return {.outer = dims.product(0, axis),
          .size = dims[axis],
          .inner = dims.product(axis + 1, dims.rank())};
}

template <ColumnFn<float> kFloat, ColumnFn<double> kDouble>
KernelOffer offer_columns(const KernelRequest& request) {
  const AxisShape shape = axis_shape(request);
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  const auto fn = dtype == DataType::kFloat32 ? kKernel<run_columns<float, kFloat>>
                                              : kKernel<run_columns<double, kDouble>>;
  KernelOffer offer = prepared(fn, shape, "reference");
  offer.kernel.in_place = {{0, 0}};
  return offer;
}

struct RowsTask {
  device::Isa isa = {};
  AxisShape shape = {};
};

template <std::floating_point T,
          void (*kRows)(device::Isa, const T*, T*, std::int64_t, std::int64_t)>
void run_rows(const RowsTask& task, KernelArgs args) {
  kRows(task.isa, args.at<const T>(0), args.at<T>(1), task.shape.outer, task.shape.size);
}

KernelOffer offer_rows(const KernelRequest& request, opdef::KernelFn for_float,
                       opdef::KernelFn for_double) {
  const AxisShape shape = axis_shape(request);
  if (shape.inner != 1) return KernelOffer::decline("the axis is not the last one");
  const DataType dtype = request.inputs[0].dtype;
  if (dtype != DataType::kFloat32 && dtype != DataType::kFloat64) {
    return decline_dtype(request, dtype);
  }
  KernelOffer offer =
      prepared(dtype == DataType::kFloat32 ? for_float : for_double,
               RowsTask{.isa = device::isa_of(request), .shape = shape}, "simd rows");
  offer.kernel.in_place = {{0, 0}};
  return offer;
}

KernelOffer offer_softmax_rows(const KernelRequest& request) {
  return offer_rows(request, kKernel<run_rows<float, rows::softmax>>,
                    kKernel<run_rows<double, rows::softmax>>);
}

KernelOffer offer_log_softmax_rows(const KernelRequest& request) {
  return offer_rows(request, kKernel<run_rows<float, rows::log_softmax>>,
                    kKernel<run_rows<double, rows::log_softmax>>);
}

}  // namespace

void register_softmax_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Softmax", 0, offer_columns<softmax_column<float>, softmax_column<double>>);
  registry.add("", "LogSoftmax", 0,
               offer_columns<log_softmax_column<float>, log_softmax_column<double>>);
  registry.add("", "Softmax", 10, offer_softmax_rows);
  registry.add("", "LogSoftmax", 10, offer_log_softmax_rows);
  registry.add("", "Hardmax", 0, offer_columns<hardmax_column<float>, hardmax_column<double>>);
}

}  // namespace onnxgrad::ops::softmax_cpu
