// Helpers for code that Highway compiles once per instruction set; included each time.
#if defined(ONNXGRAD_DEVICE_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ONNXGRAD_DEVICE_CPU_SIMD_INL_H_
#undef ONNXGRAD_DEVICE_CPU_SIMD_INL_H_
#else
#define ONNXGRAD_DEVICE_CPU_SIMD_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Masked loads and stores of 32 and 64 bit lanes access only the lanes of the mask. Highway's own
// flag also covers narrower types, for which AVX2 has no such instruction.
#if HWY_TARGET == HWY_AVX2 || !HWY_MEM_OPS_MIGHT_FAULT
inline constexpr bool kMasksAreSafe = true;
#else
inline constexpr bool kMasksAreSafe = false;
#endif

// Attributes of a lambda in an inner loop, after its parameters.
#ifndef ONNXGRAD_INLINE_LAMBDA
#define ONNXGRAD_INLINE_LAMBDA HWY_ATTR __attribute__((always_inline))
#endif

template <class F, int... kIndex>
HWY_INLINE void unrolled(const F& f, std::integer_sequence<int, kIndex...> /*indices*/) {
  (f(std::integral_constant<int, kIndex>()), ...);
}

/// Calls f(0), ..., f(kCount - 1) with constants: arrays that they index become registers, even in
/// a loop that stores, where arrays of an unrolled loop stay in memory.
template <int kCount, class F>
HWY_INLINE void unrolled(const F& f) {
  unrolled(f, std::make_integer_sequence<int, kCount>());
}

/// Hides the origin of a pointer or a stride, so that the compiler keeps it in a register and
/// does not derive a dozen others from it and spill them to the stack.
template <class T>
HWY_INLINE void keep_in_register(T& value) {
#if HWY_COMPILER_GCC || HWY_COMPILER_CLANG
  __asm__("" : "+r"(value));
#else
  (void)value;
#endif
}

/// Says that `value` is still needed here, so that no result of a calculation before takes its
/// register: in loops whose sums should stay where they are.
template <class V>
HWY_INLINE void needed_until_here(const V& value) {
#if HWY_ARCH_X86 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  __asm__ volatile("" : : "v"(value.raw));
#else
  (void)value;
#endif
}

/// Loads the first `count` lanes, which are those of `mask`, with zeros after them. Reads nothing
/// else.
template <class D, class M, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_first(D d, M mask, const T* from, std::int64_t count) {
  if constexpr (kMasksAreSafe) {
    return hn::MaskedLoad(mask, d, from);
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(D())] = {};
    for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[i];
    return hn::Load(d, lanes);
  }
}

/// Writes the first `count` lanes, which are those of `mask`, and nothing else.
template <class D, class M, class T = hn::TFromD<D>>
HWY_INLINE void store_first(hn::Vec<D> v, D d, M mask, T* to, std::int64_t count) {
  if constexpr (kMasksAreSafe) {
    hn::BlendedStore(v, mask, d, to);
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(D())];
    hn::Store(v, d, lanes);
    for (std::int64_t i = 0; i < count; ++i) to[i] = lanes[i];
  }
}

/// Loads the lanes of `mask` from memory readable to the end of the vector; other lanes are
/// arbitrary.
template <class D, class M, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_padded(D d, M mask, const T* from) {
  if constexpr (kMasksAreSafe) {
    return hn::MaskedLoad(mask, d, from);
  } else {
    return hn::LoadU(d, from);
  }
}

/// Returns max(floor, x) with floor not NaN; NaN where x is NaN.
template <class V>
HWY_INLINE V max_or_nan(V floor, V x) {
#if HWY_ARCH_X86
  return hn::Max(floor, x);  // maxps returns its second operand if either is NaN
#else
  return hn::IfThenElse(hn::Lt(x, floor), floor, x);
#endif
}

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
