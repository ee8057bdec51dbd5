#include "ops/kernel_support_cuda.h"

#include <utility>

#include "device/cuda/cuda_device.h"

namespace onnxgrad::ops {

using device::cuda::Module;
using device::cuda::TextKernel;
using device::cuda::Word;

const std::shared_ptr<device::cuda::Context>& card_of(const opdef::KernelRequest& request) {
  return static_cast<device::cuda::CudaDevice*>(request.device)->context();
}

TextKernel text_kernel(const opdef::KernelRequest& request, const std::string& text,
                       const char* name, std::vector<Word> words) {
  return {.module = Module::of(card_of(request), text), .name = name, .words = std::move(words)};
}

TextKernel text_kernel_over(const opdef::KernelRequest& request, std::int64_t elements,
                            const std::string& text, const char* name, std::vector<Word> words) {
  constexpr int kThreads = 256;
  TextKernel kernel = text_kernel(request, text, name, std::move(words));
  kernel.block[0] = kThreads;
  kernel.grid[0] = device::cuda::num_blocks(elements, kThreads);
  return kernel;
}

opdef::PreparedKernel prepared(std::vector<TextKernel> kernels, std::string label, double flops) {
  opdef::PreparedKernel made;
  made.fn = device::cuda::launch_text_kernels;
  made.data = std::make_shared<const std::vector<TextKernel>>(std::move(kernels));
  made.label = std::move(label);
  made.flops = flops;
  return made;
}

opdef::PreparedKernel prepared(TextKernel kernel, std::string label, double flops) {
  std::vector<TextKernel> kernels;
  kernels.push_back(std::move(kernel));
  return prepared(std::move(kernels), std::move(label), flops);
}

}  // namespace onnxgrad::ops
