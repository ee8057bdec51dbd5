#include "kernels.h"

#include <dlfcn.h>
#include <link.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <utility>

namespace onnxgrad::cuda_standin {

struct Index {
  unsigned x, y, z;
};
struct Machine {
  Index thread, block, block_dim, grid_dim;
  void (*barrier)();
};

namespace {

constexpr std::size_t kStack = 64 << 10;

// A thread of a block. Fibers wait for the next block where they are: switching by a context takes
// two calls of the system.
struct Fiber {
  ucontext_t first;  // where it begins
  void* at[5] = {};  // where it goes on
  std::unique_ptr<std::byte[]> stack;
  Index index;
  std::uint32_t number = 0;  // in the block
  bool is_done = false;

  Range range() const { return {stack.get(), stack.get() + kStack}; }
};

// The grid that runs: kernels run on one thread of the process at a time.
struct Running {
  const Function* function = nullptr;
  const void* parameters = nullptr;
  void* scheduler[5] = {};
  Fiber* fiber = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers;  // kept for the next grid; a context cannot move
};
Running running;

// Not inline: GCC drops the way back of a function that marks a place and jumps to another.
[[noreturn, gnu::noinline]] void jump(void** to) { __builtin_longjmp(to, 1); }

[[gnu::noinline]] void wait_at_barrier() {
  if (__builtin_setjmp(running.fiber->at) == 0) jump(running.scheduler);
}

void run_fiber() {
  for (;;) {
    running.function->run(running.parameters);
    running.fiber->is_done = true;
    wait_at_barrier();
  }
}

// Runs a fiber to its next barrier, or to its end.
[[gnu::noinline]] void resume(Fiber& fiber) {
  running.fiber = &fiber;
  if (__builtin_setjmp(running.scheduler) != 0) return;
  if (fiber.stack) jump(fiber.at);
  fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStack);
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = fiber.stack.get();
  fiber.first.uc_stack.ss_size = kStack;
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, run_fiber, 0);
  setcontext(&fiber.first);
}

std::vector<Index> threads_of(std::array<unsigned, 3> block) {
  std::vector<Index> threads;
  for (unsigned z = 0; z < block[2]; ++z) {
    for (unsigned y = 0; y < block[1]; ++y) {
      for (unsigned x = 0; x < block[0]; ++x) threads.push_back({x, y, z});
    }
  }
  return threads;
}

// A fast order of threads, which is taken between any two barriers (xorshift).
class Order {
 public:
  explicit Order(std::uint32_t seed) : state_(seed + 1) {}
  void shuffle(std::vector<Fiber*>& fibers) {
    for (std::size_t i = fibers.size(); i > 1; --i) std::swap(fibers[i - 1], fibers[below(i)]);
  }

 private:
  std::size_t below(std::size_t bound) {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<std::size_t>((state_ >> 32) * bound >> 32);
  }
  std::uint64_t state_;
};

// Where the kernel runs without a fiber: its elements are above the address of a local variable.
Range stack_above(const void* local) {
  constexpr std::size_t kMost = 256 << 10;
  const auto* here = static_cast<const std::byte*>(local);
  return {here - kMost, here + kMost};
}

bool run_block(Machine& machine, const std::vector<Index>& threads, Order& order) {
  machine.barrier = wait_at_barrier;
  while (running.fibers.size() < threads.size()) {
    running.fibers.push_back(std::make_unique<Fiber>());
  }
  std::vector<Fiber*> fibers(threads.size());
  for (std::size_t i = 0; i < threads.size(); ++i) {
    fibers[i] = running.fibers[i].get();
    fibers[i]->index = threads[i];
    fibers[i]->number = static_cast<std::uint32_t>(i);
    fibers[i]->is_done = false;
  }
  for (;;) {
    order.shuffle(fibers);
    std::size_t num_done = 0;
    for (Fiber* fiber : fibers) {
      machine.thread = fiber->index;
      if (running.function->records) set_thread(fiber->number, fiber->range());
      resume(*fiber);
      num_done += fiber->is_done ? 1U : 0U;
    }
    if (num_done == threads.size()) return true;
    if (num_done > 0) return false;
    pass_barrier();
  }
}

// Memory of a library, from its first to its last segment, and the bytes in it that begin as zeros:
// shared memory of its kernels.
struct Image {
  Range range;
  std::size_t zeros = 0;
};

Image image_of(const void* address) {
  struct Search {
    const void* address;
    Image found;
  } search{address, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* context) {
        auto& s = *static_cast<Search*>(context);
        const auto* base = reinterpret_cast<const std::byte*>(info->dlpi_addr);
        Range all{base, base};
        std::size_t zeros = 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type == PT_LOAD) {
            all.end = std::max(all.end, base + segment.p_vaddr + segment.p_memsz);
            zeros += segment.p_memsz - segment.p_filesz;
          }
        }
        if (!all.contains(s.address)) return 0;
        s.found = {all, zeros};
        return 1;
      },
      &search);
  return search.found;
}

}  // namespace

std::unique_ptr<Module> load_module(const void* image) {
  std::size_t bytes = 0;
  std::memcpy(&bytes, image, sizeof bytes);
  // A file of its own name for each image: dlopen() takes two of one name for one library.
  std::string path = (std::filesystem::temp_directory_path() / "onnxgrad_kernel_XXXXXX").string();
  const int file = ::mkstemp(path.data());
  const auto* begin = static_cast<const std::byte*>(image) + sizeof bytes;
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t written = ::write(file, begin + done, bytes - done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  ::close(file);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ::unlink(path.c_str());
  if (library == nullptr) return nullptr;
  auto* const machine = static_cast<Machine*>(::dlsym(library, "og_machine"));
  if (machine == nullptr) return nullptr;
  const auto* barriers = static_cast<const int*>(::dlsym(library, "og_has_barriers"));
  auto made = std::make_unique<Module>();
  made->library = library;
  made->machine = machine;
  made->has_barriers = barriers != nullptr && *barriers != 0;
  using Record = void (*)(const void*, std::size_t, bool);
  if (auto* const record = static_cast<Record*>(::dlsym(library, "og_record_access"))) {
    *record = record_access;
    made->records = true;
  }
  const Image loaded = image_of(machine);
  made->shared = loaded.range;
  made->shared_bytes = static_cast<int>(loaded.zeros);
  return made;
}

Function* find_function(Module& module, const char* name) {
  const auto run = reinterpret_cast<void (*)(const void*)>(::dlsym(module.library, name));
  const auto* words =
      static_cast<const int*>(::dlsym(module.library, (std::string(name) + "_words").c_str()));
  if (run == nullptr || words == nullptr) return nullptr;
  static auto* functions =
      new std::deque<Function>;  // to the end: they may be called when unloaded
  module.functions.push_back(&functions->emplace_back(Function{.run = run,
                                                               .machine = module.machine,
                                                               .has_barriers = module.has_barriers,
                                                               .records = module.records,
                                                               .shared = module.shared,
                                                               .shared_bytes = module.shared_bytes,
                                                               .words = *words,
                                                               .name = name}));
  return module.functions.back();
}

void unload(std::unique_ptr<Module> module) {
  for (Function* function : module->functions) function->run = nullptr;
  ::dlclose(module->library);
}

std::string run_grid(const Function& function, std::array<unsigned, 3> grid,
                     std::array<unsigned, 3> block, const std::vector<std::uint64_t>& words,
                     const std::function<std::uint32_t(std::uint32_t)>& random) {
  Machine& machine = *function.machine;
  machine.grid_dim = {grid[0], grid[1], grid[2]};
  machine.block_dim = {block[0], block[1], block[2]};
  running.function = &function;
  running.parameters = words.data();
  const std::vector<Index> threads = threads_of(block);
  Order order(function.has_barriers ? random(~std::uint32_t{0}) : 0);
  begin_grid(function.shared);
  std::uint32_t number = 0;
  for (unsigned z = 0; z < grid[2]; ++z) {
    for (unsigned y = 0; y < grid[1]; ++y) {
      for (unsigned x = 0; x < grid[0]; ++x) {
        machine.block = {x, y, z};
        begin_block(number++);
        if (!function.has_barriers) {  // no fibers are needed
          for (std::size_t i = 0; i < threads.size(); ++i) {
            machine.thread = threads[i];
            if (function.records) set_thread(static_cast<std::uint32_t>(i), stack_above(&i));
            function.run(words.data());
          }
          continue;
        }
        if (!run_block(machine, threads, order)) {
          return "threads of a block wait at a barrier that others never reach";
        }
      }
    }
  }
  return end_grid();
}

}  // namespace onnxgrad::cuda_standin
