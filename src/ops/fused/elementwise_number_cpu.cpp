#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/flush_denormals.h"
#include "ir/builder.h"
#include "opdef/fused.h"
#include "opdef/kernel.h"
#include "ops/fused/scalar_expr.h"
#include "ops/kernel_support.h"

// Element-wise work on single numbers: the factors of Adam's step, schedules, loss scales. The
// kernel for arrays would spend more on its loops than on the numbers.

namespace onnxgrad::ops::elementwise_number_cpu {
namespace {

using opdef::KernelOffer;
using opdef::KernelRequest;
using opdef::TensorDesc;

constexpr std::size_t kMostOperands = 16;
constexpr std::size_t kMostInstructions = 64;

struct NumberData {
  opdef::Elementwise op;
  std::vector<DataType> inputs = {};
  std::vector<DataType> outputs = {};  ///< kUndefined: not read
};

template <class T>
void compute(const NumberData& data, std::byte* const* args) {
  std::array<T, kMostOperands> operands;
  std::array<T, kMostInstructions> registers;
  const std::size_t count = data.inputs.size();
  for (std::size_t i = 0; i < count; ++i) operands[i] = load<T>(args[i], data.inputs[i], 0);
  evaluate(data.op.program, operands.data(), registers.data());
  for (std::size_t o = 0; o < data.outputs.size(); ++o) {
    if (data.outputs[o] == DataType::kUndefined) continue;
    const auto result = static_cast<std::size_t>(data.op.program.results[o]);
    store(args[count + o], data.outputs[o], 0, registers[result]);
  }
}

template <class T>
void run(const void* raw, std::byte* const* args, const opdef::Launch& /*launch*/) {
  const auto& data = *static_cast<const NumberData*>(raw);
  if (!data.op.flush_denormals) return compute<T>(data, args);
  const device::FlushDenormals flush;
  compute<T>(data, args);
}

opdef::KernelFn find_kernel(DataType compute) {
  switch (compute) {
    case DataType::kFloat32:
      return run<float>;
    case DataType::kFloat64:
      return run<double>;
    case DataType::kInt64:
      return run<std::int64_t>;
    case DataType::kUint64:
      return run<std::uint64_t>;
    default:
      return nullptr;
  }
}

/// Absent, or one number of a type that can be loaded and stored.
bool is_number(const TensorDesc& desc) {
  if (!desc.is_present()) return true;
  return desc.dims.num_elements() == 1 &&
         (is_half(desc.dtype) || visit_dtype(desc.dtype, [](auto) {}));
}

KernelOffer offer_number(const KernelRequest& request) {
  if (!std::ranges::all_of(request.inputs, is_number) ||
      !std::ranges::all_of(request.outputs, is_number)) {
    return KernelOffer::decline("not single numbers");
  }
  NumberData data{.op = opdef::Elementwise::read(request.node)};
  if (!data.op.folds.empty()) return KernelOffer::decline("folds");
  if (request.inputs.size() > kMostOperands ||
      data.op.program.instructions.size() > kMostInstructions) {
    return KernelOffer::decline("too long for numbers one by one");
  }
  const opdef::KernelFn fn = find_kernel(data.op.compute);
  if (fn == nullptr) return KernelOffer::decline("unknown compute type");
  for (const TensorDesc& input : request.inputs) data.inputs.push_back(input.dtype);
  for (const TensorDesc& output : request.outputs) data.outputs.push_back(output.dtype);
  std::string label = "number: " + data.op.program.to_string();
  KernelOffer offer = prepared(fn, std::move(data), std::move(label));
  // All operands are read before anything is written.
  for (std::size_t i = 0; i < request.inputs.size(); ++i) {
    for (std::size_t o = 0; o < request.outputs.size(); ++o) {
      if (request.inputs[i].dtype != request.outputs[o].dtype) continue;
      offer.kernel.in_place.emplace_back(static_cast<int>(i), static_cast<int>(o));
    }
  }
  return offer;
}

}  // namespace

void register_elementwise_number_cpu(opdef::KernelRegistry& registry) {
  registry.add(ir::kFusedDomain, opdef::kElementwise, 2, offer_number);
}

}  // namespace onnxgrad::ops::elementwise_number_cpu
