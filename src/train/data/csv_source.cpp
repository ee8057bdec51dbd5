#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "onnxgrad/data_files.h"
#include "train/data/chunked_source.h"
#include "train/data/number_text.h"

// A CSV file is scanned once, to record where chunks of complete lines begin (Index). A chunk is
// then read and parsed independently (ChunkParser), line by line, cell by cell.

namespace onnxgrad::train {
namespace {

using base::ReadableFile;

constexpr std::int64_t kMaxColumns = 1 << 20;
constexpr std::int64_t kLongestLine = std::int64_t{16} << 20;  // detects a missing quote

constexpr const char* kQuotes =
    "A quoted cell begins and ends with a quote; a quote inside is doubled.";

[[noreturn]] void refuse_csv(const std::string& path, const std::string& what, Hint hint,
                             std::string column = {}) {
  throw DataError(
      {.what = what, .where = {.file = path, .value = std::move(column)}, .hint = std::move(hint)});
}

std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

// The end of the line that begins at `text`: the index of its newline, or the length of `text`.
// Newlines inside quotes belong to the cell.
std::size_t line_length(std::string_view text) {
  std::size_t begin = 0;
  bool is_quoted = false;
  while (begin < text.size()) {
    const auto* const found =
        static_cast<const char*>(std::memchr(text.data() + begin, '\n', text.size() - begin));
    const std::size_t end =
        found != nullptr ? static_cast<std::size_t>(found - text.data()) : text.size();
    const std::string_view part = text.substr(begin, end - begin);
    if (std::memchr(part.data(), '"', part.size()) != nullptr) {
      is_quoted = is_quoted != (std::ranges::count(part, '"') % 2 == 1);
    }
    if (!is_quoted) return end;
    begin = end + 1;
  }
  return text.size();
}

// The lines of a chunk that are not blank, and their numbers, from `number` on.
std::vector<std::string_view> split_lines(std::string_view text, std::int64_t number,
                                          std::vector<std::int64_t>& numbers) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t length = line_length(text);
    const std::string_view line = text.substr(0, length);
    if (!trimmed(line).empty()) {
      lines.push_back(line);
      numbers.push_back(number);
    }
    number += 1 + (line.find('"') == std::string_view::npos ? 0 : std::ranges::count(line, '\n'));
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return lines;
}

// Cells of one line; views into the line or into `unquoted`.
class LineSplitter {
 public:
  explicit LineSplitter(char delimiter) : delimiter_(delimiter) {}

  // Returns false if a quote is misplaced.
  bool split(std::string_view line, std::vector<std::string_view>& cells) {
    cells.clear();
    unquoted_.clear();
    unquoted_.reserve(line.size());  // views into it stay valid
    while (true) {
      const std::size_t start = line.find_first_not_of(delimiter_ == '\t' ? " " : " \t");
      if (start != std::string_view::npos && line[start] == '"' && delimiter_ != '"') {
        line.remove_prefix(start + 1);
        if (!take_quoted(line, cells)) return false;
      } else {
        const std::size_t end = line.find(delimiter_);
        cells.push_back(trimmed(line.substr(0, end)));
        if (end == std::string_view::npos) return true;
        line.remove_prefix(end + 1);
        continue;
      }
      line = trimmed_front(line);
      if (line.empty()) return true;
      if (line.front() != delimiter_) return false;
      line.remove_prefix(1);
    }
  }

 private:
  std::string_view trimmed_front(std::string_view line) const {
    while (!line.empty() && line.front() != delimiter_ &&
           (line.front() == ' ' || line.front() == '\t' || line.front() == '\r')) {
      line.remove_prefix(1);
    }
    return line;
  }

  bool take_quoted(std::string_view& line, std::vector<std::string_view>& cells) {
    const std::size_t first = unquoted_.size();
    while (true) {
      const std::size_t quote = line.find('"');
      if (quote == std::string_view::npos) return false;
      unquoted_.append(line.substr(0, quote));
      line.remove_prefix(quote + 1);
      if (line.empty() || line.front() != '"') break;
      unquoted_.push_back('"');
      line.remove_prefix(1);
    }
    cells.push_back(std::string_view(unquoted_).substr(first));
    return true;
  }

  char delimiter_;
  std::string unquoted_;
};

struct ChunkPlace {
  std::int64_t offset = 0;
  std::int64_t bytes = 0;
  std::int64_t first_line = 0;  ///< from 1
  std::int64_t first_row = 0;
};

class CsvSource final : public ChunkedSource {
 public:
  CsvSource(const std::string& path, const FileLayout& layout, const CsvOptions& options)
      : file_(std::make_shared<ReadableFile>(ReadableFile::open(path))),
        layout_(layout),
        options_(options),
        splitter_(options.delimiter) {
    const std::int64_t rows = make_index();
    plan_ = plan_columns(path, columns_, layout_, true);
    make_origin();
    set_size(rows, std::ssize(*chunks_), true);
  }
  CsvSource(const CsvSource& other, int /*copies*/)
      : file_(other.file_),
        layout_(other.layout_),
        options_(other.options_),
        splitter_(other.splitter_),
        columns_(other.columns_),
        plan_(other.plan_),
        chunks_(other.chunks_) {
    make_origin();
  }

 private:
  struct Cell {
    std::int64_t line;
    std::int64_t column;
    std::string_view text;
  };

  std::unique_ptr<ChunkedSource> make_copy() const override {
    return std::make_unique<CsvSource>(*this, 0);
  }
  std::int64_t make_index();
  std::optional<std::int64_t> read_header(std::string_view text, bool is_last);
  Dataset read_chunk(std::int64_t chunk) override;
  std::int64_t first_row_of(std::int64_t chunk) const override {
    return (*chunks_)[static_cast<std::size_t>(chunk)].first_row;
  }
  std::int64_t bytes_of(std::int64_t chunk) const override {
    return (*chunks_)[static_cast<std::size_t>(chunk)].bytes;
  }
  void make_origin();
  std::int64_t line_of(std::int64_t row) const;
  std::vector<std::string_view> lines_of(const ChunkPlace& place,
                                         std::vector<std::int64_t>& numbers);
  void make_tensors(std::int64_t rows, Dataset& data) const;
  void read_line(std::int64_t row, std::int64_t line, Dataset& data);
  double number(const Cell& cell) const;
  void store(Tensor& tensor, std::int64_t place, const Cell& cell) const;
  [[noreturn]] void refuse_cell(const Cell& cell, const std::string& what) const;

  std::shared_ptr<const ReadableFile> file_;
  FileLayout layout_;
  CsvOptions options_;
  LineSplitter splitter_;
  std::vector<std::string> columns_;
  ColumnPlan plan_;
  std::shared_ptr<const DataOrigin> origin_;  ///< for as long as this source lives
  std::shared_ptr<std::vector<ChunkPlace>> chunks_ = std::make_shared<std::vector<ChunkPlace>>();
  std::string buffer_;
  std::vector<std::string_view> cells_;
};

// Reads the file in pieces of chunk_bytes; each piece ends with its last complete line.
// Pieces become larger if a line does not fit into one.
std::int64_t CsvSource::make_index() {
  const std::int64_t size = file_->size_bytes();
  std::int64_t piece_bytes = options_.chunk_bytes;
  std::int64_t offset = 0;
  std::int64_t line = 1;
  std::int64_t rows = 0;
  bool has_header = false;
  while (offset < size) {
    buffer_.resize(static_cast<std::size_t>(std::min(piece_bytes, size - offset)));
    file_->read(offset, std::as_writable_bytes(std::span(buffer_)));
    const std::int64_t piece = offset;
    const bool is_last = piece + std::ssize(buffer_) == size;
    std::string_view rest = buffer_;
    const std::optional<std::int64_t> used = has_header ? 0 : read_header(rest, is_last);
    if (used) {
      has_header = true;
      line += std::ranges::count(rest.substr(0, static_cast<std::size_t>(*used)), '\n');
      offset += *used;
      rest.remove_prefix(static_cast<std::size_t>(*used));
    } else {
      rest = {};
    }
    ChunkPlace chunk{.offset = offset, .first_line = line, .first_row = rows};
    while (!rest.empty()) {
      const std::size_t length = line_length(rest);
      if (length == rest.size() && !is_last) break;  // continues in the next piece
      const std::string_view text = rest.substr(0, length);
      if (!trimmed(text).empty()) ++rows;
      line += 1 + std::ranges::count(text, '\n');
      rest.remove_prefix(std::min(length + 1, rest.size()));
    }
    chunk.bytes = used ? rest.data() - buffer_.data() - (chunk.offset - piece) : 0;
    if (chunk.offset + chunk.bytes == piece && !is_last) {
      if (piece_bytes >= kLongestLine) {
        refuse_csv(file_->path(), fmt::format("line {} is longer than {} bytes", line, piece_bytes),
                   "Is a quote missing in it? Otherwise give larger chunks.");
      }
      piece_bytes = std::min(2 * piece_bytes, kLongestLine);
      continue;
    }
    if (rows > chunk.first_row) chunks_->push_back(chunk);
    offset = chunk.offset + chunk.bytes;
  }
  if (!has_header)
    refuse_csv(file_->path(), "the file is empty", "Give a line with names, then rows.");
  if (rows == 0) {
    refuse_csv(file_->path(), "there are no rows below the header", "Give one line for each row.");
  }
  return rows;
}

// Returns the length of the header and what precedes it; nullopt if it is truncated.
std::optional<std::int64_t> CsvSource::read_header(std::string_view text, bool is_last) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  std::size_t used = text.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
  std::string_view line;
  while (trimmed(line).empty() && used < text.size()) {
    const std::size_t length = line_length(text.substr(used));
    line = text.substr(used, length);
    if (used + length == text.size() && !is_last) return std::nullopt;
    used = std::min(used + length + 1, text.size());
  }
  if (trimmed(line).empty() && !is_last) return std::nullopt;
  if (!splitter_.split(line, cells_)) {
    refuse_csv(file_->path(), "line 1: a misplaced quote", kQuotes);
  }
  if (std::ssize(cells_) > kMaxColumns) {
    refuse_csv(file_->path(), fmt::format("{} columns are too many", cells_.size()),
               "Save the rows as an .npz file: one array of many columns.");
  }
  bool all_numbers = true;
  std::unordered_set<std::string_view> seen;
  columns_.reserve(cells_.size());
  for (const std::string_view cell : cells_) {
    double number = 0;
    all_numbers = all_numbers && !cell.empty() && parse_number(cell, number);
    if (!seen.insert(cell).second) {
      refuse_csv(file_->path(), fmt::format("the column '{}' occurs twice", cell),
                 "The first line of a CSV file must give each column a different name.",
                 std::string(cell));
    }
    columns_.emplace_back(cell);
  }
  if (all_numbers) {
    refuse_csv(file_->path(), "the first line has numbers, not the names of the columns",
               "Add a line before it that gives each column a name.");
  }
  const std::size_t mark = columns_[0].find_first_of(";\t|,");
  if (columns_.size() == 1 && mark != std::string::npos) {
    const std::string other = columns_[0][mark] == '\t' ? "\\t" : std::string(1, columns_[0][mark]);
    refuse_csv(
        file_->path(), "there is one column, " + in_quotes(columns_[0]),
        fmt::format("Its columns seem to be separated by '{0}': give delimiter='{0}'.", other));
  }
  return static_cast<std::int64_t>(used);
}

void CsvSource::refuse_cell(const Cell& cell, const std::string& what) const {
  const std::string& name = columns_[static_cast<std::size_t>(cell.column)];
  const bool is_target = std::ranges::find(plan_.targets, cell.column) != plan_.targets.end();
  const bool can_be_left_out = !is_target && cell.column != plan_.sample_weight;
  refuse_csv(
      file_->path(),
      fmt::format("line {}, column '{}': {} {}", cell.line, name, in_quotes(cell.text), what),
      number_hint(std::string(cell.text), can_be_left_out ? name : ""), name);
}

double CsvSource::number(const Cell& cell) const {
  double value = 0;
  if (!parse_number_or_truth(cell.text, value)) refuse_cell(cell, "is not a number");
  return value;
}

// One cell as element `place` of a tensor of float32, float64, int64 or strings.
void CsvSource::store(Tensor& tensor, std::int64_t place, const Cell& cell) const {
  const auto i = static_cast<std::size_t>(place);
  switch (tensor.dtype()) {
    case DataType::kString:
      tensor.mutable_strings()[i] = cell.text;
      return;
    case DataType::kFloat32: {
      const double value = number(cell);
      if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) {
        refuse_cell(cell, "does not fit into float32");
      }
      tensor.mutable_data<float>()[i] = static_cast<float>(value);
      return;
    }
    default:
      tensor.mutable_data<double>()[i] = number(cell);
  }
}

void CsvSource::make_tensors(std::int64_t rows, Dataset& data) const {
  const auto stored = [](DataType dtype) {
    return dtype == DataType::kString || dtype == DataType::kFloat32 ? dtype : DataType::kFloat64;
  };
  for (std::size_t i = 0; i < layout_.inputs.size(); ++i) {
    const ValueInfo& input = layout_.inputs[i];
    const bool is_stacked = plan_.stacked_input == static_cast<std::int64_t>(i);
    const std::int64_t columns = is_stacked ? std::ssize(plan_.stacked) : 1;
    const bool is_flat = !is_stacked && input.shape && input.shape->size() == 1;
    data.inputs.push_back(
        {.name = input.name,
         .tensor = Tensor::empty(stored(input.dtype), is_flat ? Dims{rows} : Dims{rows, columns})});
  }
  place_targets(data, layout_);
  const auto targets = target_columns(layout_);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    target_at(data, i) =
        Tensor::empty(targets[i].is_text ? DataType::kString : DataType::kFloat64, Dims{rows});
  }
  if (plan_.sample_weight >= 0) data.sample_weight = Tensor::empty(DataType::kFloat64, Dims{rows});
}

void CsvSource::read_line(std::int64_t row, std::int64_t line, Dataset& data) {
  const auto cell = [&](std::int64_t column) {
    return Cell{line, column, cells_[static_cast<std::size_t>(column)]};
  };
  for (std::size_t i = 0; i < data.inputs.size(); ++i) {
    Tensor& tensor = data.inputs[i].tensor;
    if (plan_.inputs[i] >= 0) {
      store(tensor, row, cell(plan_.inputs[i]));
      continue;
    }
    const std::int64_t columns = std::ssize(plan_.stacked);
    for (std::int64_t c = 0; c < columns; ++c) {
      Cell next = cell(plan_.stacked[static_cast<std::size_t>(c)]);
      const bool is_absent = plan_.fills_empty_cells && next.text.empty();
      if (is_absent && tensor.dtype() != DataType::kString) next.text = "0";
      store(tensor, row * columns + c, next);
    }
  }
  for (std::size_t i = 0; i < plan_.targets.size(); ++i) {
    store(target_at(data, i), row, cell(plan_.targets[i]));
  }
  if (plan_.sample_weight >= 0) store(data.sample_weight, row, cell(plan_.sample_weight));
}

std::vector<std::string_view> CsvSource::lines_of(const ChunkPlace& place,
                                                  std::vector<std::int64_t>& numbers) {
  buffer_.resize(static_cast<std::size_t>(place.bytes));
  file_->read(place.offset, std::as_writable_bytes(std::span(buffer_)));
  return split_lines(buffer_, place.first_line, numbers);
}

// Sets the names of rows and columns in messages. Lines are looked up in the file on demand.
void CsvSource::make_origin() {
  const auto names_of = [this](std::span<const std::int64_t> places) {
    std::vector<std::string> names;
    for (const std::int64_t place : places) {
      names.push_back(columns_[static_cast<std::size_t>(place)]);
    }
    return names;
  };
  auto origin = std::make_shared<DataOrigin>();
  origin->file = file_->path();
  origin->line_of = [this](std::int64_t row) { return line_of(row); };
  for (std::size_t i = 0; i < layout_.inputs.size(); ++i) {
    const std::int64_t& place = plan_.inputs[i];
    origin->inputs.push_back(
        {.array = layout_.inputs[i].name,
         .names = names_of(place < 0 ? std::span<const std::int64_t>(plan_.stacked)
                                     : std::span(&place, 1))});
  }
  const auto targets = target_columns(layout_);
  if (are_of_one_target(layout_)) {
    origin->targets.push_back({.array = "", .names = names_of(plan_.targets)});
  }
  for (std::size_t i = origin->targets.size(); i < targets.size(); ++i) {
    origin->targets.push_back(
        {.array = targets[i].output, .names = names_of(std::span(&plan_.targets[i], 1))});
  }
  if (plan_.sample_weight >= 0) {
    origin->sample_weight.names = names_of(std::span(&plan_.sample_weight, 1));
  }
  origin_ = std::move(origin);
}

std::int64_t CsvSource::line_of(std::int64_t row) const {
  const auto after = std::ranges::upper_bound(*chunks_, row, {}, &ChunkPlace::first_row);
  const ChunkPlace& place = *std::prev(after);
  std::string text(static_cast<std::size_t>(place.bytes), '\0');
  file_->read(place.offset, std::as_writable_bytes(std::span(text)));
  std::vector<std::int64_t> numbers;
  split_lines(text, place.first_line, numbers);
  return numbers.at(static_cast<std::size_t>(row - place.first_row));
}

Dataset CsvSource::read_chunk(std::int64_t chunk) {
  const ChunkPlace& place = (*chunks_)[static_cast<std::size_t>(chunk)];
  std::vector<std::int64_t> numbers;
  const auto lines = lines_of(place, numbers);
  Dataset data{.inputs = {}, .target = {}, .first_row = place.first_row};
  data.origin = origin_;
  make_tensors(std::ssize(lines), data);
  for (std::size_t row = 0; row < lines.size(); ++row) {
    if (!splitter_.split(lines[row], cells_)) {
      refuse_csv(file_->path(), fmt::format("line {}: a misplaced quote", numbers[row]), kQuotes);
    }
    if (cells_.size() != columns_.size()) {
      refuse_csv(file_->path(),
                 fmt::format("line {} has {} cell{}, expected {}", numbers[row], cells_.size(),
                             cells_.size() == 1 ? "" : "s", columns_.size()),
                 "Fix the line; a cell that contains the delimiter needs quotes.");
    }
    read_line(static_cast<std::int64_t>(row), numbers[row], data);
  }
  buffer_ = {};  // many readers of a file wait at a time
  return data;
}

void check_csv_options(const std::string& path, const CsvOptions& options) {
  if (options.chunk_bytes < 1) {
    refuse_csv(path, "chunk_bytes is not positive", "Omit it, or give a number of bytes.");
  }
  if (std::string_view("\"\n\r").find(options.delimiter) != std::string_view::npos) {
    refuse_csv(path, "the delimiter is a quote or the end of a line",
               "Give the character between the cells, such as ',' or ';'.");
  }
}

}  // namespace
}  // namespace onnxgrad::train

namespace onnxgrad {

std::unique_ptr<DataSource> open_csv(const std::string& path, const FileLayout& layout,
                                     const CsvOptions& options) {
  train::check_csv_options(path, options);
  try {
    return std::make_unique<train::CsvSource>(path, layout, options);
  } catch (const DataError&) {
    throw;
  } catch (const DeviceError&) {
    throw;
  } catch (const Error& error) {  // an error of the file
    throw DataError(error.problem());
  }
}

}  // namespace onnxgrad
