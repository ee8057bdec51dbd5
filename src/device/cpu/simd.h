// Included by files that Highway compiles once per instruction set, before foreach_target.h. Any
// x86-64 is served: plain code, SSE4, AVX2 and AVX-512; code for SSSE3 would be a fourth copy for
// machines of 2006. Vectors of unknown length (SVE) do not fit arrays of vectors: NEON serves
// AArch64.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
