#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/convert.h"
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
  std::vector<device::ConvertFn> loads = {};
  std::vector<device::ConvertFn> stores = {};  ///< nullptr: not read
};

template <class T>
void compute(const NumberData& data, std::byte* const* args) {
  std::array<T, kMostOperands> operands;
  std::array<T, kMostInstructions> registers;
  const std::size_t count = data.loads.size();
  for (std::size_t i = 0; i < count; ++i) data.loads[i](&operands[i], args[i], 1);
  evaluate(data.op.program, operands.data(), registers.data());
  for (std::size_t o = 0; o < data.stores.size(); ++o) {
    if (data.stores[o] == nullptr) continue;
    const auto result = static_cast<std::size_t>(data.op.program.results[o]);
    data.stores[o](args[count + o], &registers[result], 1);
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

bool is_number(const TensorDesc& desc) {
  return !desc.is_present() || desc.dims.num_elements() == 1;
}

/// From the types in memory and to them; false if one is not supported.
bool find_conversions(const KernelRequest& request, NumberData& data) {
  for (const TensorDesc& input : request.inputs) {
    data.loads.push_back(device::find_conversion(input.dtype, data.op.compute));
    if (data.loads.back() == nullptr) return false;
  }
  for (const TensorDesc& output : request.outputs) {
    data.stores.push_back(
        output.is_present() ? device::find_conversion(data.op.compute, output.dtype) : nullptr);
    if (output.is_present() && data.stores.back() == nullptr) return false;
  }
  return true;
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
  if (!find_conversions(request, data)) return KernelOffer::decline("an operand's type");
  std::string label = "number: " + data.op.program.to_short_string();
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
