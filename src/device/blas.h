#ifndef ONNXGRAD_DEVICE_BLAS_H_
#define ONNXGRAD_DEVICE_BLAS_H_

#include <string>
#include <type_traits>
#include <vector>

namespace onnxgrad::device {

/// A library with BLAS's C interface, loaded at run time. Never unloaded, since plans call it.
struct Blas {
  /// C = alpha * op(A) * op(B) + beta * C.
  template <class T>
  using Gemm = void (*)(int layout, int transpose_a, int transpose_b, int m, int n, int k, T alpha,
                        const T* a, int a_row, const T* b, int b_row, T beta, T* c, int c_row);
  static constexpr int kRowMajor = 101;
  static constexpr int kAsItIs = 111;
  static constexpr int kTransposed = 112;

  std::string name;  ///< "mkl"
  std::string path;
  Gemm<float> sgemm = nullptr;
  Gemm<double> dgemm = nullptr;
  /// Sets the number of the library's threads for calls by this thread, and returns the number
  /// before. nullptr: it was set for the whole process when the library was loaded, or there is
  /// one.
  int (*set_threads_of_caller)(int threads) = nullptr;

  template <class T>
  Gemm<T> gemm() const {
    if constexpr (std::is_same_v<T, float>) {
      return sgemm;
    } else {
      return dgemm;
    }
  }
};

/// What large products are computed by from now on: "mkl", "openblas" or a path with a slash; "":
/// none. `folders` are searched for names before those of the dynamic linker. Loaded at the first
/// blas(). Thread-safe.
void choose_blas(const std::string& library, const std::vector<std::string>& folders = {});

/// The same, but loaded at once. Throws what blas() throws; the choice stays as it was then.
void load_blas(const std::string& library, const std::vector<std::string>& folders = {});

/// nullptr if none was chosen. Throws: OptionError (an unknown name; it cannot be loaded, or lacks
/// a function), each time. Thread-safe.
const Blas* blas();

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_BLAS_H_
