#include "device/cuda/persistent.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "device/cuda/libraries.h"
#include "device/cuda/step_kernels.h"
#include "device/cuda/text_kernel.h"

namespace onnxgrad::device::cuda {
namespace {

constexpr std::size_t kMostLaunches = 512;
constexpr std::size_t kMostTexts = 96;
// A block of a kernel takes about as long as a node of a graph if it waits for memory a few times:
// with more than these in one, several multiprocessors are faster.
constexpr std::int64_t kMostBlocks = 32;
constexpr std::int64_t kMeanBlocks = 4;
constexpr std::int64_t kMostShared = 44 << 10;  // of the 48 KiB that a kernel may declare
// Steps of a launch; a card that also draws a screen stops kernels of some seconds.
constexpr std::int64_t kMostSteps = 4096;

// The hardware's names, before the texts see others of the same spelling.
constexpr const char* kBefore = R"(
OG_FUNCTION unsigned og_lane() { return threadIdx.x; }
OG_FUNCTION void og_wait() { __syncthreads(); }
struct og_extent {
  unsigned x, y, z;
};
struct og_launch {
  og_extent grid, dim, block;
};
OG_SHARED og_launch og_now;
OG_FUNCTION og_extent og_thread() {
  const unsigned lane = og_lane();
  og_extent at;
  at.x = lane % og_now.dim.x;
  at.y = lane / og_now.dim.x % og_now.dim.y;
  at.z = lane / (og_now.dim.x * og_now.dim.y);
  return at;
}
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#define threadIdx og_thread()
#define blockIdx og_now.block
#define blockDim og_now.dim
#define gridDim og_now.grid
#undef OG_KERNEL
#define OG_KERNEL(name, words) \
  enum { name##_words = words }; \
  OG_FUNCTION_APART void name(const og_words<words>& a)
)";

// A launch has a place in the table: grid, block, the words, then a guard. Its threads see what
// earlier ones wrote after a barrier, and og_now, their grid and block, after one too.
constexpr const char* kLaunch = R"(
OG_FUNCTION void og_enter(const og_u64* at) {
  og_now.grid.x = (unsigned)at[0];
  og_now.grid.y = (unsigned)at[1];
  og_now.grid.z = (unsigned)at[2];
  og_now.dim.x = (unsigned)at[3];
  og_now.dim.y = (unsigned)at[4];
  og_now.dim.z = (unsigned)at[5];
  og_now.block.x = og_now.block.y = og_now.block.z = 0;
}
#define OG_ENTER(place) \
  if (og_lane() == 0) og_enter(table + (place));
#define OG_RUN(place, threads, words_of, body) \
  if (og_lane() < (threads)) body(*(const og_words<words_of>*)(table + (place) + 6));
// Nobody refuses before all have looked.
#define OG_GUARDED(place, words_of, run)                            \
  {                                                                 \
    const bool goes_on = og_goes_on(table[(place) + 6 + words_of]); \
    og_wait();                                                      \
    if (goes_on) { run }                                            \
  }
#define OG_BLOCKS(place, run)                                       \
  {                                                                 \
    const og_u64* const at = table + (place);                       \
    for (og_u64 b = 0; b < at[0] * at[1] * at[2]; ++b) {            \
      if (og_lane() == 0) {                                         \
        og_enter(at);                                               \
        og_now.block.x = (unsigned)(b % at[0]);                     \
        og_now.block.y = (unsigned)(b / at[0] % at[1]);             \
        og_now.block.z = (unsigned)(b / (at[0] * at[1]));           \
      }                                                             \
      og_wait();                                                    \
      run                                                           \
      og_wait();                                                    \
    }                                                               \
  }
)";

struct Launched {
  TextKernel kernel;
  opdef::KernelArgs args;
  bool is_guarded;
  bool is_gather = false;
};

// nullopt: not all of the work is texts.
std::optional<std::vector<Launched>> launches_of(const Work& work) {
  std::vector<Launched> launches;
  for (std::size_t i = 0; i < work.calls.size(); ++i) {
    const KernelCall& call = work.calls[i];
    const bool is_guarded = !work.places.empty() && work.places[i].is_guarded;
    if (call.fn == launch_text_kernels) {
      for (const TextKernel& one : *static_cast<const std::vector<TextKernel>*>(call.data)) {
        launches.push_back({.kernel = one, .args = call.args, .is_guarded = is_guarded});
      }
    } else if (auto step = step_text_kernel(call)) {
      launches.push_back({.kernel = *std::move(step),
                          .args = call.args,
                          .is_guarded = is_guarded,
                          .is_gather = call.fn == cuda_step_kernels().gather_rows});
    } else {
      return std::nullopt;
    }
  }
  return launches;
}

std::int64_t product(const std::array<unsigned, 3>& numbers) {
  return std::int64_t{numbers[0]} * numbers[1] * numbers[2];
}

// Bytes of shared memory that a kernel declares.
std::int64_t shared_bytes(Handle function) {
  constexpr int kSharedSizeBytes = 1;  // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
  int bytes = 0;
  check(driver().FuncGetAttribute(&bytes, kSharedSizeBytes, function), "cuFuncGetAttribute");
  return bytes;
}

bool fits_one_block(const std::vector<Launched>& launches) {
  if (launches.size() < 2 || launches.size() > kMostLaunches) return false;
  std::int64_t all = 0;
  std::map<Handle, std::int64_t> shared;  // of functions
  for (const auto& [kernel, args, is_guarded, is_gather] : launches) {
    const Handle function = kernel.module->function(kernel.name);
    if (!shared.contains(function)) shared.emplace(function, shared_bytes(function));
    const std::int64_t blocks = product(kernel.grid);
    const std::int64_t threads = product(kernel.block);
    if (blocks > kMostBlocks || threads > kMostThreads || kernel.shared_bytes > 0) return false;
    // All threads of the block have to come to its barriers.
    const bool waits = kernel.module->text().find("__syncthreads") != std::string::npos;
    if (waits && threads != kMostThreads) return false;
    all += blocks;
  }
  // The kernel of all of them has the arrays of each.
  std::int64_t arrays = 0;
  for (const auto& [function, bytes] : shared) arrays += bytes;
  return arrays <= kMostShared && all <= kMeanBlocks * static_cast<std::int64_t>(launches.size());
}

/// A launch in the text of a step.
struct Step {
  std::size_t place = 0;  // in the table
  std::array<unsigned, 3> grid = {};
  std::array<unsigned, 3> block = {};
  std::string words = {};  // their number
  std::string body = {};
  bool is_guarded = false;
  bool is_gather = false;  // of a batch, which only later kernels read

  std::int64_t blocks() const { return product(grid); }
  bool is_thread() const { return blocks() == 1 && product(block) == 1 && !is_guarded; }
  // Whether og_now is still what this one needs.
  bool follows(const Step& before) const {
    return blocks() == 1 && before.blocks() == 1 && block == before.block;
  }
  std::string text() const {
    std::string text = fmt::format("OG_RUN({}, {}, {}, {})", place, product(block), words, body);
    if (blocks() > 1) text = fmt::format("OG_BLOCKS({}, {})", place, text);
    if (is_guarded) text = fmt::format("OG_GUARDED({}, {}, {})", place, words, text);
    return text + "\n";
  }
};

// The text of all launches. A barrier stands between two of them, unless the first thread does both
// or both gather a batch. That thread sets og_now where it changes, beside its own launches without
// a further barrier.
std::string text_of(const std::vector<Step>& steps) {
  std::string text;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& one = steps[i];
    const Step& before = steps[(i + steps.size() - 1) % steps.size()];
    const Step& after = steps[(i + 1) % steps.size()];
    const bool is_set = one.blocks() > 1 || one.follows(before) || before.is_thread();
    if (!is_set) text += fmt::format("OG_ENTER({})\n", one.place);
    if (!is_set && !one.is_thread()) text += "og_wait();\n";
    text += one.text();
    if (one.blocks() > 1) continue;
    if (one.is_thread() && after.blocks() == 1 && !after.follows(one)) {
      text += fmt::format("OG_ENTER({})\n", after.place);
    }
    const bool are_together = (one.is_thread() && after.is_thread()) ||
                              (one.is_gather && after.is_gather && after.follows(one));
    if (!are_together || i + 1 == steps.size()) text += "og_wait();\n";
  }
  return text;
}

class Persistent final : public CudaRecording {
 public:
  Persistent(std::shared_ptr<const Module> module, Buffer table)
      : module_(std::move(module)), table_(std::move(table)) {}
  Persistent(const Persistent&) = delete;
  Persistent& operator=(const Persistent&) = delete;
  ~Persistent() override {
    if (stream_ != nullptr) driver().StreamSynchronize(stream_);  // it reads the table
  }

  void launch(Handle stream, std::int64_t times) const override {
    stream_ = stream;
    while (times > 0) {
      const std::int64_t steps = std::min(times, kMostSteps);
      std::array<std::uint64_t, 3> words{static_cast<std::uint64_t>(table_.address),
                                         static_cast<std::uint64_t>(steps), 0};
      void* parameters[] = {words.data()};
      check(driver().LaunchKernel(module_->function("og_series"), 1, 1, 1, kMostThreads, 1, 1, 0,
                                  stream, parameters, nullptr),
            "cuLaunchKernel");
      times -= steps;
    }
  }

 private:
  std::shared_ptr<const Module> module_;
  Buffer table_;
  mutable Handle stream_ = nullptr;  ///< that it was launched on last
};

}  // namespace

std::unique_ptr<CudaRecording> make_persistent(const std::shared_ptr<Context>& context,
                                               const Work& work, Address cells) {
  const char* const wanted = std::getenv("ONNXGRAD_CUDA_PERSISTENT");
  if (wanted != nullptr && std::string_view(wanted) == "0") return nullptr;
  const auto launches = launches_of(work);
  if (!launches || !fits_one_block(*launches)) return nullptr;
  std::map<std::string, int> numbers;  // of the texts
  std::string texts;
  std::vector<Step> steps;
  std::vector<std::uint64_t> table;
  const opdef::Launch launch{
      .stream = nullptr,
      .cells = reinterpret_cast<const opdef::StepCells*>(kernel_argument(cells))};
  for (const auto& [kernel, args, is_guarded, is_gather] : *launches) {
    if (product(kernel.grid) == 0) continue;
    const std::string& text = kernel.module->text();
    const auto [known, is_new] = numbers.try_emplace(text, static_cast<int>(numbers.size()));
    if (is_new) texts += fmt::format("namespace og_{} {{\n{}\n}}\n", known->second, text);
    const std::string body = fmt::format("og_{}::{}", known->second, kernel.name);
    steps.push_back({.place = table.size(),
                     .grid = kernel.grid,
                     .block = kernel.block,
                     .words = body + "_words",
                     .body = body,
                     .is_guarded = is_guarded,
                     .is_gather = is_gather});
    for (const unsigned number : kernel.grid) table.push_back(number);
    for (const unsigned number : kernel.block) table.push_back(number);
    for (const Word& word : kernel.words) table.push_back(value_of(word, args, launch));
    if (is_guarded) table.push_back(Guard::address_of(cells, is_guarded));
  }
  if (numbers.empty() || numbers.size() > kMostTexts) return nullptr;
  const std::string whole = fmt::format(
      "{}{}{}OG_ENTRY(og_series, 2) {{\n"
      "  const og_u64* const table = a.pointer<og_u64>(0);\n"
      "  OG_ENTER({})\n  og_wait();\n"
      "  for (og_i64 step = 0; step < a.integer(1); ++step) {{\n{}  }}\n}}\n",
      kBefore, texts, kLaunch, steps.front().place, text_of(steps));
  auto module = Module::of(context, whole);
  Buffer memory = context->allocate(static_cast<std::int64_t>(table.size() * sizeof(table[0])));
  context->upload(memory, table.data());
  return std::make_unique<Persistent>(std::move(module), std::move(memory));
}

}  // namespace onnxgrad::device::cuda
