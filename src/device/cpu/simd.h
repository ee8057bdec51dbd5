// Included by files that Highway compiles once per instruction set, before foreach_target.h. All
// x86-64 is supported: plain code, SSE4, AVX2 and AVX-512; SSSE3 would be another copy for
// machines of 2006. Vectors of unknown length (SVE) cannot be array elements: AArch64 uses
// NEON.
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
