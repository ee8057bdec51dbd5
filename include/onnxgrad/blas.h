#ifndef ONNXGRAD_BLAS_H_
#define ONNXGRAD_BLAS_H_

#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] onnxgrad {

/// Large dense products of float32 and float64 on the CPU by a BLAS library instead of onnxgrad's
/// own kernels, in plans that are compiled from now on. A choice for the whole process. Which is
/// faster depends on the processor: docs/kernels.md.
struct BlasOptions {
  /// "mkl", "openblas", the path of a shared library that exports cblas_sgemm and cblas_dgemm with
  /// 32-bit integers, or "" for onnxgrad's own kernels.
  std::string library;
  /// Where names are looked for before the dynamic linker's folders.
  std::vector<std::string> folders = {};
};

/// Throws: OptionError (an unknown name; the library cannot be loaded or lacks a function).
void use_blas(const BlasOptions& options);

/// The same, but the library is loaded when the first plan is compiled, which throws what
/// use_blas() throws.
void request_blas(const BlasOptions& options);

/// Path of the library in use as the dynamic linker was asked for it; "": onnxgrad's own kernels.
/// Loads a requested one. Throws: OptionError.
std::string blas_in_use();

}  // namespace onnxgrad

#endif  // ONNXGRAD_BLAS_H_
