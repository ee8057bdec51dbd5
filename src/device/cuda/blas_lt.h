#ifndef ONNXGRAD_DEVICE_CUDA_BLAS_LT_H_
#define ONNXGRAD_DEVICE_CUDA_BLAS_LT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "device/cuda/blas_lt_api.h"
#include "device/cuda/context.h"
#include "onnxgrad/dtype.h"

// Products by cuBLASLt. Its first proposal is the fastest in a third of the cases, and takes up to
// 1.7 times as long: the proposals for a shape are timed once on the card, and the choice is kept
// beside the images of kernels.

namespace onnxgrad::device::cuda {

/// C[i] = epilogue(op(A[i]) op(B[i])), row-major and dense, for i in [0, batch).
struct BlasLtSpec {
  enum class Epilogue : std::uint8_t { kNone, kBias, kReluBias };  ///< bias: [n], of type `out`

  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;           ///< A is stored as [k, m]
  bool transpose_b = false;           ///< B is stored as [n, k]
  DataType in = DataType::kFloat32;   ///< float32, float64, float16 or bfloat16
  DataType out = DataType::kFloat32;  ///< `in`, or float32
  bool allows_tf32 = false;
  std::int64_t batch = 1;
  bool shares_a = false;  ///< one A for the whole batch
  bool shares_b = false;
  Epilogue epilogue = Epilogue::kNone;
};

class BlasLtProduct {
 public:
  /// nullptr if cuBLASLt is absent or has no algorithm for this product; `declined` is then the
  /// reason. Float32 is computed in float32 unless tf32 is allowed.
  static std::shared_ptr<const BlasLtProduct> of(const std::shared_ptr<Context>& context,
                                                 const BlasLtSpec& spec, std::string& declined);
  ~BlasLtProduct();
  BlasLtProduct(const BlasLtProduct&) = delete;
  BlasLtProduct& operator=(const BlasLtProduct&) = delete;

  /// Addresses in the card's memory, aligned to 256 bytes.
  struct Operands {
    std::uint64_t a = 0;
    std::uint64_t b = 0;
    std::uint64_t c = 0;
    std::uint64_t bias = 0;
    std::uint64_t workspace = 0;
  };
  /// Throws: DeviceError.
  void run(const Operands& operands, Handle stream) const;
  std::int64_t workspace_bytes() const {
    return static_cast<std::int64_t>(chosen_.workspace_bytes);
  }

 private:
  BlasLtProduct(std::shared_ptr<Context> context, const BlasLtSpec& spec);
  bool choose();
  int launch(const BlasLtHeuristicResult& how, const Operands& operands, Handle stream) const;
  double time_us(const BlasLtHeuristicResult& how, const Operands& operands, Handle stream) const;
  std::size_t fastest(const BlasLtHeuristicResult* candidates, std::size_t count) const;

  std::shared_ptr<Context> context_;
  BlasLtSpec spec_;
  Handle handle_ = nullptr;
  Handle desc_ = nullptr;
  Handle a_ = nullptr;
  Handle b_ = nullptr;
  Handle c_ = nullptr;
  BlasLtHeuristicResult chosen_;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_BLAS_LT_H_
