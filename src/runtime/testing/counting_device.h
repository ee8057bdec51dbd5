#ifndef ONNXGRAD_RUNTIME_TESTING_COUNTING_DEVICE_H_
#define ONNXGRAD_RUNTIME_TESTING_COUNTING_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/testing/simulated_device.h"

namespace onnxgrad::runtime {

/// Calls of a stream.
struct StreamCounts {
  int runs = 0;
  int records = 0;
  int repeats = 0;
  int copies_in = 0;
  int copies_out = 0;
};

/// The simulated device, with counts of what its streams are asked for.
class CountingDevice final : public device::Device {
 public:
  StreamCounts counts;

  std::string name() const override { return device_.name(); }
  bool is_host() const override { return false; }
  std::int64_t alignment() const override { return device_.alignment(); }
  bool uses_host_threads() const override { return device_.uses_host_threads(); }
  int num_compute_streams() const override { return device_.num_compute_streams(); }
  std::unique_ptr<device::Stream> make_stream() override {
    return std::make_unique<CountingStream>(device_.make_stream(), counts);
  }

 private:
  class CountingStream final : public device::Stream {
   public:
    CountingStream(std::unique_ptr<device::Stream> stream, StreamCounts& counts)
        : stream_(std::move(stream)), counts_(counts) {}
    void run(const device::Work& work, device::Address cells) override {
      ++counts_.runs;
      stream_->run(work, cells);
    }
    std::unique_ptr<device::Recording> record(const device::Work& work,
                                              device::Address cells) override {
      ++counts_.records;
      return stream_->record(work, cells);
    }
    void repeat(const device::Recording& recording, std::int64_t times) override {
      ++counts_.repeats;
      stream_->repeat(recording, times);
    }
    std::shared_ptr<device::Event> mark(bool is_timed) override { return stream_->mark(is_timed); }
    void wait_for(const device::Event& event) override { stream_->wait_for(event); }
    void copy_in(device::Address to, const std::byte* from, std::int64_t bytes) override {
      ++counts_.copies_in;
      stream_->copy_in(to, from, bytes);
    }
    void copy_out(std::byte* to, device::Address from, std::int64_t bytes) override {
      ++counts_.copies_out;
      stream_->copy_out(to, from, bytes);
    }
    void copy(device::Address to, device::Address from, std::int64_t bytes) override {
      stream_->copy(to, from, bytes);
    }
    void synchronize() override { stream_->synchronize(); }

   private:
    std::unique_ptr<device::Stream> stream_;
    StreamCounts& counts_;
  };

  device::Buffer make_buffer(std::int64_t bytes) override { return device_.allocate(bytes); }

  device::Device& device_ = device::testing::simulated_device();
};

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_TESTING_COUNTING_DEVICE_H_
