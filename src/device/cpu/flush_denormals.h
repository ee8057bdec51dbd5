#ifndef ONNXGRAD_DEVICE_CPU_FLUSH_DENORMALS_H_
#define ONNXGRAD_DEVICE_CPU_FLUSH_DENORMALS_H_

#include <cstdint>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

namespace onnxgrad::device {

/// During its lifetime, this thread treats denormal operands as zero and flushes denormal results.
/// A decaying average, such as the momentum of a weight whose gradient has become zero, would
/// otherwise end up denormal, and arithmetic on such numbers takes a hundred times as long.
class FlushDenormals {
 public:
#ifdef __SSE2__
  FlushDenormals() : before_(_mm_getcsr()) {
    if (!was_set()) _mm_setcsr(static_cast<unsigned>(before_) | kFlags);
  }
  ~FlushDenormals() {
    if (!was_set()) _mm_setcsr(static_cast<unsigned>(before_));
  }
#elif defined(__aarch64__) && (defined(__GNUC__) || defined(__clang__))
  FlushDenormals() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    __asm__ volatile("msr fpcr, %0" : : "r"(before_ | kFlags));
  }
  ~FlushDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(before_)); }
#else
  FlushDenormals() = default;
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#ifdef __SSE2__
  static constexpr unsigned kFlags = 0x8040;  // flush to zero, denormals are zero
  // Whether an outer FlushDenormals has set the flags: changing them takes longer than reading
  // them.
  bool was_set() const { return (static_cast<unsigned>(before_) & kFlags) == kFlags; }
#else
  static constexpr std::uint64_t kFlags = std::uint64_t{1} << 24;  // FZ
#endif
  std::uint64_t before_ = 0;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_CPU_FLUSH_DENORMALS_H_
