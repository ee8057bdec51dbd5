#ifndef ONNXGRAD_TESTS_CUDA_STANDINS_HOOKS_H_
#define ONNXGRAD_TESTS_CUDA_STANDINS_HOOKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>

// Services of the stand-in of the driver for those of libraries.

namespace onnxgrad::cuda_standin {

/// Result of work that waits for another process, and is to be done again later; not in graphs.
inline constexpr int kNotYet = -1;

/// Puts work on a stream of the driver, or into the graph that is captured on it. Returns the
/// driver's result; so does `work`.
int submit_work(void* stream, std::function<int()> work);

/// A pointer to memory of the card of which `bytes` belong to one allocation, for work that runs;
/// nullptr: there is none.
std::byte* card_memory(std::uint64_t address, std::size_t bytes);

/// The error that ONNXGRAD_STANDIN_FAIL injects into this call of a function; 0: none.
int injected_error(const char* function);

}  // namespace onnxgrad::cuda_standin

#endif  // ONNXGRAD_TESTS_CUDA_STANDINS_HOOKS_H_
