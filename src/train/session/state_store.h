#ifndef ONNXGRAD_TRAIN_SESSION_STATE_STORE_H_
#define ONNXGRAD_TRAIN_SESSION_STATE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "onnxgrad/weights.h"
#include "runtime/executor.h"
#include "train/graphs/training_graph.h"
#include "train/optimizers/lbfgs.h"
#include "train/session/outer_step.h"
#include "train/tools/workers.h"

namespace onnxgrad::train {

/// The state of a step: weights and optimizer slots in the executor's memory, and what the
/// optimizer and the outer step of several workers keep on the host. Reads, loads, copies and
/// unifies it.
class StateStore {
 public:
  struct Parts {
    runtime::Executor& executor;
    const StepGraph& graph;
    Workers& workers;
    LbfgsSolver* solver = nullptr;  ///< nullptr: the optimizer keeps nothing on the host
  };
  /// All of `parts` outlive this. `is_initial`: the executor has the initial values. `outer`: of
  /// workers that update their own weights.
  StateStore(const Parts& parts, bool is_initial, const std::optional<OuterStep::Options>& outer);

  /// All states in order, as from Executor::read_state, and what the optimizer keeps on the
  /// host.
  NamedTensors read() const;
  /// The number of the state with this name, if there is one.
  std::optional<std::size_t> find(const std::string& name) const;
  /// Throws: CheckpointError (unknown or missing name, different dtype or shape). All or nothing.
  void load(const NamedTensors& state);
  /// Copies the values of states that `other` has too, in the same shape.
  void take(const StateStore& other);
  /// Restores the initial values.
  void reset();
  std::int64_t bytes() const;
  /// Whether the state of every worker is finite; all workers call it.
  bool is_finite() const { return !workers_.any(!executor_.is_state_finite()); }

  /// Copies of all states in order, without what the optimizer keeps on the host; save_to()
  /// allocates nothing.
  std::vector<Tensor> make_copies() const;
  void save_to(std::vector<Tensor>& copies) const;
  /// Resets what the optimizer keeps on the host.
  void restore_from(const std::vector<Tensor>& copies);
  /// The values that reset() restores, as they are in the model; none if there are others
  /// besides the states of the step.
  std::vector<Tensor> initial_values() const;
  /// Whether the states have the bits of initial_values(); memory is read only if something may
  /// have changed them before the first step.
  bool has_initial_values() const;
  /// Names of the trained weights that have the same bits in `copies`.
  std::vector<std::string> unchanged_weights(const std::vector<Tensor>& copies) const;
  /// Bytes of copies held elsewhere.
  std::int64_t snapshot_bytes() const { return snapshot_bytes_; }
  void add_snapshot_bytes(std::int64_t bytes) { snapshot_bytes_ += bytes; }

  /// Tells averages that begin with a later epoch the number of the present one, from 1.
  void set_epoch(std::int64_t epoch);
  /// Whether weights have an average.
  bool has_averages() const;

  /// nullptr: none.
  OuterStep* outer() { return outer_ ? &*outer_ : nullptr; }
  const OuterStep* outer() const { return outer_ ? &*outer_ : nullptr; }
  /// After each step.
  void count_step() {
    if (outer_) outer_->count_step();
  }
  /// All workers have the same weights, also those that update their own; their running statistics
  /// become their means.
  void average_statistics();
  /// Averages statistics and replaces sums of gradients within an accumulated update by those of
  /// the first worker, whose state is then that of a fit on one worker.
  void unify();
  /// Keeps this worker's part of a state that unify() made and that all workers have loaded.
  void keep_own_part();

 private:
  template <class IsWanted, class Change>
  void exchange_states(IsWanted&& is_wanted, Change&& change);
  std::size_t num_states() const { return executor_.state().size(); }

  runtime::Executor& executor_;
  const StepGraph& graph_;
  Workers& workers_;
  LbfgsSolver* solver_;
  std::optional<std::uint64_t> reset_changes_;  ///< Executor::state_changes() with initial values
  std::optional<OuterStep> outer_;
  std::int64_t snapshot_bytes_ = 0;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_SESSION_STATE_STORE_H_
