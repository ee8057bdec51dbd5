#include <cstring>

#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"

namespace onnxgrad::ops::bitcast_cpu {
namespace {

struct Bytes {
  std::int64_t count = 0;
};

void run_bitcast(const Bytes& bytes, KernelArgs args) {
  if (args[1] == args[0]) return;
  std::memcpy(args[1], args[0], static_cast<std::size_t>(bytes.count));
}

KernelOffer offer_bitcast(const KernelRequest& request) {
  const TensorDesc& x = request.inputs[0];
  const TensorDesc& y = request.outputs[0];
  const std::int64_t bytes = x.dims.size_bytes(x.dtype);
  if (x.dtype == DataType::kString || y.dtype == DataType::kString ||
      bytes != y.dims.size_bytes(y.dtype)) {
    throw ShapeError(
        {.what = std::string(dtype_name(x.dtype)) + " to " + std::string(dtype_name(y.dtype)),
         .where = {.node = request.node.name, .op_type = request.node.op_type},
         .detail = "Their elements have different widths.",
         .hint = "Use Cast, or a type of as many bits."});
  }
  KernelOffer offer = prepared<run_bitcast>(Bytes{bytes}, "copy");
  offer.kernel.in_place = {{0, 0}};
  return offer;
}

}  // namespace

void register_bitcast_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "BitCast", 0, offer_bitcast);
}

}  // namespace onnxgrad::ops::bitcast_cpu
