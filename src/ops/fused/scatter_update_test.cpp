#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/error.h"
#include "opdef/fused.h"
#include "opdef/scatter_update.h"
#include "ops/testing/kernel_run.h"

// Compares bit by bit with the update of the dense gradient by its kernel.

namespace onnxgrad::ops_test::scatter_update_test {
namespace {

using opdef::UpdateRule;
using opdef::WeightUpdate;

constexpr std::int64_t kRows = 40;

struct Lookup {
  Dims weight;
  Dims indices;
  std::vector<std::int64_t> rows;
};

std::vector<Lookup> lookups() {
  std::vector<std::int64_t> many;
  for (std::int64_t i = 0; i < 60; ++i) many.push_back(i * i % kRows - (i % 3 == 0 ? kRows : 0));
  return {{{kRows, 18}, {4, 15, 1}, many},  // repeated and negative ones
          {{kRows, 3, 5}, {1, 1}, {7}},
          {{kRows}, {3, 1}, {0, kRows - 1, 0}},
          {{kRows, 4}, {0, 1}, {}},
          {{kRows, 0}, {2, 1}, {1, 2}}};
}

template <class T>
Tensor dense_gradient(const Lookup& lookup, const Tensor& rows) {
  Tensor gradient = Tensor::zeros(rows.dtype(), lookup.weight);
  const std::int64_t columns = lookup.weight.product(1, lookup.weight.rank());
  T* to = gradient.mutable_data<T>().data();
  const T* from = rows.data<T>().data();
  for (const std::int64_t index : lookup.rows) {
    T* row = to + (index < 0 ? index + kRows : index) * columns;
    for (std::int64_t j = 0; j < columns; ++j) row[j] += *from++;
  }
  return gradient;
}

Tensor rows_of(const Lookup& lookup, DataType dtype) {
  std::vector<std::int64_t> dims(lookup.indices.begin(), lookup.indices.end());
  dims.pop_back();
  dims.insert(dims.end(), lookup.weight.begin() + 1, lookup.weight.end());
  return random_tensor(dtype, Dims(dims), 9);
}

Tensor index_tensor(const Lookup& lookup) { return Tensor::from(lookup.rows, lookup.indices); }

void expect_same_bits(const std::vector<Tensor>& given, const std::vector<Tensor>& expected,
                      const std::string& what) {
  ASSERT_EQ(given.size(), expected.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    EXPECT_EQ(given[i].to_doubles(), expected[i].to_doubles()) << what << ", output " << i;
  }
}

WeightUpdate update_of(UpdateRule rule, bool decays, bool shrinks) {
  const bool averages =
      rule == UpdateRule::kAdam || rule == UpdateRule::kRoot || rule == UpdateRule::kLion;
  return {.rule = rule,
          .decay = decays ? 0.2 : 0,
          .beta1 = 0.9,
          .share1 = averages ? 0.1 : 1,
          .beta2 = 0.99,
          .share2 = averages ? 0.01 : 1,
          .shrinks = shrinks};
}

template <class T>
void check_update(const WeightUpdate& update, const Lookup& lookup, int threads) {
  const DataType dtype = dtype_of<T>();
  const Tensor rows = rows_of(lookup, dtype);
  std::vector<Tensor> others{random_tensor(dtype, lookup.weight, 2),
                             random_tensor(dtype, lookup.weight, 3, 0, 1)};
  if (update.has_v()) others.push_back(random_tensor(dtype, lookup.weight, 4, 0, 1));
  others.push_back(Tensor::scalar_of(dtype, 0.05));
  if (update.has_epsilon()) others.push_back(Tensor::scalar_of(dtype, 1e-8));
  if (update.shrinks) others.push_back(Tensor::scalar_of(dtype, 0.9));
  KernelCall dense{.op_type = opdef::kWeightUpdate,
                   .attributes = update.attributes(),
                   .inputs = {dense_gradient<T>(lookup, rows)},
                   .domain = ir::kFunctionDomain,
                   .threads = threads};
  KernelCall scattered{.op_type = opdef::kScatterWeightUpdate,
                       .attributes = update.attributes(),
                       .inputs = {index_tensor(lookup), rows},
                       .domain = ir::kFusedDomain,
                       .threads = threads};
  for (KernelCall* call : {&dense, &scattered}) {
    call->inputs.insert(call->inputs.end(), others.begin(), others.end());
    call->outputs.assign(update.num_outputs(), {dtype, lookup.weight});
  }
  expect_same_bits(
      run_offers(scattered).front().outputs, run_offers(dense).front().outputs,
      std::string(opdef::update_rule_name(update.rule)) + " of " + lookup.weight.to_string());
}

TEST(ScatterWeightUpdate, IsTheDenseUpdate) {
  for (const UpdateRule rule :
       {UpdateRule::kMomentum, UpdateRule::kNesterov, UpdateRule::kAdam, UpdateRule::kRoot,
        UpdateRule::kLion, UpdateRule::kVelocity, UpdateRule::kNesterovVelocity}) {
    for (const Lookup& lookup : lookups()) {
      for (const bool changes : {false, true}) {
        const WeightUpdate update = update_of(rule, changes, changes);
        check_update<float>(update, lookup, 1);
        check_update<double>(update, lookup, 1);
      }
    }
  }
}

TEST(ScatterWeightUpdate, ThreadsShareRows) {
  Lookup lookup{{kRows, 6000}, {30, 1}, {}};
  for (std::int64_t i = 0; i < 30; ++i) lookup.rows.push_back(i * 7 % kRows);
  check_update<float>(update_of(UpdateRule::kAdam, false, true), lookup, 3);
}

template <class T>
void check_descent(const Lookup& lookup, int threads) {
  const DataType dtype = dtype_of<T>();
  const Tensor rows = rows_of(lookup, dtype);
  const Tensor w = random_tensor(dtype, lookup.weight, 2);
  const Tensor rate = Tensor::scalar_of(dtype, 0.3);
  const KernelCall call{.op_type = opdef::kScatterDescent,
                        .inputs = {index_tensor(lookup), rows, w, rate},
                        .outputs = {{dtype, lookup.weight}},
                        .domain = ir::kFusedDomain,
                        .threads = threads};
  opdef::ExprProgram program{.num_inputs = 3};
  const auto scaled = program.emit(opdef::ExprOp::kMul, program.input(1), program.input(2));
  program.results = {program.emit(opdef::ExprOp::kSub, program.input(0), scaled)};
  const KernelCall dense{
      .op_type = opdef::kElementwise,
      .attributes =
          opdef::Elementwise{.program = program, .compute = dtype, .stored = 1}.attributes(),
      .inputs = {w, rate, dense_gradient<T>(lookup, rows)},
      .outputs = {{dtype, lookup.weight}},
      .domain = ir::kFusedDomain};
  expect_same_bits(run_offers(call).front().outputs, run_offers(dense).front().outputs,
                   lookup.weight.to_string());
}

TEST(ScatterDescent, IsTheDenseStep) {
  for (const Lookup& lookup : lookups()) {
    check_descent<float>(lookup, 1);
    check_descent<double>(lookup, 1);
  }
  Lookup large{{kRows, 6000}, {30, 1}, {}};
  for (std::int64_t i = 0; i < 30; ++i) large.rows.push_back(i * 7 % kRows);
  check_descent<float>(large, 2);
}

TEST(ScatterDescent, RefusesAnIndexOutsideBeforeItWrites) {
  const Lookup lookup{{kRows, 2}, {2, 1}, {1, kRows}};
  const KernelCall call{.op_type = opdef::kScatterDescent,
                        .inputs = {index_tensor(lookup), rows_of(lookup, DataType::kFloat32),
                                   random_tensor(DataType::kFloat32, lookup.weight, 2),
                                   Tensor::scalar_of(DataType::kFloat32, 0.3)},
                        .outputs = {{DataType::kFloat32, lookup.weight}},
                        .domain = ir::kFusedDomain};
  EXPECT_THROW(run_offers(call), Error);
}

}  // namespace
}  // namespace onnxgrad::ops_test::scatter_update_test
