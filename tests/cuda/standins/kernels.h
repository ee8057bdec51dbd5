#ifndef ONNXGRAD_TESTS_CUDA_STANDINS_KERNELS_H_
#define ONNXGRAD_TESTS_CUDA_STANDINS_KERNELS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "races.h"

namespace onnxgrad::cuda_standin {

struct Machine;  // of kernel_machine.h

struct Function {
  void (*run)(const void* parameters) = nullptr;  ///< nullptr: its module has been unloaded
  Machine* machine = nullptr;
  bool has_barriers = false;  ///< of any kernel of its module
  bool records = false;       ///< its accesses, for races.h
  Range shared;               ///< static memory of its module
  int shared_bytes = 0;       ///< of all kernels of its module
  int words = 0;
  std::string name;
};

/// An image of the stand-in of NVRTC, loaded.
struct Module {
  void* library = nullptr;
  Machine* machine = nullptr;
  bool has_barriers = false;
  bool records = false;
  Range shared;
  int shared_bytes = 0;
  std::vector<Function*> functions;  ///< that were found in it; they stay
};

/// nullptr: `image` is none of its images.
std::unique_ptr<Module> load_module(const void* image);
/// nullptr: it has no such kernel.
Function* find_function(Module& module, const char* name);
void unload(std::unique_ptr<Module> module);

/// Runs all threads of a grid, block after block; the threads of a block are fibers that run in the
/// order of `random` between two barriers. Returns what is wrong with the kernel: threads that wait
/// at a barrier that others have not reached when they end, or races; or "".
std::string run_grid(const Function& function, std::array<unsigned, 3> grid,
                     std::array<unsigned, 3> block, const std::vector<std::uint64_t>& words,
                     const std::function<std::uint32_t(std::uint32_t)>& random);

}  // namespace onnxgrad::cuda_standin

#endif  // ONNXGRAD_TESTS_CUDA_STANDINS_KERNELS_H_
