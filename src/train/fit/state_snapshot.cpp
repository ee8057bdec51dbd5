#include "train/fit/state_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "train/session/shared_slots.h"

namespace onnxgrad::train {
namespace {

std::string copy_name(std::string_view purpose, std::string_view state_name) {
  return fmt::format("{}{}/{}", kReservedPrefix, purpose, state_name);
}

}  // namespace

StateSnapshot::StateSnapshot(StepRunner& step)
    : step_(step),
      copies_(step.state().make_copies()),
      initial_(step.state().initial_values()),
      bytes_(step.state().bytes()) {
  step_.state().add_snapshot_bytes(bytes_);
}

StateSnapshot::~StateSnapshot() { step_.state().add_snapshot_bytes(-bytes_); }

void StateSnapshot::take() {
  is_initial_ = step_.state().has_initial_values();
  if (!is_initial_) step_.state().save_to(copies_);
  steps_ = step_.steps();
}

void StateSnapshot::restore() const {
  step_.state().restore_from(values());
  step_.set_steps(steps_);
}

void StateSnapshot::add_to(Checkpoint& checkpoint, std::string_view purpose) const {
  const auto& state = step_.executor().state();
  for (std::size_t i = 0; i < state.size(); ++i) {
    add_state(checkpoint, step_.graph(), state[i].name, copy_name(purpose, state[i].name),
              values()[i]);
  }
  checkpoint.set_int(fmt::format("fit/{}_steps", purpose), steps_);
}

bool StateSnapshot::take_from(const Checkpoint& checkpoint, std::string_view purpose) {
  const auto& state = step_.executor().state();
  std::vector<Tensor> stored;
  for (std::size_t i = 0; i < state.size(); ++i) {
    const Tensor* found = checkpoint.find(copy_name(purpose, state[i].name));
    if (found == nullptr) return false;
    Tensor tensor = own_part(step_.graph(), state[i].name, *found, copies_[i]).clone();
    if (tensor.dtype() != copies_[i].dtype() || tensor.dims() != copies_[i].dims()) return false;
    stored.push_back(std::move(tensor));
  }
  steps_ = checkpoint.get_int(fmt::format("fit/{}_steps", purpose));
  std::ranges::move(stored, copies_.begin());
  is_initial_ = false;
  // The state of OuterStep, which the checkpoint lacks: workers that update alone begin at these
  // weights.
  if (const OuterStep* outer = step_.state().outer()) {
    const std::size_t momenta = state.size();
    const std::size_t starts = momenta + outer->num_weights();
    for (std::size_t i = 0; i < outer->num_weights(); ++i) {
      const Tensor& weight = copies_[i];
      copies_[momenta + i] = Tensor::zeros(weight.dtype(), weight.dims());
      copies_[starts + i] = weight.clone();
    }
    copies_.back() = Tensor::scalar(std::int64_t{0});
  }
  return true;
}

}  // namespace onnxgrad::train
