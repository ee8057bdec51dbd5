#include "train/tools/feeds.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace onnxgrad::train {

using runtime::Port;

std::vector<std::string> names_of(std::span<const Port> ports) {
  std::vector<std::string> names;
  names.reserve(ports.size());
  for (const Port& port : ports) names.push_back(port.name);
  return names;
}

namespace {

template <class AnyTensor, class Named>
std::vector<const AnyTensor*> in_order(const Named& feeds, std::span<const Port> ports,
                                       std::span<const std::string> ignored) {
  std::vector<const AnyTensor*> ordered(ports.size(), nullptr);
  for (const auto& feed : feeds) {
    const auto port = std::ranges::find(ports, feed.name, &Port::name);
    if (port == ports.end()) {
      if (std::ranges::find(ignored, feed.name) != ignored.end()) continue;
      const auto names = names_of(ports);
      throw DataError({.what = "there is no input '" + feed.name + "'",
                       .where = {.value = feed.name},
                       .detail = "Inputs: " + base::quote_list(names) + ".",
                       .hint = base::nearest_or(feed.name, names)});
    }
    const auto place = static_cast<std::size_t>(port - ports.begin());
    if (ordered[place] != nullptr) {
      throw DataError({.what = "input '" + feed.name + "' is fed twice",
                       .where = {.value = feed.name},
                       .hint = "Give each input one array."});
    }
    if (port->type.is_tensor() && port->type.dtype == DataType::kUndefined) {
      throw ModelError({.what = "input '" + feed.name + "' has an element type that is not known",
                        .where = {.value = feed.name},
                        .hint = "Declare the input with a type of ONNX up to IR version 13."});
    }
    if (feed.tensor.dtype() != port->type.dtype) {
      throw DataError(
          {.what = fmt::format("input '{}' is {}, expected {}", feed.name,
                               dtype_name(feed.tensor.dtype()), dtype_name(port->type.dtype)),
           .where = {.value = feed.name},
           .hint = feed.tensor.dtype() == DataType::kString
                       ? "Give numbers; encode_target(labels) converts labels that are strings."
                       : "Convert the array; `Trainer` does this automatically."});
    }
    ordered[place] = &feed.tensor;
  }
  for (std::size_t i = 0; i < ports.size(); ++i) {
    if (ordered[i] != nullptr) continue;
    throw DataError({.what = "input '" + ports[i].name + "' of type " + ports[i].type.to_string() +
                             " is missing",
                     .where = {.value = ports[i].name},
                     .hint = "Feed an array with this name."});
  }
  return ordered;
}

}  // namespace

std::vector<const Tensor*> order_feeds(const NamedTensors& feeds, std::span<const Port> ports,
                                       std::span<const std::string> ignored) {
  return in_order<Tensor>(feeds, ports, ignored);
}

std::vector<const DeviceTensor*> order_feeds(const NamedDeviceTensors& feeds,
                                             std::span<const Port> ports,
                                             std::span<const std::string> ignored) {
  return in_order<DeviceTensor>(feeds, ports, ignored);
}

}  // namespace onnxgrad::train
