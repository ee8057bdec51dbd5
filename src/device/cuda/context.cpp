#include "device/cuda/context.h"

#include <fmt/format.h>

#include <array>
#include <limits>
#include <mutex>
#include <vector>

#include "device/cuda/libraries.h"
#include "onnxgrad/error.h"

namespace onnxgrad::device::cuda {
namespace {

thread_local int current_card = 0;

std::string name_of(int result) {
  const char* name = nullptr;
  driver().GetErrorName(result, &name);
  return name == nullptr ? fmt::format("error {}", result) : name;
}

// Errors of work that has left the context unusable (CUDA's documentation of CUresult).
bool is_lasting(int result) { return result >= kIllegalAddress && result < 800; }

int attribute(int card, DeviceAttribute which) {
  int value = 0;
  check(driver().DeviceGetAttribute(&value, which, card), "cuDeviceGetAttribute");
  return value;
}

}  // namespace

void check(int result, const char* call) {
  if (result == kSuccess) return;
  if (result == kOutOfMemory) {
    throw DeviceError({.what = "the card has no memory left",
                       .detail = fmt::format("{} returned {}.", call, name_of(result)),
                       .hint = "Use a smaller batch, or end other programs that use the card."});
  }
  if (is_lasting(result)) {
    throw DeviceError(
        {.what = "work on the card has failed",
         .detail = fmt::format("{} returned {}. The card is lost for this process.", call,
                               name_of(result)),
         .hint =
             "Restart the program; a step that fails again is a bug of onnxgrad: report it with "
             "the model."});
  }
  throw DeviceError({.what = fmt::format("{} returned {}", call, name_of(result)),
                     .hint = "Run nvidia-smi; if the card is well, report this as a bug."});
}

int num_cards() {
  if (!driver_problem().empty()) return 0;
  int count = 0;
  return driver().DeviceGetCount(&count) == kSuccess ? count : 0;
}

std::shared_ptr<Context> Context::open(int index) {
  static std::mutex mutex;
  static std::vector<std::shared_ptr<Context>> opened;
  const std::scoped_lock lock(mutex);
  const auto at = static_cast<std::size_t>(index);
  if (opened.size() <= at) opened.resize(at + 1);
  if (opened[at] == nullptr) opened[at] = made(index);
  return opened[at];
}

std::shared_ptr<Context> Context::made(int index) {
  return std::shared_ptr<Context>(new Context(index));
}

Context::Context(int index) : index_(index) {
  int card = 0;
  check(driver().DeviceGet(&card, index), "cuDeviceGet");
  std::array<char, 256> name{};
  check(driver().DeviceGetName(name.data(), static_cast<int>(name.size()), card),
        "cuDeviceGetName");
  name_ = name.data();
  major_ = attribute(card, kComputeCapabilityMajor);
  minor_ = attribute(card, kComputeCapabilityMinor);
  multiprocessors_ = attribute(card, kMultiprocessorCount);
  if (capability() < 75 || attribute(card, kMemoryPoolsSupported) == 0) {
    throw DeviceError({.what = fmt::format("{} has compute capability {}.{}, which is too old",
                                           name_, major_, minor_),
                       .hint = "Use a card of compute capability 7.5 or newer, or device='cpu'."});
  }
  std::size_t bytes = 0;
  check(driver().DeviceTotalMem(&bytes, card), "cuDeviceTotalMem");
  memory_bytes_ = static_cast<std::int64_t>(bytes);
  check(driver().PrimaryCtxRetain(&context_, card), "cuDevicePrimaryCtxRetain");
  make_current();
  check(driver().DeviceGetDefaultMemPool(&pool_, card), "cuDeviceGetDefaultMemPool");
  std::uint64_t kept = std::numeric_limits<std::uint64_t>::max();
  check(driver().MemPoolSetAttribute(pool_, kReleaseThreshold, &kept), "cuMemPoolSetAttribute");
  check(driver().StreamCreate(&allocations_, kNonBlocking), "cuStreamCreate");
  faults_ = std::make_unique<Faults>([this](std::int64_t size) { return allocate_pinned(size); },
                                     [this](std::uint64_t address) { clear_word(address); });
}

void Context::make_current() const {
  check(driver().CtxSetCurrent(context_), "cuCtxSetCurrent");
  current_card = index_;
}

int Context::current_index() { return current_card; }

// Any stream may use the memory when this returns. It is given back after all work that uses it:
// see Buffer.
Buffer Context::allocate(std::int64_t bytes) {
  make_current();
  const auto size = static_cast<std::size_t>(bytes > 0 ? bytes : 1);
  DevicePointer memory = 0;
  int result = driver().MemAllocAsync(&memory, size, allocations_);
  if (result == kOutOfMemory) {  // what the pool keeps may be in pieces
    check(driver().StreamSynchronize(allocations_), "cuStreamSynchronize");
    driver().MemPoolTrimTo(pool_, 0);
    result = driver().MemAllocAsync(&memory, size, allocations_);
  }
  check(result, "cuMemAllocAsync");
  check(driver().StreamSynchronize(allocations_), "cuStreamSynchronize");
  std::shared_ptr<const void> owner(this, [this, memory](const void* /*context*/) {
    if (driver().CtxSetCurrent(context_) == kSuccess) driver().MemFreeAsync(memory, allocations_);
  });
  return {.address = Address{memory}, .bytes = bytes, .owner = std::move(owner)};
}

void Context::upload(const Buffer& to, const void* from) const {
  make_current();
  check(driver().MemcpyHtoDAsync(static_cast<DevicePointer>(to.address), from,
                                 static_cast<std::size_t>(to.bytes), allocations_),
        "cuMemcpyHtoDAsync");
  check(driver().StreamSynchronize(allocations_), "cuStreamSynchronize");
}

void Context::clear_word(std::uint64_t address) const {
  make_current();
  check(driver().MemsetD8Async(address, 0, sizeof(std::uint64_t), allocations_), "cuMemsetD8Async");
  check(driver().StreamSynchronize(allocations_), "cuStreamSynchronize");
}

std::shared_ptr<std::byte> Context::allocate_pinned(std::int64_t bytes) const {
  make_current();
  void* memory = nullptr;
  check(driver().MemHostAlloc(&memory, static_cast<std::size_t>(bytes > 0 ? bytes : 1), 0),
        "cuMemHostAlloc");
  return {static_cast<std::byte*>(memory), [](std::byte* owned) { driver().MemFreeHost(owned); }};
}

}  // namespace onnxgrad::device::cuda
