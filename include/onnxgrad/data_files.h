#ifndef ONNXGRAD_DATA_FILES_H_
#define ONNXGRAD_DATA_FILES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/data.h"

// Readers of files whose rows need not fit into memory. All functions check the sizes that a file
// declares against its size before they allocate, and never use more memory than a chunk and an
// index of the chunks, whatever the file contains.

namespace [[gnu::visibility("default")]] onnxgrad {

/// A column (or array) that is one of several targets.
struct TargetColumn {
  std::string output = {};  ///< output that its loss is applied to
  std::string column = {};
  bool is_text = false;  ///< CSV: labels are strings
};

/// The roles of a file's columns.
struct FileLayout {
  /// Inputs of the model. Each input takes the column (or array) of its name. The remaining
  /// columns of a CSV file, in order, form the rows [N, C] of the one input without a column of its
  /// name; so does the one remaining array of an .npz file.
  std::vector<ValueInfo> inputs = {};
  std::string target = "y";               ///< name of the column or array
  bool target_is_text = false;            ///< CSV: labels are strings
  std::string sample_weight = {};         ///< name of the column or array; empty: none
  std::vector<std::string> ignored = {};  ///< columns (or arrays) to leave out
  /// Target columns; replaces `target` and `target_is_text` with several losses (Loss::others), or
  /// for the numeric columns [N, K] of one target, all with the output "".
  std::vector<TargetColumn> targets = {};
};

struct CsvOptions {
  char delimiter = ',';
  /// Bytes of a chunk: lines read together. Chunks grow to hold a longer line; a line above
  /// 16 MiB that is also longer than a chunk is an error.
  std::int64_t chunk_bytes = std::int64_t{1} << 20;
};

/// Opens a CSV file with a header line (RFC 4180: quoted cells, "" is a quote; blank lines are
/// skipped; UTF-8 with or without byte order mark). Numbers are parsed independently of the locale;
/// an empty cell is NaN. The constructor reads the file once to find where lines begin; chunks can
/// then be read in any order. Throws: DataError naming file, line and column.
std::unique_ptr<DataSource> open_csv(const std::string& path, const FileLayout& layout,
                                     const CsvOptions& options = {});

/// Opens the arrays of an .npz file, as written by numpy.savez and numpy.savez_compressed: the
/// first dimension counts rows. Stored arrays are read in chunks in any order, compressed ones from
/// the start. Headers are compared with the size of the file before anything is allocated; no
/// pickles. Throws: DataError naming file and array.
std::unique_ptr<DataSource> open_npz(const std::string& path, const FileLayout& layout,
                                     std::int64_t chunk_bytes = std::int64_t{1} << 20);

/// Names of arrays and the .npy files that contain them.
using NpyFiles = std::vector<std::pair<std::string, std::string>>;
/// Opens arrays in separate .npy files as one source: `layout` refers to the names in `files`.
std::unique_ptr<DataSource> open_npy(const NpyFiles& files, const FileLayout& layout,
                                     std::int64_t chunk_bytes = std::int64_t{1} << 20);

/// Names of the arrays of an .npz file. Throws: DataError.
std::vector<std::string> npz_names(const std::string& path);
/// Reads one array into memory, checked as by open_npz, in any order of its elements. Throws:
/// DataError naming file and array; DeviceError (it is larger than the memory).
Tensor read_npz(const std::string& path, const std::string& name);
/// Reads the array of an .npy file, checked as by read_npz.
Tensor read_npy(const std::string& path);

/// One of several sources, files for example, that form one data set.
struct Shard {
  std::string name = {};  ///< for messages
  /// Opens the shard; called when its rows are needed, once in each pass.
  std::function<std::shared_ptr<DataSource>()> open = {};
  /// Number of rows of the file; nullopt: the file is opened once to count them.
  std::optional<std::int64_t> rows = {};
  /// Rows of each of its DataSource::pieces(). Empty: it is opened once to count, unless there
  /// are so many shards that each is a piece.
  std::vector<std::int64_t> piece_rows = {};
  std::int64_t piece_bytes = 0;  ///< Piece::bytes of the largest one
};
/// Minimum number of shards for which each shard is one piece.
inline constexpr std::int64_t kShardsAsPieces = 64;

/// Combines shards of any sizes into one source. A pass opens one at a time, in an order that is a
/// function of (seed, epoch) if it is shuffled; rows are shuffled as the shard itself does. Throws:
/// DataError (no shard, no rows, a shard that does not know its number of rows).
std::unique_ptr<DataSource> open_shards(std::vector<Shard> shards);

/// Advice about a string that is not a number: "Write it with a decimal point: 0.5.".
/// `column` is one that can be left out; empty: there is none.
std::string number_hint(const std::string& text, const std::string& column = {});

}  // namespace onnxgrad

#endif  // ONNXGRAD_DATA_FILES_H_
