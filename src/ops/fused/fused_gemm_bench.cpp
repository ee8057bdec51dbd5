#include <benchmark/benchmark.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "ir/builder.h"
#include "opdef/expr.h"
#include "opdef/kernel.h"
#include "ops/builtin.h"

// Whole training steps assembled by hand: kernels in a flat list, without planner and loop, to
// measure the overhead of the engine.

namespace onnxgrad::ops {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;

// ---- Training steps ----

/// Flat list of kernels over tensors that the list owns.
class Step {
 public:
  Step() { register_builtin_cpu_kernels(kernels_); }

  int tensor(Dims dims, float value = 0.1F) {
    Tensor tensor = Tensor::empty(DataType::kFloat32, std::move(dims));
    for (float& x : tensor.mutable_data<float>()) x = value;
    tensors_.push_back(std::move(tensor));
    return static_cast<int>(tensors_.size()) - 1;
  }

  /// Adds a tensor of random elements of either sign.
  int random(Dims dims) {
    const int id = tensor(std::move(dims));
    for (float& x : tensors_[static_cast<std::size_t>(id)].mutable_data<float>()) {
      seed_ = seed_ * 1664525 + 1013904223;
      x = static_cast<float>(seed_ >> 8) * 0x1p-24F - 0.5F;
    }
    return id;
  }

  void add(std::string_view op_type, const std::vector<int>& inputs,
           const std::vector<int>& outputs, std::vector<ir::Attribute> attributes) {
    ir::Graph graph;
    std::vector<ir::Value*> values;
    opdef::KernelRequest request{
        .node = *graph.add_bare_node(), .inputs = {}, .outputs = {}, .constants = {}};
    auto& node = *graph.nodes.back();
    node.op_type = op_type;
    node.attributes = std::move(attributes);
    const auto describe = [&](int id) {
      const Tensor& t = tensors_[static_cast<std::size_t>(id)];
      return opdef::TensorDesc{t.dtype(), t.dims()};
    };
    for (const int id : inputs) request.inputs.push_back(describe(id));
    for (const int id : outputs) request.outputs.push_back(describe(id));
    request.constants.assign(inputs.size(), nullptr);
    for (const auto& entry : kernels_.offers(ir::kFusedDomain, op_type)) {
      opdef::KernelOffer offer = entry.offer(request);
      if (offer.kernel.fn == nullptr) continue;
      auto& args = args_.emplace_back();
      for (const auto* list : {&inputs, &outputs}) {
        for (const int id : *list)
          args.push_back(tensors_[static_cast<std::size_t>(id)].mutable_raw());
      }
      scratch_.push_back(base::allocate_aligned(offer.kernel.scratch_bytes));
      args.push_back(scratch_.back().get());
      calls_.push_back({offer.kernel.fn, offer.kernel.data.get(), args.data()});
      owned_.push_back(std::move(offer.kernel));
      return;
    }
  }

  void run() const {
    for (const Call& call : calls_) call.fn(call.data, call.args, launch_);
  }
  void run_one(std::size_t i) const { calls_[i].fn(calls_[i].data, calls_[i].args, launch_); }
  std::size_t size() const { return calls_.size(); }
  const std::string& label(std::size_t i) const { return owned_[i].label; }

 private:
  struct Call {
    opdef::KernelFn fn;
    const void* data;
    opdef::KernelArgs args;
  };
  opdef::KernelRegistry kernels_;
  std::vector<Tensor> tensors_;
  std::vector<Call> calls_;
  std::deque<std::vector<std::byte*>> args_;
  std::vector<std::shared_ptr<std::byte>> scratch_;
  std::vector<opdef::PreparedKernel> owned_;
  opdef::Launch launch_;
  std::uint32_t seed_ = 1;
};

ir::Attribute program_attribute(const char* name, const ExprProgram& program) {
  return {.name = name, .value = program.to_ints()};
}

ExprProgram add_bias(bool relu) {
  ExprProgram p{.num_inputs = 2};
  std::int32_t y = p.emit(ExprOp::kAdd, p.input(0), p.input(1));
  if (relu) y = p.emit(ExprOp::kRelu, y);
  p.results = {y};
  return p;
}

/// dz = dy * (y > 0).
ExprProgram relu_mask() {
  ExprProgram p{.num_inputs = 2};
  p.results = {
      p.emit(ExprOp::kMul, p.input(0), p.emit(ExprOp::kGreater, p.input(1), p.constant(0)))};
  return p;
}

/// diff = p - y; stored: 2 diff / n; reduced: diff^2.
ExprProgram squared_error(double n) {
  ExprProgram p{.num_inputs = 2};
  const auto diff = p.emit(ExprOp::kSub, p.input(0), p.input(1));
  p.results = {p.emit(ExprOp::kMul, diff, p.constant(2 / n)), p.emit(ExprOp::kMul, diff, diff)};
  return p;
}

ExprProgram identity() {
  ExprProgram p{.num_inputs = 1};
  p.results = {p.input(0)};
  return p;
}

ExprProgram scaled(double factor) {
  ExprProgram p{.num_inputs = 1};
  p.results = {p.emit(ExprOp::kMul, p.input(0), p.constant(factor))};
  return p;
}

/// b - rate * g, inputs g, b, rate.
ExprProgram descend() {
  ExprProgram p{.num_inputs = 3};
  p.results = {p.emit(ExprOp::kSub, p.input(1), p.emit(ExprOp::kMul, p.input(2), p.input(0)))};
  return p;
}

constexpr std::int64_t kFloat = static_cast<std::int64_t>(DataType::kFloat32);

/// MLP with ReLU between layers, squared error, plain SGD.
void add_mlp_step(Step& step, std::int64_t batch, const std::vector<std::int64_t>& widths) {
  const std::size_t layers = widths.size() - 1;
  const int rate = step.tensor({}, 1e-6F);
  std::vector<int> w, b, act{step.random({batch, widths[0]})}, grad(layers + 1);
  for (std::size_t l = 0; l < layers; ++l) {
    w.push_back(step.random({widths[l], widths[l + 1]}));
    b.push_back(step.random({widths[l + 1]}));
    act.push_back(step.tensor({batch, widths[l + 1]}));
    grad[l + 1] = step.tensor({batch, widths[l + 1]});
    step.add("Gemm", {act[l], w[l], b[l]}, {act[l + 1]},
             {program_attribute("epilogue", add_bias(l + 1 < layers))});
  }
  const auto size = static_cast<double>(batch * widths.back());
  step.add("Elementwise", {act[layers], step.tensor({batch, widths.back()})},
           {grad[layers], step.tensor({})},
           {program_attribute("program", squared_error(size)),
            {.name = "compute", .value = kFloat},
            {.name = "stored", .value = std::int64_t{1}},
            {.name = "reduce", .value = std::vector<std::int64_t>{0}},
            {.name = "reduce_axes", .value = std::vector<std::int64_t>{0, 1}},
            program_attribute("post", scaled(1 / size))});
  for (std::size_t l = layers; l-- > 0;) {
    if (l > 0) {
      grad[l] = step.tensor({batch, widths[l]});
      step.add("Gemm", {grad[l + 1], w[l], act[l]}, {grad[l]},
               {{.name = "transB", .value = std::int64_t{1}},
                program_attribute("epilogue", relu_mask())});
    }
    step.add("GemmUpdate", {w[l], act[l], grad[l + 1], rate}, {w[l]},
             {{.name = "transA", .value = std::int64_t{1}}, {.name = "scale", .value = -1.0F}});
    step.add("Elementwise", {grad[l + 1], b[l], rate}, {b[l]},
             {program_attribute("program", identity()),
              {.name = "compute", .value = kFloat},
              {.name = "stored", .value = std::int64_t{0}},
              {.name = "reduce", .value = std::vector<std::int64_t>{0}},
              {.name = "reduce_axes", .value = std::vector<std::int64_t>{0}},
              program_attribute("post", descend())});
  }
}

std::vector<std::int64_t> widths_of(std::int64_t workload) {
  if (workload == 1) return {2, 1};
  if (workload == 2) return {100, 50, 10, 1};
  return {784, 512, 512, 10};
}
std::int64_t batch_of(std::int64_t workload) {
  return workload == 1 ? 10 : workload == 2 ? 15 : 128;
}

void BM_Step(benchmark::State& state) {
  Step step;
  add_mlp_step(step, batch_of(state.range(0)), widths_of(state.range(0)));
  for (auto _ : state) step.run();
  state.counters["kernels"] = static_cast<double>(step.size());
}
BENCHMARK(BM_Step)->ArgName("w")->DenseRange(1, 3);

/// Measures one kernel of a step at a time.
void BM_StepKernel(benchmark::State& state) {
  Step step;
  add_mlp_step(step, batch_of(state.range(0)), widths_of(state.range(0)));
  const auto i = static_cast<std::size_t>(state.range(1));
  if (i >= step.size()) return state.SkipWithError("no such kernel");
  for (auto _ : state) step.run_one(i);
  state.SetLabel(step.label(i));
}
BENCHMARK(BM_StepKernel)
    ->ArgNames({"w", "i"})
    ->ArgsProduct({{1}, benchmark::CreateDenseRange(0, 3, 1)});
BENCHMARK(BM_StepKernel)
    ->ArgNames({"w", "i"})
    ->ArgsProduct({{2}, benchmark::CreateDenseRange(0, 11, 1)});
BENCHMARK(BM_StepKernel)
    ->ArgNames({"w", "i"})
    ->ArgsProduct({{3}, benchmark::CreateDenseRange(0, 11, 1)});

}  // namespace
}  // namespace onnxgrad::ops
