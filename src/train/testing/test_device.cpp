#include "device/testing/simulated_device.h"
#include "train/tools/engine.h"

namespace onnxgrad::train_test::test_device {
namespace {

[[maybe_unused]] const bool kIsSet = [] {
  train::set_builtin_device(device::testing::test_device());
  return true;
}();

}  // namespace
}  // namespace onnxgrad::train_test::test_device
