#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "device/cpu/elementwise.h"
#include "opdef/expr.h"

// Typical element-wise kernels at the sizes of small and large layers.

namespace onnxgrad::ops {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

/// Prepared kernel with its operands.
class Kernel {
 public:
  explicit Kernel(const device::ElementwiseSpec& spec) {
    opdef::KernelOffer offer = device::prepare_elementwise(spec);
    kernel_ = std::move(offer.kernel);
    for (const auto* list : {&spec.inputs, &spec.outputs}) {
      for (const opdef::TensorDesc& desc : *list) {
        tensors_.push_back(Tensor::zeros(desc.dtype, desc.dims));
        bytes_ += tensors_.back().size_bytes();
        args_.push_back(tensors_.back().mutable_raw());
      }
    }
    for (auto& tensor : tensors_) {
      if (tensor.dtype() != DataType::kFloat32) continue;
      for (float& x : tensor.mutable_data<float>()) x = 0.25F;
    }
    scratch_ = base::allocate_aligned(kernel_.scratch_bytes);
    args_.push_back(scratch_.get());
  }
  /// Lets output `o` reuse the memory of input `i`.
  void alias(std::size_t i, std::size_t o, std::size_t num_inputs) {
    args_[num_inputs + o] = args_[i];
  }
  void run() const { kernel_.fn(kernel_.data.get(), args_.data(), {}); }
  std::int64_t bytes() const { return bytes_; }
  const std::string& label() const { return kernel_.label; }

 private:
  opdef::PreparedKernel kernel_;
  std::vector<Tensor> tensors_;
  std::vector<std::byte*> args_;
  std::shared_ptr<std::byte> scratch_;
  std::int64_t bytes_ = 0;
};

opdef::TensorDesc floats(Dims dims) { return {DataType::kFloat32, std::move(dims)}; }

void run(benchmark::State& state, const Kernel& kernel) {
  for (auto _ : state) kernel.run();
  state.SetBytesProcessed(state.iterations() * kernel.bytes());
  state.SetLabel(kernel.label());
}

/// relu(x + bias), bias a row.
void BM_BiasRelu(benchmark::State& state) {
  ExprProgram p{.num_inputs = 2};
  p.results = {p.emit(ExprOp::kRelu, p.emit(ExprOp::kAdd, p.input(0), p.input(1)))};
  const Dims dims{state.range(0), state.range(1)};
  run(state, Kernel({.program = p,
                     .inputs = {floats(dims), floats({state.range(1)})},
                     .outputs = {floats(dims)},
                     .stored = 1}));
}
BENCHMARK(BM_BiasRelu)
    ->ArgNames({"rows", "columns"})
    ->Args({15, 50})
    ->Args({128, 512})
    ->Args({4096, 1024});

/// dy * (y > 0).
void BM_ReluMask(benchmark::State& state) {
  ExprProgram p{.num_inputs = 2};
  p.results = {
      p.emit(ExprOp::kMul, p.input(0), p.emit(ExprOp::kGreater, p.input(1), p.constant(0)))};
  const Dims dims{state.range(0)};
  run(state, Kernel({.program = p,
                     .inputs = {floats(dims), floats(dims)},
                     .outputs = {floats(dims)},
                     .stored = 1}));
}
BENCHMARK(BM_ReluMask)->Arg(150)->Arg(750)->Arg(65536)->Arg(4 << 20);

/// w - rate * g.
void BM_Sgd(benchmark::State& state) {
  ExprProgram p{.num_inputs = 3};
  p.results = {p.emit(ExprOp::kSub, p.input(0), p.emit(ExprOp::kMul, p.input(2), p.input(1)))};
  const Dims dims{state.range(0)};
  Kernel kernel({.program = p,
                 .inputs = {floats(dims), floats(dims), floats({})},
                 .outputs = {floats(dims)},
                 .stored = 1});
  kernel.alias(0, 0, 3);
  run(state, kernel);
}
BENCHMARK(BM_Sgd)->Arg(10)->Arg(5000)->Arg(401408);

/// Nesterov: v' = mu v + g, w' = w - rate (g + mu v').
void BM_Nesterov(benchmark::State& state) {
  ExprProgram p{.num_inputs = 4};  // w, g, v, rate
  const auto mu = p.constant(0.9);
  const auto g = p.input(1);
  const auto v = p.emit(ExprOp::kAdd, p.emit(ExprOp::kMul, mu, p.input(2)), g);
  const auto d = p.emit(ExprOp::kAdd, g, p.emit(ExprOp::kMul, mu, v));
  p.results = {p.emit(ExprOp::kSub, p.input(0), p.emit(ExprOp::kMul, p.input(3), d)), v};
  const Dims dims{state.range(0)};
  Kernel kernel({.program = p,
                 .inputs = {floats(dims), floats(dims), floats(dims), floats({})},
                 .outputs = {floats(dims), floats(dims)},
                 .stored = 2});
  kernel.alias(0, 0, 4);
  kernel.alias(2, 1, 4);
  run(state, kernel);
}
BENCHMARK(BM_Nesterov)->Arg(500)->Arg(5000)->Arg(401408);

/// Adam with bias corrections given per step.
void BM_Adam(benchmark::State& state) {
  ExprProgram p{.num_inputs = 6};  // w, g, m, v, rate, 1 / sqrt(correction)
  const auto g = p.input(1);
  const auto m = p.emit(ExprOp::kAdd, p.emit(ExprOp::kMul, p.input(2), p.constant(0.9)),
                        p.emit(ExprOp::kMul, g, p.constant(0.1)));
  const auto v = p.emit(ExprOp::kAdd, p.emit(ExprOp::kMul, p.input(3), p.constant(0.999)),
                        p.emit(ExprOp::kMul, p.emit(ExprOp::kMul, g, g), p.constant(0.001)));
  const auto size = p.emit(ExprOp::kAdd, p.emit(ExprOp::kMul, p.emit(ExprOp::kSqrt, v), p.input(5)),
                           p.constant(1e-8));
  const auto step = p.emit(ExprOp::kDiv, m, size);
  p.results = {p.emit(ExprOp::kSub, p.input(0), p.emit(ExprOp::kMul, p.input(4), step)), m, v};
  const Dims dims{state.range(0)};
  Kernel kernel(
      {.program = p,
       .inputs = {floats(dims), floats(dims), floats(dims), floats(dims), floats({}), floats({})},
       .outputs = {floats(dims), floats(dims), floats(dims)},
       .stored = 3,
       .threads = static_cast<int>(state.range(1))});
  kernel.alias(0, 0, 6);
  kernel.alias(2, 1, 6);
  kernel.alias(3, 2, 6);
  run(state, kernel);
}
BENCHMARK(BM_Adam)
    ->ArgNames({"n", "threads"})
    ->Args({500, 1})
    ->Args({5000, 1})
    ->Args({401408, 1})
    ->Args({401408, 2})
    ->UseRealTime();

void unary(benchmark::State& state, ExprOp op) {
  ExprProgram p{.num_inputs = 1};
  p.results = {p.emit(op, p.input(0))};
  const Dims dims{state.range(0)};
  run(state,
      Kernel({.program = p, .inputs = {floats(dims)}, .outputs = {floats(dims)}, .stored = 1}));
}
void BM_Exp(benchmark::State& state) { unary(state, ExprOp::kExp); }
void BM_Log(benchmark::State& state) { unary(state, ExprOp::kLog); }
void BM_Tanh(benchmark::State& state) { unary(state, ExprOp::kTanh); }
void BM_Sigmoid(benchmark::State& state) { unary(state, ExprOp::kSigmoid); }
void BM_Erf(benchmark::State& state) { unary(state, ExprOp::kErf); }
BENCHMARK(BM_Exp)->Arg(4096);
BENCHMARK(BM_Log)->Arg(4096);
BENCHMARK(BM_Tanh)->Arg(4096);
BENCHMARK(BM_Sigmoid)->Arg(4096);
BENCHMARK(BM_Erf)->Arg(4096);

/// Sums over rows (axis 0) or columns (axis 1).
void BM_Sum(benchmark::State& state) {
  ExprProgram p{.num_inputs = 1};
  p.results = {p.input(0)};
  const Dims dims{state.range(0), state.range(1)};
  run(state, Kernel({.program = p,
                     .inputs = {floats(dims)},
                     .outputs = {floats({dims[state.range(2) == 0 ? 1 : 0]})},
                     .folds = {device::Fold::kSum},
                     .reduce_axes = {state.range(2)}}));
}
BENCHMARK(BM_Sum)
    ->ArgNames({"rows", "columns", "axis"})
    ->ArgsProduct({{15}, {10, 50}, {0, 1}})
    ->ArgsProduct({{128, 8192}, {16, 512}, {0, 1}});

}  // namespace
}  // namespace onnxgrad::ops
