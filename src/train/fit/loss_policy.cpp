#include "train/fit/loss_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"

namespace onnxgrad::train {
namespace {

// Batches that are whole blocks are kept from one snapshot to the next, up to this many.
constexpr std::int64_t kMostKept = 256;

// True for the matrix of an adapter whose gradient is zero until the other one, of zeros at first,
// has changed.
bool waits_for_other(std::string name, const std::vector<std::string>& unchanged) {
  using Names = std::pair<std::string_view, std::string_view>;
  for (const auto& [part, other] :
       {Names(".lora_A.", ".lora_B."), Names(".lora_embedding_B.", ".lora_embedding_A.")}) {
    const std::size_t at = name.rfind(part);
    if (at == std::string::npos) continue;
    name.replace(at, part.size(), other);
    return std::ranges::find(unchanged, name) == unchanged.end();
  }
  return false;
}

}  // namespace

LossPolicy::LossPolicy(const Parts& fit) : fit_(fit) {
  if (!train::goes_back(fit_.options.on_non_finite)) return;
  const bool counts_steps = !fit_.feed.gives_single_batches();
  faults_.emplace(fit_.step, fit_.binder, counts_steps ? fit_.options.snapshot_every_steps : 0);
}

bool LossPolicy::begin_block(const RowBlock& block, bool is_first) {
  if (!faults_) return true;
  if (!fit_.feed.gives_single_batches() || is_first) {
    faults_->take_snapshot(fit_.progress);
  } else {
    const std::int64_t steps = fit_.options.snapshot_every_steps;
    const std::int64_t most = steps > 0 ? std::min(steps, kMostKept) : kMostKept;
    if (faults_->num_steps() >= most || 2 * faults_->kept_bytes() >= fit_.options.buffer_bytes) {
      if (!check_state(&block)) return false;
      faults_->take_snapshot(fit_.progress);
    }
  }
  if (fit_.feed.gives_single_batches()) faults_->keep_batch(block);
  return true;
}

bool LossPolicy::end_step(const RowBlock* block) {
  if (!faults_ || !faults_->is_snapshot_due()) return true;
  if (!check_state(block)) return false;
  faults_->take_snapshot(fit_.progress);
  return true;
}

bool LossPolicy::check_state(const RowBlock* block) {
  const bool has_rows = block != nullptr || fit_.feed.gives_single_batches();
  if (!faults_ || !has_rows || fit_.step.state().is_finite()) return true;
  return handle_fault("a weight is not finite", block);
}

bool LossPolicy::handle_loss(double loss, const RowBlock* block) {
  return handle_fault(std::isnan(loss) ? "the training loss is nan"  // without its sign
                                       : fmt::format("the training loss is {}", loss),
                      block);
}

// After the last step. False, if it does not throw.
bool LossPolicy::handle_fault(const std::string& fault_seen, const RowBlock* block) {
  const double rate = fit_.step.learning_rate();
  const std::string what = faults_->go_back(fault_seen, block, fit_.progress);
  if (fit_.options.on_non_finite == OnNonFinite::kStop) return fit_.stop.end_with(what);
  const char* const clip = fit_.step.takes_whole_batch() ? "" : ", a (smaller) clip_norm";
  throw ConvergenceError(
      {.what = what,
       .detail = fmt::format("Learning rate {:g}. The weights are those before step {}: the last "
                             "finite ones.",
                             rate, fit_.progress.step + 1),
       .hint =
           fmt::format("Try lr={:g}{}, or scale the inputs.", rate > 1 ? 0.001 : rate / 10, clip)});
}

void LossPolicy::note_unchanged_weights() {
  if (!faults_ || fit_.options.discard || fit_.step.learning_rate() <= 0) return;
  if (faults_->num_steps() < fit_.step.graph().steps_per_update) return;
  std::vector<std::string> names = faults_->unchanged_weights();
  const std::vector<std::string> all = names;
  std::erase_if(names, [&all](const std::string& name) { return waits_for_other(name, all); });
  if (names.empty()) return;
  const bool is_all = names.size() == fit_.step.graph().weights.size();
  fit_.history.notes.push_back(fmt::format(
      "{} changed in epoch 1: {}. Their gradients are zero (after a Relu whose inputs are all "
      "negative, or before a step such as Round), or the learning rate {:g} is too small.",
      is_all ? "no weight has" : "some weights have not", base::quote_list(names),
      fit_.step.learning_rate()));
}

}  // namespace onnxgrad::train
