#include <cstdint>

#include "device/cpu/dispatch.h"
#include "device/cpu/simd.h"
#include "ops/signal/fft_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/signal/fft_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// Loops over contiguous elements, which the compiler vectorizes for each instruction set. They call
// no function of the standard library, whose inline functions are shared between instruction sets.

#ifndef ONNXGRAD_OPS_SIGNAL_FFT_STAGE_VIEW_
#define ONNXGRAD_OPS_SIGNAL_FFT_STAGE_VIEW_
namespace onnxgrad::ops::fft {

// Raw pointers of a Stage.
template <class T>
struct StageView {
  std::int64_t radix;
  std::int64_t m;
  std::int64_t stride;
  const T* twiddle_re;
  const T* twiddle_im;
  const T* root_re;
  const T* root_im;
};

}  // namespace onnxgrad::ops::fft
#endif  // ONNXGRAD_OPS_SIGNAL_FFT_STAGE_VIEW_

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::ops::fft::HWY_NAMESPACE {

// Pointers of one twiddle factor: input k at re + k * in, output j at re + j * out.
template <class T>
struct Butterflies {
  const T* HWY_RESTRICT xr;
  const T* HWY_RESTRICT xi;
  T* HWY_RESTRICT yr;
  T* HWY_RESTRICT yi;
  std::int64_t in;
  std::int64_t out;  // also the number of elements
};

template <class T>
HWY_INLINE void radix2(const Butterflies<T>& b, T wr, T wi) {
  for (std::int64_t q = 0; q < b.out; ++q) {
    const T ar = b.xr[q], ai = b.xi[q];
    const T cr = b.xr[q + b.in], ci = b.xi[q + b.in];
    b.yr[q] = ar + cr;
    b.yi[q] = ai + ci;
    const T dr = ar - cr, di = ai - ci;
    b.yr[q + b.out] = dr * wr - di * wi;
    b.yi[q + b.out] = dr * wi + di * wr;
  }
}

template <class T>
HWY_INLINE void radix4(const Butterflies<T>& b, const T* wr, const T* wi) {
  for (std::int64_t q = 0; q < b.out; ++q) {
    const T ar = b.xr[q], ai = b.xi[q];
    const T br = b.xr[q + b.in], bi = b.xi[q + b.in];
    const T cr = b.xr[q + 2 * b.in], ci = b.xi[q + 2 * b.in];
    const T dr = b.xr[q + 3 * b.in], di = b.xi[q + 3 * b.in];
    const T sr = ar + cr, si = ai + ci;
    const T tr = ar - cr, ti = ai - ci;
    const T ur = br + dr, ui = bi + di;
    const T vr = br - dr, vi = bi - di;
    b.yr[q] = sr + ur;
    b.yi[q] = si + ui;
    const T er = tr + vi, ei = ti - vr;  // times -i
    b.yr[q + b.out] = er * wr[0] - ei * wi[0];
    b.yi[q + b.out] = er * wi[0] + ei * wr[0];
    const T fr = sr - ur, fi = si - ui;
    b.yr[q + 2 * b.out] = fr * wr[1] - fi * wi[1];
    b.yi[q + 2 * b.out] = fr * wi[1] + fi * wr[1];
    const T gr = tr - vi, gi = ti + vr;
    b.yr[q + 3 * b.out] = gr * wr[2] - gi * wi[2];
    b.yi[q + 3 * b.out] = gr * wi[2] + gi * wr[2];
  }
}

// Computes output j of any radix.
template <class T>
HWY_INLINE void any_radix(const Butterflies<T>& b, std::int64_t radix, const T* roots_re,
                          const T* roots_im, std::int64_t j, T wr, T wi) {
  T* HWY_RESTRICT yr = b.yr + j * b.out;
  T* HWY_RESTRICT yi = b.yi + j * b.out;
  for (std::int64_t q = 0; q < b.out; ++q) {
    yr[q] = b.xr[q];
    yi[q] = b.xi[q];
  }
  for (std::int64_t k = 1; k < radix; ++k) {
    const T rr = roots_re[j * k % radix];
    const T ri = roots_im[j * k % radix];
    const T* HWY_RESTRICT xr = b.xr + k * b.in;
    const T* HWY_RESTRICT xi = b.xi + k * b.in;
    for (std::int64_t q = 0; q < b.out; ++q) {
      yr[q] += xr[q] * rr - xi[q] * ri;
      yi[q] += xr[q] * ri + xi[q] * rr;
    }
  }
  if (j == 0) return;
  for (std::int64_t q = 0; q < b.out; ++q) {
    const T re = yr[q], im = yi[q];
    yr[q] = re * wr - im * wi;
    yi[q] = re * wi + im * wr;
  }
}

template <class T>
HWY_INLINE void stage_of(const StageView<T>& stage, Parts<const T> x, Parts<T> y) {
  const T* twiddle_re = stage.twiddle_re;
  const T* twiddle_im = stage.twiddle_im;
  for (std::int64_t p = 0; p < stage.m; ++p) {
    const Butterflies<T> b{.xr = x.re + stage.stride * p,
                           .xi = x.im + stage.stride * p,
                           .yr = y.re + stage.stride * stage.radix * p,
                           .yi = y.im + stage.stride * stage.radix * p,
                           .in = stage.stride * stage.m,
                           .out = stage.stride};
    if (stage.radix == 2) {
      radix2(b, twiddle_re[p], twiddle_im[p]);
    } else if (stage.radix == 4) {
      const T wr[3] = {twiddle_re[p], twiddle_re[stage.m + p], twiddle_re[2 * stage.m + p]};
      const T wi[3] = {twiddle_im[p], twiddle_im[stage.m + p], twiddle_im[2 * stage.m + p]};
      radix4(b, wr, wi);
    } else {
      any_radix(b, stage.radix, stage.root_re, stage.root_im, std::int64_t{0}, T(1), T(0));
      for (std::int64_t j = 1; j < stage.radix; ++j) {
        const std::int64_t at = (j - 1) * stage.m + p;
        any_radix(b, stage.radix, stage.root_re, stage.root_im, j, twiddle_re[at], twiddle_im[at]);
      }
    }
  }
}

HWY_ATTR void stage_float(const StageView<float>& stage, Parts<const float> x, Parts<float> y) {
  stage_of(stage, x, y);
}
HWY_ATTR void stage_double(const StageView<double>& stage, Parts<const double> x, Parts<double> y) {
  stage_of(stage, x, y);
}

}  // namespace onnxgrad::ops::fft::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::ops::fft {

HWY_EXPORT(stage_float);
HWY_EXPORT(stage_double);

namespace {

template <class T>
StageView<T> view(const Stage<T>& stage) {
  return {.radix = stage.radix,
          .m = stage.m,
          .stride = stage.stride,
          .twiddle_re = stage.twiddle_re.data(),
          .twiddle_im = stage.twiddle_im.data(),
          .root_re = stage.root_re.data(),
          .root_im = stage.root_im.data()};
}

}  // namespace

void run_stage(device::Isa isa, const Stage<float>& stage, Parts<const float> x, Parts<float> y) {
  device::chosen(HWY_DISPATCH_TABLE(stage_float), isa)(view(stage), x, y);
}

void run_stage(device::Isa isa, const Stage<double>& stage, Parts<const double> x,
               Parts<double> y) {
  device::chosen(HWY_DISPATCH_TABLE(stage_double), isa)(view(stage), x, y);
}

}  // namespace onnxgrad::ops::fft
#endif  // HWY_ONCE
