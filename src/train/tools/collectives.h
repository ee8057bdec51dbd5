#ifndef ONNXGRAD_TRAIN_COLLECTIVES_H_
#define ONNXGRAD_TRAIN_COLLECTIVES_H_

#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

#include "ir/builder.h"
#include "opdef/collectives.h"
#include "opdef/registry.h"

// Exchange between several workers in the graph of a training step: each worker computes its rows'
// part of the loss and of the gradient, and these are added up.

namespace onnxgrad::train {

struct WorkerGraphOptions {
  int size = 1;
  std::int64_t first_bucket_bytes = std::int64_t{1} << 20;  ///< also of the last one
  std::int64_t bucket_bytes = std::int64_t{4} << 20;
  bool as_bfloat16 = false;  ///< gradients are sent as bfloat16
  opdef::Collective::Route route = opdef::Collective::Route::kDirect;
  bool syncs_normalization = false;  ///< BatchNormalization takes its statistics over all workers
  /// Each worker updates its own weights from the loss of its rows; only reports are added up.
  bool updates_alone = false;
  /// Rank of this worker; only for `shares_update`.
  int rank = 0;
  /// Each worker updates the elements of weights that it owns, and alone has their slots.
  bool shares_update = false;
};

/// Inputs of a step that describe this worker's rows of a batch.
struct WorkerInputs {
  ir::Value* weight = nullptr;  ///< float64: 1; 0 if it has no row, and computes with another's
  ir::Value* signal = nullptr;  ///< float64: its sum over the workers is an output
};
WorkerInputs add_worker_inputs(ir::Graph& graph);

/// The sums of values of one type over all workers.
std::vector<ir::Value*> add_up(ir::GraphBuilder& g, std::vector<ir::Value*> values);
ir::Value* add_up(ir::GraphBuilder& g, ir::Value* value);
/// The sum over all workers of a value that only owners of weights need; the others take part too.
ir::Value* add_up_for_owners(ir::GraphBuilder& g, ir::Value* value);

/// Sums of gradients, in order: one collective for each bucket of gradients that are computed one
/// after another, placed after the last of them. `when`: bool, rank 0, or nullptr: always.
std::vector<ir::Value*> add_up_gradients(ir::GraphBuilder& g, std::span<ir::Value* const> gradients,
                                         const WorkerGraphOptions& options,
                                         ir::Value* when = nullptr);

/// Weights, by number, whose gradients are sent together, and the owners of their elements.
struct SharedBucket {
  std::vector<std::size_t> members = {};
  /// Elements of the members, one after another, of each worker: [bounds[r], bounds[r + 1]).
  std::vector<std::int64_t> bounds = {};
};
/// The elements of some weights that each worker owns: about the same number from each bucket.
struct SharedWeights {
  std::vector<SharedBucket> buckets = {};
  /// Bounds of each weight, workers + 1 numbers: worker r owns the elements from [r] to [r + 1].
  std::vector<std::vector<std::int64_t>> bounds = {};
};
/// Each worker's part of the sums of gradients: in a weight's shape if it is whole, of rank 1 if
/// not, nullptr if the worker owns nothing. `is_divisible`: true for each weight that several
/// workers may own parts of; these begin at multiples of 16 elements.
std::vector<ir::Value*> send_gradients_to_owners(ir::GraphBuilder& g,
                                                 std::span<ir::Value* const> gradients,
                                                 std::span<ir::Value* const> weights,
                                                 const std::vector<bool>& is_divisible,
                                                 const WorkerGraphOptions& options,
                                                 SharedWeights& shared, ir::Value* when = nullptr);
/// Gathers the new values of weights from their owners, on all workers. `parts`: by
/// weight, as from send_gradients_to_owners().
std::vector<ir::Value*> gather_from_owners(ir::GraphBuilder& g, std::span<ir::Value* const> weights,
                                           std::span<ir::Value* const> parts,
                                           const SharedWeights& shared,
                                           const WorkerGraphOptions& options,
                                           ir::Value* when = nullptr);

/// Replaces BatchNormalization nodes in training mode among `needed` by standard operators whose
/// sums go over all workers: the statistics are those of the whole batch, forward and backward.
/// `statistics`: their running statistics, which are updated accordingly.
void sync_normalizations(ir::GraphBuilder& g, const WorkerInputs& inputs,
                         std::vector<ir::StateBinding>& statistics);
/// Keeps the running statistics of a worker without rows.
void keep_statistics_without_rows(ir::GraphBuilder& g, const WorkerInputs& inputs,
                                  std::vector<ir::StateBinding>& statistics);

/// Marks the axis of each random operator's output that has the rows of a batch, whose symbol is
/// the first dimension of the inputs: random numbers are then those of the row in the whole batch.
void mark_rows_of_draws(ir::Graph& graph, const opdef::OpRegistry& registry);

/// Numbers the collectives of a finished graph in its order, and says which way they take.
void number_collectives(ir::Graph& graph, opdef::Collective::Route route);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_COLLECTIVES_H_
