// Asks cuDNN for plans of convolutions, pools and attention, for a card that a file describes; none
// is needed. Each plan is written as JSON, and made again from it. Usage:
//   onnxgrad_cudnn_plans DEVICE.json < LINES
// A line is `convolution` or `pool`, then the sizes of x, w and y, strides, dilations, pads before
// and pads after, as lists with commas, where w of a pool is its window; or `attention`, the
// numbers of sequences, heads, queries, keys, elements of a key and of a value as a list, `plain`
// or `causal`, and a mask: `none`, one of `keys` for each sequence, or one of `scores` for all.
// Prints a line for each plan that cuDNN does not make, or not the same from its JSON, and how many
// it makes.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/dnn.h"
#include "device/cuda/dnn_attention.h"
#include "onnxgrad/error.h"

namespace {

using onnxgrad::DataType;
namespace cuda = onnxgrad::device::cuda;
using Spec = cuda::DnnConvSpec;

std::vector<std::int64_t> numbers_of(const std::string& text) {
  std::vector<std::int64_t> numbers;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) numbers.push_back(std::stoll(part));
  return numbers;
}

Spec spec_of(const std::string& line, const std::string& pass, const std::string& kind) {
  std::istringstream words(line);
  std::string operation;
  words >> operation;
  Spec spec;
  for (auto* list : {&spec.x, &spec.w, &spec.y, &spec.strides, &spec.dilations, &spec.pads_begin,
                     &spec.pads_end}) {
    std::string word;
    words >> word;
    *list = numbers_of(word);
  }
  spec.pass = pass == "data"      ? Spec::Pass::kBackwardData
              : pass == "weights" ? Spec::Pass::kBackwardWeight
                                  : Spec::Pass::kForward;
  if (pass.find("Relu") != std::string::npos) {
    spec.has_bias = true;
    spec.low = 0;
  }
  spec.dtype = kind == "bfloat16"  ? DataType::kBfloat16
               : kind == "float16" ? DataType::kFloat16
                                   : DataType::kFloat32;
  spec.allows_tf32 = kind == "tf32";
  spec.has_channels_last = kind != "float32";
  return spec;
}

cuda::DnnPlanTest test_convolution(const std::string& device, const Spec& spec) {
  const bool is_strict = spec.dtype == DataType::kFloat32 && !spec.allows_tf32;
  return cuda::test_dnn_plan(device, {.is_strict = is_strict, .is_deterministic = true},
                             [&](cuda::DnnGraph& graph) { cuda::add_convolution(graph, spec); });
}

// Heads beside each other in rows, as projections leave them.
cuda::DnnMatrices heads_of(std::int64_t sequences, std::int64_t heads, std::int64_t rows,
                           std::int64_t size, DataType dtype) {
  return {.dims = {sequences, heads, rows, size},
          .strides = {heads * rows * size, size, heads * size, 1},
          .dtype = dtype};
}

cuda::DnnAttentionSpec attention_of(const std::string& line, DataType half) {
  std::istringstream words(line);
  std::string operation, sizes, order, mask;
  words >> operation >> sizes >> order >> mask;
  const std::vector<std::int64_t> n = numbers_of(sizes);
  const auto heads = [&](std::int64_t rows, std::int64_t size, DataType dtype) {
    return heads_of(n[0], n[1], rows, size, dtype);
  };
  cuda::DnnAttentionSpec spec{.q = heads(n[2], n[4], half),
                              .k = heads(n[3], n[4], half),
                              .v = heads(n[3], n[5], half),
                              .y = heads(n[2], n[5], DataType::kFloat32),
                              .scale = 0.125,
                              .is_causal = order == "causal"};
  if (mask == "keys") {
    spec.bias = {{n[0], 1, 1, n[3]}, {n[3], n[3], n[3], 1}, DataType::kFloat32};
  } else if (mask == "scores") {
    spec.bias = {{1, 1, n[2], n[3]}, {n[2] * n[3], n[2] * n[3], n[3], 1}, half};
  }
  spec.dy = heads(n[2], n[5], half);
  spec.dq = heads(n[2], n[4], DataType::kFloat32);
  spec.dk = heads(n[3], n[4], DataType::kFloat32);
  spec.dv = heads(n[3], n[5], DataType::kFloat32);
  return spec;
}

/// Counts the plans that are made, and prints those that are not.
class Plans {
 public:
  explicit Plans(std::string device) : device_(std::move(device)) {}

  void ask_convolution(const std::string& line) {
    for (const char* pass : {"forward", "forward with bias and Relu", "data", "weights"}) {
      for (const char* kind : {"float32", "tf32", "bfloat16", "float16"}) {
        count(test_convolution(device_, spec_of(line, pass, kind)), kind, pass, line);
      }
    }
  }

  void ask_pool(const std::string& line) {
    const Spec window = spec_of(line, "forward", "float32");
    cuda::DnnPoolSpec spec{.x = window.x,
                           .y = window.y,
                           .kernel = window.w,
                           .strides = window.strides,
                           .pads_begin = window.pads_begin,
                           .pads_end = window.pads_end};
    for (const int mode :
         {cuda::dnn_api::kMaximumPool, cuda::dnn_api::kAverage, cuda::dnn_api::kAverageWithPads}) {
      for (const bool is_gradient : {false, true}) {
        if (is_gradient && mode == cuda::dnn_api::kMaximumPool) continue;
        spec.mode = mode;
        spec.is_gradient = is_gradient;
        count(
            cuda::test_dnn_plan(device_, {}, [&](cuda::DnnGraph& graph) { add_pool(graph, spec); }),
            "float32", is_gradient ? "gradient" : "forward", line);
      }
    }
  }

  void ask_attention(const std::string& line) {
    for (const DataType half : {DataType::kBfloat16, DataType::kFloat16}) {
      const char* kind = half == DataType::kBfloat16 ? "bfloat16" : "float16";
      cuda::DnnAttentionSpec spec = attention_of(line, half);
      for (const bool is_deterministic : {true, false}) {
        spec.is_deterministic = is_deterministic;
        const cuda::DnnRule rule{.is_strict = false, .is_deterministic = is_deterministic};
        count(cuda::test_dnn_plan(device_, rule,
                                  [&](cuda::DnnGraph& graph) { add_attention(graph, spec); }),
              kind, "forward", line);
        count(
            cuda::test_dnn_plan(
                device_, rule, [&](cuda::DnnGraph& graph) { add_attention_gradient(graph, spec); }),
            kind, "gradient", line);
      }
    }
  }

  int made = 0;
  int kept = 0;
  int failures = 0;

 private:
  void count(cuda::DnnPlanTest test, const char* kind, const char* pass, const std::string& line) {
    using enum cuda::DnnPlanTest;
    if (test != kNone) ++made;
    if (test == kKept) ++kept;
    if (test != kNone && test != kChanged) return;
    ++failures;
    const char* const what = test == kNone ? "no plan" : "another plan from its JSON";
    std::printf("%s, %s: %s: %s\n", kind, pass, what, line.c_str());
  }

  std::string device_;
};

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  std::ifstream file(argv[1]);
  Plans plans({std::istreambuf_iterator<char>(file), {}});
  for (std::string line; std::getline(std::cin, line);) {
    if (line.starts_with("attention ")) {
      plans.ask_attention(line);
    } else if (line.starts_with("pool ")) {
      plans.ask_pool(line);
    } else {
      plans.ask_convolution(line);
    }
  }
  std::printf("%d plans, %d of them made again from their JSON\n", plans.made, plans.kept);
  return plans.failures == 0 ? 0 : 1;
} catch (const onnxgrad::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
