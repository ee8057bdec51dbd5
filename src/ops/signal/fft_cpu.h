#ifndef ONNXGRAD_OPS_SIGNAL_FFT_CPU_H_
#define ONNXGRAD_OPS_SIGNAL_FFT_CPU_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "device/isa.h"

// Fast Fourier transforms of any length: Stockham's algorithm with the radices 4, 2, 3, 5 and other
// primes up to 13; lengths with larger prime factors use Bluestein's algorithm (A linear filtering
// approach to the computation of discrete Fourier transform, 1970).

namespace onnxgrad::ops::fft {

/// Complex array with separate real and imaginary parts.
template <class T>
struct Parts {
  T* re = nullptr;
  T* im = nullptr;
};

/// Stage of Stockham's algorithm: m * stride butterflies of `radix` elements each.
template <class T>
struct Stage {
  std::int64_t radix = 2;
  std::int64_t m = 1;              ///< number of distinct twiddle factors
  std::int64_t stride = 1;         ///< adjacent elements with one twiddle factor
  std::vector<T> twiddle_re = {};  ///< [radix - 1, m]
  std::vector<T> twiddle_im = {};
  std::vector<T> root_re = {};  ///< [radix]: powers of exp(-2 pi i / radix)
  std::vector<T> root_im = {};
};

/// y[stride * (radix * p + j) + q] = w_p^j * sum over k of x[stride * (p + m * k) + q] * root^(jk).
void run_stage(device::Isa isa, const Stage<float>& stage, Parts<const float> x, Parts<float> y);
void run_stage(device::Isa isa, const Stage<double>& stage, Parts<const double> x, Parts<double> y);

/// y[k] = sum over t in [0, n) of x[t] exp(-2 pi i k t / n), for `batch` signals at once.
template <class T>
class Transform {
 public:
  Transform(device::Isa isa, std::int64_t n, std::int64_t batch);
  /// Returns the scratch size, in elements of T.
  std::int64_t scratch() const;
  /// Transforms x: [n, batch], which is overwritten, to y: [n, batch]; no overlap.
  void operator()(Parts<T> x, Parts<T> y, T* scratch) const;

 private:
  void stockham(Parts<T> x, Parts<T> y) const;
  void bluestein(Parts<T> x, Parts<T> y, T* scratch) const;

  device::Isa isa_;
  std::int64_t n_;
  std::int64_t batch_;
  std::vector<Stage<T>> stages_;
  // Bluestein's algorithm: the chirp exp(-pi i t^2 / n), and the transform of its conjugate,
  // wrapped to the length of `inner_`.
  std::shared_ptr<const Transform> inner_;
  std::vector<T> chirp_re_, chirp_im_, filter_re_, filter_im_;
};

}  // namespace onnxgrad::ops::fft

#endif  // ONNXGRAD_OPS_SIGNAL_FFT_CPU_H_
