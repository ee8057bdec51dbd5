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
namespace {

// The feeds of a call that its work may still read when the call ends, also by an exception.
class InUse {
 public:
  InUse(const PlacedFeeds& feeds, Session& session) : feeds_(feeds), session_(session) {}
  ~InUse() {
    try {
      std::vector<DeviceTensor> read;
      for (const NamedDeviceTensor& feed : feeds_.on_device) read.push_back(feed.tensor);
      session_.runner().executor().keep_in_use(std::move(read));
    } catch (...) {  // NOLINT(bugprone-empty-catch): the next call reports what the device does
    }
  }
  InUse(const InUse&) = delete;
  InUse& operator=(const InUse&) = delete;

 private:
  const PlacedFeeds& feeds_;
  Session& session_;
};

}  // namespace

// The model's inputs stay where they are. Values of the host are read of targets, which are
// checked, of texts, of batches that are filled up, and of what decides a loss.
PlacedFeeds Session::place(const NamedDeviceTensors& feeds) const {
  const bool reads_values = batch_.fixed_rows() > 0 || texts_ != nullptr || awaits_labels(*this);
  PlacedFeeds placed;
  for (const auto& [name, tensor] : feeds) {
    const bool is_input =
        std::ranges::find(values_.inputs, name, &ValueInfo::name) != values_.inputs.end() &&
        find_target(loss(), name) == nullptr && name != graph().sample_weight;
    if (!reads_values && is_input && step_->executor().has_in_memory(tensor)) {
      placed.all.push_back(
          {.name = name, .tensor = Tensor::view(tensor.dtype(), tensor.dims(), nullptr, nullptr)});
      placed.on_device.push_back({.name = name, .tensor = tensor});
    } else {
      placed.all.push_back({.name = name, .tensor = tensor.to_host()});
    }
  }
  return placed;
}

StepResult Session::step(const NamedDeviceTensors& feeds) {
  const PlacedFeeds placed = place(feeds);
  const InUse in_use(placed, *this);
  return step(placed.all, placed.on_device);
}

EvaluationResult Session::evaluate(const NamedDeviceTensors& feeds) {
  const PlacedFeeds placed = place(feeds);
  const InUse in_use(placed, *this);
  return evaluate(placed.all, placed.on_device);
}

std::vector<DeviceTensor> Session::predict_on_device(const NamedDeviceTensors& feeds,
                                                     std::span<const std::string> output_names) {
  PlacedFeeds placed = place(feeds);
  const InUse in_use(placed, *this);
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
