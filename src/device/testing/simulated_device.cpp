#include "device/testing/simulated_device.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "device/plugin_lock.h"
#include "device/testing/simulated_kernels.h"
#include "device/testing/simulated_memory.h"
#include "device/testing/simulated_stream.h"

namespace onnxgrad::device::testing {
namespace {

constexpr std::int32_t kExtensionDevice = 12;  // kDLExtDev of DLPack

std::uint64_t first_seed() {
  const char* given = std::getenv("ONNXGRAD_SIMULATED_SEED");
  return given == nullptr ? 0 : std::strtoull(given, nullptr, 10);
}

class SimulatedDevice final : public Device {
 public:
  explicit SimulatedDevice(int index) : index_(index) {}
  std::string name() const override { return "simulated:" + std::to_string(index_); }
  DlpackDevice dlpack_device() const override { return {.type = kExtensionDevice, .id = index_}; }
  bool is_host() const override { return false; }
  std::int64_t alignment() const override { return 256; }
  bool uses_host_threads() const override { return true; }  // its kernels are those of the CPU
  int num_compute_streams() const override { return SimulatedStream::kComputeStreams; }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<SimulatedStream>(parts_);
  }
  std::shared_ptr<std::byte> allocate_staging(std::int64_t bytes) override {
    return SimulatedMemory::allocate_staging(parts_->memory, bytes);
  }

  SimulatedParts& parts() const { return *parts_; }

 private:
  Buffer make_buffer(std::int64_t bytes) override {
    return SimulatedMemory::allocate(parts_->memory, bytes, alignment());
  }

  const int index_;
  std::shared_ptr<SimulatedParts> parts_ = std::make_shared<SimulatedParts>(first_seed());
};

// Two, so that their numbers are used.
int count() { return 2; }

std::unique_ptr<Device> make_device(int index) { return std::make_unique<SimulatedDevice>(index); }

}  // namespace

Device& simulated_device() {
  static SimulatedDevice device(0);
  return device;
}

HostReads host_reads() {
  return {.waits = SimulatedParts::num_waits, .copies_out = SimulatedParts::num_copies_out};
}

std::int64_t simulated_copies() {
  return SimulatedParts::num_copies_in + SimulatedParts::num_copies_out;
}

void set_seed(Device& simulated, std::uint64_t seed) {
  dynamic_cast<SimulatedDevice&>(simulated).parts().schedule.set_seed(seed);
}

Device& test_device() {
  const char* wanted = std::getenv("ONNXGRAD_DEVICE");
  const bool is_simulated = wanted != nullptr && std::string_view(wanted) == "simulated";
  return is_simulated ? simulated_device() : cpu();
}

const DevicePlugin& simulated_plugin() {
  static constexpr DevicePlugin plugin{.lock = ONNXGRAD_PLUGIN_LOCK,
                                       .name = "simulated",
                                       .count = count,
                                       .make_device = make_device,
                                       .register_kernels = register_simulated_kernels};
  return plugin;
}

}  // namespace onnxgrad::device::testing
