#ifndef ONNXGRAD_DATA_H_
#define ONNXGRAD_DATA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnxgrad/model.h"
#include "onnxgrad/tensor.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// Where rows come from: what messages call them and their columns. What has no name is counted
/// from 0.
struct DataOrigin {
  struct Columns {
    std::string array = {};
    std::vector<std::string> names = {};
  };
  std::string file = {};  ///< path; empty: arrays of a program
  /// The line of the file that a row is on (rows are counted as Dataset::first_row says); empty:
  /// rows have no lines. Called for messages alone, by any thread.
  std::function<std::int64_t(std::int64_t row)> line_of = {};
  std::vector<Columns> inputs = {};   ///< by input
  std::vector<Columns> targets = {};  ///< by output, as Dataset::targets; of Dataset::target ""
  Columns sample_weight = {};
};

/// Rows to train or validate on; all tensors have the same first dimension N.
struct Dataset {
  /// By input name; one tensor with an empty name is the model's only input. Integers and other
  /// floating types are converted (checked) where the model wants another type.
  NamedTensors inputs;
  /// Labels as the user has them; see TrainingSession::encode_target.
  Tensor target;
  /// With several losses (Loss::others), in place of `target`: labels by the output that their loss
  /// is on.
  NamedTensors targets = {};
  /// A weight >= 0 for each row [N]; undefined: all 1. Needs Loss::sample_weight.
  Tensor sample_weight = {};
  /// Place of the first row in the whole: messages count from it, and a share for validation is
  /// drawn by it.
  std::int64_t first_row = 0;
  std::shared_ptr<const DataOrigin> origin = {};  ///< null: arrays of a program
};

/// One pass over all rows.
struct Pass {
  std::uint32_t epoch = 0;  ///< from 0
  bool shuffle = false;     ///< chunks may come in another order, a function of (seed, epoch)
  std::uint64_t seed = 0;
};

/// Rows that come in chunks, so that not all need be in memory: files, or batches that a program
/// makes. Trainer::fit reads it in a thread of its own, one block ahead of the training.
class DataSource {
 public:
  DataSource() = default;
  DataSource(const DataSource&) = delete;
  DataSource& operator=(const DataSource&) = delete;
  virtual ~DataSource() = default;

  /// Rows of a pass; nothing if that shows only at its end.
  virtual std::optional<std::int64_t> num_rows() const = 0;
  /// Begins a pass. Throws: DataError (there is no second pass).
  virtual void start(const Pass& pass) = 0;
  /// The next chunk of the pass, of at least one row; nothing at its end. `start` and `next` are
  /// called by one thread at a time, not always the same. Throws: DataError naming the place.
  virtual std::optional<Dataset> next() = 0;
  /// False: there is one pass at most.
  virtual bool can_start_again() const { return true; }
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_DATA_H_
