#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/fused.h"
#include "opdef/kernel.h"
#include "ops/fused/scalar_expr.h"
#include "ops/kernel_support.h"

// Reference kernels of the fused operators: one element at a time, in the order of the definition.
// The fast kernels are tested against them; they accept nodes that the fast ones decline.

namespace onnxgrad::ops::reference_cpu {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;
using opdef::Fold;

// ---- Elementwise ----

struct Operand {
  DataType dtype = DataType::kUndefined;
  std::vector<std::int64_t> strides = {};  // over the space; 0 where broadcast
};

struct ElementwiseData {
  opdef::Elementwise op;
  std::vector<std::int64_t> space;
  std::vector<std::int64_t> reduced_strides;  // over the space; 0 along reduced axes
  std::int64_t num_elements = 0;
  std::int64_t num_reduced = 0;
  std::vector<Operand> operands;
  std::vector<TensorDesc> post_operands;
  std::vector<DataType> outputs;
};

std::vector<std::int64_t> broadcast_strides(const Dims& dims, const Dims& space) {
  std::vector<std::int64_t> strides(space.rank(), 0);
  const std::vector<std::int64_t> own = dims.strides();
  for (std::size_t i = 0; i < dims.rank(); ++i) {
    if (dims[i] != 1) strides[space.rank() - dims.rank() + i] = own[i];
  }
  return strides;
}

// Sums of float32 are accumulated in double, so that the reference adds no rounding of its own.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, float>, double, T>;

template <class T>
struct ElementwiseRun {
  const ElementwiseData& d;
  KernelArgs inputs;
  KernelArgs outputs;
  std::vector<T> registers = std::vector<T>(
      std::max(d.op.program.instructions.size(), d.op.post ? d.op.post->instructions.size() : 0));
  std::vector<std::vector<Accumulator<T>>> reduced = {};

  void run() {
    for (const Fold fold : d.op.folds) {
      reduced.emplace_back(static_cast<std::size_t>(d.num_reduced),
                           fold_start<Accumulator<T>>(fold));
    }
    run_main();
    if (d.op.post) {
      run_post();
      return;
    }
    for (std::size_t r = 0; r < reduced.size(); ++r) {
      for (std::int64_t i = 0; i < d.num_reduced; ++i) {
        put(num_stored() + r, i, static_cast<T>(reduced[r][static_cast<std::size_t>(i)]));
      }
    }
  }

  std::size_t num_stored() const { return static_cast<std::size_t>(d.op.stored); }

  void put(std::size_t output, std::int64_t index, T value) {
    if (outputs[output] != nullptr) store(outputs[output], d.outputs[output], index, value);
  }

  void run_main() {
    std::vector<std::int64_t> index(d.space.size(), 0);
    std::vector<T> operands(d.operands.size());
    for (std::int64_t i = 0; i < d.num_elements; ++i) {
      for (std::size_t k = 0; k < operands.size(); ++k) {
        std::int64_t offset = 0;
        for (std::size_t a = 0; a < index.size(); ++a)
          offset += index[a] * d.operands[k].strides[a];
        operands[k] = load<T>(inputs[k], d.operands[k].dtype, offset);
      }
      evaluate(d.op.program, operands.data(), registers.data());
      take_results(i, index);
      for (std::size_t a = index.size(); a-- > 0;) {
        if (++index[a] < d.space[a]) break;
        index[a] = 0;
      }
    }
  }

  void take_results(std::int64_t element, const std::vector<std::int64_t>& index) {
    std::int64_t place = 0;
    for (std::size_t a = 0; a < d.reduced_strides.size(); ++a)
      place += index[a] * d.reduced_strides[a];
    for (std::size_t r = 0; r < d.op.program.results.size(); ++r) {
      const T value = registers[static_cast<std::size_t>(d.op.program.results[r])];
      if (r < num_stored()) {
        put(r, element, value);
        continue;
      }
      auto& folded = reduced[r - num_stored()][static_cast<std::size_t>(place)];
      folded = fold_step(d.op.folds[r - num_stored()], folded, static_cast<Accumulator<T>>(value));
    }
  }

  void run_post() {
    std::vector<T> operands(reduced.size() + d.post_operands.size());
    for (std::int64_t i = 0; i < d.num_reduced; ++i) {
      for (std::size_t r = 0; r < reduced.size(); ++r) {
        operands[r] = static_cast<T>(reduced[r][static_cast<std::size_t>(i)]);
      }
      for (std::size_t k = 0; k < d.post_operands.size(); ++k) {
        const TensorDesc& desc = d.post_operands[k];
        operands[reduced.size() + k] = load<T>(inputs[d.operands.size() + k], desc.dtype,
                                               desc.dims.num_elements() == 1 ? 0 : i);
      }
      evaluate(*d.op.post, operands.data(), registers.data());
      for (std::size_t r = 0; r < d.op.post->results.size(); ++r) {
        put(num_stored() + r, i, registers[static_cast<std::size_t>(d.op.post->results[r])]);
      }
    }
  }
};

template <class T>
void elementwise(const ElementwiseData& d, KernelArgs args) {
  const std::size_t num_inputs = d.operands.size() + d.post_operands.size();
  ElementwiseRun<T>{.d = d, .inputs = args, .outputs = args.from(num_inputs)}.run();
}

bool can_access(const std::vector<TensorDesc>& descs) {
  return std::ranges::all_of(descs, [](const TensorDesc& desc) {
    return !desc.is_present() || base::visit_numbers(desc.dtype, [](auto) {});
  });
}

KernelOffer offer_program(const KernelRequest& request, opdef::Elementwise op) {
  if (!can_access(request.inputs) || !can_access(request.outputs)) {
    return KernelOffer::decline("an operand's type is not supported");
  }
  Dims space;
  const auto main_operands = static_cast<std::size_t>(op.program.num_inputs);
  for (std::size_t i = 0; i < main_operands; ++i)
    space = broadcast_dims(space, request.inputs[i].dims);
  ElementwiseData d;
  d.space.assign(space.begin(), space.end());
  d.num_elements = space.num_elements();
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const TensorDesc& desc = request.inputs[i];
    if (i < main_operands) {
      d.operands.push_back({.dtype = desc.dtype, .strides = broadcast_strides(desc.dims, space)});
    } else {
      d.post_operands.push_back(desc);
    }
  }
  std::vector<std::int64_t> kept = d.space;
  for (const std::int64_t axis : op.reduce_axes) kept[static_cast<std::size_t>(axis)] = 1;
  const Dims reduced{std::move(kept)};
  d.num_reduced = reduced.num_elements();
  d.reduced_strides = broadcast_strides(reduced, space);
  for (const TensorDesc& desc : request.outputs) d.outputs.push_back(desc.dtype);
  d.op = std::move(op);
  return offer_for_types<float, double, std::int64_t, std::uint64_t>(
      request, d.op.compute, [&]<class T>(T) {
        return prepared<elementwise<T>>(
            std::move(d), "reference " + std::string(dtype_name(base::element_type<T>())));
      });
}

KernelOffer offer_elementwise(const KernelRequest& request) {
  return offer_program(request, opdef::Elementwise::read(request.node));
}

// Returns true for a scalar update, which joins the surrounding element-wise kernel.
bool is_number(const KernelRequest& request) { return request.outputs[0].dims.rank() == 0; }

// w', m' and v' may share the memory of w, m and v, inputs from index `first` on.
KernelOffer in_place(KernelOffer offer, const opdef::WeightUpdate& update, int first) {
  for (int i = 0; i < static_cast<int>(update.num_outputs()); ++i) {
    offer.kernel.in_place.emplace_back(first + i, i);
  }
  return offer;
}

KernelOffer offer_weight_update(const KernelRequest& request) {
  if (is_number(request)) return KernelOffer::decline("the weight has rank 0");
  const auto update = opdef::WeightUpdate::read(request.node);
  return in_place(offer_program(request, {.program = update.program(),
                                          .compute = request.outputs[0].dtype,
                                          .stored = std::ssize(request.outputs)}),
                  update, 1);
}

// ---- Gemm, GemmUpdate and GemmWeightUpdate: an expression over the product and other operands
// ----

struct GemmData {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::size_t a = 0, b = 1;  // inputs
  ExprProgram program;
  std::vector<Operand> operands = {};    // operands of the expression, over [m, n]
  std::vector<std::size_t> inputs = {};  // input index of each operand
  std::size_t first_output = 0;
  bool sums_columns = false;  // sums of the only result are output 1
};

template <class T>
Accumulator<T> dot(const GemmData& d, const T* a, const T* b, std::int64_t i, std::int64_t j) {
  Accumulator<T> sum{};
  for (std::int64_t p = 0; p < d.k; ++p) {
    const T x = d.transpose_a ? a[p * d.m + i] : a[i * d.k + p];
    const T y = d.transpose_b ? b[j * d.k + p] : b[p * d.n + j];
    sum += static_cast<Accumulator<T>>(x) * static_cast<Accumulator<T>>(y);
  }
  return sum;
}

template <class T>
void gemm(const GemmData& d, KernelArgs args) {
  const auto* a = args.at<T>(d.a);
  const auto* b = args.at<T>(d.b);
  std::vector<T> operands(d.operands.size() + 1);
  std::vector<T> registers(d.program.instructions.size());
  for (std::int64_t i = 0; i < d.m; ++i) {
    for (std::int64_t j = 0; j < d.n; ++j) {
      operands[0] = static_cast<T>(dot(d, a, b, i, j));
      for (std::size_t o = 0; o < d.operands.size(); ++o) {
        const std::int64_t at = i * d.operands[o].strides[0] + j * d.operands[o].strides[1];
        operands[o + 1] = load<T>(args[d.inputs[o]], d.operands[o].dtype, at);
      }
      evaluate(d.program, operands.data(), registers.data());
      for (std::size_t r = 0; r < d.program.results.size(); ++r) {
        auto* out = args.at<T>(d.first_output + r);
        if (out == nullptr) continue;
        out[i * d.n + j] = registers[static_cast<std::size_t>(d.program.results[r])];
      }
    }
  }
  if (!d.sums_columns) return;
  const auto* out = args.at<T>(d.first_output);
  for (std::int64_t j = 0; j < d.n; ++j) {
    Accumulator<T> sum{};
    for (std::int64_t i = 0; i < d.m; ++i) sum += static_cast<Accumulator<T>>(out[i * d.n + j]);
    args.at<T>(d.first_output + 1)[j] = static_cast<T>(sum);
  }
}

// The inputs besides A and B are operands of `program`, which is applied to the product.
KernelOffer offer_matmul(const KernelRequest& request, std::size_t a, bool transpose_a,
                         bool transpose_b, ExprProgram program, bool sums_columns = false) {
  if (!can_access(request.inputs)) {
    return KernelOffer::decline("an operand's type is not supported");
  }
  if (request.inputs[a].dtype != request.outputs[0].dtype) {
    return KernelOffer::decline("only products of the type of their operands are supported");
  }
  const Dims& out = request.outputs[0].dims;
  const Dims& left = request.inputs[a].dims;
  GemmData d{.m = out.product(0, out.rank() - 1),
             .n = out[out.rank() - 1],
             .k = transpose_a ? left[0] : left[left.rank() - 1],
             .transpose_a = transpose_a,
             .transpose_b = transpose_b,
             .a = a,
             .b = a + 1,
             .program = std::move(program),
             .first_output = request.inputs.size(),
             .sums_columns = sums_columns};
  const Dims space{d.m, d.n};
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    if (i == d.a || i == d.b) continue;
    const TensorDesc& desc = request.inputs[i];
    const Dims flat = desc.dims == out                  ? space
                      : desc.dims.num_elements() == 1   ? Dims{}
                      : desc.dims.rank() > space.rank() ? Dims{desc.dims.num_elements()}
                                                        : desc.dims;
    d.operands.push_back({.dtype = desc.dtype, .strides = broadcast_strides(flat, space)});
    d.inputs.push_back(i);
  }
  const DataType dtype = request.outputs[0].dtype;
  if (dtype == DataType::kFloat32) return prepared<gemm<float>>(std::move(d), "reference float32");
  if (dtype == DataType::kFloat64) return prepared<gemm<double>>(std::move(d), "reference float64");
  return KernelOffer::decline("only float32 and float64 products are supported");
}

ExprProgram matmul_alone() {
  ExprProgram program{.num_inputs = 1};
  program.results = {program.input(0)};
  return program;
}

KernelOffer offer_gemm(const KernelRequest& request) {
  const auto op = opdef::Gemm::read(request.node);
  return offer_matmul(request, 0, op.transpose_a, op.transpose_b,
                      op.epilogue.value_or(matmul_alone()), op.sums_columns);
}

KernelOffer offer_gemm_update(const KernelRequest& request) {
  const auto op = opdef::GemmUpdate::read(request.node);
  KernelOffer offer = offer_matmul(request, 1, op.transpose_a, op.transpose_b,
                                   op.program(/*has_rate=*/request.inputs.size() > 3));
  offer.kernel.in_place = {{0, 0}};
  return offer;
}

KernelOffer offer_gemm_weight_update(const KernelRequest& request) {
  if (is_number(request)) return KernelOffer::decline("the weight has rank 0");
  const auto op = opdef::GemmWeightUpdate::read(request.node);
  return in_place(offer_matmul(request, 0, op.transpose_a, op.transpose_b, op.update.program()),
                  op.update, 2);
}

}  // namespace

void register_reference_cpu(opdef::KernelRegistry& kernels) {
  kernels.add(ir::kFusedDomain, opdef::kElementwise, 0, offer_elementwise);
  kernels.add(ir::kFusedDomain, opdef::kGemm, 0, offer_gemm);
  kernels.add(ir::kFusedDomain, opdef::kGemmUpdate, 0, offer_gemm_update);
  kernels.add(ir::kFunctionDomain, opdef::kWeightUpdate, 0, offer_weight_update);
  kernels.add(ir::kFusedDomain, opdef::kGemmWeightUpdate, 0, offer_gemm_weight_update);
}

}  // namespace onnxgrad::ops::reference_cpu
