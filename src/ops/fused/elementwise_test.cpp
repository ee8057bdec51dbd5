#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "device/cpu/elementwise.h"
#include "device/testing/instruction_sets.h"
#include "ir/builder.h"
#include "opdef/expr.h"
#include "ops/testing/kernel_run.h"

// Compares random programs over random shapes with the reference kernel, which computes element by
// element.

namespace onnxgrad::ops_test::fused_elementwise_test {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;
using opdef::TensorDesc;

// Operations with moderate results, so that long programs can be compared.
constexpr ExprOp kBinary[] = {ExprOp::kAdd, ExprOp::kSub,     ExprOp::kMul,       ExprOp::kMin,
                              ExprOp::kMax, ExprOp::kGreater, ExprOp::kLessEqual, ExprOp::kEqual,
                              ExprOp::kAnd, ExprOp::kOr,      ExprOp::kXor};
constexpr ExprOp kUnary[] = {ExprOp::kNeg, ExprOp::kAbs, ExprOp::kSign, ExprOp::kRelu,
                             ExprOp::kNot};
constexpr ExprOp kFloatUnary[] = {ExprOp::kTanh, ExprOp::kSigmoid, ExprOp::kErf, ExprOp::kSoftplus,
                                  ExprOp::kSin};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  std::int64_t below(std::int64_t limit) {
    return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(engine_);
  }
  bool flip() { return below(2) == 0; }
  template <class List>
  auto pick(const List& list) {
    return list[static_cast<std::size_t>(below(static_cast<std::int64_t>(std::size(list))))];
  }

 private:
  std::mt19937 engine_;
};

ExprProgram random_program(Random& random, std::int32_t inputs, std::size_t results,
                           bool is_float) {
  ExprProgram program{.num_inputs = inputs};
  std::vector<std::int32_t> values;
  for (std::int32_t i = 0; i < inputs; ++i) values.push_back(program.input(i));
  values.push_back(program.constant(is_float ? 0.75 : 3));
  values.push_back(program.constant(0));
  const std::int64_t length = 1 + random.below(8);
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int32_t a = random.pick(values);
    const std::int32_t b = random.pick(values);
    const std::int32_t c = random.pick(values);
    const std::int64_t kind = random.below(10);
    if (kind < 6) {
      values.push_back(program.emit(random.pick(kBinary), a, b));
    } else if (kind < 7) {
      values.push_back(program.emit(random.flip() ? ExprOp::kSelect : ExprOp::kFma, a, b, c));
    } else if (kind < 9 || !is_float) {
      values.push_back(program.emit(random.pick(kUnary), a));
    } else {
      values.push_back(program.emit(random.pick(kFloatUnary), a));
    }
  }
  for (std::size_t i = 0; i < results; ++i) {
    // Operands are mostly recent values, so that most of the program is needed.
    const bool late = random.below(4) != 0;
    program.results.push_back(late ? values.back() : random.pick(values));
    if (values.size() > 3 && random.flip()) values.pop_back();
  }
  return program;
}

Dims random_dims(Random& random) {
  static const std::vector<std::vector<std::int64_t>> kShapes = {{},
                                                                 {1},
                                                                 {2},
                                                                 {7},
                                                                 {16},
                                                                 {17},
                                                                 {1500},
                                                                 {5000},
                                                                 {3, 4},
                                                                 {15, 10},
                                                                 {15, 50},
                                                                 {40, 100},
                                                                 {3, 2000},
                                                                 {1, 9},
                                                                 {9, 1},
                                                                 {200, 3},
                                                                 {2, 3, 4},
                                                                 {2, 5, 130},
                                                                 {4, 1, 6},
                                                                 {2, 3, 4, 5},
                                                                 {0},
                                                                 {3, 0},
                                                                 {2, 1, 3, 1, 70},
                                                                 {700, 2}};
  return Dims(random.pick(kShapes));
}

/// Returns a shape that broadcasts to `dims`: axes become 1, or are dropped from the left.
Dims random_operand_dims(Random& random, const Dims& dims) {
  const std::int64_t kind = random.below(4);
  if (kind == 0) return dims;
  if (kind == 1) return Dims{};
  const auto skip =
      static_cast<std::size_t>(random.below(static_cast<std::int64_t>(dims.rank()) + 1));
  std::vector<std::int64_t> result;
  for (std::size_t axis = skip; axis < dims.rank(); ++axis) {
    result.push_back(random.flip() ? 1 : dims[axis]);
  }
  return Dims(std::move(result));
}

Tensor random_operand(Random& random, DataType dtype, const Dims& dims) {
  const auto seed = static_cast<std::uint64_t>(random.below(1 << 30));
  if (dtype == DataType::kBool)
    return random_tensor(DataType::kFloat32, dims, seed, -1, 1).cast(DataType::kInt32).cast(dtype);
  if (is_integer(dtype))
    return random_tensor(DataType::kFloat64, dims, seed, -4, 5).cast(DataType::kInt64).cast(dtype);
  return random_tensor(dtype, dims, seed, -2, 2);
}

/// Returns a random node with all operands.
KernelCall random_call(unsigned seed, DataType compute) {
  Random random(seed);
  const bool is_float = is_floating(compute);
  static constexpr DataType kFloats[] = {DataType::kFloat32, DataType::kFloat64, DataType::kBool,
                                         DataType::kInt32,   DataType::kInt64,   DataType::kUint8};
  static constexpr DataType kIntegers[] = {DataType::kInt64, DataType::kInt32, DataType::kBool,
                                           DataType::kInt8, DataType::kUint16};
  const auto other_type = [&] { return is_float ? random.pick(kFloats) : random.pick(kIntegers); };
  const Dims space = random_dims(random);
  const auto num_inputs = static_cast<std::int32_t>(1 + random.below(4));
  KernelCall call{.op_type = "Elementwise", .domain = ir::kFusedDomain};
  for (std::int32_t i = 0; i < num_inputs; ++i) {
    const DataType dtype = random.below(4) == 0 ? other_type() : compute;
    // One of the operands spans the space.
    const Dims dims = i == 0 ? space : random_operand_dims(random, space);
    call.inputs.push_back(random_operand(random, dtype, dims));
  }
  std::rotate(call.inputs.begin(), call.inputs.begin() + random.below(num_inputs),
              call.inputs.end());

  std::vector<std::int64_t> axes;
  std::vector<std::int64_t> reduced;
  for (std::size_t axis = 0; axis < space.rank(); ++axis) {
    const bool chosen = random.flip();
    if (chosen) axes.push_back(static_cast<std::int64_t>(axis));
    reduced.push_back(chosen ? 1 : space[axis]);
  }
  const auto stored = static_cast<std::size_t>(random.below(3));
  auto folded = static_cast<std::size_t>(random.below(3));
  // A maximum over nothing has no value to compare.
  if (axes.empty() || space.num_elements() == 0) folded = 0;
  const std::size_t kept = std::max<std::size_t>(stored, folded == 0 ? 1 : 0);
  const ExprProgram program = random_program(random, num_inputs, kept + folded, is_float);
  call.attributes = {{.name = "program", .value = program.to_ints()},
                     {.name = "compute", .value = static_cast<std::int64_t>(compute)},
                     {.name = "stored", .value = static_cast<std::int64_t>(kept)}};
  const auto add_output = [&](const Dims& dims) {
    call.outputs.push_back({random.below(5) == 0 ? other_type() : compute, dims});
    if (random.below(8) == 0) call.outputs.back() = {};
  };
  for (std::size_t i = 0; i < kept; ++i) add_output(space);
  if (folded > 0) {
    std::vector<std::int64_t> kinds;
    for (std::size_t i = 0; i < folded; ++i) kinds.push_back(random.below(3));
    call.attributes.push_back({.name = "reduce", .value = kinds});
    call.attributes.push_back({.name = "reduce_axes", .value = axes});
    const Dims result(reduced);
    std::size_t results = folded;
    if (random.flip()) {
      const std::int64_t extra = random.below(3);
      for (std::int64_t i = 0; i < extra; ++i) {
        call.inputs.push_back(random_operand(random, compute, random.flip() ? result : Dims{}));
      }
      results = static_cast<std::size_t>(1 + random.below(2));
      const ExprProgram post = random_program(
          random, static_cast<std::int32_t>(folded) + static_cast<std::int32_t>(extra), results,
          is_float);
      call.attributes.push_back({.name = "post", .value = post.to_ints()});
    }
    for (std::size_t i = 0; i < results; ++i) add_output(result);
  }
  call.threads = random.flip() ? 1 : 3;
  return call;
}

std::string program_of(const KernelCall& call) {
  const auto& ints = std::get<std::vector<std::int64_t>>(call.attributes[0].value);
  return ExprProgram::from_ints(ints).to_string();
}

void compare_random(DataType compute, unsigned count, double tolerance,
                    const device::CpuOptions& cpu = {}) {
  std::size_t taken = 0;
  for (unsigned seed = 0; seed < count; ++seed) {
    KernelCall call = random_call(seed, compute);
    call.cpu = &cpu;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + program_of(call));
    taken += compare_offers(call, tolerance);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(taken, count * 9 / 10);
}

TEST(FusedElementwise, RandomProgramsInFloat32) { compare_random(DataType::kFloat32, 1500, 2e-5); }
TEST(FusedElementwise, RandomProgramsInFloat64) { compare_random(DataType::kFloat64, 800, 1e-12); }
TEST(FusedElementwise, RandomProgramsInInt64) { compare_random(DataType::kInt64, 800, 0); }

TEST(FusedElementwise, RandomProgramsInUint64) { compare_random(DataType::kUint64, 800, 0); }

TEST(FusedElementwise, EveryInstructionSet) {
  device::for_each_instruction_set([](const device::CpuOptions& cpu) {
    compare_random(DataType::kFloat32, 150, 2e-5, cpu);
    compare_random(DataType::kFloat64, 150, 1e-12, cpu);
  });
}

// Tests each operation separately, on operands in every combination of vector and scalar.
TEST(FusedElementwise, EveryOperation) {
  for (int number = static_cast<int>(ExprOp::kAdd); number <= static_cast<int>(ExprOp::kFma);
       ++number) {
    const auto op = static_cast<ExprOp>(number);
    const int arity = opdef::expr_arity(op);
    for (const DataType compute :
         {DataType::kFloat32, DataType::kFloat64, DataType::kInt64, DataType::kUint64}) {
      // Functions that exist for floating-point types only.
      const bool is_function = (op >= ExprOp::kExp && op <= ExprOp::kRound) ||
                               op == ExprOp::kToFloat16 || op == ExprOp::kToBfloat16;
      if (!is_floating(compute) && is_function) continue;
      for (int scalars = 0; scalars < 1 << arity; ++scalars) {
        ExprProgram program{.num_inputs = arity + 1};
        KernelCall call{.op_type = "Elementwise", .domain = ir::kFusedDomain};
        for (int i = 0; i < arity; ++i) {
          const Dims dims = (scalars >> i & 1) != 0 ? Dims{} : Dims{37};
          // acosh and log are defined above 1, asin and atanh between -1 and 1; elsewhere they
          // yield NaN in both kernels.
          call.inputs.push_back(random_tensor(DataType::kFloat64, dims,
                                              static_cast<std::uint64_t>(number * 8 + i), -3, 4)
                                    .cast(compute));
          program.input(i);
        }
        call.inputs.push_back(random_tensor(DataType::kFloat64, {37}, 5, -3, 4).cast(compute));
        program.results = {program.emit(op, 0, arity > 1 ? 1 : 0, arity > 2 ? 2 : 0)};
        call.attributes = {{.name = "program", .value = program.to_ints()},
                           {.name = "compute", .value = static_cast<std::int64_t>(compute)}};
        call.outputs = {{compute, {37}}};
        SCOPED_TRACE(std::string(opdef::expr_op_name(op)) + ", scalars " + std::to_string(scalars));
        EXPECT_EQ(compare_offers(call, compute == DataType::kFloat32 ? 2e-6 : 1e-13), 1U);
      }
    }
  }
}

/// Runs the fast kernel with the (input, output) pairs of `aliases` in the same memory.
std::vector<Tensor> run_in_place(const device::ElementwiseSpec& spec,
                                 const opdef::PreparedKernel& kernel,
                                 const std::vector<Tensor>& inputs,
                                 const std::vector<std::pair<int, int>>& aliases) {
  std::vector<Tensor> owned;
  std::vector<std::byte*> args;
  for (const Tensor& input : inputs) {
    owned.push_back(input.clone());
    args.push_back(owned.back().mutable_raw());
  }
  std::vector<std::size_t> place;
  for (std::size_t o = 0; o < spec.outputs.size(); ++o) {
    const auto alias =
        std::ranges::find(aliases, static_cast<int>(o), &std::pair<int, int>::second);
    if (alias != aliases.end()) {
      place.push_back(static_cast<std::size_t>(alias->first));
      args.push_back(args[place.back()]);
      continue;
    }
    owned.push_back(Tensor::zeros(spec.outputs[o].dtype, spec.outputs[o].dims));
    place.push_back(owned.size() - 1);
    args.push_back(owned.back().mutable_raw());
  }
  const auto scratch = base::allocate_aligned(kernel.scratch_bytes);
  args.push_back(scratch.get());
  kernel.fn(kernel.data.get(), args.data(), {});
  std::vector<Tensor> outputs;
  for (std::size_t o = 0; o < place.size(); ++o) {
    outputs.push_back(Tensor::empty(spec.outputs[o].dtype, spec.outputs[o].dims));
    std::memcpy(outputs[o].mutable_raw(), owned[place[o]].raw(),
                static_cast<std::size_t>(outputs[o].size_bytes()));
  }
  return outputs;
}

// In-place results have the same bits as results in separate memory.
TEST(FusedElementwise, InPlaceChangesNothing) {
  std::size_t tried = 0;
  for (unsigned seed = 0; seed < 1500; ++seed) {
    Random random(seed);
    const Dims dims = random_dims(random);
    const std::int32_t inputs = 2 + static_cast<std::int32_t>(random.below(3));
    const auto results = static_cast<std::size_t>(1 + random.below(3));
    device::ElementwiseSpec spec{.program = random_program(random, inputs, results, true),
                                 .stored = static_cast<std::int64_t>(results)};
    std::vector<Tensor> operands;
    for (std::int32_t i = 0; i < inputs; ++i) {
      operands.push_back(random_tensor(
          DataType::kFloat32, random.below(4) == 0 ? random_operand_dims(random, dims) : dims,
          seed * 7 + static_cast<unsigned>(i)));
      spec.inputs.push_back({DataType::kFloat32, operands.back().dims()});
    }
    Dims space;
    for (const Tensor& operand : operands) space = broadcast_dims(space, operand.dims());
    for (std::size_t i = 0; i < results; ++i) spec.outputs.push_back({DataType::kFloat32, space});
    const opdef::KernelOffer offer = device::prepare_elementwise(spec);
    ASSERT_NE(offer.kernel.fn, nullptr) << offer.declined;
    const auto expected = run_in_place(spec, offer.kernel, operands, {});
    // Pairs without repeated inputs or outputs.
    std::vector<std::pair<int, int>> aliases;
    for (const auto& pair : offer.kernel.in_place) {
      const bool free = std::ranges::none_of(aliases, [&](const auto& other) {
        return other.first == pair.first || other.second == pair.second;
      });
      if (free && random.below(3) != 0) aliases.push_back(pair);
    }
    tried += aliases.size();
    const auto given = run_in_place(spec, offer.kernel, operands, aliases);
    for (std::size_t o = 0; o < results; ++o) {
      ASSERT_TRUE(given[o].equals(expected[o]) || space.num_elements() == 0)
          << "seed " << seed << ": " << spec.program.to_string() << " over " << space.to_string();
    }
  }
  EXPECT_GT(tried, 500U);
}

// w' = w - rate * m / (sqrt(v) + eps) with m, v updated, all in place as in a plan.
TEST(FusedElementwise, AdamInPlace) {
  ExprProgram p{.num_inputs = 5};  // w, g, m, v, rate
  const auto g = p.input(1);
  const auto m = p.emit(ExprOp::kAdd, p.emit(ExprOp::kMul, p.input(2), p.constant(0.9)),
                        p.emit(ExprOp::kMul, g, p.constant(0.1)));
  const auto v = p.emit(ExprOp::kAdd, p.emit(ExprOp::kMul, p.input(3), p.constant(0.999)),
                        p.emit(ExprOp::kMul, p.emit(ExprOp::kMul, g, g), p.constant(0.001)));
  const auto step =
      p.emit(ExprOp::kDiv, m, p.emit(ExprOp::kAdd, p.emit(ExprOp::kSqrt, v), p.constant(1e-8)));
  const auto w = p.emit(ExprOp::kSub, p.input(0), p.emit(ExprOp::kMul, p.input(4), step));
  p.results = {w, m, v};
  constexpr std::int64_t kCount = 3000;
  device::ElementwiseSpec spec{.program = p, .stored = 3};
  std::vector<Tensor> operands;
  for (unsigned i = 0; i < 4; ++i) {
    operands.push_back(random_tensor(DataType::kFloat32, {kCount}, i, i == 3 ? 0.1 : -1, 1));
    spec.inputs.push_back({DataType::kFloat32, {kCount}});
  }
  operands.push_back(Tensor::scalar(0.01F));
  spec.inputs.push_back({DataType::kFloat32, {}});
  spec.outputs.assign(3, {DataType::kFloat32, {kCount}});
  const auto kernel = device::prepare_elementwise(spec).kernel;
  const std::vector<std::pair<int, int>> aliases{{0, 0}, {2, 1}, {3, 2}};
  for (const auto& pair : aliases) {
    EXPECT_NE(std::ranges::find(kernel.in_place, pair), kernel.in_place.end());
  }
  const auto results = run_in_place(spec, kernel, operands, aliases);
  const auto at = [&](std::size_t k, std::size_t i) {
    return static_cast<double>(operands[k].data<float>()[i]);
  };
  for (std::size_t i = 0; i < kCount; ++i) {
    const double m1 = 0.9 * at(2, i) + 0.1 * at(1, i);
    const double v1 = 0.999 * at(3, i) + 0.001 * at(1, i) * at(1, i);
    const double w1 = at(0, i) - 0.01 * m1 / (std::sqrt(v1) + 1e-8);
    EXPECT_NEAR(static_cast<double>(results[0].data<float>()[i]), w1, 1e-6);
    EXPECT_NEAR(static_cast<double>(results[1].data<float>()[i]), m1, 1e-6);
    EXPECT_NEAR(static_cast<double>(results[2].data<float>()[i]), v1, 1e-6);
  }
}

// Half of the smallest normal number is denormal, or zero where the kernel may flush it.
TEST(FusedElementwise, FlushesDenormalsWhereItMay) {
  constexpr std::int64_t kCount = 100000;  // enough for several threads
  ExprProgram program{.num_inputs = 1};
  program.results = {program.emit(ExprOp::kMul, program.input(0), program.constant(0.5))};
  constexpr float kSmallest = std::numeric_limits<float>::min();
  Tensor x = Tensor::empty(DataType::kFloat32, Dims{kCount});
  std::ranges::fill(x.mutable_data<float>(), kSmallest);
  for (const bool flush : {false, true}) {
    for (const int threads : {1, 2}) {
      const device::ElementwiseSpec spec{.program = program,
                                         .inputs = {{DataType::kFloat32, {kCount}}},
                                         .outputs = {{DataType::kFloat32, {kCount}}},
                                         .stored = 1,
                                         .threads = threads,
                                         .flush_denormals = flush};
      const auto results = run_in_place(spec, device::prepare_elementwise(spec).kernel, {x}, {});
      const float expected = flush ? 0 : kSmallest / 2;
      const auto found = results[0].data<float>();
      EXPECT_EQ(std::ranges::count(found, expected), kCount) << flush << ' ' << threads;
      volatile float half = kSmallest;
      half = half / 2;
      EXPECT_NE(half, 0.0F) << "denormal numbers are there again";
    }
  }
}

// A million terms: sums of floats must not drift.
TEST(FusedElementwise, LongSumsAreAccurate) {
  constexpr std::int64_t kRows = 100000;
  ExprProgram program{.num_inputs = 1};
  program.results = {program.input(0)};
  const Tensor x = random_tensor(DataType::kFloat32, {kRows, 10}, 1, 0, 1);
  for (const std::vector<std::int64_t>& axes : {std::vector<std::int64_t>{0}, {0, 1}}) {
    for (const int threads : {1, 2}) {
      const Dims result = axes.size() == 1 ? Dims{10} : Dims{};
      const auto runs =
          run_offers({.op_type = "Elementwise",
                      .attributes = {{.name = "program", .value = program.to_ints()},
                                     {.name = "compute", .value = std::int64_t{1}},
                                     {.name = "stored", .value = std::int64_t{0}},
                                     {.name = "reduce", .value = std::vector<std::int64_t>{0}},
                                     {.name = "reduce_axes", .value = axes}},
                      .inputs = {x},
                      .outputs = {{DataType::kFloat32, result}},
                      .domain = ir::kFusedDomain,
                      .threads = threads});
      std::vector<double> sums(axes.size() == 1 ? 10 : 1, 0.0);
      const auto numbers = x.data<float>();
      for (std::size_t i = 0; i < numbers.size(); ++i)
        sums[i % sums.size()] += static_cast<double>(numbers[i]);
      for (std::size_t j = 0; j < sums.size(); ++j) {
        EXPECT_NEAR(runs[0].outputs[0].to_doubles()[j], sums[j], sums[j] * 1.2e-7);
      }
    }
  }
}

}  // namespace
}  // namespace onnxgrad::ops_test::fused_elementwise_test
