#ifndef ONNXGRAD_DEVICE_PLUGIN_H_
#define ONNXGRAD_DEVICE_PLUGIN_H_

#include <memory>
#include <string>

#include "device/device.h"
#include "opdef/kernel.h"

// Kinds of devices. One that is not part of onnxgrad is a shared library with the function
//
//   extern "C" const onnxgrad::device::DevicePlugin* onnxgrad_device_plugin();
//
// built from the headers of the same onnxgrad by the same compiler: C++ types cross the border, and
// the lock makes sure that they are the same on both sides. docs/extending.md walks through one.

namespace onnxgrad::device {

/// A kind of device. Lives as long as the process.
struct DevicePlugin {
  /// ONNXGRAD_PLUGIN_LOCK of the build of the plugin (device/plugin_lock.h, which
  /// cmake/plugin_lock.cmake makes): version, compiler, and a hash of the headers.
  const char* lock;
  const char* name;  ///< that users give: "simulated"; lower-case letters, digits and underscores
  /// The number of devices that can be used now.
  int (*count)();
  /// Why there are none, with what to install; empty: there is nothing to say. May be nullptr.
  std::string (*why_none)() = nullptr;
  /// Device `index`, from 0 to count() - 1; called once for each. Throws: DeviceError.
  std::unique_ptr<Device> (*make_device)(int index);
  /// Adds the kernels of the device to `own`. `cpu` has those of the CPU, which a device may offer
  /// only if it can run functions of the host on its memory. Operators that get no kernel run on
  /// the CPU.
  void (*register_kernels)(const opdef::KernelRegistry& cpu, opdef::KernelRegistry& own);
  /// The device of one of several processes of a job on this host, if its user names none. Throws:
  /// DeviceError (there are too few). nullptr: the first one, for all.
  int (*index_of_rank)(int local_rank) = nullptr;
};

/// Name and type of the function that a plugin exports.
inline constexpr char kPluginSymbol[] = "onnxgrad_device_plugin";
using PluginFn = const DevicePlugin* (*)();

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_PLUGIN_H_
