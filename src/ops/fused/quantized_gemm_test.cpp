#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/expr.h"
#include "opdef/quantized_weight.h"
#include "ops/testing/kernel_run.h"

// Compares the kernel with products of matrices that are unpacked element by element in float64.

namespace onnxgrad::ops_test::quantized_gemm_test {
namespace {

using opdef::QuantizedForm;
using opdef::QuantizedGemm;

struct Case {
  std::string name;
  QuantizedForm form = {};
  Tensor zeros = {};
  bool has_groups = false;
};

Tensor random_codes(DataType type, const Dims& dims, std::uint64_t seed) {
  Tensor codes = Tensor::empty(type, dims);
  const Tensor bytes = random_tensor(DataType::kFloat64, {codes.size_bytes()}, seed, 0, 256);
  for (std::int64_t i = 0; i < codes.size_bytes(); ++i) {
    codes.mutable_raw()[i] =
        static_cast<std::byte>(bytes.data<double>()[static_cast<std::size_t>(i)]);
  }
  return codes;
}

double code_at(DataType type, const Tensor& codes, std::int64_t i) {
  const int bits = size_bits(type);
  const int byte = std::to_integer<int>(codes.raw()[i * bits / 8]);
  const int code = (byte >> (i * bits % 8)) & ((1 << bits) - 1);
  const bool is_signed =
      type == DataType::kInt8 || type == DataType::kInt4 || type == DataType::kInt2;
  return is_signed && code >= 1 << (bits - 1) ? code - (1 << bits) : code;
}

std::int64_t num_scales(const QuantizedForm& form) {
  const std::int64_t rows = (form.rows - 1) / form.row_block + 1;
  const std::int64_t columns =
      form.column_block == QuantizedForm::kAll ? 1 : (form.columns - 1) / form.column_block + 1;
  return (rows - 1) * form.scale_row + columns;
}

class QuantizedProduct {
 public:
  explicit QuantizedProduct(const Case& given) : given_(given), form_(given.form) {
    codes_ = random_codes(form_.type, {form_.rows, form_.row_length}, 1);
    scales_ = random_tensor(DataType::kFloat32, {num_scales(form_)}, 2, 0.01, 0.02);
    if (!given.has_groups) return;
    std::vector<std::int64_t> groups;
    for (std::int64_t c = 0; c < form_.columns; ++c)
      groups.push_back((c * 7 + 3) % form_.scale_row);
    groups_ = Tensor::from(groups, {form_.columns});
  }

  void check(std::int64_t m, bool transpose_b, bool has_bias, int threads) const {
    SCOPED_TRACE(given_.name + (transpose_b ? ", transposed, " : ", ") + std::to_string(m));
    const std::int64_t k = transpose_b ? form_.columns : form_.rows;
    const std::int64_t n = transpose_b ? form_.rows : form_.columns;
    const Tensor a = random_tensor(DataType::kFloat32, {m, k}, 3);
    QuantizedGemm op{.transpose_b = transpose_b, .form = form_};
    KernelCall call{.op_type = opdef::kQuantizedGemm,
                    .inputs = {a, codes_, scales_, given_.zeros, groups_},
                    .outputs = {{DataType::kFloat32, {m, n}}},
                    .domain = ir::kFusedDomain,
                    .constants = {1, 2, 3, 4},
                    .threads = threads};
    const Tensor bias = random_tensor(DataType::kFloat32, {n}, 4);
    if (has_bias) {
      opdef::ExprProgram sum{.num_inputs = 2};
      sum.results = {sum.emit(opdef::ExprOp::kAdd, sum.input(0), sum.input(1))};
      op.epilogue = sum;
      call.inputs.push_back(bias);
    }
    call.attributes = op.attributes();
    const auto runs = run_offers(call);
    ASSERT_EQ(runs.size(), 1U);
    const auto c = runs.front().outputs.front().data<float>();
    for (std::int64_t i = 0; i < m; i += std::max<std::int64_t>(m / 3, 1)) {
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = has_bias ? static_cast<double>(bias.data<float>()[at(j)]) : 0.0;
        double size = 1;
        for (std::int64_t s = 0; s < k; ++s) {
          const double w = transpose_b ? element(j, s) : element(s, j);
          sum += static_cast<double>(a.data<float>()[at(i * k + s)]) * w;
          size = std::max(size, std::abs(w));
        }
        ASSERT_NEAR(static_cast<double>(c[at(i * n + j)]), sum,
                    1e-5 * size * std::sqrt(static_cast<double>(k)))
            << runs.front().label << " row " << i << " column " << j;
      }
    }
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  double element(std::int64_t r, std::int64_t c) const {
    const std::int64_t s =
        r / form_.row_block * form_.scale_row +
        (given_.has_groups ? groups_.data<std::int64_t>()[at(c)] : c / form_.column_block);
    const double scale = static_cast<double>(scales_.data<float>()[at(s)]);
    const double code = code_at(form_.type, codes_, r * form_.row_length + c);
    if (!form_.table.empty())
      return static_cast<double>(form_.table[at(std::int64_t(code))]) * scale;
    double zero = static_cast<double>(form_.zero);
    if (given_.zeros.is_defined()) {
      zero = is_floating(given_.zeros.dtype())
                 ? static_cast<double>(given_.zeros.data<float>()[at(s)])
                 : code_at(given_.zeros.dtype(), given_.zeros, s);
    }
    return (code - zero) * scale;
  }

  const Case& given_;
  const QuantizedForm& form_;
  Tensor codes_, scales_, groups_;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  const auto add = [&all](std::string name, QuantizedForm form, DataType zeros = {},
                          bool has_groups = false) {
    Case one{.name = std::move(name), .form = std::move(form), .has_groups = has_groups};
    const Dims dims{num_scales(one.form)};
    if (zeros == DataType::kFloat32) one.zeros = random_tensor(zeros, dims, 5, 0, 15);
    if (zeros != DataType::kFloat32 && zeros != DataType::kUndefined) {
      one.zeros = random_codes(zeros, dims, 5);
    }
    all.push_back(std::move(one));
  };
  const auto blocks = [](std::int64_t rows, std::int64_t columns, std::int64_t block,
                         DataType type) {
    const std::int64_t count = (columns + block - 1) / block;
    return QuantizedForm{.rows = rows,
                         .columns = columns,
                         .row_length = count * block,
                         .row_block = 1,
                         .column_block = block,
                         .scale_row = count,
                         .type = type};
  };
  add("int4 along rows", blocks(70, 96, 32, DataType::kInt4));
  add("uint4, zeros, last block short", blocks(65, 90, 16, DataType::kUint4), DataType::kUint4);
  add("uint8, float zeros", blocks(40, 128, 64, DataType::kUint8), DataType::kFloat32);
  add("uint2", blocks(33, 160, 32, DataType::kUint2), DataType::kUint2);
  add("uint4, groups", blocks(64, 128, 32, DataType::kUint4), DataType::kUint4, true);
  QuantizedForm table = blocks(96, 130, 10, DataType::kUint4);
  for (int i = 0; i < 16; ++i) table.table.push_back(std::sin(static_cast<float>(i)));
  add("table", table);
  QuantizedForm down = blocks(96, 75, 1, DataType::kInt4);  // an odd number of columns
  down.row_block = 32;
  add("int4 along columns", down, DataType::kInt4);
  QuantizedForm single = blocks(50, 60, 60, DataType::kInt8);
  single.row_block = single.column_block = QuantizedForm::kAll;
  add("int8, one scale", single);
  QuantizedForm of_rows = blocks(50, 60, 60, DataType::kUint8);
  of_rows.zero = 128;
  add("uint8, scales of rows", of_rows);
  QuantizedForm of_columns = blocks(50, 60, 1, DataType::kInt8);
  of_columns.row_block = QuantizedForm::kAll;
  add("int8, scales of columns", of_columns, DataType::kInt8);
  add("large", blocks(300, 520, 32, DataType::kUint4), DataType::kUint4);
  return all;
}

TEST(QuantizedGemm, ProductsOfUnpackedMatrices) {
  for (const Case& one : cases()) {
    const QuantizedProduct product(one);
    for (const std::int64_t m : {1, 5, 67, 200}) {
      for (const bool transpose_b : {false, true})
        product.check(m, transpose_b, m > 5, m > 67 ? 2 : 1);
    }
  }
}

}  // namespace
}  // namespace onnxgrad::ops_test::quantized_gemm_test
