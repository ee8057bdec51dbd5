// Names of a card for the text of a kernel where a C++ compiler stands in for NVRTC. A thread of a
// block is a fiber of the stand-in of the driver, which sets og_machine before it resumes one.

#include <math.h>
#include <stdint.h>
#include <string.h>

struct og_index {
  unsigned x, y, z;
};

struct og_machine_state {
  og_index thread, block, block_dim, grid_dim;
  void (*barrier)();
};
extern "C" {
og_machine_state og_machine;
}

#define threadIdx og_machine.thread
#define blockIdx og_machine.block
#define blockDim og_machine.block_dim
#define gridDim og_machine.grid_dim
#define __syncthreads() og_machine.barrier()

#define OG_FUNCTION static inline
#define OG_FUNCTION_APART static
// Addresses in memory are those of the stand-in of the driver, with its tag.
#define OG_ADDRESS(word) ((word) & ~(1ull << 62))
#define OG_FUNCTION_MEMBER inline
#define OG_SHARED static
#define OG_ENTRY(name, words)                                      \
  static void name##_body(const og_words<words>& a);               \
  extern "C" {                                                     \
  int name##_words = words;                                        \
  void name(const void* parameters) {                              \
    name##_body(*static_cast<const og_words<words>*>(parameters)); \
  }                                                                \
  }                                                                \
  static void name##_body(const og_words<words>& a)
