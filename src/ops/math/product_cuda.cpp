#include "ops/math/product_cuda.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "base/rounding.h"
#include "device/cuda/blas_lt.h"
#include "opdef/expr_text.h"
#include "opdef/fused.h"
#include "ops/kernel_support_cuda.h"

namespace onnxgrad::ops {

namespace product_cuda {
namespace {

using base::ceil_div;
using device::cuda::BlasLtProduct;
using device::cuda::BlasLtSpec;
using device::cuda::TextKernel;
using device::cuda::Word;
using opdef::ExprInstruction;
using opdef::ExprOp;
using opdef::ExprProgram;

constexpr int kThreads = 256;
constexpr std::int64_t kAlignment = 256;  // of what is in scratch
constexpr std::int64_t kMostGrid = 65535;

bool is_half(DataType dtype) { return dtype == DataType::kFloat16 || dtype == DataType::kBfloat16; }

std::int64_t bytes_of(DataType dtype) {
  if (is_half(dtype)) return 2;
  const bool is_narrow =
      dtype == DataType::kFloat32 || dtype == DataType::kInt32 || dtype == DataType::kUint32;
  return is_narrow ? 4 : 8;
}

// The type of sums; kUndefined: no product has it.
DataType sums_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return DataType::kFloat32;
    case DataType::kFloat64:
      return DataType::kFloat64;
    case DataType::kInt32:
    case DataType::kUint32:
    case DataType::kInt64:
    case DataType::kUint64:
      return DataType::kUint64;  // integers wrap around
    default:
      return DataType::kUndefined;
  }
}

std::string_view stored_type(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat32:
      return "float";
    case DataType::kFloat64:
      return "double";
    case DataType::kInt32:
    case DataType::kUint32:
      return "og_u32";
    case DataType::kInt64:
    case DataType::kUint64:
      return "og_u64";
    default:
      return "og_u16";
  }
}

std::string_view narrowing(DataType dtype, bool is_to) {
  if (dtype == DataType::kFloat16) return is_to ? "og_to_f16" : "og_from_f16";
  if (dtype == DataType::kBfloat16) return is_to ? "og_to_bf16" : "og_from_bf16";
  return "";
}

// og_<name> with og_get_<name> and og_set_<name>. A number in memory is rounded to `rounded`, if
// that has 16 bits, when it is read.
std::string operand_text(std::string_view name, DataType dtype, DataType rounded) {
  std::string get = fmt::format("{}(from[i])", narrowing(dtype, false));
  if (is_half(rounded) && dtype != rounded) {
    get = fmt::format("{}({}({}))", narrowing(rounded, false), narrowing(rounded, true), get);
  }
  return fmt::format(
      "typedef {1} og_{0};\n"
      "OG_FUNCTION og_s og_get_{0}(const og_{0}* from, og_i64 i) {{ return (og_s){2}; }}\n"
      "OG_FUNCTION void og_set_{0}(og_{0}* to, og_i64 i, og_s value) {{ to[i] = "
      "(og_{0}){3}(value); "
      "}}\n",
      name, stored_type(dtype), get, narrowing(dtype, true));
}

std::string sums_text(DataType sums) {
  return fmt::format("typedef {} og_s;\n", stored_type(sums));
}

/// Place and types of a product, and its epilogue.
struct Outline {
  DataType factors = DataType::kFloat32;  ///< type that both are rounded to
  DataType sums = DataType::kFloat32;
  DataType product = DataType::kFloat32;  ///< its type in memory
  bool is_in_scratch = false;             ///< else it is output 0
  std::string element = {};               ///< text of the epilogue, og_element
  int scratch = 0;                        ///< arguments
  int output = 0;
  std::int64_t scratch_bytes = 0;

  std::int64_t reserve(std::int64_t bytes) {
    const std::int64_t at = scratch_bytes;
    scratch_bytes += base::round_up(bytes, kAlignment);
    return at;
  }
  Word product_word() const {
    return is_in_scratch ? Word::argument(scratch) : Word::argument(output);
  }
};

opdef::Elementwise epilogue_of(const ProductTask& task, const Outline& outline) {
  return {.program = *task.epilogue,
          .compute = outline.sums,
          .stored = static_cast<std::int64_t>(task.epilogue->results.size()),
          .flush_denormals = task.flushes_denormals};
}

std::vector<opdef::TensorDesc> epilogue_inputs(const opdef::KernelRequest& request,
                                               const ProductTask& task, const Outline& outline) {
  std::vector<opdef::TensorDesc> inputs{
      {.dtype = outline.product, .dims = request.outputs[0].dims}};
  for (const int i : task.epilogue_inputs) {
    inputs.push_back(request.inputs[static_cast<std::size_t>(i)]);
  }
  return inputs;
}

std::size_t num_results(const ProductTask& task) {
  return task.epilogue ? task.epilogue->results.size() : 0;
}

// Fills an outline; returns the reason if there is no text for these types.
std::string outline_of(const opdef::KernelRequest& request, const ProductTask& task,
                       Outline& outline) {
  const DataType a = request.inputs[static_cast<std::size_t>(task.a)].dtype;
  const DataType b = request.inputs[static_cast<std::size_t>(task.b)].dtype;
  const DataType result = request.outputs[0].dtype;
  outline.factors = a;
  outline.sums = sums_of(a);
  if (outline.sums == DataType::kUndefined) return "no product of this type";
  if (b != a && !(is_half(a) && b == DataType::kFloat32)) return "factors of different types";
  if (result != a && !(is_half(a) && result == DataType::kFloat32))
    return "a result of another type";
  outline.output = static_cast<int>(request.inputs.size());
  outline.scratch = outline.output + static_cast<int>(request.outputs.size());
  outline.product = result;
  if (!task.epilogue) return {};
  if (outline.sums == DataType::kUint64) return "integers with an epilogue";
  outline.product = outline.sums;
  outline.is_in_scratch = result != outline.sums || !task.in_place.empty();
  if (outline.is_in_scratch) {
    outline.reserve(request.outputs[0].dims.num_elements() * bytes_of(outline.sums));
  }
  const auto results = static_cast<std::ptrdiff_t>(num_results(task));
  const std::vector<opdef::TensorDesc> outputs(request.outputs.begin(),
                                               request.outputs.begin() + results);
  outline.element = opdef::elementwise_text(
      epilogue_of(task, outline), epilogue_inputs(request, task, outline), outputs, "og_element");
  return outline.element.empty() ? "no text for the types of the epilogue" : "";
}

std::vector<Word> epilogue_words(const ProductTask& task, const Outline& outline) {
  std::vector<Word> words{outline.product_word()};
  for (const int i : task.epilogue_inputs) words.push_back(Word::argument(i));
  for (std::size_t i = 0; i < num_results(task); ++i) {
    words.push_back(Word::argument(outline.output + static_cast<std::int64_t>(i)));
  }
  return words;
}

TextKernel tiles(const opdef::KernelRequest& request, const ProductTask& task,
                 const Outline& outline) {
  const auto dtype_of = [&](int i) { return request.inputs[static_cast<std::size_t>(i)].dtype; };
  const std::int64_t wanted = card_of(request)->multiprocessors();
  const std::int64_t large =
      ceil_div(task.m, std::int64_t{64}) * ceil_div(task.n, std::int64_t{64}) * task.matrices();
  const std::int64_t tile = task.m > 16 && task.n > 16 && large >= wanted / 2 ? 64 : 16;
  std::string text = sums_text(outline.sums) +
                     operand_text("a", dtype_of(task.a), outline.factors) +
                     operand_text("b", dtype_of(task.b), outline.factors) +
                     operand_text("p", outline.product, outline.product) + outline.element +
                     fmt::format("enum {{ og_tile = {} }};\n", tile);
  const std::size_t results = num_results(task);
  const std::size_t operands = results == 0 ? 0 : task.epilogue_inputs.size() + 1;
  text += product_tiles_text(operands, results);

  std::vector<Word> words{Word::argument(task.a), Word::argument(task.b), outline.product_word()};
  const std::int64_t a_columns = task.transpose_a ? task.m : task.k;
  const std::int64_t b_columns = task.transpose_b ? task.k : task.n;
  std::vector<ProductTask::Axis> axes(3 - task.batch.size());
  axes.insert(axes.end(), task.batch.begin(), task.batch.end());
  for (const std::int64_t number :
       {task.m, task.n, task.k, task.transpose_a ? 1 : a_columns, task.transpose_a ? a_columns : 1,
        task.transpose_b ? 1 : b_columns, task.transpose_b ? b_columns : 1, task.matrices(),
        axes[1].size, axes[2].size}) {
    words.push_back(Word::of(number));
  }
  for (const ProductTask::Axis& axis : axes) {
    words.push_back(Word::of(axis.a_step * task.m * task.k));
  }
  for (const ProductTask::Axis& axis : axes) {
    words.push_back(Word::of(axis.b_step * task.k * task.n));
  }
  if (results > 0) {
    const std::vector<Word> more = epilogue_words(task, outline);
    words.insert(words.end(), more.begin(), more.end());
  }
  TextKernel kernel = text_kernel(request, text, "og_main", std::move(words));
  kernel.block[0] = kThreads;
  kernel.grid = {static_cast<unsigned>(ceil_div(task.m, tile)),
                 static_cast<unsigned>(ceil_div(task.n, tile)),
                 static_cast<unsigned>(std::min(task.matrices(), kMostGrid))};
  return kernel;
}

std::vector<TextKernel> column_sums(const opdef::KernelRequest& request, const ProductTask& task,
                                    Outline& outline) {
  constexpr std::int64_t kRowsOfPart = 128;
  constexpr std::int64_t kMostParts = 64;
  const std::int64_t parts = std::clamp<std::int64_t>(task.m / kRowsOfPart, 1, kMostParts);
  const Word partial =
      Word::argument(outline.scratch, outline.reserve(parts * task.n * std::int64_t{8}));
  const std::string text =
      sums_text(outline.sums) + operand_text("c", request.outputs[0].dtype, outline.sums) +
      operand_text("r", request.outputs[1].dtype, outline.sums) + column_sums_text();
  std::vector<TextKernel> kernels;
  kernels.push_back(text_kernel(request, text, "og_columns",
                                {Word::argument(outline.output), partial, Word::of(task.m),
                                 Word::of(task.n), Word::of(parts)}));
  kernels.back().block[0] = kThreads;
  kernels.back().grid = {static_cast<unsigned>(ceil_div(task.n, std::int64_t{32})),
                         static_cast<unsigned>(parts), 1};
  kernels.push_back(text_kernel_over(
      request, task.n, text, "og_parts",
      {partial, Word::argument(outline.output + 1), Word::of(task.n), Word::of(parts)}));
  return kernels;
}

opdef::KernelOffer offer_tiles(const opdef::KernelRequest& request, const ProductTask& task,
                               Outline outline) {
  if (ceil_div(task.n, std::int64_t{16}) > kMostGrid) {
    return opdef::KernelOffer::decline("more than a million columns");
  }
  std::vector<TextKernel> kernels;
  kernels.push_back(tiles(request, task, outline));
  if (task.sums_columns) {
    for (TextKernel& kernel : column_sums(request, task, outline)) {
      kernels.push_back(std::move(kernel));
    }
  }
  opdef::KernelOffer offer;
  offer.kernel = prepared(std::move(kernels), fmt::format("tiles {}x{}x{}", task.m, task.k, task.n),
                          task.flops());
  offer.kernel.scratch_bytes = outline.scratch_bytes;
  offer.kernel.in_place = task.in_place;
  return offer;
}

// ---- cuBLASLt ----

struct LibraryProduct {
  std::shared_ptr<const BlasLtProduct> product;
  Word a, b, c, bias, workspace;
  std::vector<TextKernel> before;
  std::vector<TextKernel> after;
};

void run_library(const void* data, opdef::KernelArgs args, const opdef::Launch& launch) {
  const auto& one = *static_cast<const LibraryProduct*>(data);
  device::cuda::launch_text_kernels(&one.before, args, launch);
  const auto at = [&](const Word& word) { return device::cuda::value_of(word, args, launch); };
  one.product->run({.a = at(one.a),
                    .b = at(one.b),
                    .c = at(one.c),
                    .bias = at(one.bias),
                    .workspace = at(one.workspace)},
                   launch.stream);
  device::cuda::launch_text_kernels(&one.after, args, launch);
}

// The epilogue of cuBLASLt that is this program, in0 + in1 or its Relu, with a row as in1.
BlasLtSpec::Epilogue epilogue_in_library(const opdef::KernelRequest& request,
                                         const ProductTask& task, const Outline& outline) {
  constexpr auto kNone = BlasLtSpec::Epilogue::kNone;
  if (task.epilogue_inputs.size() != 1 || task.epilogue->results.size() != 1) return kNone;
  const opdef::TensorDesc& row =
      request.inputs[static_cast<std::size_t>(task.epilogue_inputs.front())];
  const bool is_row = row.dims.rank() > 0 && row.dims[row.dims.rank() - 1] == task.n &&
                      row.dims.num_elements() == task.n;
  if (!is_row || row.dtype != outline.sums || request.outputs[0].dtype != outline.sums)
    return kNone;
  const auto at = [&](std::int32_t i) {
    return task.epilogue->instructions[static_cast<std::size_t>(i)];
  };
  ExprInstruction top = at(task.epilogue->results.front());
  const bool has_relu = top.op == ExprOp::kRelu;
  if (has_relu) top = at(top.a);
  if (top.op != ExprOp::kAdd) return kNone;
  const ExprInstruction left = at(top.a);
  const ExprInstruction right = at(top.b);
  if (left.op != ExprOp::kInput || right.op != ExprOp::kInput || left.a == right.a) return kNone;
  return has_relu ? BlasLtSpec::Epilogue::kReluBias : BlasLtSpec::Epilogue::kBias;
}

opdef::KernelOffer offer_library(const opdef::KernelRequest& request, const ProductTask& task,
                                 Outline outline) {
  if (outline.sums == DataType::kUint64) return opdef::KernelOffer::decline("integers");
  if (task.matrices() == 0 || task.m * task.n * task.k == 0) {
    return opdef::KernelOffer::decline("an empty product");
  }
  const bool is_strided =
      task.batch.size() <= 1 &&
      (task.batch.empty() || (task.batch[0].a_step <= 1 && task.batch[0].b_step <= 1));
  if (!is_strided) return opdef::KernelOffer::decline("batches that are not strided");
  BlasLtSpec spec{.m = task.m,
                  .n = task.n,
                  .k = task.k,
                  .transpose_a = task.transpose_a,
                  .transpose_b = task.transpose_b,
                  .in = outline.factors,
                  .out = outline.product,
                  .allows_tf32 = request.numerics.allows_tf32,
                  .batch = task.matrices()};
  spec.shares_a = spec.batch > 1 && task.batch[0].a_step == 0;
  spec.shares_b = spec.batch > 1 && task.batch[0].b_step == 0;
  if (task.epilogue && spec.batch == 1) {
    spec.epilogue = epilogue_in_library(request, task, outline);
  }
  std::string declined;
  auto made = std::make_shared<LibraryProduct>();
  made->product = BlasLtProduct::of(card_of(request), spec, declined);
  if (made->product == nullptr) return opdef::KernelOffer::decline(declined);
  made->a = Word::argument(task.a);
  made->b = Word::argument(task.b);
  made->c = outline.product_word();
  made->bias = Word::of(std::int64_t{0});
  const opdef::TensorDesc& right = request.inputs[static_cast<std::size_t>(task.b)];
  if (right.dtype != outline.factors) {  // it is rounded first
    const std::int64_t count = right.dims.num_elements();
    made->b = Word::argument(outline.scratch, outline.reserve(count * bytes_of(outline.factors)));
    const std::string text =
        sums_text(outline.sums) + operand_text("a", right.dtype, right.dtype) +
        operand_text("b", outline.factors, outline.factors) +
        "OG_KERNEL(og_round_all, 3) {\n"
        "  for (og_i64 i = og_first(); i < a.integer(2); i += og_stride()) {\n"
        "    og_set_b(a.pointer<og_b>(1), i, og_get_a(a.pointer<og_a>(0), i));\n"
        "  }\n}\n";
    made->before.push_back(text_kernel_over(request, count, text, "og_round_all",
                                            {Word::argument(task.b), made->b, Word::of(count)}));
  }
  if (spec.epilogue != BlasLtSpec::Epilogue::kNone) {
    made->c = Word::argument(outline.output);
    made->bias = Word::argument(task.epilogue_inputs.front());
  } else if (task.epilogue) {
    const std::vector<Word> words = epilogue_words(task, outline);
    const std::size_t operands = task.epilogue_inputs.size() + 1;
    std::string text = outline.element + fmt::format(
                                             "OG_KERNEL(og_epilogue, {}) {{\n"
                                             "  const void* in[{}];\n  void* out[{}];\n",
                                             words.size() + 1, operands, num_results(task));
    for (std::size_t i = 0; i < words.size(); ++i) {
      text += i < operands ? fmt::format("  in[{}] = a.pointer<void>({});\n", i, i)
                           : fmt::format("  out[{}] = a.pointer<void>({});\n", i - operands, i);
    }
    text += fmt::format(
        "  for (og_i64 i = og_first(); i < a.integer({}); i += og_stride()) {{\n"
        "    og_element(in, out, i);\n  }}\n}}\n",
        words.size());
    const std::int64_t elements = request.outputs[0].dims.num_elements();
    std::vector<Word> all = words;
    all.push_back(Word::of(elements));
    made->after.push_back(text_kernel_over(request, elements, text, "og_epilogue", std::move(all)));
  }
  if (task.sums_columns) {
    for (TextKernel& kernel : column_sums(request, task, outline)) {
      made->after.push_back(std::move(kernel));
    }
  }
  made->workspace =
      Word::argument(outline.scratch, outline.reserve(made->product->workspace_bytes()));
  opdef::KernelOffer offer;
  offer.kernel.fn = run_library;
  offer.kernel.label =
      fmt::format("cuBLASLt {}x{}x{}{}{}{}", task.m, task.k, task.n,
                  task.matrices() > 1 ? fmt::format(" of {}", task.matrices()) : "",
                  spec.allows_tf32 && spec.in == DataType::kFloat32 ? ", tf32" : "",
                  spec.epilogue != BlasLtSpec::Epilogue::kNone ? ", with its epilogue"
                  : task.epilogue                              ? ", then an epilogue"
                                                               : "");
  offer.kernel.flops = task.flops();
  offer.kernel.scratch_bytes = outline.scratch_bytes;
  offer.kernel.in_place = task.in_place;
  offer.kernel.data = std::move(made);
  return offer;
}

}  // namespace
}  // namespace product_cuda

std::int64_t ProductTask::matrices() const {
  std::int64_t count = 1;
  for (const Axis& axis : batch) count *= axis.size;
  return count;
}

double ProductTask::flops() const {
  return 2.0 * static_cast<double>(matrices()) * static_cast<double>(m) * static_cast<double>(n) *
         static_cast<double>(k);
}

std::optional<ProductTask> product_task(const opdef::KernelRequest& request, int a, int b,
                                        bool transpose_a, bool transpose_b) {
  const Dims& left = request.inputs[static_cast<std::size_t>(a)].dims;
  const Dims& right = request.inputs[static_cast<std::size_t>(b)].dims;
  const std::size_t rank = left.rank();
  if (rank < 2 || right.rank() != 2 || (transpose_a && rank != 2)) return std::nullopt;
  ProductTask task{.transpose_a = transpose_a, .transpose_b = transpose_b, .a = a, .b = b};
  task.m = transpose_a ? left[1] : left.product(0, rank - 1);
  task.k = transpose_a ? left[0] : left[rank - 1];
  task.n = right[transpose_b ? 0 : 1];
  if (right[transpose_b ? 1 : 0] != task.k) return std::nullopt;
  return task;
}

// A call of cuBLASLt takes 4.8 us for 15x50x100 in a graph. A tile takes about 1 us and 0.3 for
// each 16 steps of the sum, while all tiles run at once (estimate); and a plan of texts alone can
// be one kernel.
bool takes_tiles(const ProductTask& task) {
  constexpr std::int64_t kLongestSum = 128;
  constexpr std::int64_t kMostResults = std::int64_t{132} * 4 * 256;
  return task.k <= kLongestSum && task.m * task.n * task.matrices() <= kMostResults;
}

opdef::KernelOffer offer_product(const opdef::KernelRequest& request, const ProductTask& task) {
  product_cuda::Outline outline;
  std::string reason = product_cuda::outline_of(request, task, outline);
  if (!reason.empty()) return opdef::KernelOffer::decline(std::move(reason));
  if (!takes_tiles(task)) {
    opdef::KernelOffer offer = product_cuda::offer_library(request, task, outline);
    if (offer.kernel.fn != nullptr) return offer;
  }
  return product_cuda::offer_tiles(request, task, outline);
}

}  // namespace onnxgrad::ops
