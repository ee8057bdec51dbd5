#ifndef ONNXGRAD_OPS_CUDA_SUPPORT_H_
#define ONNXGRAD_OPS_CUDA_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/text_kernel.h"
#include "opdef/kernel.h"

// Helpers that offers for CUDA share.

namespace onnxgrad::ops {

/// The card that a kernel is asked for.
const std::shared_ptr<device::cuda::Context>& card_of(const opdef::KernelRequest& request);

/// Places elements in memory of the card, before this returns.
template <class T>
device::Buffer upload(const opdef::KernelRequest& request, const std::vector<T>& elements) {
  const auto& card = card_of(request);
  const std::int64_t bytes = std::ssize(elements) * static_cast<std::int64_t>(sizeof(T));
  device::Buffer buffer = card->allocate(std::max<std::int64_t>(bytes, 1));
  if (bytes > 0) card->upload(buffer, elements.data());
  return buffer;
}

/// Compiles `text` and prepares its kernel `name` with these words; grid and block follow.
device::cuda::TextKernel text_kernel(const opdef::KernelRequest& request, const std::string& text,
                                     const char* name, std::vector<device::cuda::Word> words);

/// Compiles and prepares it with a thread for each of so many elements.
device::cuda::TextKernel text_kernel_over(const opdef::KernelRequest& request,
                                          std::int64_t elements, const std::string& text,
                                          const char* name, std::vector<device::cuda::Word> words);

/// A kernel that is these launches, one after the other.
opdef::PreparedKernel prepared(std::vector<device::cuda::TextKernel> kernels, std::string label,
                               double flops = 0);
opdef::PreparedKernel prepared(device::cuda::TextKernel kernel, std::string label,
                               double flops = 0);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_CUDA_SUPPORT_H_
