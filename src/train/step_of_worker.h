#ifndef ONNXGRAD_TRAIN_STEP_OF_WORKER_H_
#define ONNXGRAD_TRAIN_STEP_OF_WORKER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "train/collectives.h"
#include "train/optimizers.h"
#include "train/place_loss.h"
#include "train/step_parts.h"
#include "train/training_graph.h"
#include "train/weights.h"

namespace onnxgrad::train {

/// What is special about the step of one of several workers; nothing if there is one.
class StepOfWorker final : public UpdateOfWorkers {
 public:
  StepOfWorker(Draft& draft, const opdef::OpRegistry& registry, const StepGraphOptions& options)
      : draft_(draft), options_(options), workers_(options.workers) {
    if (!workers_) return;
    mark_rows_of_draws(draft.graph(), registry);
    inputs_ = add_worker_inputs(draft.graph());
    // After the data and the learning rate, see bind_inputs().
    for (const ir::Value* input : {inputs_.weight, inputs_.signal}) {
      std::erase(draft.graph().inputs, input);
    }
    if (workers_->shares_update) find_owners(registry);
  }

  LossOfWorker of_loss() const {
    if (!workers_) return {};
    return {.weight = inputs_.weight,
            .workers = workers_->updates_alone ? 1 : workers_->size,
            .updates_alone = workers_->updates_alone};
  }
  void treat_statistics(std::vector<ir::StateBinding>& statistics) const {
    if (!workers_) return;
    if (workers_->syncs_normalization) {
      sync_normalizations(draft_.g(), inputs_, statistics);
    } else {
      keep_statistics_without_rows(draft_.g(), inputs_, statistics);
    }
  }
  /// The mean of what each worker has of a number, if that is its own.
  ir::Value* mean_of(ir::Value* number) const {
    if (!workers_ || !workers_->updates_alone) return number;
    return draft_.g().scale(train::add_up(draft_.g(), number), 1.0 / workers_->size);
  }
  /// Of what each worker computes of a value.
  ir::Value* sum_of(ir::Value* value) const {
    if (!workers_ || workers_->updates_alone) return mean_of(value);
    return train::add_up(draft_.g(), value);
  }
  /// The loss of all workers, and with it the sum of the signals. The denominator in `placed`
  /// becomes that of all of them, if it is not.
  ir::Value* sum_of_loss(PlacedLoss& placed, bool is_mean) {
    WrittenLoss& written = placed.written;
    if (!workers_) return written.loss;
    ir::GraphBuilder& g = draft_.g();
    const bool has_parts = workers_->updates_alone && is_mean;
    ir::Value* part = has_parts ? g.mul(written.loss, written.denominator) : written.loss;
    std::vector<ir::Value*> values{part, g.cast_like(inputs_.signal, part)};
    if (workers_->updates_alone) values.push_back(g.cast_like(written.denominator, part));
    const auto sums = train::add_up(g, values);
    signal_sum_ = sums[1];
    if (!workers_->updates_alone) return sums[0];
    written.denominator = sums[2];
    if (!is_mean) return sums[0];
    ir::Value* is_positive = g.greater(sums[2], g.scalar_like(sums[2], 0));
    return g.div(sums[0], g.where(is_positive, sums[2], g.scalar_like(sums[2], 1)));
  }
  /// For the update, of what this worker's rows contribute; those that are accumulated first are
  /// added up later.
  std::vector<ir::Value*> sums_for_update(const std::vector<ir::Value*>& gradients,
                                          std::span<ir::Value* const> weights) const {
    if (!workers_ || workers_->updates_alone || options_.update.accumulate > 1) return gradients;
    return workers_->shares_update
               ? send_gradients_to_owners(draft_.g(), gradients, owners_of(weights), *workers_)
               : add_up_gradients(draft_.g(), gradients, *workers_);
  }
  /// For further outputs. `for_update`: what sums_for_update() has returned.
  std::vector<ir::Value*> sums_to_report(const std::vector<ir::Value*>& gradients,
                                         const std::vector<ir::Value*>& for_update) const {
    const bool is_needed =
        options_.gradient_norm || options_.all_gradients || !options_.outputs.empty();
    if (!workers_ || !is_needed || workers_->updates_alone) return for_update;
    if (options_.update.accumulate == 1 && !workers_->shares_update) return for_update;
    return add_up_gradients(draft_.g(), gradients, *workers_);
  }

  std::vector<ir::Value*> add_up(std::span<ir::Value* const> gradients,
                                 std::span<ir::Value* const> weights,
                                 ir::Value* when) const override {
    return workers_->shares_update ? send_gradients_to_owners(draft_.g(), gradients,
                                                              owners_of(weights), *workers_, when)
                                   : add_up_gradients(draft_.g(), gradients, *workers_, when);
  }
  bool owns(const std::string& weight) const override {
    return !workers_->shares_update || owners_.at(weight) == workers_->rank;
  }
  ir::Value* sum_over_owners(ir::Value* number) const override {
    return workers_->shares_update ? add_up_for_owners(draft_.g(), number) : number;
  }
  std::vector<ir::Value*> gather(std::span<ir::Value* const> weights,
                                 std::span<const std::string> names,
                                 ir::Value* when) const override {
    if (!workers_->shares_update) return {weights.begin(), weights.end()};
    std::vector<int> owners;
    for (const std::string& name : names) owners.push_back(owners_.at(name));
    return gather_from_owners(draft_.g(), weights, owners, *workers_, when);
  }
  /// For UpdateInputs.
  const UpdateOfWorkers* update() const {
    return workers_ && !workers_->updates_alone ? this : nullptr;
  }
  /// Owners by name; empty: each worker owns all weights.
  const std::unordered_map<std::string, int>& owners() const { return owners_; }
  void add_ports(StepGraph& step) const {
    if (!workers_) return;
    step.worker_weight = inputs_.weight->name;
    step.worker_signal = inputs_.signal->name;
    step.owners = owners_;
    draft_.graph().outputs.push_back(signal_sum_);
    step.ports.signal = draft_.graph().outputs.size() - 1;
  }
  void bind_inputs() const {
    if (!workers_) return;
    draft_.graph().inputs.push_back(inputs_.weight);
    draft_.graph().inputs.push_back(inputs_.signal);
  }

 private:
  void find_owners(const opdef::OpRegistry& registry) {
    std::vector<std::string> names;
    std::vector<std::int64_t> bytes;
    for (const Weight& weight : find_weights(*draft_.model(), registry)) {
      names.push_back(weight.value->name);
      bytes.push_back(weight.value->initializer.size_bytes());
    }
    const auto owners = choose_owners(bytes, workers_->size);
    for (std::size_t i = 0; i < names.size(); ++i) owners_[names[i]] = owners[i];
  }
  std::vector<int> owners_of(std::span<ir::Value* const> weights) const {
    std::vector<int> owners;
    for (const ir::Value* weight : weights) owners.push_back(owners_.at(weight->name));
    return owners;
  }

  Draft& draft_;
  const StepGraphOptions& options_;
  const std::optional<WorkerGraphOptions>& workers_;
  WorkerInputs inputs_ = {};
  ir::Value* signal_sum_ = nullptr;
  std::unordered_map<std::string, int> owners_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_STEP_OF_WORKER_H_
