#include "device/cuda/text_kernel.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "device/cuda/compiler.h"
#include "device/cuda/libraries.h"
#include "opdef/expr_text.h"

namespace onnxgrad::device::cuda {

std::string_view kernel_prelude() {
  static const std::string text = fmt::format("#define OG_MOST_THREADS {}\n", kMostThreads) +
                                  R"(#ifdef __CUDACC_RTC__
#define OG_FUNCTION static __device__ __forceinline__
#define OG_SHARED __shared__
#define OG_FUNCTION_APART static __device__ __noinline__
#define OG_HANDLE(pointer) ((unsigned long long)(pointer))
#define OG_ENTRY(name, words)                                                            \
  static __device__ __forceinline__ void name##_body(const og_words<words + 1>& a);        \
  extern "C" __global__ void __launch_bounds__(OG_MOST_THREADS) name(const og_words<words + 1> a) { \
    if (og_goes_on(a.word[words])) name##_body(a);                                       \
  }                                                                                      \
  static __device__ __forceinline__ void name##_body(const og_words<words + 1>& a)
#define OG_ADDRESS(word) (word)
#endif
#define OG_KERNEL(name, words) OG_ENTRY(name, words)
#define og_first() ((og_i64)blockIdx.x * blockDim.x + threadIdx.x)
#define og_stride() ((og_i64)gridDim.x * blockDim.x)
)" + std::string(opdef::text_prelude()) +
                                  R"(
template <int n>
struct og_words {
  unsigned long long word[n];
  template <class T>
  OG_FUNCTION_MEMBER T* pointer(int i) const {
    return reinterpret_cast<T*>(OG_ADDRESS(word[i]));
  }
  OG_FUNCTION_MEMBER og_i64 integer(int i) const { return (og_i64)word[i]; }
  OG_FUNCTION_MEMBER double real(int i) const {
    double value;
    memcpy(&value, &word[i], sizeof value);
    return value;
  }
};
OG_FUNCTION bool og_goes_on(og_u64 guard) {
  return guard == 0 || *(const volatile og_u64*)OG_ADDRESS(guard) == 0;
}
)";
  static const std::string whole =
      "#ifdef __CUDACC_RTC__\n#define OG_FUNCTION_MEMBER __device__ __forceinline__\n#endif\n" +
      text;
  return whole;
}

std::string block_threads_text(unsigned most) {
  if (most <= kMostThreads) return {};
  return fmt::format("#undef OG_MOST_THREADS\n#define OG_MOST_THREADS {}\n", most);
}

Module::Module(std::shared_ptr<Context> context, std::string text)
    : context_(std::move(context)), text_(std::move(text)) {
  image_ = compile_text(std::string(kernel_prelude()) + text_, context_->capability());
}

std::shared_ptr<const Module> Module::of(const std::shared_ptr<Context>& context,
                                         const std::string& text) {
  static std::mutex mutex;
  static std::map<std::pair<int, std::string>, std::weak_ptr<const Module>> known;
  const std::scoped_lock lock(mutex);
  std::weak_ptr<const Module>& kept = known[{context->index(), base::checksum_hex(text)}];
  if (auto module = kept.lock()) return module;
  std::shared_ptr<const Module> module(new Module(context, text));
  kept = module;
  return module;
}

Handle Module::function(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  if (const auto it = functions_.find(name); it != functions_.end()) return it->second;
  context_->make_current();
  if (!module_) {
    Handle module = nullptr;
    check(driver().ModuleLoadData(&module, image_.get().data()), "cuModuleLoadData");
    module_ = Owned(module, driver().ModuleUnload);
  }
  Handle function = nullptr;
  check(driver().ModuleGetFunction(&function, module_.get(), name.c_str()), "cuModuleGetFunction");
  return functions_[name] = function;
}

std::uint64_t value_of(const Word& word, opdef::KernelArgs args, const opdef::Launch& launch) {
  switch (word.kind) {
    case Word::Kind::kArgument: {
      const std::byte* const argument = args[word.integer];
      return argument == nullptr ? 0
                                 : reinterpret_cast<std::uintptr_t>(argument) +
                                       static_cast<std::uint64_t>(word.offset);
    }
    case Word::Kind::kCells:
      return reinterpret_cast<std::uintptr_t>(launch.cells);
    case Word::Kind::kInteger:
      return static_cast<std::uint64_t>(word.integer);
    case Word::Kind::kReal:
      return std::bit_cast<std::uint64_t>(word.real);
  }
  return 0;
}

namespace {
thread_local std::uint64_t current_guard = 0;
}  // namespace

Guard::Guard(std::uint64_t address) : before_(std::exchange(current_guard, address)) {}
Guard::~Guard() { current_guard = before_; }
std::uint64_t Guard::current() { return current_guard; }
std::uint64_t Guard::address_of(Address cells, bool is_guarded) {
  if (!is_guarded || cells == Address::kNull) return 0;
  return static_cast<std::uint64_t>(cells) + offsetof(DeviceStepCells, is_refused);
}

void launch_text_kernel(const TextKernel& kernel, opdef::KernelArgs args,
                        const opdef::Launch& launch) {
  if (std::ranges::find(kernel.grid, 0U) != kernel.grid.end()) return;  // nothing to compute
  const unsigned threads = kernel.block[0] * kernel.block[1] * kernel.block[2];
  ONNXGRAD_ASSERT(threads <= kMostThreads ||
                  kernel.module->text().find(block_threads_text(threads)) != std::string::npos);
  constexpr std::size_t kMostWords = 480;  // 4 KB of parameters, less what the driver keeps
  std::array<std::uint64_t, kMostWords> words;
  std::size_t num_words = 0;
  for (const Word& word : kernel.words) words.at(num_words++) = value_of(word, args, launch);
  words.at(num_words) = Guard::current();
  void* parameters[] = {words.data()};
  check(driver().LaunchKernel(kernel.module->function(kernel.name), kernel.grid[0], kernel.grid[1],
                              kernel.grid[2], kernel.block[0], kernel.block[1], kernel.block[2],
                              kernel.shared_bytes, launch.stream, parameters, nullptr),
        "cuLaunchKernel");
}

void launch_text_kernels(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  for (const TextKernel& kernel : *static_cast<const std::vector<TextKernel>*>(data)) {
    launch_text_kernel(kernel, args, launch);
  }
}

unsigned num_blocks(std::int64_t elements, int threads) {
  constexpr std::int64_t kMost = 1 << 16;
  const std::int64_t blocks = (elements + threads - 1) / threads;
  return static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, kMost));
}

}  // namespace onnxgrad::device::cuda
