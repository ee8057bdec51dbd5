// Times every kernel of convolutions and of their gradients on layers of known networks and prints
// a Markdown table: milliseconds and GFLOP/s with one thread, then with two. Kernels and numbers of
// threads take turns, so that other load on the machine hits all of them; the least of many times
// counts.
//
//   onnxgrad_conv_table [seconds per kernel, default 0.2] [part of a layer's name]
//                       [pass]

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory_budget.h"
#include "onnxgrad/tensor.h"
#include "opdef/kernel.h"
#include "ops/builtin.h"

namespace {

using onnxgrad::DataType;
using onnxgrad::Dims;
using onnxgrad::Tensor;
namespace ir = onnxgrad::ir;
namespace opdef = onnxgrad::opdef;

struct Layer {
  const char* name;
  std::int64_t batch, channels, size, out_channels, kernel, stride, pad, groups;

  std::int64_t out_size() const { return (size + 2 * pad - kernel) / stride + 1; }
  Dims x() const { return {batch, channels, size, size}; }
  Dims w() const { return {out_channels, channels / groups, kernel, kernel}; }
  Dims y() const { return {batch, out_channels, out_size(), out_size()}; }
  double flops() const {
    return 2.0 * static_cast<double>(batch * out_channels * out_size() * out_size()) *
           static_cast<double>(channels / groups * kernel * kernel);
  }
};

constexpr Layer kLayers[] = {
    {"cnn first", 64, 1, 28, 16, 5, 1, 2, 1},
    {"cnn second", 64, 16, 14, 32, 5, 1, 2, 1},
    {"digits first", 32, 1, 8, 16, 3, 1, 1, 1},
    {"digits second", 32, 16, 8, 32, 3, 1, 1, 1},
    {"resnet stem", 32, 3, 32, 64, 3, 1, 1, 1},
    {"resnet 64", 32, 64, 32, 64, 3, 1, 1, 1},
    {"resnet 64-128", 32, 64, 32, 128, 3, 2, 1, 1},
    {"resnet 64-128 1x1", 32, 64, 32, 128, 1, 2, 0, 1},
    {"resnet 128", 32, 128, 16, 128, 3, 1, 1, 1},
    {"resnet 256", 32, 256, 8, 256, 3, 1, 1, 1},
    {"resnet 512", 32, 512, 4, 512, 3, 1, 1, 1},
    {"resnet 128-256", 32, 128, 16, 256, 3, 2, 1, 1},
    {"resnet 256-512", 32, 256, 8, 512, 3, 2, 1, 1},
    {"resnet 256-512 1x1", 32, 256, 8, 512, 1, 2, 0, 1},
    {"mobilenet stem", 16, 3, 96, 32, 3, 2, 1, 1},
    {"mobilenet 16-96", 16, 16, 48, 96, 1, 1, 0, 1},
    {"mobilenet 96-24", 16, 96, 24, 24, 1, 1, 0, 1},
    {"mobilenet 24-144", 16, 24, 24, 144, 1, 1, 0, 1},
    {"mobilenet 32-192", 16, 32, 12, 192, 1, 1, 0, 1},
    {"mobilenet 192-32", 16, 192, 12, 32, 1, 1, 0, 1},
    {"mobilenet 64-384", 16, 64, 6, 384, 1, 1, 0, 1},
    {"mobilenet 384-64", 16, 384, 6, 64, 1, 1, 0, 1},
    {"mobilenet 96-576", 16, 96, 6, 576, 1, 1, 0, 1},
    {"mobilenet 576-96", 16, 576, 6, 96, 1, 1, 0, 1},
    {"mobilenet 160-960", 16, 160, 3, 960, 1, 1, 0, 1},
    {"mobilenet 960-160", 16, 960, 3, 160, 1, 1, 0, 1},
    {"mobilenet 960-320", 16, 960, 3, 320, 1, 1, 0, 1},
    {"mobilenet 320-1280", 16, 320, 3, 1280, 1, 1, 0, 1},
    {"imagenet stem", 2, 3, 224, 64, 7, 2, 3, 1},
    {"pointwise 256", 8, 256, 14, 256, 1, 1, 0, 1},
    {"to one channel", 8, 32, 28, 1, 5, 1, 2, 1},
    {"grouped", 8, 64, 28, 64, 3, 1, 1, 4},
    {"depthwise", 8, 64, 28, 64, 3, 1, 1, 64},
};

constexpr const char* kPasses[] = {"Conv", "ConvInputGrad", "ConvWeightGrad"};

std::vector<std::int64_t> both(std::int64_t value) { return {value, value}; }

Tensor random_tensor(const Dims& dims, std::uint32_t seed) {
  Tensor tensor = Tensor::empty(DataType::kFloat32, dims);
  for (float& x : tensor.mutable_data<float>()) {
    seed = seed * 1664525 + 1013904223;
    x = static_cast<float>(seed >> 8) * 0x1p-24F - 0.5F;
  }
  return tensor;
}

/// One pass of one layer: operands, and the kernels that take it.
class Job {
 public:
  Job(const opdef::KernelRegistry& registry, const Layer& layer, std::string_view pass,
      int threads) {
    const Tensor x = random_tensor(layer.x(), 1);
    const Tensor w = random_tensor(layer.w(), 2);
    const Tensor y = random_tensor(layer.y(), 3);
    if (pass == "Conv") {
      inputs_ = {x, w};
      result_ = y;
    } else if (pass == "ConvInputGrad") {
      inputs_ = {y, w, x};
      result_ = random_tensor(layer.x(), 4);
    } else {
      inputs_ = {y, x};
      result_ = w;
    }
    ir::Node& node = *graph_.add_bare_node();
    node.op_type = pass;
    node.domain = pass == "Conv" ? "" : "onnxgrad";
    node.attributes = {{.name = "strides", .value = both(layer.stride)},
                       {.name = "pads", .value = std::vector(4, layer.pad)},
                       {.name = "kernel_shape", .value = both(layer.kernel)},
                       {.name = "group", .value = layer.groups}};
    opdef::KernelRequest request{
        .node = node, .inputs = {}, .outputs = {}, .constants = {}, .threads = threads};
    for (const Tensor& input : inputs_) request.inputs.push_back({input.dtype(), input.dims()});
    request.outputs.push_back({result_.dtype(), result_.dims()});
    request.constants.assign(inputs_.size(), nullptr);
    for (const auto& entry : registry.offers(node.domain, node.op_type)) {
      opdef::KernelOffer offer = entry.offer(request);
      if (offer.kernel.fn != nullptr) kernels_.push_back(std::move(offer.kernel));
    }
    std::int64_t scratch = 0;
    for (const auto& kernel : kernels_) scratch = std::max(scratch, kernel.scratch_bytes);
    scratch_ = onnxgrad::base::allocate_aligned(scratch);
    for (Tensor& input : inputs_) args_.push_back(input.mutable_raw());
    args_.push_back(result_.mutable_raw());
    args_.push_back(scratch_.get());
  }

  std::size_t size() const { return kernels_.size(); }
  const std::string& label(std::size_t i) const { return kernels_[i].label; }

  /// Seconds of one run of kernel i, the mean over `count`.
  double time(std::size_t i, std::int64_t count) const {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t n = 0; n < count; ++n)
      kernels_[i].fn(kernels_[i].data.get(), args_.data(), {});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() /
           static_cast<double>(count);
  }

 private:
  ir::Graph graph_;
  std::vector<Tensor> inputs_;
  Tensor result_;
  std::vector<opdef::PreparedKernel> kernels_;
  std::shared_ptr<std::byte> scratch_;
  std::vector<std::byte*> args_;
};

void print_row(const opdef::KernelRegistry& registry, const Layer& layer, std::string_view pass,
               double budget_s) {
  constexpr int kRounds = 20;
  constexpr std::size_t kMostThreads = 2;
  const std::array jobs = {Job(registry, layer, pass, 1), Job(registry, layer, pass, 2)};
  // The plain kernel, the last one, is hundreds of times slower.
  const std::size_t count = std::max<std::size_t>(jobs[0].size() - 1, 1);
  std::vector<std::array<double, kMostThreads>> best(count, {1e9, 1e9});
  const auto repeats = std::max<std::int64_t>(
      static_cast<std::int64_t>(budget_s / kRounds / (layer.flops() / 80e9)), 1);
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < count; ++i) {
      for (std::size_t t = 0; t < kMostThreads; ++t) {
        best[i][t] = std::min(best[i][t], jobs[t].time(i, repeats));
      }
    }
  }
  fmt::print("| {} | {} |", layer.name, pass);
  for (std::size_t i = 0; i < count; ++i) {
    fmt::print(" {}:", jobs[0].label(i));
    for (const double seconds : best[i]) {
      fmt::print(" {:.3f} ms, {:.0f};", seconds * 1e3, layer.flops() / seconds * 1e-9);
    }
    fmt::print(" gain {:.2f} |", best[i][0] / best[i][1]);
  }
  fmt::print("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const double budget_s = argc > 1 ? std::atof(argv[1]) : 0.2;
  const std::string_view wanted = argc > 2 ? argv[2] : "";
  opdef::KernelRegistry registry;
  onnxgrad::ops::register_builtin_cpu_kernels(registry);
  fmt::print("| layer | pass | kernel: time, GFLOP/s |\n| --- | --- | --- |\n");
  for (const Layer& layer : kLayers) {
    if (std::string_view(layer.name).find(wanted) == std::string_view::npos) continue;
    for (const char* pass : kPasses) {
      if (argc > 3 && std::string_view(pass) != argv[3]) continue;
      print_row(registry, layer, pass, budget_s);
    }
  }
}
