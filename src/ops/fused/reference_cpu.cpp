#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "opdef/expr.h"
#include "opdef/kernel.h"
#include "ops/fused/scalar_expr.h"
#include "ops/kernel_support.h"

// Plain kernels of the fused operators: one element at a time, in the order of the definition. They
// are what the fast ones are tested against, and take what those decline.

namespace onnxgrad::ops {
namespace {

using opdef::ExprOp;
using opdef::ExprProgram;
using opdef::KernelOffer;
using opdef::KernelRequest;

// ---- Elementwise ----

struct Operand {
  DataType dtype = DataType::kUndefined;
  std::vector<std::int64_t> strides = {};  // over the space; 0 where broadcast
};

struct ElementwiseData {
  ExprProgram program;
  ExprProgram post;
  bool has_post = false;
  std::vector<std::int64_t> space;
  std::vector<std::int64_t> reduced_strides;  // over the space; 0 along reduced axes
  std::int64_t num_elements = 0;
  std::int64_t num_reduced = 0;
  std::size_t stored = 0;
  std::vector<std::int64_t> reduce;
  std::vector<Operand> operands;
  std::vector<opdef::TensorDesc> post_operands;
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

template <class T>
T reduction_identity(std::int64_t kind) {
  if (kind == 0) return T{};
  using Limits = std::numeric_limits<T>;
  if constexpr (Limits::has_infinity) return kind == 1 ? -Limits::infinity() : Limits::infinity();
  return kind == 1 ? Limits::lowest() : Limits::max();
}

// Sums of float32 are kept in double: the reference has no rounding of its own.
template <class T>
using Accumulator = std::conditional_t<std::is_same_v<T, float>, double, T>;

template <class T>
struct ElementwiseRun {
  const ElementwiseData& d;
  std::byte* const* inputs;
  std::byte* const* outputs;
  std::vector<T> registers =
      std::vector<T>(std::max(d.program.instructions.size(), d.post.instructions.size()) + 1);
  std::vector<std::vector<Accumulator<T>>> reduced = {};

  void run() {
    for (const std::int64_t kind : d.reduce) {
      reduced.emplace_back(static_cast<std::size_t>(d.num_reduced),
                           reduction_identity<Accumulator<T>>(kind));
    }
    run_main();
    if (d.has_post) {
      run_post();
      return;
    }
    for (std::size_t r = 0; r < reduced.size(); ++r) {
      for (std::int64_t i = 0; i < d.num_reduced; ++i) {
        put(d.stored + r, i, static_cast<T>(reduced[r][static_cast<std::size_t>(i)]));
      }
    }
  }

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
      evaluate(d.program, operands.data(), registers.data());
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
    for (std::size_t r = 0; r < d.program.results.size(); ++r) {
      const T value = registers[static_cast<std::size_t>(d.program.results[r])];
      if (r < d.stored) {
        put(r, element, value);
        continue;
      }
      auto& sum = reduced[r - d.stored][static_cast<std::size_t>(place)];
      const auto wide = static_cast<Accumulator<T>>(value);
      const std::int64_t kind = d.reduce[r - d.stored];
      sum = kind == 0 ? sum + wide : kind == 1 ? maximum(sum, wide) : minimum(sum, wide);
    }
  }

  void run_post() {
    std::vector<T> operands(reduced.size() + d.post_operands.size());
    for (std::int64_t i = 0; i < d.num_reduced; ++i) {
      for (std::size_t r = 0; r < reduced.size(); ++r) {
        operands[r] = static_cast<T>(reduced[r][static_cast<std::size_t>(i)]);
      }
      for (std::size_t k = 0; k < d.post_operands.size(); ++k) {
        const opdef::TensorDesc& desc = d.post_operands[k];
        operands[reduced.size() + k] = load<T>(inputs[d.operands.size() + k], desc.dtype,
                                               desc.dims.num_elements() == 1 ? 0 : i);
      }
      evaluate(d.post, operands.data(), registers.data());
      for (std::size_t r = 0; r < d.post.results.size(); ++r) {
        put(d.stored + r, i, registers[static_cast<std::size_t>(d.post.results[r])]);
      }
    }
  }
};

template <class T>
void elementwise(const void* data, std::byte* const* args, const opdef::Launch&) {
  const auto& d = *static_cast<const ElementwiseData*>(data);
  const std::size_t num_inputs = d.operands.size() + d.post_operands.size();
  ElementwiseRun<T>{.d = d, .inputs = args, .outputs = args + num_inputs}.run();
}

bool can_access(const std::vector<opdef::TensorDesc>& descs) {
  return std::ranges::all_of(descs, [](const opdef::TensorDesc& desc) {
    return !desc.is_present() || visit_dtype(desc.dtype, [](auto) {});
  });
}

KernelOffer offer_elementwise(const KernelRequest& request) {
  if (!can_access(request.inputs) || !can_access(request.outputs)) {
    return KernelOffer::decline("an operand's type is not computed with");
  }
  const ir::Node& node = request.node;
  ElementwiseData d;
  d.program = ExprProgram::from_ints(node.ints_attribute("program"));
  d.stored = static_cast<std::size_t>(
      node.int_attribute("stored", static_cast<std::int64_t>(d.program.results.size())));
  d.reduce = node.ints_attribute("reduce");
  if (node.find_attribute("post") != nullptr) {
    d.post = ExprProgram::from_ints(node.ints_attribute("post"));
    d.has_post = true;
  }
  Dims space;
  const auto main_operands = static_cast<std::size_t>(d.program.num_inputs);
  for (std::size_t i = 0; i < main_operands; ++i)
    space = broadcast_dims(space, request.inputs[i].dims);
  d.space.assign(space.begin(), space.end());
  d.num_elements = space.num_elements();
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    const opdef::TensorDesc& desc = request.inputs[i];
    if (i < main_operands) {
      d.operands.push_back({.dtype = desc.dtype, .strides = broadcast_strides(desc.dims, space)});
    } else {
      d.post_operands.push_back(desc);
    }
  }
  std::vector<std::int64_t> kept = d.space;
  for (const std::int64_t axis : node.ints_attribute("reduce_axes"))
    kept[static_cast<std::size_t>(axis)] = 1;
  const Dims reduced{std::move(kept)};
  d.num_reduced = reduced.num_elements();
  d.reduced_strides = broadcast_strides(reduced, space);
  for (const opdef::TensorDesc& desc : request.outputs) d.outputs.push_back(desc.dtype);
  switch (static_cast<DataType>(node.int_attribute("compute", 0))) {
    case DataType::kFloat32:
      return prepared(&elementwise<float>, std::move(d), "reference float32");
    case DataType::kFloat64:
      return prepared(&elementwise<double>, std::move(d), "reference float64");
    case DataType::kInt64:
      return prepared(&elementwise<std::int64_t>, std::move(d), "reference int64");
    default:
      return KernelOffer::decline("unknown compute type");
  }
}

// ---- Gemm and GemmUpdate ----

struct GemmData {
  std::int64_t m = 0, n = 0, k = 0;
  bool trans_a = false, trans_b = false;
  bool has_rate = false;
  double scale = 1;
  ExprProgram epilogue;
  std::vector<Operand> operands;  // of the epilogue, over [m, n]
};

template <class T>
Accumulator<T> dot(const GemmData& d, const T* a, const T* b, std::int64_t i, std::int64_t j) {
  Accumulator<T> sum{};
  for (std::int64_t p = 0; p < d.k; ++p) {
    const T x = d.trans_a ? a[p * d.m + i] : a[i * d.k + p];
    const T y = d.trans_b ? b[j * d.k + p] : b[p * d.n + j];
    sum += static_cast<Accumulator<T>>(x) * static_cast<Accumulator<T>>(y);
  }
  return sum;
}

template <class T>
void gemm(const void* data, std::byte* const* args, const opdef::Launch&) {
  const auto& d = *static_cast<const GemmData*>(data);
  const auto* a = reinterpret_cast<const T*>(args[0]);
  const auto* b = reinterpret_cast<const T*>(args[1]);
  auto* c = reinterpret_cast<T*>(args[2 + d.operands.size()]);
  std::vector<T> operands(d.operands.size() + 1);
  std::vector<T> registers(d.epilogue.instructions.size() + 1);
  for (std::int64_t i = 0; i < d.m; ++i) {
    for (std::int64_t j = 0; j < d.n; ++j) {
      operands[0] = static_cast<T>(dot(d, a, b, i, j));
      for (std::size_t o = 0; o < d.operands.size(); ++o) {
        const std::int64_t at = i * d.operands[o].strides[0] + j * d.operands[o].strides[1];
        operands[o + 1] = load<T>(args[2 + o], d.operands[o].dtype, at);
      }
      T value = operands[0];
      if (!d.epilogue.results.empty()) {
        evaluate(d.epilogue, operands.data(), registers.data());
        value = registers[static_cast<std::size_t>(d.epilogue.results[0])];
      }
      c[i * d.n + j] = value;
    }
  }
}

template <class T>
void gemm_update(const void* data, std::byte* const* args, const opdef::Launch&) {
  const auto& d = *static_cast<const GemmData*>(data);
  const auto* w = reinterpret_cast<const T*>(args[0]);
  const auto* a = reinterpret_cast<const T*>(args[1]);
  const auto* b = reinterpret_cast<const T*>(args[2]);
  auto* out = reinterpret_cast<T*>(args[d.has_rate ? 4 : 3]);
  const double rate =
      d.scale * (d.has_rate ? static_cast<double>(*reinterpret_cast<const T*>(args[3])) : 1.0);
  for (std::int64_t i = 0; i < d.m; ++i) {
    for (std::int64_t j = 0; j < d.n; ++j) {
      out[i * d.n + j] = static_cast<T>(static_cast<double>(w[i * d.n + j]) +
                                        rate * static_cast<double>(dot(d, a, b, i, j)));
    }
  }
}

GemmData gemm_shape(const ir::Node& node, const Dims& a, const Dims& out) {
  GemmData d;
  d.trans_a = node.int_attribute("transA", 0) != 0;
  d.trans_b = node.int_attribute("transB", 0) != 0;
  d.n = out[out.rank() - 1];
  d.m = out.product(0, out.rank() - 1);
  d.k = d.trans_a ? a[0] : a[a.rank() - 1];
  return d;
}

KernelOffer choose(DataType dtype, opdef::KernelFn single, opdef::KernelFn wide, GemmData d) {
  if (dtype == DataType::kFloat32) return prepared(single, std::move(d), "reference float32");
  if (dtype == DataType::kFloat64) return prepared(wide, std::move(d), "reference float64");
  return KernelOffer::decline("only float32 and float64 are multiplied");
}

KernelOffer offer_gemm(const KernelRequest& request) {
  const Dims& out = request.outputs[0].dims;
  GemmData d = gemm_shape(request.node, request.inputs[0].dims, out);
  if (request.node.find_attribute("epilogue") != nullptr) {
    d.epilogue = ExprProgram::from_ints(request.node.ints_attribute("epilogue"));
  }
  if (!can_access(request.inputs))
    return KernelOffer::decline("an operand's type is not computed with");
  const Dims space{d.m, d.n};
  for (std::size_t i = 2; i < request.inputs.size(); ++i) {
    const opdef::TensorDesc& desc = request.inputs[i];
    const Dims flat = desc.dims == out                  ? space
                      : desc.dims.num_elements() == 1   ? Dims{}
                      : desc.dims.rank() > space.rank() ? Dims{desc.dims.num_elements()}
                                                        : desc.dims;
    d.operands.push_back({.dtype = desc.dtype, .strides = broadcast_strides(flat, space)});
  }
  return choose(request.outputs[0].dtype, &gemm<float>, &gemm<double>, std::move(d));
}

KernelOffer offer_gemm_update(const KernelRequest& request) {
  GemmData d = gemm_shape(request.node, request.inputs[1].dims, request.outputs[0].dims);
  d.scale = static_cast<double>(request.node.float_attribute("scale", 1));
  d.has_rate = request.inputs.size() > 3;
  KernelOffer offer =
      choose(request.outputs[0].dtype, &gemm_update<float>, &gemm_update<double>, std::move(d));
  offer.kernel.in_place = {{0, 0}};
  return offer;
}

}  // namespace

void register_reference_cpu(opdef::KernelRegistry& kernels) {
  kernels.add(ir::kFusedDomain, "Elementwise", 0, offer_elementwise);
  kernels.add(ir::kFusedDomain, "Gemm", 0, offer_gemm);
  kernels.add(ir::kFusedDomain, "GemmUpdate", 0, offer_gemm_update);
}

}  // namespace onnxgrad::ops
