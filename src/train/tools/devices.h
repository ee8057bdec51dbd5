#ifndef ONNXGRAD_TRAIN_DEVICES_H_
#define ONNXGRAD_TRAIN_DEVICES_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "device/plugin.h"
#include "onnxgrad/devices.h"
#include "runtime/engine.h"

namespace onnxgrad::train {

/// The engine on a device: "cpu"; the name of a plugin, alone for its first device or with a number
/// ("simulated:1"); "auto" for the first kind other than the CPU that passes self_check(), else the
/// CPU; "" for the one that the environment variable ONNXGRAD_DEVICE names, "cpu" without
/// it. `warn` is told once of devices that fail the check. In a job, a name without a number may be
/// that of the local rank (DevicePlugin::index_of_rank). An engine is made when it is first asked
/// for, and lives as long as the process. Throws: DeviceError (no such device, with those that are
/// there). Thread-safe.
std::shared_ptr<const runtime::Engine> engine_on(
    std::string_view device, const std::function<void(const std::string&)>& warn = nullptr);

/// The device with this memory, if engine_on() has made it, and it is not the host; else nullptr.
/// Thread-safe.
device::Device* device_in_use(DlpackDevice memory);

/// Adds the devices of a plugin that is part of the program. Throws: see load_device_plugin().
void install_device(const device::DevicePlugin& plugin, std::string_view origin = "built in");

/// See onnxgrad/devices.h.
void load_device_plugin(const std::string& file);
std::vector<DeviceInfo> installed_devices();

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DEVICES_H_
