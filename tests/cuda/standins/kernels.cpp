#include "kernels.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>

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

struct Fiber {
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack;
  Index index;
  bool is_done = false;
};

// The grid that runs: kernels run on one thread of the process at a time.
struct Running {
  const Function* function = nullptr;
  const void* parameters = nullptr;
  ucontext_t scheduler;
  Fiber* fiber = nullptr;
};
Running running;

void enter_fiber() {
  running.function->run(running.parameters);
  running.fiber->is_done = true;
}

void wait_at_barrier() { swapcontext(&running.fiber->context, &running.scheduler); }

void start(Fiber& fiber) {
  getcontext(&fiber.context);
  if (!fiber.stack) fiber.stack = std::make_unique<std::byte[]>(kStack);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = &running.scheduler;
  fiber.is_done = false;
  makecontext(&fiber.context, enter_fiber, 0);
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

template <class T>
void shuffle(std::vector<T>& items, const std::function<std::uint32_t(std::uint32_t)>& random) {
  for (std::size_t i = items.size(); i > 1; --i) {
    std::swap(items[i - 1], items[random(static_cast<std::uint32_t>(i))]);
  }
}

bool run_block(Machine& machine, const std::vector<Index>& threads, std::vector<Fiber>& fibers,
               const std::function<std::uint32_t(std::uint32_t)>& random) {
  machine.barrier = wait_at_barrier;
  std::vector<std::size_t> order(threads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = 0; i < threads.size(); ++i) {
    fibers[i].index = threads[i];
    start(fibers[i]);
  }
  for (;;) {
    shuffle(order, random);
    std::size_t num_done = 0;
    for (const std::size_t i : order) {
      Fiber& fiber = fibers[i];
      machine.thread = fiber.index;
      running.fiber = &fiber;
      swapcontext(&running.scheduler, &fiber.context);
      num_done += fiber.is_done ? 1U : 0U;
    }
    if (num_done == fibers.size()) return true;
    if (num_done > 0) return false;
  }
}

}  // namespace

std::unique_ptr<Module> load_module(const void* image) {
  std::size_t bytes = 0;
  std::memcpy(&bytes, image, sizeof bytes);
  const int file = ::memfd_create("kernel", 0);
  const auto* begin = static_cast<const std::byte*>(image) + sizeof bytes;
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t written = ::write(file, begin + done, bytes - done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  const std::string path = "/proc/self/fd/" + std::to_string(file);
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ::close(file);
  if (library == nullptr) return nullptr;
  auto* const machine = static_cast<Machine*>(::dlsym(library, "og_machine"));
  if (machine == nullptr) return nullptr;
  const auto* barriers = static_cast<const int*>(::dlsym(library, "og_has_barriers"));
  return std::make_unique<Module>(Module{.library = library,
                                         .machine = machine,
                                         .has_barriers = barriers != nullptr && *barriers != 0});
}

std::unique_ptr<Function> find_function(const Module& module, const char* name) {
  const auto run = reinterpret_cast<void (*)(const void*)>(::dlsym(module.library, name));
  const auto* words =
      static_cast<const int*>(::dlsym(module.library, (std::string(name) + "_words").c_str()));
  if (run == nullptr || words == nullptr) return nullptr;
  return std::make_unique<Function>(
      Function{.run = run,
                                             .machine = module.machine,
                                             .has_barriers = module.has_barriers,
                                             .words = *words,
                                             .name = name});
}

bool run_grid(const Function& function, std::array<unsigned, 3> grid,
              std::array<unsigned, 3> block, const std::vector<std::uint64_t>& words,
              const std::function<std::uint32_t(std::uint32_t)>& random) {
  Machine& machine = *function.machine;
  machine.grid_dim = {grid[0], grid[1], grid[2]};
  machine.block_dim = {block[0], block[1], block[2]};
  running.function = &function;
  running.parameters = words.data();
  const std::vector<Index> threads = threads_of(block);
  std::vector<Fiber> fibers;
  for (unsigned z = 0; z < grid[2]; ++z) {
    for (unsigned y = 0; y < grid[1]; ++y) {
      for (unsigned x = 0; x < grid[0]; ++x) {
        machine.block = {x, y, z};
        if (!function.has_barriers) {  // no fibers are needed
          for (const Index& thread : threads) {
            machine.thread = thread;
            function.run(words.data());
          }
          continue;
        }
        if (fibers.empty()) fibers.resize(threads.size());
        if (!run_block(machine, threads, fibers, random)) return false;
      }
    }
  }
  return true;
}

}  // namespace onnxgrad::cuda_standin
