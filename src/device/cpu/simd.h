// Included by files that Highway compiles once per instruction set, before foreach_target.h:
// SSE4.2, which every machine has (the build's baseline is x86-64-v2), AVX2 and AVX-512. x86-64-v2
// has no AES instructions, which Highway asks of SSE4 otherwise. Vectors of unknown length (SVE)
// cannot be array elements: AArch64 uses NEON.
#define HWY_DISABLE_PCLMUL_AES
#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#endif
