#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/f16.h"
#include "ir/builder.h"
#include "opdef/fused_normalization.h"
#include "ops/testing/kernel_run.h"

// Compares the fused kernels with the formulas in double.

namespace onnxgrad::ops_test::fused_normalization_test {
namespace {

using opdef::FusedNormalization;
using opdef::NormMask;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  Dims dims;
  NormMask mask = NormMask::kNone;
  bool has_residual = false;
  float offset = 0;  ///< mean of x in units of its deviation
  int threads = 1;
  DataType images = DataType::kFloat32;      ///< type of x, y and residual
  DataType cotangents = DataType::kFloat32;  ///< type of dy and dx
};

std::vector<Case> cases() {
  return {
      {{4, 3, 5, 7}},
      {{2, 17, 64, 80}, NormMask::kPositive, false, 0, 2},
      {{3, 5, 4}, NormMask::kInside, false, 0, 1},
      {{8, 6}, NormMask::kPositive, true, 0, 1},
      {{5, 4, 3, 3}, NormMask::kResult, true, 0, 1},
      {{2, 3, 33, 31}, NormMask::kResult, true, 0, 3},
      {{32, 2, 5, 5}, NormMask::kInside, true, 0, 1},
      {{16, 2, 30, 30}, NormMask::kPositive, false, 1000, 1},
      {{1, 1, 1, 16}},
  };
}

std::vector<Case> cases_of_all_types() {
  constexpr auto kFloat = DataType::kFloat32;
  std::vector<Case> all = cases();
  for (const DataType half : {DataType::kFloat16, DataType::kBfloat16}) {
    for (const DataType cotangents : {half, kFloat}) {
      for (Case one : cases()) {
        if (one.offset > 0) continue;  // all elements would round to one value
        one.images = half;
        one.cotangents = cotangents;
        all.push_back(one);
      }
    }
  }
  return all;
}

/// Returns the relative distance between adjacent values of the type.
double rounding_of(DataType dtype) {
  if (dtype == DataType::kFloat32) return 0;
  return dtype == DataType::kFloat16 ? 0x1p-10 : 0x1p-7;
}

double rounded(double value, DataType dtype) {
  const auto number = static_cast<float>(value);
  if (dtype == DataType::kFloat16) return base::to_float(base::to_float16(number));
  if (dtype == DataType::kBfloat16) return base::to_float(base::to_bfloat16(number));
  return value;
}

struct Channel {
  double mean = 0;
  double variance = 0;
};

/// Element i of a tensor [N, C, ...] belongs to channel of(i).
class Reference {
 public:
  explicit Reference(const Case& one) : one_(one), length_(one.dims.product(2, one.dims.rank())) {}
  std::int64_t of(std::int64_t i) const { return i / length_ % one_.dims[1]; }

  std::vector<Channel> statistics(const std::vector<double>& x) const {
    std::vector<Channel> all(static_cast<std::size_t>(one_.dims[1]));
    const double count = static_cast<double>(x.size()) / static_cast<double>(all.size());
    visit(x, [&](auto i, auto c) { all[c].mean += x[i] / count; });
    visit(x, [&](auto i, auto c) {
      all[c].variance += (x[i] - all[c].mean) * (x[i] - all[c].mean) / count;
    });
    return all;
  }
  template <class F>
  void visit(const std::vector<double>& x, F&& f) const {
    for (std::size_t i = 0; i < x.size(); ++i) {
      f(i, static_cast<std::size_t>(of(static_cast<std::int64_t>(i))));
    }
  }

 private:
  const Case& one_;
  std::int64_t length_;
};

FusedNormalization op_of(const Case& one) {
  FusedNormalization op{.epsilon = 1e-3F, .momentum = 0.75F, .mask = one.mask};
  if (one.mask == NormMask::kPositive || one.mask == NormMask::kResult) op.low = 0;
  if (one.mask == NormMask::kInside) {
    op.low = -0.5F;
    op.high = 0.75F;
  }
  return op;
}

void expect_near(const Tensor& given, const std::vector<double>& expected, double tolerance,
                 const char* what) {
  const std::vector<double> numbers = given.to_doubles();
  ASSERT_EQ(numbers.size(), expected.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    ASSERT_NEAR(numbers[i], expected[i], tolerance * std::max(1.0, std::abs(expected[i])))
        << what << ' ' << i;
  }
}

TEST(FusedNormalization, AgreesWithItsFormula) {
  constexpr auto kFloat = DataType::kFloat32;
  for (const Case& one : cases_of_all_types()) {
    SCOPED_TRACE(fmt::format("{} {} {}", one.dims.to_string(), dtype_name(one.images),
                             dtype_name(one.cotangents)));
    const FusedNormalization op = op_of(one);
    const Reference reference(one);
    const Dims per_channel{one.dims[1]};
    const double offset = static_cast<double>(one.offset);
    const Tensor x = random_tensor(one.images, one.dims, 1, offset - 1, offset + 1);
    const Tensor scale = random_tensor(kFloat, per_channel, 2, 0.5, 1.5);
    const Tensor bias = random_tensor(kFloat, per_channel, 3);
    const Tensor old = random_tensor(kFloat, per_channel, 4, 0.5, 1.5);
    const Tensor residual = one.has_residual ? random_tensor(one.images, one.dims, 5) : Tensor();
    KernelCall forward{.op_type = opdef::kFusedNormalization,
                       .attributes = op.attributes(),
                       .inputs = {x, scale, bias, old, old, residual},
                       .outputs = {{one.images, one.dims},
                                   {kFloat, per_channel},
                                   {kFloat, per_channel},
                                   {kFloat, per_channel},
                                   {kFloat, per_channel}},
                       .domain = ir::kFusedDomain,
                       .threads = one.threads};
    const std::vector<Tensor> out = run_plain(forward);

    const std::vector<double> xs = x.to_doubles();
    const std::vector<Channel> channels = reference.statistics(xs);
    const std::vector<double> scales = scale.to_doubles();
    const std::vector<double> biases = bias.to_doubles();
    const std::vector<double> olds = old.to_doubles();
    std::vector<double> inverse, running_mean, running_variance;
    for (std::size_t c = 0; c < channels.size(); ++c) {
      inverse.push_back(1 / std::sqrt(channels[c].variance + 1e-3));
      running_mean.push_back(0.75 * olds[c] + 0.25 * channels[c].mean);
      running_variance.push_back(0.75 * olds[c] + 0.25 * channels[c].variance);
    }
    const std::vector<double> residuals =
        one.has_residual ? residual.to_doubles() : std::vector<double>(xs.size(), 0.0);
    std::vector<double> value(xs.size()), y(xs.size());
    reference.visit(xs, [&](auto i, auto c) {
      value[i] = (xs[i] - channels[c].mean) * inverse[c] * scales[c] + biases[c];
      y[i] = std::clamp(value[i] + (one.mask == NormMask::kPositive ? 0 : residuals[i]),
                        static_cast<double>(op.low), static_cast<double>(op.high));
      if (one.mask == NormMask::kPositive) {
        y[i] = std::max(value[i] + residuals[i], 0.0);
      }
    });
    const double tolerance = 1e-5 + 1e-7 * offset;
    expect_near(out[0], y, tolerance + rounding_of(one.images), "y");
    expect_near(out[1], running_mean, 1e-5, "running mean");
    expect_near(out[2], running_variance, tolerance, "running variance");
    expect_near(out[4], inverse, tolerance, "inverse");

    const Tensor dy = random_tensor(one.cotangents, one.dims, 6);
    const Tensor more = one.has_residual ? residual.cast(one.cotangents) : Tensor();
    for (const bool stores : {false, true}) {
      KernelCall backward{
          .op_type = opdef::kFusedNormalizationGrad,
          .attributes = op.attributes(),
          .inputs = {dy, x, scale, bias, out[3], out[4], more, out[0]},
          .outputs = {{one.cotangents, one.dims}, {kFloat, per_channel}, {kFloat, per_channel}},
          .domain = ir::kFusedDomain,
          .threads = one.threads};
      if (stores) backward.outputs.push_back({one.cotangents, one.dims});
      const std::vector<Tensor> grads = run_plain(backward);
      const std::vector<double> cotangent = dy.to_doubles();
      const std::vector<double> results = out[0].to_doubles();
      std::vector<double> g(xs.size());
      std::vector<double> sum(channels.size()), dot(channels.size());
      reference.visit(xs, [&](auto i, auto c) {
        const bool passes =
            one.mask == NormMask::kNone || (one.mask == NormMask::kPositive && value[i] > 0) ||
            (one.mask == NormMask::kInside && value[i] >= static_cast<double>(op.low) &&
             value[i] <= static_cast<double>(op.high)) ||
            (one.mask == NormMask::kResult && results[i] > 0);
        g[i] = passes ? rounded(cotangent[i] + residuals[i], one.cotangents) : 0;
        sum[c] += g[i];
        dot[c] += g[i] * (xs[i] - channels[c].mean) * inverse[c];
      });
      const double count = static_cast<double>(xs.size()) / static_cast<double>(channels.size());
      std::vector<double> dx(xs.size());
      reference.visit(xs, [&](auto i, auto c) {
        const double h = (xs[i] - channels[c].mean) * inverse[c];
        dx[i] = scales[c] * inverse[c] * (g[i] - sum[c] / count - h * dot[c] / count);
      });
      const double wide = offset > 0 ? 3e-3 : 1e-5;
      expect_near(grads[0], dx, wide + rounding_of(one.cotangents), "dx");
      expect_near(grads[1], dot, wide * 10, "dscale");
      expect_near(grads[2], sum, wide * 10, "dbias");
      if (stores) expect_near(grads[3], g, wide, "g");
    }
  }
}

TEST(FusedNormalization, DeclinesImagesOfDifferentTypes) {
  constexpr auto kFloat = DataType::kFloat32;
  const Tensor ones = random_tensor(kFloat, {2}, 2, 1, 1);
  const FusedNormalization op;
  for (const auto& [from, to] :
       {std::pair{DataType::kFloat16, kFloat}, std::pair{kFloat, DataType::kBfloat16},
        std::pair{DataType::kFloat16, DataType::kBfloat16}}) {
    KernelCall call{.op_type = opdef::kFusedNormalization,
                    .attributes = op.attributes(),
                    .inputs = {random_tensor(from, {1, 2, 20}, 1), ones, ones, ones, ones},
                    .outputs = {{to, {1, 2, 20}}, {}, {}, {kFloat, {2}}, {kFloat, {2}}},
                    .domain = ir::kFusedDomain};
    EXPECT_TRUE(run_offers(call).empty());
  }
}

TEST(FusedNormalization, KeepsNaN) {
  constexpr auto kFloat = DataType::kFloat32;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Tensor x = random_tensor(kFloat, {1, 2, 20}, 1);
  x.mutable_data<float>()[3] = nan;
  const Tensor ones = random_tensor(kFloat, {2}, 2, 1, 1);
  FusedNormalization op{.low = 0, .high = kInfinity, .mask = NormMask::kPositive};
  KernelCall call{.op_type = opdef::kFusedNormalization,
                  .attributes = op.attributes(),
                  .inputs = {x, ones, ones, ones, ones},
                  .outputs = {{kFloat, {1, 2, 20}}, {}, {}, {kFloat, {2}}, {kFloat, {2}}},
                  .domain = ir::kFusedDomain};
  const std::vector<double> y = run_plain(call)[0].to_doubles();
  for (std::size_t i = 0; i < 20; ++i) EXPECT_TRUE(std::isnan(y[i]));
  for (std::size_t i = 20; i < 40; ++i) EXPECT_FALSE(std::isnan(y[i]));
}

}  // namespace
}  // namespace onnxgrad::ops_test::fused_normalization_test
