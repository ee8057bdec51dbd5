#ifndef ONNXGRAD_TRAIN_FEEDS_H_
#define ONNXGRAD_TRAIN_FEEDS_H_

#include <span>
#include <string>
#include <vector>

#include "onnxgrad/device_tensor.h"
#include "onnxgrad/weights.h"
#include "runtime/execution.h"

namespace onnxgrad::train {

/// Sorts tensors into the order of `ports`. `ignored` names may be fed too, without effect.
/// Throws: DataError (missing, unknown or duplicate name, wrong dtype).
std::vector<const Tensor*> order_feeds(const NamedTensors& feeds,
                                       std::span<const runtime::Port> ports,
                                       std::span<const std::string> ignored = {});

std::vector<const DeviceTensor*> order_feeds(const NamedDeviceTensors& feeds,
                                             std::span<const runtime::Port> ports,
                                             std::span<const std::string> ignored = {});

std::vector<std::string> names_of(std::span<const runtime::Port> ports);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_FEEDS_H_
