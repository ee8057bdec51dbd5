#ifndef ONNXGRAD_TRAIN_DEVICE_LINKS_H_
#define ONNXGRAD_TRAIN_DEVICE_LINKS_H_

#include "device/device.h"
#include "onnxgrad/workers.h"
#include "opdef/collectives.h"

namespace onnxgrad::train {

/// Connects a device that can exchange data itself with those of the other workers, unless the
/// host is to do that. All workers call this. Throws: see device::LinkedDevice::link().
void link_device(device::Device& device, const WorkerOptions& workers);

opdef::Collective::Route route_of(DeviceExchange exchange);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DEVICE_LINKS_H_
