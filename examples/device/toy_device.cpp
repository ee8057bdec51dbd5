// A device in two hundred lines: what a plugin has to bring, and nothing else. Its memory is a
// block that only it can find, its work is done by this process when it is submitted, and it has
// one kernel, for MatMul of matrices in float32; onnxgrad runs all other operators on the CPU.
// docs/extending.md walks through it.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/plugin.h"
#include "device/plugin_lock.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"

namespace {

using namespace onnxgrad;
using device::Address;

// 1. Memory: 1 GiB, of which the system gives the pages that are written to. An address is an
// offset in it, plus kOrigin, so that no address is null.
constexpr std::int64_t kCapacity = std::int64_t{1} << 30;
constexpr std::int64_t kAlignment = 128;
constexpr std::uintptr_t kOrigin = 1 << 20;

class Pool {
 public:
  Pool() : memory_(static_cast<std::byte*>(std::calloc(kCapacity, 1)), std::free) {
    free_[0] = kCapacity;
  }

  // First fit. Throws: DeviceError.
  Address take(std::int64_t bytes) {
    bytes = (std::max<std::int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
    const std::scoped_lock lock(mutex_);
    for (auto [begin, size] : free_) {
      if (size < bytes) continue;
      free_.erase(begin);
      if (size > bytes) free_[begin + bytes] = size - bytes;
      taken_[begin] = bytes;
      return Address{kOrigin + static_cast<std::uintptr_t>(begin)};
    }
    throw DeviceError({.what = "the toy device has no memory left",
                       .hint = "Use a smaller batch, or another device."});
  }

  void give_back(Address address) {
    const std::scoped_lock lock(mutex_);
    auto at = free_.insert(taken_.extract(offset(address))).position;
    if (const auto next = std::next(at);
        next != free_.end() && at->first + at->second == next->first) {
      at->second += next->second;
      free_.erase(next);
    }
    if (at == free_.begin()) return;
    const auto before = std::prev(at);
    if (before->first + before->second != at->first) return;
    before->second += at->second;
    free_.erase(at);
  }

  std::byte* pointer(Address address) const {
    return address == Address::kNull ? nullptr : memory_.get() + offset(address);
  }

 private:
  static std::int64_t offset(Address address) {
    return static_cast<std::int64_t>(static_cast<std::uintptr_t>(address) - kOrigin);
  }

  std::unique_ptr<std::byte, decltype(&std::free)> memory_;
  std::mutex mutex_;
  std::map<std::int64_t, std::int64_t> free_;   // sizes by offset
  std::map<std::int64_t, std::int64_t> taken_;  // the same
};

// 2. A stream. Nothing is left to do when a function returns, so events are reached at once. A
// device that works on its own would submit here, and wait in synchronize().
class Reached final : public device::Event {
 public:
  bool is_done() const override { return true; }
  void wait() const override {}
  double seconds_after(const device::Event& earlier) const override {
    return std::chrono::duration<double>(at_ - static_cast<const Reached&>(earlier).at_).count();
  }

 private:
  std::chrono::steady_clock::duration at_ = std::chrono::steady_clock::now().time_since_epoch();
};

class ToyStream final : public device::Stream {
 public:
  explicit ToyStream(const Pool& pool) : pool_(pool) {}

  // Kernels get what is a pointer on this device. Calls are in an order in which one stream can run
  // them.
  void run(const device::Work& work, Address cells) override {
    const opdef::Launch launch{.cells =
                                   reinterpret_cast<const opdef::StepCells*>(pool_.pointer(cells))};
    for (const device::KernelCall& call : work.calls) {
      std::vector<std::byte*> args;
      for (std::size_t i = 0; i < call.num_args; ++i) {
        args.push_back(pool_.pointer(device::address_of(call.args[i])));
      }
      call.fn(call.data, args.data(), launch);
    }
  }
  void copy_in(Address to, const std::byte* from, std::int64_t bytes) override {
    std::memcpy(pool_.pointer(to), from, static_cast<std::size_t>(bytes));
  }
  void copy_out(std::byte* to, Address from, std::int64_t bytes) override {
    std::memcpy(to, pool_.pointer(from), static_cast<std::size_t>(bytes));
  }
  void copy(Address to, Address from, std::int64_t bytes) override {
    std::memcpy(pool_.pointer(to), pool_.pointer(from), static_cast<std::size_t>(bytes));
  }
  std::shared_ptr<device::Event> mark(bool /*is_timed*/) override {
    return std::make_shared<Reached>();
  }
  void wait_for(const device::Event& /*event*/) override {}
  void synchronize() override {}

 private:
  const Pool& pool_;
};

// 3. The device. Its step kernels, which keep a series of steps free of the host, are by default
// those of a device that runs functions of this process.
class ToyDevice final : public device::Device {
 public:
  std::string name() const override { return "toy"; }
  bool is_host() const override { return false; }
  std::int64_t alignment() const override { return kAlignment; }
  std::unique_ptr<device::Stream> make_stream() override {
    return std::make_unique<ToyStream>(*pool_);
  }

 private:
  device::Buffer make_buffer(std::int64_t bytes) override {
    const Address address = pool_->take(bytes);
    std::shared_ptr<const void> owner(
        pool_.get(), [pool = pool_, address](const void* /*pool*/) { pool->give_back(address); });
    return {.address = address, .bytes = bytes, .owner = std::move(owner)};
  }

  std::shared_ptr<Pool> pool_ = std::make_shared<Pool>();  // buffers keep it
};

// 4. A kernel: a function, and the data that an offer prepares for it when a plan is made.
struct MatMul {
  std::int64_t rows = 0;
  std::int64_t inner = 0;
  std::int64_t columns = 0;
};

void run_matmul(const void* data, opdef::KernelArgs args, const opdef::Launch& /*launch*/) {
  const auto& [rows, inner, columns] = *static_cast<const MatMul*>(data);
  const auto* a = args.at<float>(0);
  const auto* b = args.at<float>(1);
  auto* c = args.at<float>(2);
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < inner; ++k) sum += double{a[i * inner + k]} * b[k * columns + j];
      c[i * columns + j] = static_cast<float>(sum);
    }
  }
}

opdef::KernelOffer offer_matmul(const opdef::KernelRequest& request) {
  const auto& a = request.inputs[0];
  const auto& b = request.inputs[1];
  if (a.dtype != DataType::kFloat32) return opdef::KernelOffer::decline("float32 only");
  if (a.dims.rank() != 2 || b.dims.rank() != 2) return opdef::KernelOffer::decline("matrices only");
  const MatMul sizes{.rows = a.dims[0], .inner = a.dims[1], .columns = b.dims[1]};
  opdef::PreparedKernel kernel{
      .fn = run_matmul, .data = std::make_shared<const MatMul>(sizes), .label = "toy"};
  return {.kernel = std::move(kernel), .declined = {}};
}

// 5. The plugin.
constexpr device::DevicePlugin kPlugin{
    .lock = ONNXGRAD_PLUGIN_LOCK,
    .name = "toy",
    .count = [] { return 1; },
    .make_device = [](int /*index*/) -> std::unique_ptr<device::Device> {
      return std::make_unique<ToyDevice>();
    },
    .register_kernels = [](const opdef::KernelRegistry& /*cpu*/,
                           opdef::KernelRegistry& own) { own.add("", "MatMul", 0, offer_matmul); }};

}  // namespace

extern "C" [[gnu::visibility("default")]] const device::DevicePlugin* onnxgrad_device_plugin() {
  return &kPlugin;
}
