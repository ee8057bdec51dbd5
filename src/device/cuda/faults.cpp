#include "device/cuda/faults.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

#include "device/step_kernels.h"

namespace onnxgrad::device::cuda {

// Kernels know this order: see og_checked in ops/index_walk_cuda.cpp.
struct Faults::Record {
  std::uint64_t is_taken = 0;
  std::int64_t value = 0;
  std::int64_t position = 0;
  std::uint64_t is_noted = 0;
  std::uint64_t board = 0;
  std::uint64_t refused = 0;  ///< the address of DeviceStepCells::is_refused, or 0
  std::array<std::uint64_t, 2> unused = {};
};

namespace {

// Memory that a kernel may write at any time is read and written as it stands.
template <class T>
volatile T& shared(T& value) {
  return value;
}

}  // namespace

Faults::Faults(Allocate allocate, Clear clear)
    : allocate_(std::move(allocate)), clear_(std::move(clear)), board_(allocate_(sizeof(Record))) {
  std::memset(board_.get(), 0, sizeof(Record));
}

Faults::Record* Faults::new_record() {
  constexpr std::size_t kRecords = 64;
  if (free_.empty()) {
    slabs_.push_back(allocate_(kRecords * sizeof(Record)));
    auto* const records = reinterpret_cast<Record*>(slabs_.back().get());
    for (std::size_t i = kRecords; i-- > 0;) free_.push_back(records + i);
  }
  Record* const record = free_.back();
  free_.pop_back();
  *record = {.board = reinterpret_cast<std::uintptr_t>(board_.get())};
  return record;
}

std::shared_ptr<const std::int64_t> Faults::add(Raise raise) {
  const std::scoped_lock lock(mutex_);
  Record* const record = new_record();
  raises_.emplace(record, std::move(raise));
  return {new std::int64_t(reinterpret_cast<std::intptr_t>(record)),
          [this, record](const std::int64_t* owned) {
            const std::scoped_lock guard(mutex_);
            raises_.erase(record);
            free_.push_back(record);
            delete owned;
          }};
}

void Faults::raise(const std::set<std::uint64_t>& cells) {
  auto& board = shared(*reinterpret_cast<std::int64_t*>(board_.get()));
  if (board == 0) return;
  Raise first;
  std::int64_t value = 0;
  std::int64_t position = 0;
  {
    const std::scoped_lock lock(mutex_);
    const std::int64_t earliest = board;
    board = 0;  // before the records: a note that comes now is found by the next call
    for (const auto& [place, raise] : raises_) {
      auto& record = shared(*place);
      if (record.is_noted == 0) continue;
      const auto address = reinterpret_cast<std::intptr_t>(place);
      constexpr std::uint64_t kOffset = offsetof(DeviceStepCells, is_refused);
      if (record.refused != 0 && !cells.contains(record.refused - kOffset)) {
        board = address;  // another stream's, which finds it when it has waited
        continue;
      }
      if (!first || address == earliest) {
        first = raise;
        value = record.value;
        position = record.position;
      }
      if (record.refused != 0) clear_(record.refused);
      record.refused = 0;
      record.is_noted = 0;
      record.is_taken = 0;
    }
  }
  if (first) first(value, position);
}

}  // namespace onnxgrad::device::cuda
