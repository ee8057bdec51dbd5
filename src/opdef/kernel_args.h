#ifndef ONNXGRAD_OPDEF_KERNEL_ARGS_H_
#define ONNXGRAD_OPDEF_KERNEL_ARGS_H_

#include <concepts>
#include <cstddef>

namespace onnxgrad::opdef {

/// Arguments of a kernel: the inputs, then the outputs (nullptr where absent), then the scratch
/// block. All dense row-major. A view, of the size of a pointer, of an array that the caller owns.
class KernelArgs {
 public:
  KernelArgs(std::byte* const* addresses)  // NOLINT(google-explicit-constructor)
      : addresses_(addresses) {}

  std::byte* operator[](std::integral auto i) const { return addresses_[i]; }
  /// Returns argument `i` as elements of type T; nullptr if it is absent. Kernels only read inputs.
  template <class T>
  T* at(std::integral auto i) const {
    return reinterpret_cast<T*>(addresses_[i]);
  }
  /// Returns at(i), or nullptr if `i` is negative: the kernel has no such argument.
  template <class T>
  T* find(std::integral auto i) const {
    return i < 0 ? nullptr : at<T>(i);
  }
  /// Returns the arguments from number `i` on.
  KernelArgs from(std::integral auto i) const { return addresses_ + i; }

 private:
  std::byte* const* addresses_;
};

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_KERNEL_ARGS_H_
