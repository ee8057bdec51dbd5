#ifndef ONNXGRAD_DEVICE_CUDA_TEXT_KERNEL_H_
#define ONNXGRAD_DEVICE_CUDA_TEXT_KERNEL_H_

#include <array>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/context.h"
#include "opdef/kernel.h"

// Kernels as texts, which NVRTC compiles when a plan is made; images are kept on disk. A kernel is
// written as
//
//   OG_KERNEL(name, words) { ... }
//
// and reads its parameters, of eight bytes each, from `a`: a.pointer<T>(i), a.integer(i),
// a.real(i). The prelude (kernel_prelude()) defines this, for NVRTC and for a C++ compiler that
// stands in for it in tests. A further parameter is that of a Guard.

namespace onnxgrad::device::cuda {

/// Text that precedes that of every kernel.
std::string_view kernel_prelude();

/// A text that is compiled in the background, so that those of a plan are compiled side by side,
/// and loaded when its first function is asked for. Any thread.
class Module {
 public:
  /// The module of `text`, which stands after the prelude; its image may come from the cache. There
  /// is one of a text. Products are not contracted with sums. Throws: DeviceError (no NVRTC).
  static std::shared_ptr<const Module> of(const std::shared_ptr<Context>& context,
                                          const std::string& text);

  /// Throws: DeviceError (the text cannot be compiled, or has no such kernel).
  Handle function(const std::string& name) const;
  /// Its text, without the prelude.
  const std::string& text() const { return text_; }

 private:
  Module(std::shared_ptr<Context> context, std::string text);

  std::shared_ptr<Context> context_;
  std::string text_;
  std::shared_future<std::string> image_;
  mutable std::mutex mutex_;
  mutable Owned module_;
  mutable std::map<std::string, Handle> functions_;
};

/// A parameter of a kernel.
struct Word {
  enum class Kind : std::uint8_t { kArgument, kCells, kInteger, kReal };
  Kind kind = Kind::kArgument;
  std::int64_t integer = 0;  ///< the number of the argument, or the value
  std::int64_t offset = 0;   ///< bytes from the argument's address
  double real = 0;

  /// The address of an argument; the scratch block follows inputs and outputs.
  static Word argument(std::int64_t i, std::int64_t offset = 0) {
    return {.kind = Kind::kArgument, .integer = i, .offset = offset};
  }
  static Word cells() { return {.kind = Kind::kCells}; }
  static Word of(std::int64_t value) { return {.kind = Kind::kInteger, .integer = value}; }
  static Word of(double value) { return {.kind = Kind::kReal, .real = value}; }
};

/// Threads that a block has at most: with this bound a thread may use 255 registers. Texts of
/// larger blocks begin with block_threads_text().
inline constexpr unsigned kMostThreads = 256;
std::string block_threads_text(unsigned most);

/// A launch of a kernel.
struct TextKernel {
  std::shared_ptr<const Module> module;
  std::string name = {};                  ///< of its function
  std::array<unsigned, 3> grid{1, 1, 1};  ///< a zero: nothing is launched
  std::array<unsigned, 3> block{1, 1, 1};
  unsigned shared_bytes = 0;
  std::vector<Word> words;
  std::shared_ptr<const void> keeps = nullptr;  ///< what its words refer to
};

/// The eight bytes that a kernel gets for a word.
std::uint64_t value_of(const Word& word, opdef::KernelArgs args, const opdef::Launch& launch);

/// During its lifetime, kernels that this thread launches are guarded: each does nothing if the
/// word at `address`, in the memory of the card, is not 0 when it begins.
class Guard {
 public:
  explicit Guard(std::uint64_t address);  ///< 0: they are not
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// The address of the current one, or 0.
  static std::uint64_t current();
  /// The word of work that has cells, if it is to be guarded.
  static std::uint64_t address_of(Address cells, bool is_guarded);

 private:
  std::uint64_t before_;
};

/// Throws: DeviceError.
void launch_text_kernel(const TextKernel& kernel, opdef::KernelArgs args,
                        const opdef::Launch& launch);

/// The KernelFn of all texts; `data` is a std::vector<TextKernel>, launched one after the other.
/// Throws: DeviceError.
void launch_text_kernels(const void* data, opdef::KernelArgs args, const opdef::Launch& launch);

/// Blocks of `threads` for `elements`, as many as the grid can have: kernels step over the rest.
unsigned num_blocks(std::int64_t elements, int threads);

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_TEXT_KERNEL_H_
