#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/f16.h"

#include "device/testing/emulated_amx.h"
#include "ir/builder.h"
#include "opdef/attention.h"
#include "ops/testing/kernel_run.h"

// Compares attention and its gradient in bfloat16, with probabilities rounded to bfloat16
// (multiplied by AMX if available), with sums in double.

namespace onnxgrad::ops_test::attention_vnni {
namespace {

using Numbers = std::vector<double>;

struct Case {
  std::int64_t heads, key_heads, queries, keys, size, value_size;
  bool turns_keys = false;    ///< keys are stored column-major
  bool turns_values = false;  ///< values are column-major, which AMX declines
  bool causal = false;
  bool has_mask = false;
  bool stores_probabilities = false;
};

double rounded(double x) { return base::to_float(base::to_bfloat16(static_cast<float>(x))); }

/// Returns a view with the heads side by side in each row or, with `by_heads`, one after another.
opdef::StridedView view_of(std::int64_t heads, std::int64_t rows, std::int64_t size,
                           bool by_heads) {
  return {.dims = {heads, rows, size},
          .strides = by_heads ? std::vector<std::int64_t>{rows * size, size, 1}
                              : std::vector<std::int64_t>{size, heads * size, 1}};
}

/// Result and the sums of the magnitudes of its terms.
struct Sums {
  Numbers value, size;
  explicit Sums(std::int64_t count)
      : value(static_cast<std::size_t>(count)), size(static_cast<std::size_t>(count)) {}
  void add(std::int64_t at, double term, double magnitude) {
    value[static_cast<std::size_t>(at)] += term;
    size[static_cast<std::size_t>(at)] += magnitude;
  }
};

struct Operand {
  Tensor tensor;
  opdef::StridedView view;
  Numbers numbers;

  Operand(opdef::StridedView of, const Dims& dims, std::uint64_t seed)
      : tensor(random_tensor(DataType::kBfloat16, dims, seed)),
        view(std::move(of)),
        numbers(tensor.to_doubles()) {}
  double at(std::int64_t head, std::int64_t row, std::int64_t column) const {
    return numbers[static_cast<std::size_t>(head * view.strides[0] + row * view.strides[1] +
                                            column * view.strides[2])];
  }
};

std::int64_t index(const opdef::StridedView& view, std::int64_t head, std::int64_t row,
                   std::int64_t column) {
  return head * view.strides[0] + row * view.strides[1] + column * view.strides[2];
}

/// Reference computation in double.
class Reference {
 public:
  Reference(const Case& n, double scale, const Operand& q, const Operand& k, const Operand& v,
            const Operand& dy, const Numbers& mask)
      : n_(n),
        scale_(scale),
        q_(q),
        k_(k),
        v_(v),
        dy_(dy),
        mask_(mask),
        y(n.heads * n.queries * n.value_size),
        dq(n.heads * n.queries * n.size),
        dk(n.key_heads * n.keys * n.size),
        dv(n.key_heads * n.keys * n.value_size),
        dscore(n.heads * n.queries * n.keys) {
    for (std::int64_t head = 0; head < n.heads; ++head) {
      for (std::int64_t row = 0; row < n.queries; ++row) run_row(head, row);
    }
  }

 private:
  void run_row(std::int64_t head, std::int64_t row) {
    const std::int64_t key_head = head / (n_.heads / n_.key_heads);
    const std::int64_t seen = n_.causal ? std::min(row + 1, n_.keys) : n_.keys;
    Numbers p;
    for (std::int64_t j = 0; j < seen; ++j) {
      double score = 0;
      for (std::int64_t i = 0; i < n_.size; ++i)
        score += q_.at(head, row, i) * k_.at(key_head, j, i);
      score *= scale_;
      if (n_.has_mask) score += mask_[static_cast<std::size_t>(row * n_.keys + j)];
      p.push_back(score);
    }
    const double largest = *std::max_element(p.begin(), p.end());
    double total = 0;
    for (double& x : p) total += x = std::exp(x - largest);
    for (double& x : p) x = rounded(x / total);
    Numbers dp;
    double along = 0;
    double along_size = 0;
    for (std::int64_t j = 0; j < seen; ++j) {
      double sum = 0;
      const double share = p[static_cast<std::size_t>(j)];
      for (std::int64_t i = 0; i < n_.value_size; ++i) {
        const double value = v_.at(key_head, j, i);
        const double d = dy_.at(head, row, i);
        y.add(index(dy_.view, head, row, i), share * value, std::abs(share * value));
        dv.add((key_head * n_.keys + j) * n_.value_size + i, share * d, std::abs(share * d));
        sum += d * value;
      }
      dp.push_back(sum);
      along += share * sum;
      along_size += std::abs(share * sum);
    }
    for (std::int64_t j = 0; j < seen; ++j) {
      const double share = p[static_cast<std::size_t>(j)];
      const double one = dp[static_cast<std::size_t>(j)];
      const double ds = share * (one - along);
      const double size = share * (std::abs(one) + along_size);
      dscore.add((head * n_.queries + row) * n_.keys + j, ds, size);
      for (std::int64_t i = 0; i < n_.size; ++i) {
        const double key = scale_ * k_.at(key_head, j, i);
        const double query = scale_ * q_.at(head, row, i);
        dq.add((head * n_.queries + row) * n_.size + i, ds * key, size * std::abs(key));
        dk.add((key_head * n_.keys + j) * n_.size + i, ds * query, size * std::abs(query));
      }
    }
  }

  const Case& n_;
  double scale_;
  const Operand& q_;
  const Operand& k_;
  const Operand& v_;
  const Operand& dy_;
  const Numbers& mask_;

 public:
  Sums y, dq, dk, dv, dscore;
};

/// Tolerates probabilities rounded to either side: one unit of bfloat16, and one for the next
/// rounding.
void expect_near(const char* name, const Tensor& given, const Sums& expected) {
  const Numbers all = given.to_doubles();
  ASSERT_EQ(all.size(), expected.value.size()) << name;
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_NEAR(all[i], expected.value[i], expected.size[i] / 128 + 1e-6) << name << " " << i;
  }
}

void check(const Case& n, const device::CpuOptions& cpu) {
  SCOPED_TRACE(testing::Message() << n.heads << " of " << n.queries << "x" << n.keys << "x"
                                  << n.size << " causal " << n.causal << " stores "
                                  << n.stores_probabilities << " turns " << n.turns_keys);

  opdef::StridedView of_k = view_of(n.key_heads, n.keys, n.size, false);
  opdef::StridedView of_v = view_of(n.key_heads, n.keys, n.value_size, false);
  if (n.turns_keys) of_k.strides = {n.size * n.keys, 1, n.keys};
  if (n.turns_values) of_v.strides = {n.value_size * n.keys, 1, n.keys};
  const Operand q(view_of(n.heads, n.queries, n.size, false), {n.queries, n.heads * n.size}, 1);
  const Operand k(of_k, {n.key_heads * n.keys, n.size}, 2);
  const Operand v(of_v, {n.keys, n.key_heads * n.value_size}, 3);
  const Operand dy(view_of(n.heads, n.queries, n.value_size, false),
                   {n.queries, n.heads * n.value_size}, 4);
  const Tensor mask = random_tensor(DataType::kFloat32, {n.queries, n.keys}, 5);
  const double scale = 0.3;
  opdef::Attention op{.q = q.view,
                      .k = k.view,
                      .v = v.view,
                      .y = dy.view,
                      .scale = scale,
                      .causal = n.causal,
                      .stores_probabilities = n.stores_probabilities,
                      .probabilities_type = DataType::kBfloat16};
  if (n.has_mask) {
    op.masks = {{.view = {.dims = {n.heads, n.queries, n.keys}, .strides = {0, n.keys, 1}}}};
  }
  const std::int64_t rows = n.heads * n.queries;
  KernelCall forward{.op_type = opdef::kAttention,
                     .attributes = op.attributes(),
                     .inputs = {q.tensor, k.tensor, v.tensor},
                     .outputs = {{DataType::kFloat32, {n.queries, n.heads * n.value_size}},
                                 {n.stores_probabilities ? DataType::kBfloat16 : DataType::kFloat32,
                                  {rows, n.stores_probabilities ? n.keys : 2}}},
                     .domain = ir::kFusedDomain,
                     .cpu = &cpu};
  if (n.has_mask) forward.inputs.push_back(mask);
  const KernelRun made = run_offers(forward).at(0);
  const bool has_amx = cpu.amx != nullptr && !n.turns_values;
  EXPECT_EQ(made.label.find("tiles AMX") != std::string::npos, has_amx) << made.label;
  const Reference expected(n, scale, q, k, v, dy, mask.to_doubles());
  expect_near("y", made.outputs[0], expected.y);

  const opdef::AttentionGradient gradient{.forward = op,
                                          .dy = dy.view,
                                          .dq = view_of(n.heads, n.queries, n.size, true),
                                          .dk = view_of(n.key_heads, n.keys, n.size, true),
                                          .dv = view_of(n.key_heads, n.keys, n.value_size, true)};
  KernelCall backward{
      .op_type = opdef::kAttentionGradient,
      .attributes = gradient.attributes(),
      .inputs = {dy.tensor, Tensor(), made.outputs[1], q.tensor, k.tensor, v.tensor},
      .outputs = {{DataType::kFloat32, {n.heads, n.queries, n.size}},
                  {DataType::kFloat32, {n.key_heads, n.keys, n.size}},
                  {DataType::kFloat32, {n.key_heads, n.keys, n.value_size}},
                  {DataType::kFloat32, {rows, n.keys}}},
      .domain = ir::kFusedDomain,
      .cpu = &cpu};
  if (n.has_mask) backward.inputs.push_back(mask);
  const KernelRun back = run_offers(backward).at(0);
  EXPECT_EQ(back.label.find("tiles AMX") != std::string::npos, has_amx) << back.label;
  expect_near("dq", back.outputs[0], expected.dq);
  expect_near("dk", back.outputs[1], expected.dk);
  expect_near("dv", back.outputs[2], expected.dv);
  expect_near("dscore", back.outputs[3], expected.dscore);
}

void check_all(const device::CpuOptions& cpu) {
  for (const Case& n : {Case{2, 2, 50, 33, 17, 17}, Case{4, 2, 130, 128, 64, 64},
                        Case{1, 1, 300, 300, 32, 70}, Case{2, 1, 40, 520, 48, 5}}) {
    for (const bool stores_probabilities : {false, true}) {
      for (const bool turns_keys : {false, true}) {
        Case one = n;
        one.stores_probabilities = stores_probabilities;
        one.turns_keys = turns_keys;
        check(one, cpu);
        one.has_mask = true;
        check(one, cpu);
        one.causal = true;
        check(one, cpu);
        one.turns_values = true;
        check(one, cpu);
      }
    }
  }
}

TEST(AttentionVnni, AgreeWithDoubles) { check_all({}); }

TEST(AttentionVnni, AgreeWithDoublesOnEmulatedAmx) { check_all(device::with_emulated_amx()); }

}  // namespace
}  // namespace onnxgrad::ops_test::attention_vnni
