#ifndef ONNXGRAD_TRAIN_OPEN_BATCH_H_
#define ONNXGRAD_TRAIN_OPEN_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ir/graph.h"

// Opening of the batch dimension of a working copy. Exporters fix the batch by default: every shape
// has its number of rows, and so have constants that shapes are computed from. Start reading at
// open_batch().

namespace onnxgrad::train {

/// A change of one operand of a node that opening needs, in terms that also apply to the file.
struct BatchEdit {
  enum class Kind : std::uint8_t {
    kEntry,       ///< an entry of a shape (of Reshape, Expand, Slice, Resize)
    kFirstRow,    ///< a constant with equal rows: keep the first one, which broadcasts
    kRepeat,      ///< a constant with equal rows: repeat the first one for all rows
    kRowNumbers,  ///< GatherND: the first index is the number of the row
  };
  Kind kind = Kind::kEntry;
  std::string value = {};    ///< first output of the node
  std::size_t operand = 0;   ///< index among its inputs
  std::size_t position = 0;  ///< the entry; or the axis of the constant that has the rows
  std::size_t size = 0;      ///< entries; or axes of the constant
  std::int64_t factor = 0;   ///< the entry becomes rows * factor; 0: `number`
  std::int64_t number = 0;   ///< see factor
  bool has_one_row = false;  ///< the constant is one row
  /// All entries, if known: the operand becomes a constant. For kRepeat: the dimensions of the
  /// constant, if a row is `factor` elements of its axis.
  std::vector<std::int64_t> entries = {};
};

/// A model and the number of rows that it computes with.
struct BatchForm {
  std::shared_ptr<const ir::Model> model;  ///< with an open batch dimension if possible
  std::int64_t rows = 0;                   ///< rows of every batch in the file; 0: any, or no batch
  std::string obstacle = {};               ///< reason for a fixed dimension; empty: it is open
  std::vector<std::string> inputs = {};    ///< inputs whose first dimension is the batch
  std::vector<BatchEdit> edits = {};

  /// Whether the file has a fixed batch that was opened.
  bool is_opened() const { return rows > 0 && obstacle.empty(); }
  /// Rows that every batch must have; 0: any number.
  std::int64_t fixed_rows() const { return obstacle.empty() ? 0 : rows; }
  /// The obstacle as a sentence, for errors about fixed_rows().
  std::string why_fixed() const { return "The batch dimension is not opened: " + obstacle + "."; }
};

/// Opens the batch dimension of `working` if it is a number: of inputs, values and outputs, and
/// constants that hold it. Another number of rows is propagated from the inputs to all values; then
/// the result is run on random rows (batch_proof.h) and each row is compared with the result of
/// `working`. An operator that combines rows is an obstacle.
BatchForm open_batch(const std::shared_ptr<const ir::Model>& working);

/// Reports a fixed batch dimension without opening it: as open_batch(), with an obstacle.
BatchForm keep_batch(const std::shared_ptr<const ir::Model>& working);

/// The graph of a file, of which `form` is the working copy, with the same changes.
/// Throws: ModelError (a node that the file does not have in this form).
ir::Model open_file_graph(const ir::Model& file, const BatchForm& form);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_OPEN_BATCH_H_
