#ifndef ONNXGRAD_TESTS_CUDA_STANDINS_RACES_H_
#define ONNXGRAD_TESTS_CUDA_STANDINS_RACES_H_

#include <cstddef>
#include <cstdint>
#include <string>

// Finds races of kernels: two threads access a byte, at least one of them to write it, and no
// barrier or end of a kernel is between. Texts that are compiled with ONNXGRAD_STANDIN_RACES set
// report their accesses (kernel_races.h). Which threads run first does not matter. Atomic
// operations, and elements on the stack of a thread, are not looked at.

namespace onnxgrad::cuda_standin {

/// Bytes [begin, end).
struct Range {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;

  bool contains(const void* at) const { return at >= begin && at < end; }
};

/// Begins a grid. `shared`: static memory of its module, of which each block has its own.
void begin_grid(Range shared);
/// Begins the time of a block up to its first barrier, or up to the next one.
void begin_block(std::uint32_t block);
void pass_barrier();
/// Names the thread that runs, and its stack.
void set_thread(std::uint32_t thread, Range stack);
/// Records an access of the thread that runs.
void record_access(const void* at, std::size_t bytes, bool writes);
/// Returns what the grid's races are, or "".
std::string end_grid();
/// Returns true if ONNXGRAD_STANDIN_RACES is "report": races are printed, and the process goes on.
bool only_reports_races();

}  // namespace onnxgrad::cuda_standin

#endif  // ONNXGRAD_TESTS_CUDA_STANDINS_RACES_H_
