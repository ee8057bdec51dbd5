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

__attribute__((no_sanitize_thread)) inline unsigned long long atomicCAS(
    unsigned long long* at, unsigned long long expected, unsigned long long desired) {
  const unsigned long long old = *at;
  if (old == expected) *at = desired;
  return old;
}

#define OG_FUNCTION static inline
#define OG_FUNCTION_APART static
// Addresses in memory are those of the stand-in of the driver, with its tag.
#define OG_ADDRESS(word) ((word) & ~(1ull << 62))
#define OG_FUNCTION_MEMBER inline
#define OG_SHARED static
#define OG_HANDLE(pointer) ((unsigned long long)(pointer) | 1ull << 62)
#define OG_ENTRY(name, words)                                             \
  static void name##_body(const og_words<words + 1>& a);                  \
  extern "C" {                                                            \
  int name##_words = words + 1;                                           \
  void name(const void* parameters) {                                     \
    const auto& a = *static_cast<const og_words<words + 1>*>(parameters); \
    if (og_goes_on(a.word[words])) name##_body(a);                        \
  }                                                                       \
  }                                                                       \
  static void name##_body(const og_words<words + 1>& a)
