#include "ops/signal/fft_cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <utility>

namespace onnxgrad::ops::fft {
namespace {

constexpr std::int64_t kLargestRadix = 13;

// Returns exp(-2 pi i k / n).
std::pair<double, double> unit_root(std::int64_t k, std::int64_t n) {
  const double angle = 2 * std::numbers::pi * static_cast<double>(k % n) / static_cast<double>(n);
  return {std::cos(angle), -std::sin(angle)};
}

// Returns the radices of n; empty if one would be too large.
std::vector<std::int64_t> radices(std::int64_t n) {
  std::vector<std::int64_t> found;
  for (const std::int64_t radix : {4, 2, 3, 5, 7, 11, 13}) {
    while (n % radix == 0) {
      found.push_back(radix);
      n /= radix;
    }
  }
  static_assert(kLargestRadix == 13);
  if (n != 1) found.clear();
  return found;
}

template <class T>
Stage<T> make_stage(std::int64_t radix, std::int64_t length, std::int64_t stride) {
  Stage<T> stage{.radix = radix, .m = length / radix, .stride = stride};
  for (std::int64_t j = 1; j < radix; ++j) {
    for (std::int64_t p = 0; p < stage.m; ++p) {
      const auto [re, im] = unit_root(j * p, length);
      stage.twiddle_re.push_back(static_cast<T>(re));
      stage.twiddle_im.push_back(static_cast<T>(im));
    }
  }
  for (std::int64_t j = 0; j < radix; ++j) {
    const auto [re, im] = unit_root(j, radix);
    stage.root_re.push_back(static_cast<T>(re));
    stage.root_im.push_back(static_cast<T>(im));
  }
  return stage;
}

template <class T>
Parts<const T> constant(Parts<T> x) {
  return {.re = x.re, .im = x.im};
}

}  // namespace

template <class T>
Transform<T>::Transform(device::Isa isa, std::int64_t n, std::int64_t batch)
    : isa_(isa), n_(n), batch_(batch) {
  const std::vector<std::int64_t> found = radices(n);
  if (!found.empty() || n == 1) {
    std::int64_t length = n;
    std::int64_t stride = batch;
    for (const std::int64_t radix : found) {
      stages_.push_back(make_stage<T>(radix, length, stride));
      length /= radix;
      stride *= radix;
    }
    return;
  }
  const auto m = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(2 * n - 1)));
  inner_ = std::make_shared<const Transform>(isa, m, batch);
  // The filter is transformed once, in double.
  const Transform<double> precise(isa, m, 1);
  const auto size = static_cast<std::size_t>(m);
  std::vector<double> re(size), im(size), out_re(size), out_im(size);
  std::vector<double> scratch(static_cast<std::size_t>(precise.scratch()));
  for (std::int64_t t = 0; t < n; ++t) {
    const auto [c, s] = unit_root(t * t % (2 * n), 2 * n);
    chirp_re_.push_back(static_cast<T>(c));
    chirp_im_.push_back(static_cast<T>(s));
    for (const std::int64_t place : {t, (m - t) % m}) {
      re[static_cast<std::size_t>(place)] = c;
      im[static_cast<std::size_t>(place)] = -s;
    }
  }
  precise({re.data(), im.data()}, {out_re.data(), out_im.data()}, scratch.data());
  const auto count = static_cast<double>(m);  // the inverse transform divides by it
  for (std::size_t k = 0; k < size; ++k) {
    filter_re_.push_back(static_cast<T>(out_re[k] / count));
    filter_im_.push_back(static_cast<T>(out_im[k] / count));
  }
}

template <class T>
std::int64_t Transform<T>::scratch() const {
  return inner_ == nullptr ? 0 : 4 * inner_->n_ * batch_;
}

template <class T>
void Transform<T>::operator()(Parts<T> x, Parts<T> y, T* scratch) const {
  if (inner_ == nullptr) return stockham(x, y);
  bluestein(x, y, scratch);
}

// Runs the stages alternately between x and y.
template <class T>
void Transform<T>::stockham(Parts<T> x, Parts<T> y) const {
  Parts<T> from = x;
  Parts<T> to = y;
  for (const Stage<T>& stage : stages_) {
    run_stage(isa_, stage, constant(from), to);
    std::swap(from, to);
  }
  if (from.re == y.re) return;
  std::copy_n(from.re, n_ * batch_, y.re);
  std::copy_n(from.im, n_ * batch_, y.im);
}

// y[k] = c[k] sum over t of (x[t] c[t]) conj(c[k - t]), where c is the chirp: a convolution.
template <class T>
void Transform<T>::bluestein(Parts<T> x, Parts<T> y, T* scratch) const {
  const std::int64_t m = inner_->n_;
  const Parts<T> a{scratch, scratch + m * batch_};
  const Parts<T> b{scratch + 2 * m * batch_, scratch + 3 * m * batch_};
  const auto multiply = [&](Parts<T> from, const std::vector<T>& re, const std::vector<T>& im,
                            Parts<T> to, std::int64_t count) {
    for (std::int64_t t = 0; t < count; ++t) {
      const T c = re[static_cast<std::size_t>(t)];
      const T s = im[static_cast<std::size_t>(t)];
      for (std::int64_t i = t * batch_; i < (t + 1) * batch_; ++i) {
        const T u = from.re[i];
        const T v = from.im[i];
        to.re[i] = u * c - v * s;
        to.im[i] = u * s + v * c;
      }
    }
  };
  multiply(x, chirp_re_, chirp_im_, a, n_);
  std::fill_n(a.re + n_ * batch_, (m - n_) * batch_, T(0));
  std::fill_n(a.im + n_ * batch_, (m - n_) * batch_, T(0));
  (*inner_)(a, b, nullptr);
  multiply(b, filter_re_, filter_im_, b, m);
  // Inverse transform, by exchanging real and imaginary parts.
  (*inner_)({b.im, b.re}, {a.im, a.re}, nullptr);
  multiply(a, chirp_re_, chirp_im_, y, n_);
}

template class Transform<float>;
template class Transform<double>;

}  // namespace onnxgrad::ops::fft
