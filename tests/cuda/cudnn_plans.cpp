// Asks cuDNN for plans of convolutions, for a card that a file describes; none is needed. Usage:
//   onnxgrad_cudnn_plans DEVICE.json < CONVOLUTIONS
// Each line has the sizes of x, w and y, strides, dilations, pads before and pads after, as lists
// with commas. Prints a line for each one that cuDNN has no plan of, and how many it has plans of.

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "device/cuda/dnn.h"
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

bool has_plan(const std::string& device, const Spec& spec) {
  const bool is_strict = spec.dtype == DataType::kFloat32 && !spec.allows_tf32;
  return cuda::has_dnn_plan(device, {.is_strict = is_strict, .is_deterministic = true},
                            [&](cuda::DnnGraph& graph) { cuda::add_convolution(graph, spec); });
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  std::ifstream file(argv[1]);
  const std::string device{std::istreambuf_iterator<char>(file), {}};
  int missing = 0;
  int plans = 0;
  for (std::string line; std::getline(std::cin, line);) {
    for (const char* pass : {"forward", "forward with bias and Relu", "data", "weights"}) {
      for (const char* kind : {"float32", "tf32", "bfloat16", "float16"}) {
        if (has_plan(device, spec_of(line, pass, kind))) {
          ++plans;
        } else {
          ++missing;
          std::printf("%s, %s: %s\n", kind, pass, line.c_str());
        }
      }
    }
  }
  std::printf("%d plans\n", plans);
  return missing == 0 ? 0 : 1;
} catch (const onnxgrad::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
