#ifndef ONNXGRAD_DEVICE_CUDA_FAULTS_H_
#define ONNXGRAD_DEVICE_CUDA_FAULTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace onnxgrad::device::cuda {

/// Values that kernels refuse while they run, as indices that are out of range. A kernel notes the
/// first one in pinned memory and goes on without it; the host looks there whenever it has waited
/// for the card, and throws. Any thread.
class Faults {
 public:
  /// Throws the error for a value that was refused, and its position.
  using Raise = std::function<void(std::int64_t value, std::int64_t position)>;

  /// `board`: kBoardBytes of pinned memory.
  explicit Faults(std::shared_ptr<std::byte> board);
  static constexpr std::int64_t kBoardBytes = 64;

  /// The address that kernels write to.
  std::int64_t address() const;
  /// The number of a kernel that refuses values, for as long as the result lives.
  std::shared_ptr<const std::int64_t> add(Raise raise);
  /// Throws: what the kernel that noted a value raises.
  void raise();

 private:
  std::int64_t read(std::size_t i) const;
  void clear(std::size_t i);

  std::shared_ptr<std::byte> board_;
  std::mutex mutex_;
  std::int64_t last_ = 0;
  std::unordered_map<std::int64_t, Raise> raises_;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_FAULTS_H_
