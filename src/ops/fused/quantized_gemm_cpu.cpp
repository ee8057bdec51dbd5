#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "device/cpu/quantized_matrix.h"
#include "ir/builder.h"
#include "opdef/quantized_weight.h"
#include "ops/fused/matmul_offer_cpu.h"
#include "ops/kernel_support.h"

// A GEMM whose B panels are computed from integers where they are packed: device/cpu/
// quantized_matrix.h.

namespace onnxgrad::ops::quantized_gemm_cpu {
namespace {

// A constant as the kernel reads it: floats have 32 bits. Shared, not copied, if they have.
Tensor read_constant(const KernelRequest& request, std::size_t input) {
  const Tensor& given = *request.constants[input];
  const bool is_narrow = is_f16(given.dtype());
  return is_narrow ? given.cast(DataType::kFloat32) : given;
}

// The zero of all blocks, of unsigned codes, if it is one: symmetric weights have the middle.
std::optional<float> common_zero(const Tensor& zeros) {
  const bool is_unsigned = zeros.dtype() == DataType::kUint8 || zeros.dtype() == DataType::kUint4;
  if (!is_unsigned || zeros.num_elements() == 0) return std::nullopt;
  const auto byte = std::to_integer<unsigned>(*zeros.raw());
  if (zeros.dtype() == DataType::kUint4 && byte % 16 != byte / 16) return std::nullopt;
  const bool are_equal = std::all_of(zeros.raw(), zeros.raw() + zeros.size_bytes(),
                                     [&](std::byte other) { return other == *zeros.raw(); });
  if (!are_equal) return std::nullopt;
  return static_cast<float>(zeros.dtype() == DataType::kUint4 ? byte % 16 : byte);
}

std::shared_ptr<const QuantizedOperand> operand_of(const KernelRequest& request,
                                                   const opdef::QuantizedForm& form) {
  auto operand = std::make_shared<QuantizedOperand>();
  operand->scales = read_constant(request, 2);
  operand->table = form.table;
  device::QuantizedMatrix& matrix = operand->matrix;
  matrix = {.type = form.type,
            .columns = form.columns,
            .row_length = form.row_length,
            .scales = operand->scales.data<float>().data(),
            .zero = form.zero,
            .row_block = form.row_block,
            .column_block = form.column_block,
            .scale_row = form.scale_row};
  const auto common =
      request.has_input(3) ? common_zero(*request.constants[3]) : std::optional<float>();
  if (common) {
    matrix.zero = *common;
  } else if (request.has_input(3)) {
    operand->zeros = read_constant(request, 3);
    matrix.zeros = operand->zeros.raw();
    matrix.zeros_type = operand->zeros.dtype();
  }
  if (request.has_input(4)) {
    operand->groups = request.constants[4]->cast(DataType::kInt32);
    matrix.groups = operand->groups.data<std::int32_t>().data();
  }
  if (!operand->table.empty()) matrix.table = operand->table.data();
  return operand;
}

KernelOffer offer_quantized_gemm(const KernelRequest& request) {
  auto op = opdef::QuantizedGemm::read(request.node);
  const Dims& left = request.inputs[0].dims;
  const std::size_t rank = left.rank();
  if (rank < 2 || (op.transpose_a && rank != 2)) {
    return KernelOffer::decline(request.node.describe() + ": shapes do not match");
  }
  for (std::size_t i = 1; i < opdef::kQuantizedGemmOperands; ++i) {
    if (request.has_input(i) && request.constants[i] == nullptr) {
      return KernelOffer::decline(request.node.describe() + ": the matrix is not constant");
    }
  }
  MatmulSpec spec;
  spec.sums_columns = op.sums_columns;
  spec.gemm.threads = request.threads;
  spec.gemm.cpu = device::cpu_options(request);
  spec.gemm.transpose_a = op.transpose_a;
  spec.gemm.transpose_b = op.transpose_b;
  spec.gemm.m = op.transpose_a ? left[1] : left.product(0, rank - 1);
  spec.gemm.k = op.transpose_a ? left[0] : left[rank - 1];
  spec.gemm.n = op.transpose_b ? op.form.rows : op.form.columns;
  if (spec.gemm.k != (op.transpose_b ? op.form.columns : op.form.rows)) {
    return KernelOffer::decline(request.node.describe() + ": shapes do not match");
  }
  const device::Isa isa = device::isa_of(request);
  const DataType a = request.inputs[0].dtype;
  spec.gemm.b_source = device::source_of_quantized(isa, op.form.rounded);
  if (is_f16(a)) spec.gemm.a_source = device::source_of_f16(isa, a);
  spec.quantized = operand_of(request, op.form);
  if (op.epilogue) {
    spec.epilogue = std::move(op.epilogue);
    for (std::size_t i = opdef::kQuantizedGemmOperands; i < request.inputs.size(); ++i) {
      spec.epilogue_inputs.push_back(static_cast<int>(i));
    }
  }
  KernelOffer offer = offer_matmul(request, std::move(spec));
  if (offer.kernel.fn != nullptr) offer.kernel.label = "quantized " + offer.kernel.label;
  return offer;
}

}  // namespace

void register_quantized_gemm_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kQuantizedGemm, 1, offer_quantized_gemm);
}

}  // namespace onnxgrad::ops::quantized_gemm_cpu
