#include "device/cuda/faults.h"

#include <cstring>
#include <utility>

namespace onnxgrad::device::cuda {
namespace {

// Places on the board: the number of the kernel that took it, then what it noted.
enum Place : std::size_t { kTaken, kValue, kPosition, kNoted };

}  // namespace

Faults::Faults(std::shared_ptr<std::byte> board) : board_(std::move(board)) {
  std::memset(board_.get(), 0, kBoardBytes);
}

std::int64_t Faults::address() const { return reinterpret_cast<std::intptr_t>(board_.get()); }

std::int64_t Faults::read(std::size_t i) const {
  return reinterpret_cast<const volatile std::int64_t*>(board_.get())[i];
}

void Faults::clear(std::size_t i) { reinterpret_cast<volatile std::int64_t*>(board_.get())[i] = 0; }

std::shared_ptr<const std::int64_t> Faults::add(Raise raise) {
  const std::scoped_lock lock(mutex_);
  const std::int64_t number = ++last_;
  raises_.emplace(number, std::move(raise));
  return {new std::int64_t(number), [this](const std::int64_t* owned) {
            const std::scoped_lock guard(mutex_);
            raises_.erase(*owned);
            delete owned;
          }};
}

void Faults::raise() {
  if (read(kNoted) == 0) return;
  Raise raise;
  std::int64_t value = 0;
  std::int64_t position = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (read(kNoted) == 0) return;
    if (const auto it = raises_.find(read(kTaken)); it != raises_.end()) raise = it->second;
    value = read(kValue);
    position = read(kPosition);
    clear(kNoted);
    clear(kTaken);
  }
  if (raise) raise(value, position);
}

}  // namespace onnxgrad::device::cuda
