#ifndef ONNXGRAD_DEVICE_CUDA_STREAM_H_
#define ONNXGRAD_DEVICE_CUDA_STREAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "device/cuda/context.h"
#include "device/device.h"

namespace onnxgrad::device::cuda {

/// Streams that the calls of one submission are spread over.
inline constexpr int kComputeStreams = 4;

/// A stream of the card, with further ones that fork from it and join it within a submission.
/// Recorded work is a graph, captured once.
class CudaStream final : public Stream {
 public:
  explicit CudaStream(std::shared_ptr<Context> context);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  void run(const Work& work, Address cells) override;
  std::unique_ptr<Recording> record(const Work& work, Address cells) override;
  void repeat(const Recording& recording, std::int64_t times) override;
  std::shared_ptr<Event> mark(bool is_timed) override;
  void wait_for(const Event& event) override;
  void copy_in(Address to, const std::byte* from, std::int64_t bytes) override;
  void copy_in_staged(Address to, const std::byte* from, std::int64_t bytes) override;
  void copy_out(std::byte* to, Address from, std::int64_t bytes) override;
  void copy(Address to, Address from, std::int64_t bytes) override;
  void synchronize() override;

 private:
  /// A block of pinned memory, which copies from memory that may change at once go through.
  struct Staging {
    std::shared_ptr<std::byte> memory;
    std::int64_t bytes = 0;
    std::int64_t used = 0;
    Owned last_copy;  ///< an event
  };

  Handle stream_of(int number);
  void launch(const Work& work, Address cells);
  std::byte* stage(std::int64_t bytes);
  void wait(Handle stream, Handle event) const;
  void note(Handle event, Handle stream) const;

  std::shared_ptr<Context> context_;
  std::array<Owned, kComputeStreams> streams_;  ///< the first is this stream; others when needed
  std::vector<Owned> events_;                   ///< of calls that others wait for
  std::set<std::uint64_t> cells_;  ///< of all work: values that it refuses are this stream's
  std::array<Staging, 2> staging_;
  std::size_t current_staging_ = 0;
};

}  // namespace onnxgrad::device::cuda

#endif  // ONNXGRAD_DEVICE_CUDA_STREAM_H_
