#include "train/graphs/step_of_worker.h"

#include <cstdint>
#include <string>

#include "train/tools/collectives.h"
#include "train/weights/weights.h"

namespace onnxgrad::train {
namespace {

// The step of one of several workers, each with its rows of a batch.
class DataParallelStep final : public StepOfWorker {
 public:
  DataParallelStep(Draft& draft, const opdef::OpRegistry& registry, const Optimizer& optimizer,
                   const StepGraphOptions& options)
      : draft_(draft), optimizer_(optimizer), options_(options), workers_(options.workers) {
    mark_rows_of_draws(draft.graph(), registry);
    inputs_ = add_worker_inputs(draft.graph());
    // After the data and the learning rate, see bind_inputs().
    for (const ir::Value* input : {inputs_.weight, inputs_.signal}) {
      std::erase(draft.graph().inputs, input);
    }
  }

  LossOfWorker of_loss() const override {
    return {.weight = inputs_.weight,
            .workers = workers_.updates_alone ? 1 : workers_.size,
            .updates_alone = workers_.updates_alone};
  }
  void treat_statistics(std::vector<ir::StateBinding>& statistics) const override {
    if (workers_.syncs_normalization) {
      sync_normalizations(draft_.g(), inputs_, statistics);
    } else {
      keep_statistics_without_rows(draft_.g(), inputs_, statistics);
    }
  }
  ir::Value* mean_of(ir::Value* number) const override {
    if (!workers_.updates_alone) return number;
    return draft_.g().scale(train::add_up(draft_.g(), number), 1.0 / workers_.size);
  }
  ir::Value* sum_of(ir::Value* value) const override {
    if (workers_.updates_alone) return mean_of(value);
    return train::add_up(draft_.g(), value);
  }
  ir::Value* sum_of_loss(PlacedLoss& placed, bool is_mean) override {
    WrittenLoss& written = placed.written;
    ir::GraphBuilder& g = draft_.g();
    const bool has_parts = workers_.updates_alone && is_mean;
    ir::Value* part = has_parts ? g.mul(written.loss, written.denominator) : written.loss;
    std::vector<ir::Value*> values{part, g.cast_like(inputs_.signal, part)};
    if (workers_.updates_alone) values.push_back(g.cast_like(written.denominator, part));
    const auto sums = train::add_up(g, values);
    signal_sum_ = sums[1];
    if (!workers_.updates_alone) return sums[0];
    written.denominator = sums[2];
    if (!is_mean) return sums[0];
    ir::Value* is_positive = g.greater(sums[2], g.scalar_like(sums[2], 0));
    return g.div(sums[0], g.where(is_positive, sums[2], g.scalar_like(sums[2], 1)));
  }
  std::vector<ir::Value*> sums_for_update(const std::vector<ir::Value*>& gradients,
                                          std::span<ir::Value* const> weights) override {
    if (workers_.updates_alone || options_.update.accumulate > 1) return gradients;
    return add_up(gradients, weights, nullptr);
  }
  std::vector<ir::Value*> sums_of_all(const std::vector<ir::Value*>& gradients) const override {
    return workers_.updates_alone ? gradients : add_up_gradients(draft_.g(), gradients, workers_);
  }
  std::vector<ir::Value*> sums_to_report(const std::vector<ir::Value*>& gradients,
                                         const std::vector<ir::Value*>& for_update) const override {
    const bool is_needed = options_.gradient_norm || options_.noise_scale ||
                           options_.all_gradients || !options_.outputs.empty();
    if (!is_needed || workers_.updates_alone) return for_update;
    if (options_.update.accumulate == 1 && !workers_.shares_update) return for_update;
    return add_up_gradients(draft_.g(), gradients, workers_);
  }

  std::vector<ir::Value*> add_up(std::span<ir::Value* const> gradients,
                                 std::span<ir::Value* const> weights, ir::Value* when) override {
    if (!workers_.shares_update) return add_up_gradients(draft_.g(), gradients, workers_, when);
    for (const ir::Value* weight : weights) names_.push_back(weight->name);
    return send_gradients_to_owners(draft_.g(), gradients, weights,
                                    updates_by_element(optimizer_, options_.update, weights),
                                    workers_, shared_, when);
  }
  ir::Value* own_part(ir::Value* weight, std::size_t i) const override {
    if (!workers_.shares_update) return weight;
    const auto rank = static_cast<std::size_t>(workers_.rank);
    const std::int64_t begin = shared_.bounds[i][rank];
    const std::int64_t end = shared_.bounds[i][rank + 1];
    if (begin == end) return nullptr;
    if (end - begin == weight->initializer.num_elements()) return weight;
    ir::GraphBuilder& g = draft_.g();
    ir::Value* flat = g.reshape(weight, std::vector<std::int64_t>{-1});
    return g.slice(flat, {begin}, {end}, {0});
  }
  ir::Value* sum_over_owners(ir::Value* number) const override {
    return workers_.shares_update ? add_up_for_owners(draft_.g(), number) : number;
  }
  std::vector<ir::Value*> gather(std::span<ir::Value* const> weights,
                                 std::span<ir::Value* const> parts,
                                 ir::Value* when) const override {
    if (!workers_.shares_update) return {parts.begin(), parts.end()};
    return gather_from_owners(draft_.g(), weights, parts, shared_, workers_, when);
  }
  UpdateOfWorkers* update() override { return !workers_.updates_alone ? this : nullptr; }
  void add_ports(StepGraph& step) const override {
    step.worker_weight = inputs_.weight->name;
    step.worker_signal = inputs_.signal->name;
    draft_.graph().outputs.push_back(signal_sum_);
    step.ports.signal = draft_.graph().outputs.size() - 1;
  }
  void describe_owners(StepGraph& step) const override {
    step.rank = workers_.rank;
    for (std::size_t i = 0; i < names_.size(); ++i) step.owners[names_[i]] = shared_.bounds[i];
  }
  void bind_inputs() const override {
    draft_.graph().inputs.push_back(inputs_.weight);
    draft_.graph().inputs.push_back(inputs_.signal);
  }

 private:
  Draft& draft_;
  const Optimizer& optimizer_;
  const StepGraphOptions& options_;
  const WorkerGraphOptions& workers_;
  WorkerInputs inputs_ = {};
  ir::Value* signal_sum_ = nullptr;
  std::vector<std::string> names_;  // of the weights in shared_
  SharedWeights shared_;
};

}  // namespace

std::unique_ptr<StepOfWorker> make_step_of_worker(Draft& draft, const opdef::OpRegistry& registry,
                                                  const Optimizer& optimizer,
                                                  const StepGraphOptions& options) {
  if (options.workers.size == 1) return std::make_unique<StepOfWorker>();
  return std::make_unique<DataParallelStep>(draft, registry, optimizer, options);
}

}  // namespace onnxgrad::train
