#include <algorithm>

#include "device/cpu/threads.h"
#include "ir/builder.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

// CumProd and its gradient; the formulas are in cumprod.cpp. The data is [outer, length, inner];
// rows of `inner` elements are processed in the direction of the product.

namespace onnxgrad::ops::cumprod_cpu {
namespace {

struct CumProdData {
  std::int64_t outer = 0;
  std::int64_t length = 0;
  std::int64_t inner = 0;
  bool is_exclusive = false;
  bool is_reverse = false;
  int threads = 1;

  std::int64_t step() const { return is_reverse ? -inner : inner; }
  // Returns the offset of the first row of the product in slice `o`.
  std::int64_t first(std::int64_t o) const {
    return (o * length + (is_reverse ? length - 1 : 0)) * inner;
  }
};

// Unsigned type for signed integers, which wrap around.
template <class T>
T wrapping_mul(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return a * b;
  } else {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) * static_cast<Unsigned>(b));
  }
}

template <class T>
void cumprod_slice(const CumProdData& c, std::int64_t o, bool is_exclusive, const T* x, T* y) {
  std::int64_t row = c.first(o);
  for (std::int64_t k = 0; k < c.length; ++k, row += c.step()) {
    if (k == 0) {
      if (is_exclusive)
        std::fill_n(y + row, c.inner, T{1});
      else
        std::copy_n(x + row, c.inner, y + row);
      continue;
    }
    const T* factor = x + (is_exclusive ? row - c.step() : row);
    const T* before = y + row - c.step();
    for (std::int64_t i = 0; i < c.inner; ++i) y[row + i] = wrapping_mul(before[i], factor[i]);
  }
}

template <class T>
void run_cumprod(const CumProdData& c, KernelArgs args) {
  const T* x = args.at<T>(0);
  T* y = args.at<T>(2);
  device::parallel_for(c.threads, c.outer,
                       [&](std::int64_t o) { cumprod_slice(c, o, c.is_exclusive, x, y); });
}

// Writes the products p to dx; then r, a row per thread in scratch, runs from the other end.
template <class T>
void run_grad(const CumProdData& c, KernelArgs args) {
  const T* dy = args.at<T>(0);
  const T* x = args.at<T>(1);
  T* dx = args.at<T>(3);
  const std::int64_t chunks = device::chunks_of(c.threads, c.outer);
  device::on_threads(c.threads, chunks, [&](const device::Chunk& chunk) {
    T* r = args.at<T>(4) + chunk.thread * c.inner;
    const std::int64_t end = chunk.last(c.outer);
    for (std::int64_t o = chunk.first(c.outer); o < end; ++o) {
      cumprod_slice(c, o, /*is_exclusive=*/true, x, dx);
      std::fill_n(r, c.inner, T{0});
      for (std::int64_t k = c.length; k-- > 0;) {
        const std::int64_t row = c.first(o) + k * c.step();
        if (k + 1 == c.length) {
          if (!c.is_exclusive) std::copy_n(dy + row, c.inner, r);
        } else {  // r is that of the next place
          const T* next_x = x + row + c.step();
          const T* added = dy + (c.is_exclusive ? row + c.step() : row);
          for (std::int64_t i = 0; i < c.inner; ++i) r[i] = added[i] + next_x[i] * r[i];
        }
        for (std::int64_t i = 0; i < c.inner; ++i) dx[row + i] *= r[i];
      }
    }
  });
}

std::optional<CumProdData> read(const KernelRequest& request, std::size_t x, std::size_t axis_input,
                                std::string& reason) {
  const Dims& dims = request.inputs[x].dims;
  const auto planned = planned_ints(request, axis_input);
  if (!planned) reason = "the axis is not known before the step runs";
  if (planned && planned->size() != 1) reason = "the axis is not one number";
  if (!reason.empty()) return std::nullopt;
  const auto axis = static_cast<std::size_t>(normalize_axis(planned->front(), dims.rank()));
  constexpr std::int64_t kParallelElements = 1 << 16;
  CumProdData data{.outer = dims.product(0, axis),
                   .length = dims[axis],
                   .inner = dims.product(axis + 1, dims.rank()),
                   .is_exclusive = request.node.int_attribute("exclusive") != 0,
                   .is_reverse = request.node.int_attribute("reverse") != 0};
  if (dims.num_elements() >= kParallelElements) {
    data.threads = static_cast<int>(std::clamp<std::int64_t>(data.outer, 1, request.threads));
  }
  return data;
}

KernelOffer offer_cumprod(const KernelRequest& request) {
  std::string reason;
  const auto data = read(request, 0, 1, reason);
  if (!data) return KernelOffer::decline(reason);
  return offer_for_types<float, double, std::int32_t, std::int64_t, std::uint32_t, std::uint64_t>(
      request, request.inputs[0].dtype,
      [&]<class T>(T) { return prepared<run_cumprod<T>>(*data, "running product"); });
}

KernelOffer offer_grad(const KernelRequest& request) {
  std::string reason;
  const auto data = read(request, 1, 2, reason);
  if (!data) return KernelOffer::decline(reason);
  const DataType dtype = request.inputs[1].dtype;
  KernelOffer offer = offer_for_types<float, double>(request, dtype, [&]<class T>(T) {
    return prepared<run_grad<T>>(*data, "running product and sum");
  });
  offer.kernel.scratch_bytes = data->threads * data->inner * element_bytes(dtype);
  return offer;
}

}  // namespace

void register_cumprod_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "CumProd", 0, offer_cumprod);
  registry.add(ir::kFunctionDomain, "CumProdGrad", 0, offer_grad);
}

}  // namespace onnxgrad::ops::cumprod_cpu
