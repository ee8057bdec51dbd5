#include <cstring>

#include "base/memory_budget.h"
#include "device/cpu/threads.h"
#include "device/device.h"

// The CPU as a device: addresses are pointers, and work is done when it is submitted.

namespace onnxgrad::device {
namespace {

// Nanoseconds of work that pay for another thread: in a kernel, when the threads are awake; in a
// plan, before which they may have to be woken.
constexpr double kKernelShareNs = 1e3;
constexpr double kPlanShareNs = 20e3;

class CpuStream final : public Stream {
 public:
  void run(std::span<const KernelCall> calls, const opdef::StepCells& cells) override {
    const opdef::Launch launch{.stream = nullptr, .cells = &cells};
    for (const KernelCall& call : calls) call.fn(call.data, call.args, launch);
  }
  void copy_in(Address to, const std::byte* from, std::int64_t bytes) override {
    std::memcpy(kernel_argument(to), from, static_cast<std::size_t>(bytes));
  }
  void copy_out(std::byte* to, Address from, std::int64_t bytes) override {
    std::memcpy(to, kernel_argument(from), static_cast<std::size_t>(bytes));
  }
  void copy(Address to, Address from, std::int64_t bytes) override {
    std::memcpy(kernel_argument(to), kernel_argument(from), static_cast<std::size_t>(bytes));
  }
  void synchronize() override {}
};

class CpuDevice final : public Device {
 public:
  std::string name() const override { return "cpu"; }
  bool is_host() const override { return true; }
  std::int64_t alignment() const override { return 64; }
  Buffer allocate(std::int64_t bytes) override {
    auto memory = base::allocate_aligned(bytes);
    return {.address = address_of(memory.get()), .bytes = bytes, .owner = std::move(memory)};
  }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }
  int threads_of_kernel(double cost_ns, int most) const override {
    return useful_threads(cost_ns, kKernelShareNs, most);
  }
  int threads_of_plan(double cost_ns, int most) const override {
    return useful_threads(cost_ns, kPlanShareNs, most);
  }
  void start_threads(int count) override { device::start_threads(count); }
  int take_threads_used() override { return device::take_threads_used(); }
};

}  // namespace

Device& cpu() {
  static CpuDevice device;
  return device;
}

}  // namespace onnxgrad::device
