#include "device/testing/simulated_device.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/memory_budget.h"
#include "device/plugin_lock.h"

namespace onnxgrad::device::testing {
namespace {

// Bit 62 makes an address non-canonical: x86-64 and AArch64 fault on any use of it as a pointer.
constexpr std::uintptr_t kTag = std::uintptr_t{1} << 62;
constexpr int kPoison = 0xFF;  // NaN as floating-point number, -1 as integer
constexpr std::size_t kMostQueued = 4096;
constexpr std::int32_t kExtensionDevice = 12;  // kDLExtDev of DLPack

std::atomic<std::int64_t> copies_between_memories = 0;  // of all devices

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "simulated device: %s\n", what);
  std::abort();
}

// The currently allocated memory, by tagged address.
class Memory {
 public:
  void add(Address address, std::int64_t bytes) {
    const std::scoped_lock lock(mutex_);
    ranges_.emplace(static_cast<std::uintptr_t>(address), bytes);
  }
  void remove(Address address) {
    const std::scoped_lock lock(mutex_);
    ranges_.erase(static_cast<std::uintptr_t>(address));
  }
  /// Returns the pointer for an address. `bytes` from there on must belong to one buffer.
  std::byte* pointer(Address address, std::int64_t bytes) const {
    const auto at = static_cast<std::uintptr_t>(address);
    const std::scoped_lock lock(mutex_);
    auto range = ranges_.upper_bound(at);
    if (range == ranges_.begin()) die("an address that is not memory of the device");
    --range;
    if (static_cast<std::int64_t>(at - range->first) + bytes > range->second) {
      die("an address outside the device's buffers");
    }
    return reinterpret_cast<std::byte*>(at & ~kTag);  // NOLINT(performance-no-int-to-ptr)
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, std::int64_t> ranges_;
};

class SimulatedEvent final : public Event {
 public:
  explicit SimulatedEvent(Stream& stream) : stream_(stream) {}
  void reach() {
    at_ = std::chrono::steady_clock::now().time_since_epoch();
    is_done_ = true;
  }
  bool is_done() const override { return is_done_; }
  void wait() const override {
    if (!is_done_) stream_.synchronize();
  }
  double seconds() const override {
    wait();
    return std::chrono::duration<double>(at_).count();
  }

 private:
  Stream& stream_;
  std::atomic<bool> is_done_ = false;
  std::chrono::steady_clock::duration at_ = {};
};

class SimulatedStream final : public Stream {
 public:
  explicit SimulatedStream(const Memory& memory) : memory_(memory), worker_([this] { work(); }) {}

  ~SimulatedStream() override {
    {
      const std::scoped_lock lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    worker_.join();
  }

  void run(const Work& work, Address cells) override {
    for (const KernelCall& call : work.calls) {
      std::vector<Address> args;
      for (std::size_t i = 0; i < call.num_args; ++i) args.push_back(address_of(call.args[i]));
      give([this, fn = call.fn, data = call.data, args = std::move(args), cells] {
        std::vector<std::byte*> pointers;
        for (const Address address : args) {
          pointers.push_back(address == Address::kNull ? nullptr : memory_.pointer(address, 0));
        }
        const std::byte* own_cells = memory_.pointer(cells, sizeof(opdef::StepCells));
        fn(data, pointers.data(),
           {.stream = nullptr, .cells = reinterpret_cast<const opdef::StepCells*>(own_cells)});
      });
    }
  }

  std::shared_ptr<Event> mark(bool /*is_timed*/) override {
    auto event = std::make_shared<SimulatedEvent>(*this);
    give([event] { event->reach(); });
    return event;
  }
  void wait_for(const Event& event) override { event.wait(); }

  void copy_in(Address to, const std::byte* from, std::int64_t bytes) override {
    ++copies_between_memories;
    give([this, to, kept = std::vector<std::byte>(from, from + bytes)] {
      const auto size = static_cast<std::int64_t>(kept.size());
      std::memcpy(memory_.pointer(to, size), kept.data(), kept.size());
    });
  }

  void copy_out(std::byte* to, Address from, std::int64_t bytes) override {
    ++copies_between_memories;
    std::memset(to, kPoison, static_cast<std::size_t>(bytes));
    give([this, to, from, bytes] {
      std::memcpy(to, memory_.pointer(from, bytes), static_cast<std::size_t>(bytes));
    });
  }

  void copy(Address to, Address from, std::int64_t bytes) override {
    give([this, to, from, bytes] {
      std::memcpy(memory_.pointer(to, bytes), memory_.pointer(from, bytes),
                  static_cast<std::size_t>(bytes));
    });
  }

  void synchronize() override {
    std::unique_lock lock(mutex_);
    is_awaited_ = true;
    changed_.notify_all();
    changed_.wait(lock, [this] { return queue_.empty() && !is_working_; });
    is_awaited_ = false;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void give(std::function<void()> work) {
    const std::scoped_lock lock(mutex_);
    queue_.push_back(std::move(work));
    if (queue_.size() >= kMostQueued) changed_.notify_all();
  }

  bool has_to_work() const {
    return !queue_.empty() && (is_awaited_ || queue_.size() >= kMostQueued);
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ends_ || has_to_work(); });
      if (!has_to_work()) return;  // work that nobody waited for is never done
      const std::function<void()> next = std::move(queue_.front());
      queue_.pop_front();
      is_working_ = true;
      lock.unlock();
      std::exception_ptr error;
      try {
        next();
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      is_working_ = false;
      if (error) {
        error_ = error;
        queue_.clear();
      }
      if (queue_.empty()) changed_.notify_all();
    }
  }

  const Memory& memory_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  std::exception_ptr error_;
  bool is_awaited_ = false;
  bool is_working_ = false;
  bool ends_ = false;
  std::thread worker_;
};

class SimulatedDevice final : public Device {
 public:
  explicit SimulatedDevice(int index) : index_(index) {}
  std::string name() const override { return "simulated:" + std::to_string(index_); }
  DlpackDevice dlpack_device() const override { return {.type = kExtensionDevice, .id = index_}; }
  bool is_host() const override { return false; }
  std::int64_t alignment() const override { return 256; }
  bool uses_host_threads() const override { return true; }  // its kernels are those of the CPU
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<SimulatedStream>(memory_);
  }

 private:
  Buffer make_buffer(std::int64_t bytes) override {
    const std::shared_ptr<std::byte> real = base::allocate_uncharged(bytes + alignment());
    const auto begin = reinterpret_cast<std::uintptr_t>(real.get());
    const auto unit = static_cast<std::uintptr_t>(alignment());
    const std::uintptr_t aligned = (begin + unit - 1) / unit * unit;
    std::memset(real.get() + (aligned - begin), kPoison, static_cast<std::size_t>(bytes));
    const Address address{aligned | kTag};
    memory_.add(address, bytes);
    std::shared_ptr<const void> owner(
        real.get(), [this, real, address](const void*) { memory_.remove(address); });
    return {.address = address, .bytes = bytes, .owner = std::move(owner)};
  }

  const int index_;
  Memory memory_;
};

// Two, so that their numbers are used.
int count() { return 2; }

std::unique_ptr<Device> make_device(int index) { return std::make_unique<SimulatedDevice>(index); }

}  // namespace

Device& simulated_device() {
  static SimulatedDevice device(0);
  return device;
}

std::int64_t simulated_copies() { return copies_between_memories; }

Device& test_device() {
  const char* wanted = std::getenv("ONNXGRAD_DEVICE");
  const bool is_simulated = wanted != nullptr && std::string_view(wanted) == "simulated";
  return is_simulated ? simulated_device() : cpu();
}

const DevicePlugin& simulated_plugin() {
  static constexpr DevicePlugin plugin{
      .lock = ONNXGRAD_PLUGIN_LOCK,
      .name = "simulated",
      .count = count,
      .make_device = make_device,
      .register_kernels = [](const opdef::KernelRegistry& cpu, opdef::KernelRegistry& own) {
        own = cpu;
      }};
  return plugin;
}

}  // namespace onnxgrad::device::testing
