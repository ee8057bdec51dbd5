#include "train/testing/counted_device.h"

#include <memory>
#include <utility>
#include <vector>

#include "device/plugin_lock.h"
#include "device/testing/simulated_device.h"
#include "train/tools/devices.h"

namespace onnxgrad::train_test {
namespace counted_device_parts {

using device::Address;
using device::Work;

DeviceCounts counts;
bool makes_recordings = true;

// Work with copies of its arguments.
struct Kept final : device::Recording {
  Kept(const Work& work, Address cells_in) : cells(cells_in) {
    for (std::size_t i = 0; i < work.calls.size(); ++i) {
      calls.push_back(work.calls[i]);
      std::vector<std::byte*> own;
      for (std::size_t k = 0; k < calls.back().num_args; ++k) own.push_back(calls.back().args[k]);
      args.push_back(std::move(own));
      calls.back().args = args.back().data();
      if (!work.places.empty()) places.push_back(work.places[i]);
      if (work.operands.empty()) continue;
      uses.emplace_back(work.operands[i].begin(), work.operands[i].end());
      operands.emplace_back(uses.back());
    }
  }
  Work work() const { return {.calls = calls, .places = places, .operands = operands}; }

  Address cells;
  std::vector<device::KernelCall> calls;
  std::vector<std::vector<std::byte*>> args;  // a vector that grows keeps what its elements own
  std::vector<device::CallPlace> places;
  std::vector<std::vector<device::Operand>> uses;
  std::vector<std::span<const device::Operand>> operands;
};

class CountedStream final : public device::Stream {
 public:
  explicit CountedStream(std::unique_ptr<Stream> inner) : inner_(std::move(inner)) {}

  void run(const Work& work, Address cells) override {
    ++counts.runs;
    inner_->run(work, cells);
  }
  std::unique_ptr<device::Recording> record(const Work& work, Address cells) override {
    if (!makes_recordings) return nullptr;
    ++counts.recordings;
    return std::make_unique<Kept>(work, cells);
  }
  void repeat(const device::Recording& recording, std::int64_t times) override {
    const auto& kept = static_cast<const Kept&>(recording);
    ++counts.repeats;
    counts.repeated_steps += times;
    for (std::int64_t i = 0; i < times; ++i) inner_->run(kept.work(), kept.cells);
  }
  std::shared_ptr<device::Event> mark(bool is_timed) override { return inner_->mark(is_timed); }
  void wait_for(const device::Event& event) override { inner_->wait_for(event); }
  void copy_in(Address to, const std::byte* from, std::int64_t bytes) override {
    ++counts.copies_in;
    counts.bytes_in += bytes;
    inner_->copy_in(to, from, bytes);
  }
  void copy_in_staged(Address to, const std::byte* from, std::int64_t bytes) override {
    ++counts.staged;
    inner_->copy_in_staged(to, from, bytes);
  }
  void copy_out(std::byte* to, Address from, std::int64_t bytes) override {
    ++counts.copies_out;
    inner_->copy_out(to, from, bytes);
  }
  void copy(Address to, Address from, std::int64_t bytes) override {
    inner_->copy(to, from, bytes);
  }
  void synchronize() override {
    ++counts.waits;
    inner_->synchronize();
  }

 private:
  std::unique_ptr<Stream> inner_;
};

class CountedDevice final : public device::Device {
 public:
  std::string name() const override { return "counted"; }
  bool is_host() const override { return false; }
  std::int64_t alignment() const override { return inner_.alignment(); }
  bool uses_host_threads() const override { return inner_.uses_host_threads(); }
  int num_compute_streams() const override { return inner_.num_compute_streams(); }
  std::unique_ptr<device::Stream> make_stream() override {
    return std::make_unique<CountedStream>(inner_.make_stream());
  }
  std::shared_ptr<std::byte> allocate_staging(std::int64_t bytes) override {
    return inner_.allocate_staging(bytes);
  }

 private:
  device::Buffer make_buffer(std::int64_t bytes) override { return inner_.allocate(bytes); }

  device::Device& inner_ = device::testing::simulated_device();
};

const device::DevicePlugin kPlugin{
    .lock = ONNXGRAD_PLUGIN_LOCK,
    .name = "counted",
    .count = [] { return 1; },
    .make_device = [](int /*index*/) -> std::unique_ptr<device::Device> {
      return std::make_unique<CountedDevice>();
    },
    .register_kernels = [](const opdef::KernelRegistry& cpu,
                           opdef::KernelRegistry& own) { own = cpu; }};

}  // namespace counted_device_parts

DeviceCounts& counted_device() {
  [[maybe_unused]] static const bool is_installed = [] {
    train::install_device(counted_device_parts::kPlugin);
    return true;
  }();
  return counted_device_parts::counts;
}

void let_record(bool on) { counted_device_parts::makes_recordings = on; }

}  // namespace onnxgrad::train_test
