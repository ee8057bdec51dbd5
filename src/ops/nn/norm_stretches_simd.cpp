#include <algorithm>
#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "ops/nn/norm_stretches_simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/nn/norm_stretches_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "device/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::stretches::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
namespace dn = onnxgrad::device::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

constexpr std::int64_t kLanes = hn::MaxLanes(D());
constexpr std::int64_t kBlock = 4096;

// Access to one vector: all lanes, or the first `count` lanes and zeros after them.
struct Whole {
  HWY_INLINE V load(const float* from) const { return hn::LoadU(D(), from); }
  HWY_INLINE V set(float value) const { return hn::Set(D(), value); }
  HWY_INLINE void store(V v, float* to) const { hn::StoreU(v, D(), to); }
};

struct Rest {
  std::int64_t count;
  hn::Mask<D> mask;

  HWY_INLINE explicit Rest(std::int64_t n)
      : count(n), mask(hn::FirstN(D(), static_cast<std::size_t>(n))) {}
  HWY_INLINE V load(const float* from) const { return dn::load_first(D(), mask, from, count); }
  // Zero in lanes that were not loaded, so that differences are zero too.
  HWY_INLINE V set(float value) const { return hn::IfThenElseZero(mask, hn::Set(D(), value)); }
  HWY_INLINE void store(V v, float* to) const { dn::store_first(v, D(), mask, to, count); }
};

// Calls f(i, lanes) along [0, n).
template <class F>
HWY_INLINE void visit(std::int64_t n, F f) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) f(i, Whole());
  if (i < n) f(i, Rest(n - i));
}

// Returns the sum of term(i, lanes) along [0, n), in four partial sums, so that additions do not
// wait for each other.
template <class F>
HWY_INLINE double sum_terms(std::int64_t n, F term) {
  double total = 0;
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t end = std::min(first + kBlock, n);
    V a = hn::Zero(D());
    V b = a;
    V c = a;
    V d = a;
    std::int64_t i = first;
    for (; i + 4 * kLanes <= end; i += 4 * kLanes) {
      a = hn::Add(a, term(i, Whole()));
      b = hn::Add(b, term(i + kLanes, Whole()));
      c = hn::Add(c, term(i + 2 * kLanes, Whole()));
      d = hn::Add(d, term(i + 3 * kLanes, Whole()));
    }
    for (; i + kLanes <= end; i += kLanes) a = hn::Add(a, term(i, Whole()));
    if (i < end) b = hn::Add(b, term(i, Rest(end - i)));
    const V all = hn::Add(hn::Add(a, b), hn::Add(c, d));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(D(), all)));
  }
  return total;
}

HWY_ATTR void add_to(const float* a, const float* b, float* to, std::int64_t n) {
  visit(n, [&](std::int64_t i, auto lanes)
               HWY_ATTR { lanes.store(hn::Add(lanes.load(a + i), lanes.load(b + i)), to + i); });
}

HWY_ATTR double sum_of(const float* x, std::int64_t n) {
  return sum_terms(n, [&](std::int64_t i, auto lanes) HWY_ATTR { return lanes.load(x + i); });
}

HWY_ATTR double squares_of(const float* x, float mean, std::int64_t n) {
  return sum_terms(n, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V centred = hn::Sub(lanes.load(x + i), lanes.set(mean));
    return hn::Mul(centred, centred);
  });
}

HWY_ATTR GradSums grad_sums_of(const float* dy, const float* x, float mean, std::int64_t n) {
  GradSums sums;
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t end = std::min(first + kBlock, n);
    V a = hn::Zero(D());
    V b = a;
    V dot_a = a;
    V dot_b = a;
    const auto add = [&](std::int64_t i, auto lanes, V& sum, V& dot) HWY_ATTR {
      const V v = lanes.load(dy + i);
      sum = hn::Add(sum, v);
      dot = hn::MulAdd(v, hn::Sub(lanes.load(x + i), lanes.set(mean)), dot);
    };
    std::int64_t i = first;
    for (; i + 2 * kLanes <= end; i += 2 * kLanes) {
      add(i, Whole(), a, dot_a);
      add(i + kLanes, Whole(), b, dot_b);
    }
    for (; i + kLanes <= end; i += kLanes) add(i, Whole(), a, dot_a);
    if (i < end) add(i, Rest(end - i), b, dot_b);
    sums.dy += static_cast<double>(hn::GetLane(hn::SumOfLanes(D(), hn::Add(a, b))));
    sums.dot += static_cast<double>(hn::GetLane(hn::SumOfLanes(D(), hn::Add(dot_a, dot_b))));
  }
  return sums;
}

HWY_ATTR void normalize_of(const float* x, float mean, float slope, float shift, float* y,
                           std::int64_t n) {
  const V slopes = hn::Set(D(), slope);
  const V shifts = hn::Set(D(), shift);
  const V means = hn::Set(D(), mean);
  visit(n, [&](std::int64_t i, auto lanes) HWY_ATTR {
    lanes.store(hn::MulAdd(hn::Sub(lanes.load(x + i), means), slopes, shifts), y + i);
  });
}

HWY_ATTR void normalize_grad_of(const float* dy, const float* x, float mean, float a, float b,
                                float d, float* dx, std::int64_t n) {
  const V factor = hn::Set(D(), a);
  const V slope = hn::Set(D(), b);
  const V shift = hn::Set(D(), d);
  const V means = hn::Set(D(), mean);
  visit(n, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V inner = hn::MulAdd(hn::Sub(lanes.load(x + i), means), slope, shift);
    lanes.store(hn::MulAdd(lanes.load(dy + i), factor, inner), dx + i);
  });
}

HWY_ATTR void scale_row_of(const float* x, float mean, float inverse, const float* scale,
                           const float* bias, float* y, std::int64_t n) {
  const V means = hn::Set(D(), mean);
  const V inverses = hn::Set(D(), inverse);
  visit(n, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V h = hn::Mul(hn::Sub(lanes.load(x + i), means), inverses);
    const V scaled = hn::Mul(h, lanes.load(scale + i));
    lanes.store(bias == nullptr ? scaled : hn::Add(scaled, lanes.load(bias + i)), y + i);
  });
}

HWY_ATTR GradSums scale_row_sums_of(const float* dy, const float* x, float mean, float inverse,
                                    const float* scale, float* dscale, float* dbias,
                                    std::int64_t n) {
  GradSums sums;
  const V inverses = hn::Set(D(), inverse);
  for (std::int64_t first = 0; first < n; first += kBlock) {
    const std::int64_t count = std::min(n - first, kBlock);
    V sum = hn::Zero(D());
    V dot = sum;
    visit(count, [&](std::int64_t k, auto lanes) HWY_ATTR {
      const std::int64_t i = first + k;
      const V v = lanes.load(dy + i);
      const V h = hn::Mul(hn::Sub(lanes.load(x + i), lanes.set(mean)), inverses);
      const V dh = hn::Mul(v, lanes.load(scale + i));
      sum = hn::Add(sum, dh);
      dot = hn::MulAdd(dh, h, dot);
      if (dscale != nullptr) lanes.store(hn::MulAdd(v, h, lanes.load(dscale + i)), dscale + i);
      if (dbias != nullptr) lanes.store(hn::Add(v, lanes.load(dbias + i)), dbias + i);
    });
    sums.dy += static_cast<double>(hn::GetLane(hn::SumOfLanes(D(), sum)));
    sums.dot += static_cast<double>(hn::GetLane(hn::SumOfLanes(D(), dot)));
  }
  return sums;
}

HWY_ATTR void scale_row_grad_of(const float* dy, const float* x, float mean, float inverse,
                                const float* scale, float mean_dh, float mean_dot, float* dx,
                                std::int64_t n) {
  const V means = hn::Set(D(), mean);
  const V inverses = hn::Set(D(), inverse);
  const V mean_dhs = hn::Set(D(), mean_dh);
  const V mean_dots = hn::Set(D(), mean_dot);
  visit(n, [&](std::int64_t i, auto lanes) HWY_ATTR {
    const V h = hn::Mul(hn::Sub(lanes.load(x + i), means), inverses);
    const V dh = hn::Mul(lanes.load(dy + i), lanes.load(scale + i));
    const V inner = hn::NegMulAdd(h, mean_dots, hn::Sub(dh, mean_dhs));
    lanes.store(hn::Mul(inverses, inner), dx + i);
  });
}

}  // namespace onnxgrad::ops::stretches::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::stretches {

HWY_EXPORT(add_to);
HWY_EXPORT(sum_of);
HWY_EXPORT(squares_of);
HWY_EXPORT(grad_sums_of);
HWY_EXPORT(normalize_of);
HWY_EXPORT(normalize_grad_of);
HWY_EXPORT(scale_row_of);
HWY_EXPORT(scale_row_sums_of);
HWY_EXPORT(scale_row_grad_of);

void add(device::Isa isa, const float* a, const float* b, float* to, std::int64_t n) {
  device::chosen(HWY_DISPATCH_TABLE(add_to), isa)(a, b, to, n);
}

double sum(device::Isa isa, const float* x, std::int64_t n) {
  return device::chosen(HWY_DISPATCH_TABLE(sum_of), isa)(x, n);
}

double centred_square_sum(device::Isa isa, const float* x, float mean, std::int64_t n) {
  return device::chosen(HWY_DISPATCH_TABLE(squares_of), isa)(x, mean, n);
}

GradSums grad_sums(device::Isa isa, const float* dy, const float* x, float mean, std::int64_t n) {
  return device::chosen(HWY_DISPATCH_TABLE(grad_sums_of), isa)(dy, x, mean, n);
}

void normalize(device::Isa isa, const float* x, float mean, float slope, float shift, float* y,
               std::int64_t n) {
  device::chosen(HWY_DISPATCH_TABLE(normalize_of), isa)(x, mean, slope, shift, y, n);
}

void normalize_grad(device::Isa isa, const float* dy, const float* x, float mean, float a, float b,
                    float d, float* dx, std::int64_t n) {
  device::chosen(HWY_DISPATCH_TABLE(normalize_grad_of), isa)(dy, x, mean, a, b, d, dx, n);
}

void scale_row(device::Isa isa, const float* x, float mean, float inverse, const float* scale,
               const float* bias, float* y, std::int64_t n) {
  device::chosen(HWY_DISPATCH_TABLE(scale_row_of), isa)(x, mean, inverse, scale, bias, y, n);
}

GradSums scale_row_sums(device::Isa isa, const float* dy, const float* x, float mean, float inverse,
                        const float* scale, float* dscale, float* dbias, std::int64_t n) {
  return device::chosen(HWY_DISPATCH_TABLE(scale_row_sums_of), isa)(dy, x, mean, inverse, scale,
                                                                    dscale, dbias, n);
}

void scale_row_grad(device::Isa isa, const float* dy, const float* x, float mean, float inverse,
                    const float* scale, float mean_dh, float mean_dot, float* dx, std::int64_t n) {
  device::chosen(HWY_DISPATCH_TABLE(scale_row_grad_of), isa)(dy, x, mean, inverse, scale, mean_dh,
                                                             mean_dot, dx, n);
}

}  // namespace onnxgrad::ops::stretches
#endif  // HWY_ONCE
