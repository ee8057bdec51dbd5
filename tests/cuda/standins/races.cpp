#include "races.h"

#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <unordered_map>

namespace onnxgrad::cuda_standin {
namespace {

// Who accessed a byte last, and when: numbers of grids and of the times between barriers never
// repeat.
struct Access {
  std::uint32_t grid = 0, segment = 0, block = 0, thread = 0;
};

// Accesses of a byte since the grid began.
struct Cell {
  Access write, read;
  bool many_threads = false;  // have read in the segment of `read`
  bool many_blocks = false;   // have read in its grid
};

constexpr std::uintptr_t kPage = 1024;
using Page = std::array<Cell, kPage>;

struct State {
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages;
  std::uintptr_t last_number = 0;
  Page* last = nullptr;
  Access now;
  Range shared, stack;
  std::string found;
};

State& state() {
  static State state;
  return state;
}

Cell& cell_of(State& s, std::uintptr_t at) {
  const std::uintptr_t number = at / kPage;
  if (s.last == nullptr || number != s.last_number) {
    std::unique_ptr<Page>& page = s.pages[number];
    if (page == nullptr) page = std::make_unique<Page>();
    s.last = page.get();
    s.last_number = number;
  }
  return (*s.last)[at % kPage];
}

// Whether `before` is not ordered before an access of now, by another thread.
bool conflicts(const Access& before, const Access& now, bool is_shared) {
  if (before.grid != now.grid) return false;
  if (before.block != now.block) return !is_shared;
  return before.segment == now.segment && before.thread != now.thread;
}

void report(State& s, const Access& other, const char* what, bool is_shared) {
  if (!s.found.empty()) return;
  s.found = std::string("thread ") + std::to_string(s.now.thread) + " of block " +
            std::to_string(s.now.block) + " " + what + " thread " + std::to_string(other.thread) +
            " of block " + std::to_string(other.block) + ", without a barrier between, in " +
            (is_shared ? "shared memory" : "memory of the card");
}

void record_byte(State& s, std::uintptr_t at, bool writes, bool is_shared) {
  Cell& cell = cell_of(s, at);
  const Access& now = s.now;
  if (conflicts(cell.write, now, is_shared)) {
    report(s, cell.write, writes ? "writes what was written by" : "reads what was written by",
           is_shared);
  }
  if (writes) {
    const bool others =
        cell.read.grid == now.grid && ((cell.many_blocks && !is_shared) ||
                                       (cell.many_threads && cell.read.segment == now.segment));
    if (others || conflicts(cell.read, now, is_shared)) {
      report(s, cell.read, "writes what was read by", is_shared);
    }
    cell.write = now;
    return;
  }
  const bool is_same_grid = cell.read.grid == now.grid;
  const bool is_same_segment = is_same_grid && cell.read.segment == now.segment;
  cell.many_threads = is_same_segment && (cell.many_threads || cell.read.thread != now.thread);
  cell.many_blocks = is_same_grid && (cell.many_blocks || cell.read.block != now.block);
  cell.read = now;
}

}  // namespace

void begin_grid(Range shared) {
  State& s = state();
  ++s.now.grid;
  s.shared = shared;
  s.found.clear();
}

void begin_block(std::uint32_t block) {
  ++state().now.segment;
  state().now.block = block;
}

void pass_barrier() { ++state().now.segment; }

void set_thread(std::uint32_t thread, Range stack) {
  state().now.thread = thread;
  state().stack = stack;
}

void record_access(const void* at, std::size_t bytes, bool writes) {
  State& s = state();
  if (s.stack.contains(at)) return;
  const bool is_shared = s.shared.contains(at);
  const auto first = reinterpret_cast<std::uintptr_t>(at);
  for (std::size_t i = 0; i < bytes; ++i) record_byte(s, first + i, writes, is_shared);
}

std::string end_grid() { return state().found; }

bool only_reports_races() {
  const char* wanted = std::getenv("ONNXGRAD_STANDIN_RACES");
  return wanted != nullptr && std::string_view(wanted) == "report";
}

}  // namespace onnxgrad::cuda_standin
