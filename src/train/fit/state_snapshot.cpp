#include "train/fit/state_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

namespace onnxgrad::train {
namespace {

std::string copy_name(std::string_view purpose, std::string_view state_name) {
  return fmt::format("{}{}/{}", kReservedPrefix, purpose, state_name);
}

}  // namespace

StateSnapshot::StateSnapshot(Session& session) : session_(session) {
  for (const Tensor& view : session.state_views()) {
    copies_.push_back(Tensor::empty(view.dtype(), view.dims()));
    bytes_ += view.size_bytes();
  }
  session_.add_snapshot_bytes(bytes_);
}

StateSnapshot::~StateSnapshot() { session_.add_snapshot_bytes(-bytes_); }

void StateSnapshot::take(const Session& session) {
  const auto& views = session.state_views();
  for (std::size_t i = 0; i < views.size(); ++i) {
    std::memcpy(copies_[i].mutable_raw(), views[i].raw(),
                static_cast<std::size_t>(views[i].size_bytes()));
  }
  steps_ = session.steps();
}

void StateSnapshot::restore(Session& session) const {
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    session.step_executor().set_state(i, copies_[i]);
  }
  session.set_steps(steps_);
  session.forget_host_state();
}

std::vector<std::string> StateSnapshot::unchanged(const Session& session,
                                                  std::span<const std::string> names) const {
  const NamedTensors state = session.state_view();
  std::vector<std::string> same;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    if (std::ranges::find(names, state[i].name) == names.end()) continue;
    const auto bytes = static_cast<std::size_t>(copies_[i].size_bytes());
    if (std::memcmp(copies_[i].raw(), state[i].tensor.raw(), bytes) == 0) {
      same.push_back(state[i].name);
    }
  }
  return same;
}

void StateSnapshot::add_to(Checkpoint& checkpoint, std::string_view purpose,
                           const Session& session) const {
  const NamedTensors state = session.state_view();
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    checkpoint.set(copy_name(purpose, state[i].name), copies_[i]);
  }
  checkpoint.set_int(fmt::format("fit/{}_steps", purpose), steps_);
}

bool StateSnapshot::take_from(const Checkpoint& checkpoint, std::string_view purpose,
                              const Session& session) {
  const NamedTensors state = session.state_view();
  std::vector<const Tensor*> stored;
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    const Tensor* tensor = checkpoint.find(copy_name(purpose, state[i].name));
    if (tensor == nullptr) return false;
    if (tensor->dtype() != copies_[i].dtype() || tensor->dims() != copies_[i].dims()) return false;
    stored.push_back(tensor);
  }
  steps_ = checkpoint.get_int(fmt::format("fit/{}_steps", purpose));
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    std::memcpy(copies_[i].mutable_raw(), stored[i]->raw(),
                static_cast<std::size_t>(copies_[i].size_bytes()));
  }
  return true;
}

}  // namespace onnxgrad::train
