#ifndef ONNXGRAD_DATA_H_
#define ONNXGRAD_DATA_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "onnxgrad/device_tensor.h"
#include "onnxgrad/model.h"
#include "onnxgrad/tensor.h"

namespace [[gnu::visibility("default")]] onnxgrad {

/// The source of rows, for messages: names of the rows and of their columns. Whatever has no
/// name is numbered from 0.
struct DataOrigin {
  struct Columns {
    std::string array = {};
    std::vector<std::string> names = {};
  };
  std::string file = {};  ///< path; empty: arrays in memory
  /// The line of the file that a row is on (rows are numbered as in Dataset::first_row); empty:
  /// rows have no lines. Called only for messages, from any thread.
  std::function<std::int64_t(std::int64_t row)> line_of = {};
  std::vector<Columns> inputs = {};  ///< columns by input
  /// Columns by output, see Dataset::targets; "": Dataset::target.
  std::vector<Columns> targets = {};
  Columns sample_weight = {};
};

/// Rows to train or validate on; all tensors have the same first dimension N.
struct Dataset {
  /// Inputs by name; a single tensor with an empty name is the only input. Integers and other
  /// floating types are converted (with checks) if the model expects another type.
  NamedTensors inputs;
  /// Arrays that are in the memory of a device too: a fit, or an evaluation, on it reads them there
  /// if they are what the step reads. Inputs by name, targets as in `targets` ("": `target`).
  NamedDeviceTensors placed = {};
  NamedDeviceTensors placed_targets = {};
  DeviceTensor placed_weight = {};
  /// Labels in the user's form; see TrainingSession::encode_target.
  Tensor target;
  /// Labels by the output that their loss is applied to; replaces `target` if there are several
  /// losses (Loss::others).
  NamedTensors targets = {};
  /// A weight >= 0 for each row [N]; undefined: all 1. Needs Loss::sample_weight.
  Tensor sample_weight = {};
  /// Index of the first row in the whole data: messages count from it, and the validation split is
  /// drawn by it.
  std::int64_t first_row = 0;
  std::shared_ptr<const DataOrigin> origin = {};  ///< null: arrays in memory
};

/// One pass over all rows.
struct Pass {
  std::uint32_t epoch = 0;  ///< from 0
  bool shuffle = false;     ///< chunks may come in a different order, a function of (seed, epoch)
  std::uint64_t seed = 0;
};

/// Consecutive rows that can be read independently of all others: a chunk of a file, a row group, a
/// file.
struct Piece {
  std::int64_t first_row = 0;  ///< in the whole data
  std::int64_t rows = 0;
  std::int64_t file = 0;   ///< pieces of a file are read one after another where possible
  std::int64_t bytes = 0;  ///< approximate memory while it is read
};

/// Rows that come in chunks, so that not all need to be in memory: files, or batches that a program
/// generates. Trainer::fit reads it in a separate thread, one block ahead of the training.
class DataSource {
 public:
  DataSource() = default;
  DataSource(const DataSource&) = delete;
  DataSource& operator=(const DataSource&) = delete;
  virtual ~DataSource() = default;

  /// Number of rows in a pass; nullopt if it is known only at the end.
  virtual std::optional<std::int64_t> num_rows() const = 0;
  /// Begins a pass. Throws: DataError (a second pass is not possible).
  virtual void start(const Pass& pass) = 0;
  /// The next chunk of the pass, of at least one row; nullopt at its end. `start` and `next` are
  /// called by one thread at a time, not always the same. Throws: DataError naming the position.
  virtual std::optional<Dataset> next() = 0;
  /// False: at most one pass is possible.
  virtual bool can_start_again() const { return true; }
  /// Limits the passes that begin from now on to the rows [begin, end), counted in the order of the
  /// pass, such as those of one of several workers. Other rows are not read, except those of a
  /// chunk that a limit divides. False: not supported, and nothing changes.
  virtual bool take_rows(std::int64_t /*begin*/, std::int64_t /*end*/) { return false; }
  /// All rows in pieces, in the order of the rows; empty: they can only be read one after another.
  virtual std::vector<Piece> pieces() const { return {}; }
  /// A reader of these pieces (indices of pieces()) in this order, to be used beside others for
  /// as long as this source lives: start() and next() are called by the same thread as those of the
  /// others. Only called if there are pieces.
  virtual std::unique_ptr<DataSource> open_pieces(
      const std::vector<std::int64_t>& /*numbers*/) const {
    return nullptr;
  }
};

}  // namespace onnxgrad

#endif  // ONNXGRAD_DATA_H_
