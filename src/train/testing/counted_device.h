#ifndef ONNXGRAD_TRAIN_TESTING_COUNTED_DEVICE_H_
#define ONNXGRAD_TRAIN_TESTING_COUNTED_DEVICE_H_

#include <cstdint>

namespace onnxgrad::train_test {

/// Requests to the streams of the device "counted".
struct DeviceCounts {
  std::int64_t runs = 0;
  std::int64_t recordings = 0;
  std::int64_t repeats = 0;         ///< calls
  std::int64_t repeated_steps = 0;  ///< their steps
  std::int64_t copies_in = 0;
  std::int64_t bytes_in = 0;
  std::int64_t staged = 0;
  std::int64_t copies_out = 0;
  std::int64_t waits = 0;
};

/// Adds a device "counted" to the process: the simulated one, which in addition records work. The
/// counts are of all its streams, which are used by one thread.
DeviceCounts& counted_device();

/// From now on it makes no recordings, or does again.
void let_record(bool on);

}  // namespace onnxgrad::train_test

#endif  // ONNXGRAD_TRAIN_TESTING_COUNTED_DEVICE_H_
