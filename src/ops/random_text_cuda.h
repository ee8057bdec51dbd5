#ifndef ONNXGRAD_OPS_RANDOM_TEXT_CUDA_H_
#define ONNXGRAD_OPS_RANDOM_TEXT_CUDA_H_

#include <string>
#include <vector>

#include "device/cuda/text_kernel.h"
#include "ir/graph.h"
#include "onnxgrad/tensor.h"
#include "opdef/kernel.h"
#include "ops/fault_text_cuda.h"

// Random numbers of a node in texts: Philox words that are those of the CPU
// (ops/random/draws.h), from the cells of the step.

namespace onnxgrad::ops {

/// Definitions for texts, where `at` is the place of the first of the words that
/// add_random_words() appends:
///   og_number(a, at, i)  the number of element i in the tensor of the whole batch
///   og_block(a, at, block)  the four random words of a block: .word[0] to .word[3]
///   og_drop_of(a, at, ratio, mode), og_keeps(a, at, drop, i)  whether a Dropout keeps element i;
///       the words are those of add_dropout_words()
std::string random_text();

/// Appends cells, stream, seed and rows of a node whose tensor has these dimensions.
void add_random_words(std::vector<device::cuda::Word>& words, const ir::Node& node,
                      const Dims& dims);

/// Appends these and two more, for ratios out of range. The kernel keeps the result's number.
Refusal add_dropout_words(std::vector<device::cuda::Word>& words,
                          const opdef::KernelRequest& request, const Dims& dims);

}  // namespace onnxgrad::ops

#endif  // ONNXGRAD_OPS_RANDOM_TEXT_CUDA_H_
