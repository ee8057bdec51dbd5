#ifndef ONNXGRAD_DEVICE_TESTING_LAYOUT_KERNELS_H_
#define ONNXGRAD_DEVICE_TESTING_LAYOUT_KERNELS_H_

#include <cstddef>

#include "device/plugin.h"
#include "opdef/kernel.h"
#include "opdef/layout.h"

// Kernels that ask for layouts, for the simulated device: they convert their operands to plain
// order in their scratch, run the CPU's kernel there, and convert its results.

namespace onnxgrad::device::testing {

/// The layout that a node's kernel asks for, of operand `i`: its inputs, then its outputs.
using LayoutWish = opdef::Layout (*)(const opdef::KernelRequest& request, std::size_t i);

/// Answers a request by the CPU's kernel for it between conversions to the layouts that `wish`
/// gives tensors of three and more axes.
opdef::KernelOffer offer_in_layouts(const opdef::KernelRequest& request, LayoutWish wish);
/// Answers a request by the CPU's kernel for it: an element-wise one takes any common layout,
/// others are plain.
opdef::KernelOffer offer_common_or_plain(const opdef::KernelRequest& request);

/// Adds to `own` offers that come before the CPU's: `images` for operators over images, and
/// offer_common_or_plain() for element-wise ones. `cpu` has the CPU's kernels, at each call the
/// same.
void add_layout_offers(const opdef::KernelRegistry& cpu, opdef::KernelRegistry& own,
                       opdef::KernelOfferFn images);

/// Adds offers whose kernels ask for the layouts of `kWish`.
template <LayoutWish kWish>
void add_layout_kernels(const opdef::KernelRegistry& cpu, opdef::KernelRegistry& own) {
  add_layout_offers(cpu, own, [](const opdef::KernelRequest& request) {
    return offer_in_layouts(request, kWish);
  });
}

/// The simulated device as "simulated_channels_last", whose kernels over images ask for that.
const DevicePlugin& channels_last_plugin();

}  // namespace onnxgrad::device::testing

#endif  // ONNXGRAD_DEVICE_TESTING_LAYOUT_KERNELS_H_
