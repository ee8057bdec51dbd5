#include "ops/fused/matmul_offer_cpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "device/cpu/elementwise.h"
#include "device/cpu/f16_gemm.h"
#include "device/cpu/scratch_layout.h"
#include "device/cpu_options.h"
#include "opdef/packed_constants.h"
#include "ops/candidate_cpu.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops {
namespace {

using device::GemmStart;
using opdef::ExprInstruction;
using opdef::ExprOp;
using opdef::ExprProgram;

constexpr int kScratch = -1;
constexpr int kMatmul = -2;
constexpr std::size_t kMostAddends = device::kGemmMoreAddends + 1;

struct MatmulData {
  device::PreparedGemm gemm;
  std::shared_ptr<const Tensor> packed_b;  ///< replaces argument `b`; nullptr: not packed
  std::shared_ptr<const QuantizedOperand> quantized;  ///< its codes are argument `b`
  int a = 0, b = 0, start = -1, factor = -1, scales = -1, c = 0, column_sums = -1, scratch = 0;
  std::vector<int> more;
  device::ScratchArray<std::byte> product = {};  ///< in scratch, else it is in the result
  DataType dtype = DataType::kFloat32;
  opdef::PreparedKernel epilogue;
  bool is_by_blocks = false;  ///< the epilogue, as the GEMM completes them
  /// Arguments of the epilogue; kScratch: its scratch block; kMatmul: the product in scratch.
  std::vector<int> epilogue_args;
  device::ScratchArray<std::byte*> table = {};
  device::ScratchArray<std::byte> epilogue_scratch = {};
};

/// Runs the GEMM, and the launch's followers where it completes blocks.
void run_gemm(const MatmulData& data, KernelArgs args, const Launch& launch) {
  device::GemmOperands operands{
      .a = args[data.a], .b = args[data.b], .c = args[data.c], .scratch = args[data.scratch]};
  if (data.packed_b != nullptr) operands.b = data.packed_b->raw();
  device::QuantizedMatrix matrix;
  if (data.quantized != nullptr) {
    matrix = data.quantized->matrix;
    matrix.codes = args[data.b];
    operands.b = &matrix;
  }
  if (data.product) operands.c = data.product.in(args[data.scratch]);
  if (data.start >= 0) operands.start = args[data.start];
  for (std::size_t i = 0; i < data.more.size(); ++i) operands.more[i] = args[data.more[i]];
  if (data.scales >= 0) operands.scales = args[data.scales];
  if (data.column_sums >= 0) operands.column_sums = args[data.column_sums];
  if (data.factor >= 0) {
    operands.factor = read_float(args[data.factor], data.dtype);
  }
  if (launch.follower != nullptr) {
    operands.context = &launch;
    operands.finished = [](const void* context, const device::GemmBlock& block) {
      static_cast<const Launch*>(context)->complete({.row = block.row,
                                                     .rows = block.rows,
                                                     .column = block.column,
                                                     .columns = block.columns,
                                                     .width = block.c_row,
                                                     .part = block.part,
                                                     .thread = block.thread});
    };
  }
  data.gemm(operands);
}

/// Writes the arguments of the epilogue to its table.
KernelArgs epilogue_args(const MatmulData& data, KernelArgs args) {
  std::byte* scratch = args[data.scratch];
  std::byte** next = data.table.in(scratch);
  for (const int arg : data.epilogue_args) {
    *next++ = arg == kMatmul    ? data.product.in(scratch)
              : arg == kScratch ? data.epilogue_scratch.in(scratch)
                                : args[arg];
  }
  return data.table.in(scratch);
}

void run_matmul_and_epilogue(const MatmulData& data, KernelArgs args, const Launch& launch) {
  run_gemm(data, args, launch);
  data.epilogue.fn(data.epilogue.data.get(), epilogue_args(data, args), launch);
}

void run_matmul_with_epilogue(const MatmulData& data, KernelArgs args, const Launch& launch) {
  const opdef::Follower epilogue{.fn = data.epilogue.by_blocks.fn,
                                 .data = data.epilogue.data.get(),
                                 .args = epilogue_args(data, args),
                                 .next = launch.follower};
  Launch joint = launch;
  joint.follower = &epilogue;
  run_gemm(data, args, joint);
  if (const auto finish = data.epilogue.by_blocks.finish) {
    finish(epilogue.data, epilogue.args, launch);
  }
}

bool is_zero(const ExprProgram& program, std::int32_t i) {
  const ExprInstruction& instruction = program.instructions[static_cast<std::size_t>(i)];
  return instruction.op == ExprOp::kConstant && instruction.constant == 0;
}

/// Epilogue that the GEMM itself can apply: in1 * relu(in0 + in2 + ...), or a part of it.
struct SimpleEpilogue {
  bool relu = false;
  std::int32_t scales = 0;            // operand of the element-wise factor; 0: none
  std::vector<std::int32_t> addends;  ///< operands
};

/// Collects the terms of a sum of operands, in0 once among them; returns false for other
/// expressions.
bool collect_sum(const ExprProgram& program, std::int32_t i, std::vector<std::int32_t>& terms) {
  if (is_zero(program, i)) return true;  // a bias of zeros
  const ExprInstruction& instruction = program.instructions[static_cast<std::size_t>(i)];
  if (instruction.op == ExprOp::kAdd) {
    return collect_sum(program, instruction.a, terms) && collect_sum(program, instruction.b, terms);
  }
  if (instruction.op != ExprOp::kInput || terms.size() > kMostAddends) return false;
  terms.push_back(instruction.a);
  return true;
}

std::optional<SimpleEpilogue> match_simple(const ExprProgram& program) {
  if (program.results.size() != 1) return std::nullopt;
  const auto at = [&](std::int32_t i) { return program.instructions[static_cast<std::size_t>(i)]; };
  SimpleEpilogue simple;
  std::int32_t index = program.results[0];
  if (const ExprInstruction scaled = at(index); scaled.op == ExprOp::kMul) {
    const auto is_scale = [&](std::int32_t i) { return at(i).op == ExprOp::kInput && at(i).a > 0; };
    if (!is_scale(scaled.a) && !is_scale(scaled.b)) return std::nullopt;
    simple.scales = at(is_scale(scaled.a) ? scaled.a : scaled.b).a;
    index = is_scale(scaled.a) ? scaled.b : scaled.a;
  }
  const ExprInstruction top = at(index);
  if (top.op == ExprOp::kRelu) {
    simple.relu = true;
    index = top.a;
  } else if (top.op == ExprOp::kMax && (is_zero(program, top.a) || is_zero(program, top.b))) {
    simple.relu = true;
    index = is_zero(program, top.a) ? top.b : top.a;
  }
  if (!collect_sum(program, index, simple.addends)) return std::nullopt;
  const auto product = std::find(simple.addends.begin(), simple.addends.end(), 0);
  if (product == simple.addends.end()) return std::nullopt;
  simple.addends.erase(product);
  if (std::find(simple.addends.begin(), simple.addends.end(), 0) != simple.addends.end()) {
    return std::nullopt;
  }
  return simple;
}

/// Returns how the GEMM can add an input; kZero: it cannot.
GemmStart addend_of(const TensorDesc& desc, const device::GemmSpec& gemm) {
  const bool is_wide = desc.dtype == DataType::kFloat32;
  if (desc.dtype != gemm.dtype && !(is_wide && is_f16(gemm.dtype))) return GemmStart::kZero;
  const std::int64_t last = desc.dims.rank() == 0 ? 1 : desc.dims[desc.dims.rank() - 1];
  const std::int64_t size = desc.dims.num_elements();
  if (size == gemm.m * gemm.n && last == gemm.n) return GemmStart::kMatrix;
  return size == gemm.n && last == gemm.n ? GemmStart::kRow : GemmStart::kZero;
}

bool has_constant_b(const KernelRequest& request, const MatmulSpec& spec) {
  return request.packed != nullptr && spec.quantized == nullptr &&
         request.constants[static_cast<std::size_t>(spec.b)] != nullptr;
}

/// Returns true if the GEMM can apply element-wise factors and sum its columns without giving up a
/// packed B.
bool can_end(const KernelRequest& request, const MatmulSpec& spec,
             const std::vector<GemmStart>& addends) {
  if (is_f16(spec.gemm.dtype) || has_constant_b(request, spec)) return false;
  device::GemmSpec gemm = spec.gemm;
  if (!addends.empty()) {
    gemm.start = addends[0];
    std::copy(addends.begin() + 1, addends.end(), gemm.more.begin());
  }
  return device::can_scale(gemm);
}

/// Moves an epilogue into the GEMM if possible.
bool absorb_epilogue(const KernelRequest& request, MatmulSpec& spec) {
  const auto simple = match_simple(*spec.epilogue);
  if (!simple || spec.start >= 0) return false;
  if (request.outputs[0].dtype != spec.gemm.dtype && !is_f16(spec.gemm.dtype)) return false;
  const std::size_t count = simple->addends.size();
  // f16/bf16 GEMMs and single columns support one addend at most.
  if (count > 1 && (is_f16(spec.gemm.dtype) || spec.gemm.n == 1)) return false;
  std::vector<int> inputs;
  std::vector<GemmStart> kinds;
  for (const std::int32_t addend : simple->addends) {
    inputs.push_back(spec.epilogue_inputs[static_cast<std::size_t>(addend) - 1]);
    kinds.push_back(addend_of(request.inputs[static_cast<std::size_t>(inputs.back())], spec.gemm));
    if (kinds.back() == GemmStart::kZero) return false;
  }
  const bool needs_end = simple->scales > 0 || spec.sums_columns;
  if (needs_end && !can_end(request, spec, kinds)) return false;
  if (simple->scales > 0) {
    const int input = spec.epilogue_inputs[static_cast<std::size_t>(simple->scales) - 1];
    const TensorDesc& scales = request.inputs[static_cast<std::size_t>(input)];
    if (scales.dtype != spec.gemm.dtype || addend_of(scales, spec.gemm) != GemmStart::kMatrix) {
      return false;
    }
    spec.scales = input;
    spec.gemm.is_scaled = true;
  }
  if (count > 0) {
    spec.start = inputs[0];
    spec.gemm.start = kinds[0];
    spec.more.assign(inputs.begin() + 1, inputs.end());
    std::copy(kinds.begin() + 1, kinds.end(), spec.gemm.more.begin());
  }
  spec.gemm.relu = simple->relu;
  spec.gemm.sums_columns = spec.sums_columns;
  spec.epilogue.reset();
  return true;
}

DataType sum_dtype(const MatmulSpec& spec) {
  return is_f16(spec.gemm.dtype) ? DataType::kFloat32 : spec.gemm.dtype;
}

/// Prepares the epilogue as an element-wise kernel over the result, in place if the result has the
/// type of the sums. Returns "" or the reason why there is none.
std::string prepare_epilogue(const KernelRequest& request, const MatmulSpec& spec, MatmulData& data,
                             std::int64_t& scratch_bytes) {
  const TensorDesc& result = request.outputs[0];
  device::ElementwiseSpec elementwise{.program = *spec.epilogue,
                                      .compute = sum_dtype(spec),
                                      .inputs = {{sum_dtype(spec), result.dims}},
                                      .outputs = {result},
                                      .stored = 1,
                                      .threads = request.threads,
                                      .isa = device::isa_of(request)};
  if (data.gemm.completes != opdef::BlockCut::kNone) {
    elementwise.block_threads = data.gemm.threads;
    elementwise.block_parts = data.gemm.parts;
  }
  const bool is_apart = result.dtype != sum_dtype(spec);
  data.epilogue_args.push_back(is_apart ? kMatmul : data.c);
  for (const int input : spec.epilogue_inputs) {
    elementwise.inputs.push_back(request.inputs[static_cast<std::size_t>(input)]);
    data.epilogue_args.push_back(input);
  }
  data.epilogue_args.push_back(data.c);
  if (spec.sums_columns) {
    elementwise.program.results.push_back(elementwise.program.results[0]);
    elementwise.outputs.push_back({request.outputs[1].dtype, {spec.gemm.n}});
    elementwise.folds = {device::Fold::kSum};
    for (std::size_t axis = 0; axis + 1 < result.dims.rank(); ++axis) {
      elementwise.reduce_axes.push_back(static_cast<std::int64_t>(axis));
    }
    data.epilogue_args.push_back(data.c + 1);
  }
  data.epilogue_args.push_back(kScratch);
  KernelOffer offer = device::prepare_elementwise(elementwise);
  if (offer.kernel.fn == nullptr) return offer.declined;
  data.is_by_blocks =
      offer.kernel.by_blocks.fn != nullptr && data.gemm.completes != opdef::BlockCut::kNone;
  device::ScratchLayout all;
  if (data.is_by_blocks) all.reserve<std::byte>(scratch_bytes);  // the product runs meanwhile
  data.table = all.reserve<std::byte*>(std::ssize(data.epilogue_args));  // else it has ended
  data.epilogue_scratch = all.reserve<std::byte>(offer.kernel.scratch_bytes);
  if (all.size_bytes() < scratch_bytes) all.reserve<std::byte>(scratch_bytes - all.size_bytes());
  if (is_apart) data.product = all.reserve<std::byte>(result.dims.size_bytes(sum_dtype(spec)));
  scratch_bytes = all.size_bytes();
  data.epilogue = std::move(offer.kernel);
  return "";
}

device::PreparedGemm prepare_matmul(const KernelRequest& request, const MatmulSpec& spec) {
  if (spec.quantized != nullptr &&
      device::suits_quantized_dots(spec.gemm, spec.quantized->matrix)) {
    return device::prepare_quantized_dots(spec.gemm);
  }
  if (!is_f16(spec.gemm.dtype)) return device::prepare_gemm(spec.gemm);
  device::F16GemmSpec half = device::f16_gemm_spec(spec.gemm);
  half.rounds_b = !is_f16(request.inputs[static_cast<std::size_t>(spec.b)].dtype);
  if (!spec.epilogue) half.c_dtype = request.outputs[0].dtype;
  if (spec.start >= 0) {
    half.start_dtype = request.inputs[static_cast<std::size_t>(spec.start)].dtype;
  }
  return device::prepare_f16_gemm(half);
}

/// Packs a constant B in the layout that the GEMM reads; nullptr: it is read in place.
std::shared_ptr<const Tensor> pack_constant(const KernelRequest& request, const MatmulSpec& spec) {
  if (!has_constant_b(request, spec) || is_f16(spec.gemm.dtype) || !device::can_pack_b(spec.gemm)) {
    return nullptr;
  }
  const Tensor* b = request.constants[static_cast<std::size_t>(spec.b)];
  const device::GemmSpec& gemm = spec.gemm;
  const std::int64_t elements = device::packed_b_elements(gemm);
  const std::string form = fmt::format("{} panels {}x{}{}", device::isa_name(gemm.cpu.isa), gemm.k,
                                       gemm.n, gemm.transpose_b ? " transposed" : "");
  return request.packed->get(*b, form, elements * element_bytes(gemm.dtype), [&] {
    Tensor packed = Tensor::empty(gemm.dtype, {elements});
    device::pack_gemm_b(gemm, b->raw(), packed.mutable_raw());
    return packed;
  });
}

}  // namespace

std::optional<device::GemmSpec> matmul_shape(const KernelRequest& request, int a, int b,
                                             bool transpose_a, bool transpose_b) {
  const TensorDesc& left = request.inputs[static_cast<std::size_t>(a)];
  const Dims& right = request.inputs[static_cast<std::size_t>(b)].dims;
  const std::size_t rank = left.dims.rank();
  if (rank < 2 || right.rank() != 2 || (transpose_a && rank != 2)) return std::nullopt;
  device::GemmSpec gemm{
      .dtype = left.dtype, .threads = request.threads, .cpu = device::cpu_options(request)};
  gemm.transpose_a = transpose_a;
  gemm.transpose_b = transpose_b;
  gemm.m = transpose_a ? left.dims[1] : left.dims.product(0, rank - 1);
  gemm.k = transpose_a ? left.dims[0] : left.dims[rank - 1];
  gemm.n = right[transpose_b ? 0 : 1];
  if (right[transpose_b ? 1 : 0] != gemm.k) return std::nullopt;
  return gemm;
}

KernelOffer offer_matmul(const KernelRequest& request, MatmulSpec spec) {
  const DataType result = request.outputs[0].dtype;
  const DataType b = request.inputs[static_cast<std::size_t>(spec.b)].dtype;
  const bool is_of_f16 =
      is_f16(spec.gemm.dtype) && (b == spec.gemm.dtype || b == DataType::kFloat32) &&
      (result == DataType::kFloat32 || (result == spec.gemm.dtype && spec.factor < 0));
  if (!is_of_f16 && spec.gemm.dtype != DataType::kFloat32 &&
      spec.gemm.dtype != DataType::kFloat64) {
    return KernelOffer::decline(fmt::format("no fast product of {}", dtype_name(spec.gemm.dtype)));
  }
  const bool absorbed = spec.epilogue && absorb_epilogue(request, spec);
  if (request.is_candidate && !spec.epilogue) return accept_candidate();
  spec.gemm.has_run_time_factor = spec.factor >= 0;
  auto data = std::make_shared<MatmulData>();
  data->packed_b = pack_constant(request, spec);
  spec.gemm.b_is_packed = data->packed_b != nullptr;
  data->gemm = prepare_matmul(request, spec);
  data->a = spec.a;
  data->b = spec.b;
  data->quantized = spec.quantized;
  data->start = spec.start;
  data->more = spec.more;
  data->factor = spec.factor;
  data->scales = spec.scales;
  data->c = static_cast<int>(request.inputs.size());
  if (spec.gemm.sums_columns) data->column_sums = data->c + 1;
  data->scratch = static_cast<int>(request.inputs.size() + request.outputs.size());
  data->dtype = sum_dtype(spec);

  KernelOffer offer;
  std::int64_t scratch_bytes = data->gemm.scratch_bytes;
  offer.kernel.fn = kKernel<run_gemm>;
  offer.kernel.label = data->gemm.label;
  if (!spec.more.empty()) offer.kernel.label += fmt::format(" + {} addends", spec.more.size() + 1);
  if (spec.gemm.relu) offer.kernel.label += " relu";
  if (spec.gemm.is_scaled) offer.kernel.label += " scaled";
  if (spec.gemm.sums_columns) offer.kernel.label += ", sums";
  if (spec.epilogue) {
    if (auto reason = prepare_epilogue(request, spec, *data, scratch_bytes); !reason.empty()) {
      return KernelOffer::decline(std::move(reason));
    }
    offer.kernel.fn =
        data->is_by_blocks ? kKernel<run_matmul_with_epilogue> : kKernel<run_matmul_and_epilogue>;
    offer.kernel.label += " + " + data->epilogue.label;
  }
  if (!spec.epilogue || data->is_by_blocks) {
    offer.kernel.completes = {.cut = data->gemm.completes,
                              .width = spec.gemm.n,
                              .parts = data->gemm.parts,
                              .threads = data->gemm.threads};
  }
  // Each element of the addends is read before the result overwrites it.
  const auto may_hold_result = [&](int input, GemmStart kind) {
    if (kind == GemmStart::kMatrix && (absorbed || !spec.epilogue) &&
        request.inputs[static_cast<std::size_t>(input)].dtype == result) {
      offer.kernel.in_place.emplace_back(input, 0);
    }
  };
  if (spec.start >= 0) may_hold_result(spec.start, spec.gemm.start);
  for (std::size_t i = 0; i < spec.more.size(); ++i) {
    may_hold_result(spec.more[i], spec.gemm.more[i]);
  }
  offer.kernel.scratch_bytes = scratch_bytes;
  offer.kernel.flops = 2.0 * static_cast<double>(spec.gemm.m) * static_cast<double>(spec.gemm.n) *
                       static_cast<double>(spec.gemm.k);
  offer.kernel.data = std::move(data);
  return offer;
}

}  // namespace onnxgrad::ops
