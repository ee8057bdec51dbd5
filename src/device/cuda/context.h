#ifndef ONNXGRAD_DEVICE_CUDA_CONTEXT_H_
#define ONNXGRAD_DEVICE_CUDA_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/cuda/api.h"
#include "device/cuda/faults.h"
#include "device/device.h"

namespace onnxgrad::device::cuda {

/// Throws DeviceError if `result`, of the driver's function `call`, is not success. Errors after
/// which the process cannot use its cards any more say so.
void check(int result, const char* call);

/// The number of cards that this process can use; 0 without a driver.
int num_cards();

/// A card and its primary context, which live as long as the process.
class Context {
 public:
  /// Throws: DeviceError (no such card, one of compute capability below 7.5, no driver).
  static std::shared_ptr<Context> open(int index);

  /// Makes this the context of the calling thread; every use of the card begins so.
  void make_current() const;
  /// The number of the card whose context was last made current on this thread.
  static int current_index();
  int index() const { return index_; }
  const std::string& name() const { return name_; }
  /// Its compute capability, 90 for 9.0.
  int capability() const { return 10 * major_ + minor_; }
  int multiprocessors() const { return multiprocessors_; }
  std::int64_t memory_bytes() const { return memory_bytes_; }

  /// Memory of the card, from a pool that keeps what is freed. Throws: DeviceError (there is none
  /// left).
  Buffer allocate(std::int64_t bytes);
  /// Copies as many bytes as `to` has, and waits.
  void upload(const Buffer& to, const void* from) const;
  /// Values that its kernels have refused.
  Faults& faults() const { return *faults_; }
  /// Pinned memory of the host. Throws: DeviceError.
  std::shared_ptr<std::byte> allocate_pinned(std::int64_t bytes) const;

 private:
  explicit Context(int index);
  static std::shared_ptr<Context> made(int index);
  void clear_word(std::uint64_t address) const;

  int index_;
  int major_ = 0;
  int minor_ = 0;
  int multiprocessors_ = 0;
  std::int64_t memory_bytes_ = 0;
  std::string name_;
  Handle context_ = nullptr;
  Handle pool_ = nullptr;
  Handle allocations_ = nullptr;  ///< the stream that memory is taken from and given back on
  std::unique_ptr<Faults> faults_;
};

/// A driver's object with the function that destroys it.
class Owned {
 public:
  using Destroy = int (*)(Handle);
  Owned() = default;
  Owned(Handle handle, Destroy destroy) : handle_(handle), destroy_(destroy) {}
  Owned(Owned&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(destroy_, other.destroy_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Handle handle_ = nullptr;
  Destroy destroy_ = nullptr;
};

/// Converts an address on the card to an argument of NVIDIA's libraries.
inline void* library_pointer(std::uint64_t at) { return kernel_argument(Address{at}); }

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_CONTEXT_H_
