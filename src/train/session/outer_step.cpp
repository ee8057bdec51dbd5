#include "train/session/outer_step.h"

#include <algorithm>
#include <iterator>

namespace onnxgrad::train {

OuterStep::OuterStep(runtime::Executor& executor, std::size_t num_weights, Workers& workers,
                     const Options& options)
    : executor_(executor), workers_(workers), options_(options) {
  for (std::size_t i = 0; i < num_weights; ++i) {
    start_.push_back(executor.read_state(i).clone());
    momenta_.push_back(Tensor::zeros(start_.back().dtype(), start_.back().dims()));
  }
}

void OuterStep::begin_at_weights() {
  steps_ = 0;
  for (std::size_t i = 0; i < start_.size(); ++i) start_[i] = executor_.read_state(i).clone();
}

void OuterStep::restart() {
  begin_at_weights();
  for (Tensor& momentum : momenta_) momentum = Tensor::zeros(momentum.dtype(), momentum.dims());
}

std::vector<Tensor> OuterStep::state() const {
  std::vector<Tensor> all = momenta_;
  all.insert(all.end(), start_.begin(), start_.end());
  all.push_back(Tensor::scalar(steps_));
  return all;
}

bool OuterStep::set_state(std::span<const Tensor> state) {
  const std::vector<Tensor> present = this->state();
  const auto fits = [](const Tensor& a, const Tensor& b) {
    return a.is_defined() && a.dtype() == b.dtype() && a.dims() == b.dims();
  };
  if (!std::ranges::equal(state, present, fits)) return false;
  for (std::size_t i = 0; i < num_weights(); ++i) {
    momenta_[i] = state[i].clone();
    start_[i] = state[num_weights() + i].clone();
  }
  steps_ = state.back().data<std::int64_t>().front();
  return true;
}

// All weights of one type together.
template <class T>
void OuterStep::step_weights(std::span<const std::size_t> weights, dist::Element element) {
  std::vector<T> changes;
  for (const std::size_t i : weights) {
    const Tensor now = executor_.read_state(i);
    const auto before = start_[i].template data<T>();
    std::ranges::transform(before, now.template data<T>(), std::back_inserter(changes),
                           [](T old, T fresh) { return old - fresh; });
  }
  if (changes.empty()) return;
  workers_.communicator()
      .all_reduce(std::ssize(changes), element)
      ->run(changes.data(), changes.data());
  const auto rate = static_cast<T>(options_.rate);
  const auto momentum = static_cast<T>(options_.momentum);
  const auto share = static_cast<T>(1.0 / workers_.size());
  auto change = changes.begin();
  for (const std::size_t i : weights) {
    auto m = momenta_[i].template mutable_data<T>().begin();
    for (T& w : start_[i].template mutable_data<T>()) {
      const T g = *change++ * share;
      *m = momentum * *m + g;
      w -= rate * (g + momentum * *m++);
    }
    executor_.set_state(i, start_[i]);
  }
}

void OuterStep::take() {
  steps_ = 0;
  std::vector<std::size_t> narrow;
  std::vector<std::size_t> wide;
  for (std::size_t i = 0; i < start_.size(); ++i) {
    (start_[i].dtype() == DataType::kFloat64 ? wide : narrow).push_back(i);
  }
  step_weights<float>(narrow, dist::Element::kFloat32);
  step_weights<double>(wide, dist::Element::kFloat64);
}

}  // namespace onnxgrad::train
