#ifndef ONNXGRAD_BENCHMARKS_BLAS_LIBRARY_H_
#define ONNXGRAD_BENCHMARKS_BLAS_LIBRARY_H_

#include <dlfcn.h>

#include <initializer_list>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace onnxgrad::benchmarks {

/// A library with BLAS's C interface and 32-bit integers, oneMKL for example, to compare with.
/// Never unloaded.
class BlasLibrary {
 public:
  /// C = alpha * op(A) * op(B) + beta * C.
  template <class T>
  using Gemm = void (*)(int layout, int transpose_a, int transpose_b, int m, int n, int k, T alpha,
                        const T* a, int a_row, const T* b, int b_row, T beta, T* c, int c_row);
  static constexpr int kRowMajor = 101;
  static constexpr int kNoTranspose = 111;
  static constexpr int kTranspose = 112;

  /// `path`: of the shared library, which then computes with `threads` threads. Throws:
  /// std::runtime_error.
  BlasLibrary(const std::string& path, int threads)
      : library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error("cannot load " + path);
    find("cblas_sgemm", sgemm_);
    find("cblas_dgemm", dgemm_);
    if (sgemm_ == nullptr || dgemm_ == nullptr) {
      throw std::runtime_error(path + " exports no cblas_sgemm and cblas_dgemm");
    }
    for (const char* name : {"MKL_Set_Num_Threads", "openblas_set_num_threads"}) {
      void (*set_threads)(int) = nullptr;
      find(name, set_threads);
      if (set_threads != nullptr) set_threads(threads);
    }
  }

  template <class T>
  Gemm<T> gemm() const {
    if constexpr (std::is_same_v<T, float>) {
      return sgemm_;
    } else {
      return dgemm_;
    }
  }

 private:
  template <class Function>
  void find(const char* symbol, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library_, symbol));
  }

  void* library_;
  Gemm<float> sgemm_ = nullptr;
  Gemm<double> dgemm_ = nullptr;
};

}  // namespace onnxgrad::benchmarks

#endif  // ONNXGRAD_BENCHMARKS_BLAS_LIBRARY_H_
