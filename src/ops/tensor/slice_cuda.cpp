#include <string>

#include "ops/index_walk_cuda.h"
#include "ops/tensor/moved_view.h"

namespace onnxgrad::ops::slice_cuda {
namespace {

KernelOffer offer_slice(const KernelRequest& request) {
  std::string declined;
  const auto copy = sliced_view(request, declined);
  if (!copy) return KernelOffer::decline(declined);
  if (copy->element_bytes == 0) return decline_dtype(request, request.inputs[0].dtype);
  return offer_copy(request, *copy, request.inputs.size());
}

}  // namespace

void register_slice_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Slice", 0, offer_slice);
}

}  // namespace onnxgrad::ops::slice_cuda
