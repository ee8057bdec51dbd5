#include "train/session/placed_feeds.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "device/device_tensor.h"
#include "train/data/targets.h"
#include "train/session/label_form.h"
#include "train/session/session.h"
#include "train/tools/text_codes.h"

// Calls of a session with feeds in any memory.

namespace onnxgrad::train {

InUse::~InUse() {
  if (tensors_.empty()) return;
  try {
    executor_.keep_in_use(std::move(tensors_));
  } catch (...) {  // NOLINT(bugprone-empty-catch): the next call reports what the device does
  }
}

// The model's inputs stay where they are. Values of the host are read of targets, which are
// checked, of texts, of batches that are filled up, and of what decides a loss.
PlacedFeeds Session::place(const NamedDeviceTensors& feeds, InUse& in_use) const {
  const bool reads_values = batch_.fixed_rows() > 0 || texts_ != nullptr || awaits_labels(*this);
  PlacedFeeds placed;
  for (const auto& [name, tensor] : feeds) {
    const bool is_input =
        std::ranges::find(values_.inputs, name, &ValueInfo::name) != values_.inputs.end() &&
        find_target(loss(), name) == nullptr && name != graph().sample_weight;
    if (!reads_values && is_input && step_->executor().has_in_memory(tensor)) {
      placed.all.push_back(
          {.name = name, .tensor = Tensor::view(tensor.dtype(), tensor.dims(), nullptr, nullptr)});
      placed.on_device.push_back({.name = name, .tensor = in_use.add(device::aligned(tensor))});
    } else {
      placed.all.push_back({.name = name, .tensor = tensor.to_host()});
    }
  }
  return placed;
}

StepResult Session::step(const NamedDeviceTensors& feeds) {
  InUse in_use(step_->executor());
  const PlacedFeeds placed = place(feeds, in_use);
  return step(placed.all, placed.on_device);
}

EvaluationResult Session::evaluate(const NamedDeviceTensors& feeds) {
  InUse in_use(step_->executor());
  const PlacedFeeds placed = place(feeds, in_use);
  return evaluate(placed.all, placed.on_device);
}

std::vector<DeviceTensor> Session::predict_on_device(const NamedDeviceTensors& feeds,
                                                     std::span<const std::string> output_names) {
  InUse in_use(step_->executor());
  PlacedFeeds placed = place(feeds, in_use);
  std::vector<DeviceTensor> results;
  if (filler().rows_to_split(placed.all)) {
    for (Tensor& output : predict(placed.all, output_names)) {
      const bool stays =
          step_->executor().device().is_host() || output.dtype() == DataType::kString;
      results.push_back(stays ? DeviceTensor(std::move(output))
                              : device::copy_to(backend_.engine->device, output));
    }
    return results;
  }
  placed.all = encode_texts(texts_.get(), placed.all);
  return prediction(output_names).run_on_device(placed, input_names());
}

}  // namespace onnxgrad::train
