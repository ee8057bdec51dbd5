#include "train/adapters/packed_matrix.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "ir/pattern.h"

namespace onnxgrad::train {
namespace {

using opdef::constant_tensor;
using opdef::QuantizedForm;

constexpr std::string_view kMicrosoft = "com.microsoft";

DataType code_type(std::int64_t bits) {
  if (bits == 8) return DataType::kUint8;
  return bits == 4 ? DataType::kUint4 : DataType::kUint2;
}

// Zero points whose rows begin whole bytes, as numbers.
Tensor zeros_of(const Tensor& packed, const QuantizedForm& form, std::int64_t bits) {
  if (is_floating(packed.dtype())) return packed;
  const std::int64_t per_byte = 8 / bits;
  const std::int64_t row_bytes = (form.scale_row + per_byte - 1) / per_byte;
  if (packed.size_bytes() != form.rows * row_bytes) return {};
  std::vector<std::uint8_t> zeros;
  for (std::int64_t r = 0; r < form.rows; ++r) {
    for (std::int64_t b = 0; b < form.scale_row; ++b) {
      const auto byte = std::to_integer<unsigned>(packed.raw()[r * row_bytes + b / per_byte]);
      zeros.push_back(
          static_cast<std::uint8_t>((byte >> (b % per_byte * bits)) & ((1U << bits) - 1)));
    }
  }
  return Tensor::from(zeros, {form.rows, form.scale_row});
}

std::shared_ptr<const PackedMatrix> read_n_bits(const ir::Node& node) {
  const Tensor* codes = constant_tensor(node.input(1));
  const Tensor* scales = constant_tensor(node.input(2));
  if (codes == nullptr || scales == nullptr) return nullptr;
  const std::int64_t bits = node.int_attribute("bits", std::int64_t{4});
  const std::int64_t block = node.int_attribute("block_size", std::int64_t{0});
  auto made = std::make_shared<PackedMatrix>();
  QuantizedForm& form = made->form;
  form.rows = node.int_attribute("N", std::int64_t{0});
  form.columns = node.int_attribute("K", std::int64_t{0});
  if ((bits != 2 && bits != 4 && bits != 8) || block < 1 || form.rows < 1 || form.columns < 1) {
    return nullptr;
  }
  form.type = code_type(bits);
  form.column_block = block;
  form.scale_row = (form.columns + block - 1) / block;
  form.row_length = form.scale_row * block;
  form.zero = static_cast<float>(1 << (bits - 1));
  if (codes->size_bytes() * 8 != form.rows * form.row_length * bits ||
      scales->num_elements() != form.rows * form.scale_row || !is_floating(scales->dtype())) {
    return nullptr;
  }
  made->tensors = {.codes = *codes, .scales = *scales};
  if (node.input(3) != nullptr) {
    const Tensor* zeros = constant_tensor(node.input(3));
    if (zeros != nullptr) made->tensors.zeros = zeros_of(*zeros, form, bits);
    if (!made->tensors.zeros.is_defined()) return nullptr;
  }
  if (node.input(4) != nullptr) {
    const Tensor* groups = constant_tensor(node.input(4));
    if (groups == nullptr || groups->num_elements() != form.columns) return nullptr;
    made->tensors.groups = *groups;
  }
  made->codes = node.input(1);
  made->dtype = scales->dtype();
  made->is_transposed = true;
  return made;
}

std::shared_ptr<const PackedMatrix> read_product(const ir::Node& node) {
  const auto found = opdef::find_quantized_weight(node.input(1));
  if (!found) return nullptr;
  auto made = std::make_shared<PackedMatrix>();
  made->codes = found->codes;
  made->form = found->form;
  made->tensors = opdef::tensors_of(*found);
  if (is_f16(found->form.rounded)) made->dtype = found->form.rounded;
  made->is_transposed = found->is_transposed;
  if (node.op_type == "Gemm" && node.int_attribute("transB", std::int64_t{0}) != 0) {
    made->is_transposed = !made->is_transposed;
  }
  return made;
}

}  // namespace

bool is_matmul_n_bits(const ir::Node& node) {
  return node.domain == kMicrosoft && node.op_type == "MatMulNBits";
}

std::vector<float> PackedMatrix::numbers() const {
  std::vector<float> stored = opdef::dequantized(form, tensors);
  if (!is_transposed) return stored;
  std::vector<float> turned(stored.size());
  const auto rows = static_cast<std::size_t>(form.rows);
  const auto columns = static_cast<std::size_t>(form.columns);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) turned[c * rows + r] = stored[r * columns + c];
  }
  return turned;
}

std::vector<double> PackedMatrix::squares() const {
  std::vector<double> sums(static_cast<std::size_t>(outputs()), 0.0);
  QuantizedForm row = form;  // one row at a time
  row.rows = 1;
  for (std::int64_t r = 0; r < form.rows; ++r) {
    row.first_row = r;
    const std::vector<float> numbers = opdef::dequantized(row, tensors);
    for (std::size_t c = 0; c < numbers.size(); ++c) {
      const auto number = static_cast<double>(numbers[c]);
      sums[is_transposed ? static_cast<std::size_t>(r) : c] += number * number;
    }
  }
  return sums;
}

std::shared_ptr<const PackedMatrix> find_packed(const ir::Node& node) {
  if (is_matmul_n_bits(node)) return read_n_bits(node);
  return ir::is_op(node, {"MatMul", "Gemm"}) ? read_product(node) : nullptr;
}

}  // namespace onnxgrad::train
