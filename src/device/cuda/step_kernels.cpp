#include "device/cuda/step_kernels.h"

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "device/cuda/libraries.h"
#include "device/cuda/text_kernel.h"

namespace onnxgrad::device::cuda {
namespace {

static_assert(offsetof(opdef::StepCells, step) == sizeof(std::uint64_t));
static_assert(offsetof(SeriesCells, first_place) == sizeof(std::uint64_t));

// Cells and series are arrays of 8-byte words: [seed, step, ...] and [first_step, first_place].
constexpr const char* kText = R"(
OG_FUNCTION og_i64 og_step(const og_u64* cells, const og_u64* series) {
  return (og_i64)(cells[1] - series[0]);
}

OG_KERNEL(og_count_step, 1) { ++a.pointer<og_u64>(0)[1]; }

OG_KERNEL(og_take_scalar, 5) {
  const double value =
      a.pointer<double>(2)[og_step(a.pointer<og_u64>(0), a.pointer<og_u64>(1))];
  if (a.integer(4) != 0) {
    *a.pointer<double>(3) = value;
  } else {
    *a.pointer<float>(3) = (float)value;
  }
}

OG_KERNEL(og_keep_scalar, 5) {
  double* const at = a.pointer<double>(3) + og_step(a.pointer<og_u64>(0), a.pointer<og_u64>(1));
  *at = a.integer(4) != 0 ? *a.pointer<double>(2) : (double)*a.pointer<float>(2);
}

template <class T>
OG_FUNCTION void og_gather(const T* from, const og_i64* order, T* to, og_i64 first, og_i64 rows,
                           og_i64 units) {
  for (og_i64 i = og_first(); i < rows * units; i += og_stride()) {
    const og_i64 place = first + i / units;
    to[i] = from[(order == 0 ? place : order[place]) * units + i % units];
  }
}

OG_KERNEL(og_gather_rows, 8) {
  const og_u64* const series = a.pointer<og_u64>(1);
  const og_i64 first = (og_i64)series[1] + og_step(a.pointer<og_u64>(0), series) * a.integer(7);
  const og_i64* const order = a.pointer<og_i64>(3);
  const og_i64 bytes = a.integer(6);
  if (bytes % 4 == 0) {
    og_gather(a.pointer<og_u32>(2), order, a.pointer<og_u32>(4), first, a.integer(5), bytes / 4);
  } else {
    og_gather(a.pointer<og_u8>(2), order, a.pointer<og_u8>(4), first, a.integer(5), bytes);
  }
}

OG_KERNEL(og_copy_bytes, 3) {
  const og_i64 bytes = a.integer(2);
  const og_i64 whole = bytes / 4;  // addresses of values are multiples of 4
  const og_u32* const from = a.pointer<og_u32>(0);
  og_u32* const to = a.pointer<og_u32>(1);
  for (og_i64 i = og_first(); i < whole; i += og_stride()) to[i] = from[i];
  for (og_i64 i = whole * 4 + og_first(); i < bytes; i += og_stride()) {
    a.pointer<og_u8>(1)[i] = a.pointer<og_u8>(0)[i];
  }
}
)";

std::mutex mutex;
std::map<int, std::shared_ptr<const Module>> modules;  // by card; entries stay

std::shared_ptr<const Module> module_of_current_card() {
  const std::scoped_lock lock(mutex);
  const auto found = modules.find(Context::current_index());
  ONNXGRAD_ASSERT(found != modules.end());
  return found->second;
}

TextKernel text_of(const char* name, std::vector<Word> words, std::int64_t elements = 1) {
  constexpr int kThreads = 256;
  TextKernel kernel{.module = module_of_current_card(), .name = name, .words = std::move(words)};
  if (elements > 1) {
    kernel.block[0] = kThreads;
    kernel.grid[0] = num_blocks(elements, kThreads);
  }
  return kernel;
}

Word wide(const void* data) {
  return Word::of(std::int64_t{static_cast<const ScalarCopy*>(data)->dtype == DataType::kFloat64});
}

TextKernel text_of_count(const void* /*data*/) {
  return text_of("og_count_step", {Word::argument(0)});
}

TextKernel text_of_take(const void* data) {
  return text_of("og_take_scalar", {Word::cells(), Word::argument(0), Word::argument(1),
                                    Word::argument(2), wide(data)});
}

TextKernel text_of_keep(const void* data) {
  return text_of("og_keep_scalar", {Word::cells(), Word::argument(0), Word::argument(1),
                                    Word::argument(2), wide(data)});
}

TextKernel text_of_gather(const void* data) {
  const auto& gather = *static_cast<const RowGather*>(data);
  return text_of(
      "og_gather_rows",
      {Word::cells(), Word::argument(0), Word::argument(1), Word::argument(2), Word::argument(3),
       Word::of(gather.rows), Word::of(gather.row_bytes), Word::of(gather.batch_rows)},
      gather.rows * gather.row_bytes / 4);
}

TextKernel text_of_copy(const void* data) {
  const std::int64_t bytes = static_cast<const ByteCopy*>(data)->bytes;
  return text_of("og_copy_bytes", {Word::argument(0), Word::argument(1), Word::of(bytes)},
                 bytes / 4);
}

template <TextKernel (*kText)(const void* data)>
void launch_text(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  launch_text_kernel(kText(data), args, launch);
}

void copy_bytes(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto bytes = static_cast<std::size_t>(static_cast<const ByteCopy*>(data)->bytes);
  if (bytes == 0) return;
  if (Guard::current() != 0) return launch_text_kernel(text_of_copy(data), args, launch);
  check(driver().MemcpyDtoDAsync(reinterpret_cast<DevicePointer>(args[1]),
                                 reinterpret_cast<DevicePointer>(args[0]), bytes, launch.stream),
        "cuMemcpyDtoDAsync");
}

}  // namespace

void prepare_step_kernels(const std::shared_ptr<Context>& context) {
  const std::scoped_lock lock(mutex);
  std::shared_ptr<const Module>& made = modules[context->index()];
  if (made == nullptr) made = Module::of(context, kText);
}

const StepKernels& cuda_step_kernels() {
  static constexpr StepKernels kKernels{.count_step = launch_text<text_of_count>,
                                        .take_scalar = launch_text<text_of_take>,
                                        .keep_scalar = launch_text<text_of_keep>,
                                        .gather_rows = launch_text<text_of_gather>,
                                        .copy_bytes = copy_bytes};
  return kKernels;
}

std::optional<TextKernel> step_text_kernel(const KernelCall& call) {
  const StepKernels& own = cuda_step_kernels();
  if (call.fn == own.count_step) return text_of_count(call.data);
  if (call.fn == own.take_scalar) return text_of_take(call.data);
  if (call.fn == own.keep_scalar) return text_of_keep(call.data);
  if (call.fn == own.gather_rows) return text_of_gather(call.data);
  if (call.fn == own.copy_bytes) return text_of_copy(call.data);
  return std::nullopt;
}

}  // namespace onnxgrad::device::cuda
