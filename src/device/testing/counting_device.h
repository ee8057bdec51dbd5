#ifndef ONNXGRAD_DEVICE_TESTING_COUNTING_DEVICE_H_
#define ONNXGRAD_DEVICE_TESTING_COUNTING_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "device/testing/simulated_device.h"

namespace onnxgrad::device::testing {

/// Calls of streams that one thread uses, and whether they record work.
struct StreamCounts {
  std::int64_t runs = 0;
  std::int64_t records = 0;
  std::int64_t repeats = 0;         ///< calls
  std::int64_t repeated_steps = 0;  ///< their steps
  std::int64_t copies_in = 0;
  std::int64_t bytes_in = 0;
  std::int64_t staged = 0;
  std::int64_t copies_out = 0;
  std::int64_t waits = 0;
  bool makes_recordings = true;
};

/// The simulated device, with counts of what its streams are asked for.
class CountingDevice final : public Device {
 public:
  StreamCounts& counts;

  CountingDevice() : counts(own_) {}
  /// `counts_in` outlives this.
  explicit CountingDevice(StreamCounts& counts_in) : counts(counts_in) {}
  CountingDevice(const CountingDevice&) = delete;
  CountingDevice& operator=(const CountingDevice&) = delete;

  std::string name() const override { return device_.name(); }
  bool is_host() const override { return false; }
  std::int64_t alignment() const override { return device_.alignment(); }
  bool uses_host_threads() const override { return device_.uses_host_threads(); }
  int num_compute_streams() const override { return device_.num_compute_streams(); }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<CountingStream>(device_.make_stream(), counts);
  }
  std::shared_ptr<std::byte> allocate_staging(std::int64_t bytes) override {
    return device_.allocate_staging(bytes);
  }

 private:
  class CountingStream final : public Stream {
   public:
    CountingStream(std::unique_ptr<Stream> stream, StreamCounts& counts)
        : stream_(std::move(stream)), counts_(counts) {}
    void run(const Work& work, Address cells) override {
      ++counts_.runs;
      stream_->run(work, cells);
    }
    std::unique_ptr<Recording> record(const Work& work, Address cells) override {
      if (!counts_.makes_recordings) return nullptr;
      ++counts_.records;
      return stream_->record(work, cells);
    }
    void repeat(const Recording& recording, std::int64_t times) override {
      ++counts_.repeats;
      counts_.repeated_steps += times;
      stream_->repeat(recording, times);
    }
    std::shared_ptr<Event> mark(bool is_timed) override { return stream_->mark(is_timed); }
    void wait_for(const Event& event) override { stream_->wait_for(event); }
    void copy_in(Address to, const std::byte* from, std::int64_t bytes) override {
      ++counts_.copies_in;
      counts_.bytes_in += bytes;
      stream_->copy_in(to, from, bytes);
    }
    void copy_in_staged(Address to, const std::byte* from, std::int64_t bytes) override {
      ++counts_.staged;
      stream_->copy_in_staged(to, from, bytes);
    }
    void copy_out(std::byte* to, Address from, std::int64_t bytes) override {
      ++counts_.copies_out;
      stream_->copy_out(to, from, bytes);
    }
    void copy(Address to, Address from, std::int64_t bytes) override {
      stream_->copy(to, from, bytes);
    }
    void synchronize() override {
      ++counts_.waits;
      stream_->synchronize();
    }

   private:
    std::unique_ptr<Stream> stream_;
    StreamCounts& counts_;
  };

  Buffer make_buffer(std::int64_t bytes) override { return device_.allocate(bytes); }

  Device& device_ = simulated_device();
  StreamCounts own_;
};

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_COUNTING_DEVICE_H_
