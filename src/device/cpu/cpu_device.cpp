#include <chrono>
#include <cstring>

#include "base/memory_budget.h"
#include "device/device.h"

// The CPU as a device: addresses are pointers, and work is done when it is submitted.

namespace onnxgrad::device {
namespace {

// All is done when it is submitted.
class DoneEvent final : public Event {
 public:
  bool is_done() const override { return true; }
  void wait() const override {}
  double seconds_after(const Event& earlier) const override {
    return std::chrono::duration<double>(at_ - static_cast<const DoneEvent&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::duration at_ = std::chrono::steady_clock::now().time_since_epoch();
};

class CpuStream final : public Stream {
 public:
  void run(const Work& work, Address cells) override {
    const opdef::Launch launch{
        .stream = nullptr,
        .cells = reinterpret_cast<const opdef::StepCells*>(kernel_argument(cells))};
    for (const KernelCall& call : work.calls) call.fn(call.data, call.args, launch);
  }
  std::shared_ptr<Event> mark(bool /*is_timed*/) override { return std::make_shared<DoneEvent>(); }
  void wait_for(const Event& /*event*/) override {}
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
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CpuStream>(); }

 private:
  Buffer make_buffer(std::int64_t bytes) override {
    auto memory = base::allocate_uncharged(bytes);
    return {.address = address_of(memory.get()), .bytes = bytes, .owner = std::move(memory)};
  }
};

}  // namespace

Device& cpu() {
  static CpuDevice device;
  return device;
}

}  // namespace onnxgrad::device
