#include "onnxgrad/blas.h"

#include "device/blas.h"

namespace onnxgrad {

void request_blas(const BlasOptions& options) {
  device::choose_blas(options.library, options.folders);
}

void use_blas(const BlasOptions& options) { device::load_blas(options.library, options.folders); }

std::string blas_in_use() {
  const device::Blas* blas = device::blas();
  return blas == nullptr ? "" : blas->path;
}

}  // namespace onnxgrad
