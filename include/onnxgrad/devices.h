#ifndef ONNXGRAD_DEVICES_H_
#define ONNXGRAD_DEVICES_H_

#include <cstdint>
#include <string>
#include <vector>

namespace [[gnu::visibility("default")]] onnxgrad {

/// A device that sessions can use: EngineOptions::device is its name.
struct DeviceInfo {
  std::string name;    ///< "cpu", "simulated:0"
  std::string origin;  ///< "built in", or the file of the plugin
};

/// A kind of memory and its number, as libraries exchange arrays
/// (https://dmlc.github.io/dlpack/latest): 1 is the host, 2 CUDA, 12 a device that DLPack does not
/// know.
struct DlpackDevice {
  std::int32_t type = 1;
  std::int32_t id = 0;
  bool operator==(const DlpackDevice&) const = default;
};

/// The devices of this process, the CPU first. Devices other than the CPU come from plugins: shared
/// libraries built from the headers of the same onnxgrad by the same compiler (docs/extending.md).
/// Those that the environment variable ONNXGRAD_DEVICE_PLUGINS lists, separated by colons, are
/// loaded first. Throws: DeviceError (see load_device_plugin()). Thread-safe.
std::vector<DeviceInfo> devices();

/// Loads a plugin, which stays in the process. Loading one again does nothing. Thread-safe.
/// Throws: DeviceError (no such file; not a plugin; a plugin for another version of onnxgrad; its
/// name is taken).
void load_device_plugin(const std::string& file);

}  // namespace onnxgrad

#endif  // ONNXGRAD_DEVICES_H_
