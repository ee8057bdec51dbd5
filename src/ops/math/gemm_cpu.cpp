#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "opdef/kernel.h"
#include "ops/fused/matmul_offer_cpu.h"
#include "ops/kernel_support.h"

// Gemm: C' = alpha op(A) op(B) + beta C with C broadcast to [m, n]. Rank 1: BLAS-like kernel for
// float32 and float64. Rank 0: reference loops for all types that Gemm has.

namespace onnxgrad::ops::gemm_cpu {
namespace {

bool has_addend(const KernelRequest& request) {
  return request.has_input(2) && request.node.float_attribute("beta") != 0;
}

KernelOffer offer_gemm(const KernelRequest& request) {
  const ir::Node& node = request.node;
  const auto gemm = matmul_shape(request, 0, 1, node.int_attribute("transA") != 0,
                                 node.int_attribute("transB") != 0);
  if (!gemm) return KernelOffer::decline("shapes do not match");
  // f16/bf16 Gemm is fused by passes/narrow_matmuls.cpp, so that the result is rounded once.
  if (is_f16(gemm->dtype)) return decline_dtype(request, gemm->dtype);
  MatmulSpec spec{.gemm = *gemm};
  spec.gemm.alpha = static_cast<double>(node.float_attribute("alpha"));
  if (has_addend(request)) {
    const auto beta = static_cast<double>(node.float_attribute("beta"));
    opdef::ExprProgram epilogue{.num_inputs = 2};
    const std::int32_t product = epilogue.input(0);
    std::int32_t addend = epilogue.input(1);
    if (beta != 1) addend = epilogue.emit(opdef::ExprOp::kMul, addend, epilogue.constant(beta));
    epilogue.results = {epilogue.emit(opdef::ExprOp::kAdd, product, addend)};
    spec.epilogue = std::move(epilogue);
    spec.epilogue_inputs = {2};
  }
  return offer_matmul(request, std::move(spec));
}

// Reference kernel.

struct PlainData {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  double alpha = 1, beta = 0;
  std::int64_t c_row = 0, c_column = 0;  // strides
  std::size_t output = 2;                // argument index
};

/// Accumulator type; unsigned for integers, which wrap around.
template <class T, bool kIsInteger = std::is_integral_v<T>>
struct PlainSumOf {
  using Type = std::make_unsigned_t<T>;
};
template <class T>
struct PlainSumOf<T, false> {
  using Type = double;
};
template <class T>
using PlainSum = typename PlainSumOf<T>::Type;

template <class T>
void plain_gemm(const PlainData& d, KernelArgs args) {
  using Sum = PlainSum<T>;
  const T* a = args.at<T>(0);
  const T* b = args.at<T>(1);
  const T* c = args.at<T>(2);
  T* out = args.at<T>(d.output);
  for (std::int64_t i = 0; i < d.m; ++i) {
    for (std::int64_t j = 0; j < d.n; ++j) {
      Sum sum = 0;
      for (std::int64_t k = 0; k < d.k; ++k) {
        sum += static_cast<Sum>(d.transpose_a ? a[k * d.m + i] : a[i * d.k + k]) *
               static_cast<Sum>(d.transpose_b ? b[j * d.k + k] : b[k * d.n + j]);
      }
      // Factors are float attributes; the product of an integer with one is truncated to an
      // integer.
      const bool is_plain = d.alpha == 1 && (d.beta == 0 || d.beta == 1);
      const Sum addend = d.beta == 0 ? Sum(0) : static_cast<Sum>(c[i * d.c_row + j * d.c_column]);
      out[i * d.n + j] = is_plain
                             ? static_cast<T>(sum + addend)
                             : static_cast<T>(d.alpha * static_cast<double>(static_cast<T>(sum)) +
                                              d.beta * static_cast<double>(static_cast<T>(addend)));
    }
  }
}

KernelOffer offer_plain(const KernelRequest& request) {
  const ir::Node& node = request.node;
  const auto gemm = matmul_shape(request, 0, 1, node.int_attribute("transA") != 0,
                                 node.int_attribute("transB") != 0);
  if (!gemm) return KernelOffer::decline("shapes do not match");
  PlainData data{.m = gemm->m,
                 .n = gemm->n,
                 .k = gemm->k,
                 .transpose_a = gemm->transpose_a,
                 .transpose_b = gemm->transpose_b,
                 .alpha = static_cast<double>(node.float_attribute("alpha")),
                 .output = request.inputs.size()};
  if (has_addend(request)) {
    const Dims& dims = request.inputs[2].dims;
    data.beta = static_cast<double>(node.float_attribute("beta"));
    const std::int64_t columns = dims.rank() == 0 ? 1 : dims[dims.rank() - 1];
    const std::int64_t rows = dims.rank() < 2 ? 1 : dims[0];
    data.c_column = columns == 1 ? 0 : 1;
    data.c_row = rows == 1 ? 0 : columns;
  }
  return offer_for_types<float, double, std::int32_t, std::int64_t, std::uint32_t, std::uint64_t>(
      request, gemm->dtype, [&]<class T>(T) { return prepared<plain_gemm<T>>(data, "plain"); });
}

}  // namespace

void register_gemm_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Gemm", 1, offer_gemm);
  registry.add("", "Gemm", 0, offer_plain);
}

}  // namespace onnxgrad::ops::gemm_cpu
