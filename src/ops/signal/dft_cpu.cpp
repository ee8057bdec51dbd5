#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "device/cpu/threads.h"
#include "device/cpu_options.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/signal/fft_cpu.h"

// DFT of signals [outer, length, inner, 1 or 2] along one axis. A batch of them is transposed into
// scratch memory, truncated or zero-padded to the length of the transform. Two real signals are
// transformed as one complex signal: Y_a[k] = (Z[k] + conj(Z[n - k])) / 2 and Y_b[k] = (Z[k] -
// conj(Z[n - k])) / 2i.

namespace onnxgrad::ops::dft_cpu {
namespace {

constexpr std::int64_t kMaxBatch = 16;
constexpr std::int64_t kBatchElements = 1 << 14;  // per batch: four arrays fit into the L2 cache
constexpr std::int64_t kParallelElements = 1 << 14;

template <class T>
struct DftTask {
  fft::Transform<T> transform;
  std::int64_t n = 1;
  std::int64_t batch = 1;
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  std::int64_t length_in = 1;
  std::int64_t length_out = 1;
  std::int64_t parts_in = 2;   // 1: real
  std::int64_t parts_out = 2;  // 1: only the real part
  bool is_inverse = false;
  bool is_paired = false;
  bool is_half_spectrum = false;  // the input is the first half of a Hermitian spectrum
  int num_args = 3;
  int threads = 1;

  std::int64_t signals() const { return outer * inner; }
  std::int64_t batch_signals() const { return is_paired ? 2 * batch : batch; }
  std::int64_t thread_scratch() const { return round_up(4 * n * batch + transform.scratch(), 16); }
};

// Gathers [n, batch] from signals [first, first + count).
template <class T>
void load(const DftTask<T>& task, const T* x, std::int64_t first, std::int64_t count,
          fft::Parts<T> to) {
  const std::int64_t step = task.inner * task.parts_in;
  const std::int64_t given =
      std::min(task.length_in, task.is_half_spectrum ? task.n / 2 + 1 : task.n);
  std::fill_n(to.re, task.n * task.batch, T(0));
  std::fill_n(to.im, task.n * task.batch, T(0));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t signal = first + i;
    const std::int64_t b = task.is_paired ? i / 2 : i;
    T* real = task.is_paired && i % 2 == 1 ? to.im : to.re;
    const T* from = x + (signal / task.inner * task.length_in * task.inner + signal % task.inner) *
                            task.parts_in;
    for (std::int64_t t = 0; t < given; ++t, from += step) {
      real[t * task.batch + b] = from[0];
      if (task.parts_in == 2) to.im[t * task.batch + b] = from[1];
    }
  }
  if (!task.is_half_spectrum) return;
  for (std::int64_t t = task.n / 2 + 1; t < task.n; ++t) {
    for (std::int64_t b = 0; b < count; ++b) {
      to.re[t * task.batch + b] = to.re[(task.n - t) * task.batch + b];
      to.im[t * task.batch + b] = -to.im[(task.n - t) * task.batch + b];
    }
  }
}

// Computes the whole spectrum of signal `i` of a batch of real signals, from that of its pair.
template <class T>
void store_of_pair(const DftTask<T>& task, fft::Parts<T> from, std::int64_t i, std::int64_t step,
                   T* to) {
  for (std::int64_t k = 0; k < task.length_out; ++k, to += step) {
    const std::int64_t at = k * task.batch + i / 2;
    const std::int64_t mirrored = (k == 0 ? 0 : task.n - k) * task.batch + i / 2;
    if (i % 2 == 0) {
      to[0] = (from.re[at] + from.re[mirrored]) / 2;
      to[1] = (from.im[at] - from.im[mirrored]) / 2;
    } else {
      to[0] = (from.im[at] + from.im[mirrored]) / 2;
      to[1] = (from.re[mirrored] - from.re[at]) / 2;
    }
  }
}

template <class T>
void store(const DftTask<T>& task, fft::Parts<T> from, std::int64_t first, std::int64_t count,
           T* y) {
  const std::int64_t step = task.inner * task.parts_out;
  const T factor = task.is_inverse ? T(1) / static_cast<T>(task.n) : T(1);
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int64_t signal = first + b;
    T* to = y + (signal / task.inner * task.length_out * task.inner + signal % task.inner) *
                    task.parts_out;
    if (task.is_paired) {
      store_of_pair(task, from, b, step, to);
      continue;
    }
    for (std::int64_t t = 0; t < task.length_out; ++t, to += step) {
      to[0] = from.re[t * task.batch + b] * factor;
      if (task.parts_out == 2) to[1] = from.im[t * task.batch + b] * factor;
    }
  }
}

template <class T>
void transform_batches(const DftTask<T>& task, std::int64_t begin, std::int64_t end, const T* x,
                       T* y, T* scratch) {
  const std::int64_t size = task.n * task.batch;
  const fft::Parts<T> in{scratch, scratch + size};
  const fft::Parts<T> out{scratch + 2 * size, scratch + 3 * size};
  for (std::int64_t i = begin; i < end; ++i) {
    const std::int64_t first = i * task.batch_signals();
    const std::int64_t count = std::min(task.batch_signals(), task.signals() - first);
    load(task, x, first, count, in);
    // The inverse is the forward transform with real and imaginary parts exchanged.
    if (task.is_inverse) {
      task.transform({in.im, in.re}, {out.im, out.re}, scratch + 4 * size);
    } else {
      task.transform(in, out, scratch + 4 * size);
    }
    store(task, out, first, count, y);
  }
}

template <class T>
void run_dft(const DftTask<T>& task, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(task.num_args);
  T* scratch = args.at<T>(task.num_args + 1);
  const std::int64_t batches = ceil_div(task.signals(), task.batch_signals());
  device::on_threads(task.threads, device::chunks_of(task.threads, batches),
                     [&](const device::Chunk& chunk) {
                       transform_batches(task, chunk.first(batches), chunk.last(batches), x, y,
                                         scratch + chunk.thread * task.thread_scratch());
                     });
}

[[noreturn]] void refuse(const KernelRequest& request, std::string what) {
  throw ShapeError({.what = std::move(what),
                    .where = {.node = request.node.name, .op_type = request.node.op_type},
                    .hint = "Give a signal [..., length, ..., 1 or 2] and a positive dft_length."});
}

template <class T>
KernelOffer offer_typed(const KernelRequest& request, std::size_t axis, std::int64_t n) {
  const Dims& x = request.inputs[0].dims;
  const Dims& y = request.outputs[0].dims;
  const std::size_t last = x.rank() - 1;
  const std::int64_t inner = x.product(axis + 1, last);
  const std::int64_t signals = x.product(0, axis) * inner;
  const std::int64_t fitting = std::clamp<std::int64_t>(kBatchElements / n, 1, kMaxBatch);
  const std::int64_t batch = std::clamp<std::int64_t>(signals, 1, fitting);
  const bool is_inverse = request.node.int_attribute("inverse") != 0;
  const bool is_onesided = request.node.int_attribute("onesided") != 0;
  DftTask<T> task{.transform = fft::Transform<T>(device::isa_of(request), n, batch),
                  .n = n,
                  .batch = batch,
                  .outer = x.product(0, axis),
                  .inner = inner,
                  .length_in = x[axis],
                  .length_out = y[axis],
                  .parts_in = x[last],
                  .parts_out = y[last],
                  .is_inverse = is_inverse,
                  .is_paired = x[last] == 1 && !is_inverse,
                  .is_half_spectrum = is_inverse && is_onesided,
                  .num_args = static_cast<int>(request.inputs.size()),
                  .threads = request.threads};
  if (signals * n < kParallelElements) task.threads = 1;
  const std::int64_t scratch = task.thread_scratch() * task.threads;
  KernelOffer offer = prepared<run_dft<T>>(std::move(task), fmt::format("fft of {}", n));
  offer.kernel.scratch_bytes = scratch * static_cast<std::int64_t>(sizeof(T));
  return offer;
}

KernelOffer offer_dft(const KernelRequest& request) {
  constexpr std::int64_t kLongest = std::int64_t{1} << 28;
  const Dims& x = request.inputs[0].dims;
  const Dims& y = request.outputs[0].dims;
  if (x.rank() < 2 || (x[x.rank() - 1] != 1 && x[x.rank() - 1] != 2)) {
    refuse(request, fmt::format("a signal of shape {}", x.to_string()));
  }
  const auto axis_given = planned_ints(request, 2);
  const std::size_t rank = x.rank();
  const auto axis = static_cast<std::size_t>(
      normalize_axis(axis_given && !axis_given->empty() ? axis_given->front() : -2, rank));
  if (axis == rank - 1) refuse(request, "the axis of the real and imaginary parts is transformed");
  const bool is_half_spectrum =
      request.node.int_attribute("inverse") != 0 && request.node.int_attribute("onesided") != 0;
  const auto length_given = planned_ints(request, 1);
  std::int64_t n = is_half_spectrum ? 2 * (x[axis] - 1) : x[axis];
  if (length_given && !length_given->empty()) n = length_given->front();
  if (n < 1 || n > kLongest) refuse(request, fmt::format("a transform of length {}", n));
  const bool is_onesided = request.node.int_attribute("onesided") != 0 && !is_half_spectrum;
  const std::int64_t length_out = is_onesided ? n / 2 + 1 : n;
  if (y.rank() != rank || y[axis] != length_out) {
    refuse(request,
           fmt::format("a transform of length {} for an output of shape {}", n, y.to_string()));
  }
  const DataType dtype = request.inputs[0].dtype;
  if (dtype == DataType::kFloat32) return offer_typed<float>(request, axis, n);
  if (dtype == DataType::kFloat64) return offer_typed<double>(request, axis, n);
  return decline_dtype(request, dtype);
}

}  // namespace

void register_dft_cpu(opdef::KernelRegistry& registry) { registry.add("", "DFT", 0, offer_dft); }

}  // namespace onnxgrad::ops::dft_cpu
