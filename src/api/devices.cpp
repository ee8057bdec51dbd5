#include "onnxgrad/devices.h"

#include "train/tools/devices.h"

namespace onnxgrad {

std::vector<DeviceInfo> devices() { return train::installed_devices(); }

void load_device_plugin(const std::string& file) { train::load_device_plugin(file); }

}  // namespace onnxgrad
