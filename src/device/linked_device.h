#ifndef ONNXGRAD_DEVICE_LINKED_DEVICE_H_
#define ONNXGRAD_DEVICE_LINKED_DEVICE_H_

#include <memory>
#include <string>
#include <vector>

// Devices that exchange data with those of other processes themselves, not through the memory of
// the host.

namespace onnxgrad::device {

/// The ranks of a job, one process with a device each, as a device needs them to find the others.
class JobRanks {
 public:
  virtual ~JobRanks() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "rank 3 on host node-2".
  virtual std::string name_of(int rank) const = 0;
  /// Longest wait for the others.
  virtual double timeout_s() const = 0;
  /// The texts of all ranks, in order; all of them call this. Throws: DeviceError.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  /// Throws: DeviceError, naming a rank that has ended.
  virtual void check() = 0;
};

class LinkedDevice {
 public:
  virtual ~LinkedDevice() = default;
  /// Connects the device with those of the other ranks, which do the same; the next calls do
  /// nothing. Throws: DeviceError (a library is missing on some rank, two ranks have one device; a
  /// rank does not come).
  virtual void link(std::shared_ptr<JobRanks> ranks) = 0;
};

}  // namespace onnxgrad::device

#endif  // ONNXGRAD_DEVICE_LINKED_DEVICE_H_
