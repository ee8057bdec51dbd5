#include <string>

#include "ops/index_walk_cuda.h"
#include "ops/tensor/moved_view.h"

namespace onnxgrad::ops::slice_cuda {
namespace {

KernelOffer offer_slice(const KernelRequest& request) {
  std::string declined;
  const auto copy = sliced_view(request, declined);
  if (!copy) return KernelOffer::decline(declined);
  return offer_view_on_card(request, *copy);
}

}  // namespace

void register_slice_cuda(opdef::KernelRegistry& registry) {
  registry.add("", "Slice", 0, offer_slice);
}

}  // namespace onnxgrad::ops::slice_cuda
