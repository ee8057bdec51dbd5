#include "train/data/chunked_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "train/data/number_text.h"

namespace onnxgrad::train {
namespace {

// Chunks and the rows of blocks are shuffled with the same seed, from different streams.
constexpr std::uint64_t kChunkStream = 0x9E3779B97F4A7C15;

// The columns of a file by name; for duplicate names the first.
class ColumnIndex {
 public:
  ColumnIndex(const std::string& path, const std::vector<std::string>& columns)
      : path_(path), columns_(columns) {
    places_.reserve(columns.size());
    std::int64_t place = 0;
    for (const std::string& name : columns) places_.emplace(name, place++);
  }

  /// -1: there is none.
  std::int64_t find(const std::string& name) const {
    const auto found = places_.find(name);
    return found == places_.end() ? -1 : found->second;
  }

  /// The only free column whose name is `name` but for characters that exporters do not write:
  /// skl2onnx calls the input of a column "body mass (kg)" "body_mass__kg_". -1: none, or several.
  std::int64_t find_as_exported(const std::string& name, const std::vector<bool>& is_taken) const {
    std::int64_t found = -1;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      if (is_taken[c] || plain(columns_[c]) != plain(name)) continue;
      if (found >= 0) return -1;
      found = static_cast<std::int64_t>(c);
    }
    return found;
  }

  std::int64_t find_or_refuse(const std::string& name) const {
    const std::int64_t place = find(name);
    if (place >= 0) return place;
    throw DataError({.what = "there is no column '" + name + "'",
                     .where = {.file = path_, .value = name},
                     .detail = "There are " + base::quote_list(columns_) + ".",
                     .hint = base::nearest_or(name, columns_)});
  }

 private:
  // The name with an underscore in place of all but ASCII letters and digits.
  static std::string plain(std::string name) {
    for (char& c : name) {
      const bool is_kept =
          (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!is_kept) c = '_';
    }
    return name;
  }

  const std::string& path_;
  const std::vector<std::string>& columns_;
  std::unordered_map<std::string_view, std::int64_t> places_;
};

// Several columns of one target, [N] or [N, 1] each, side by side.
void join_targets(Dataset& data) {
  if (data.targets.size() < 2 || !data.targets[1].name.empty()) return;
  const std::int64_t rows = rows_in(data);
  const auto columns = std::ssize(data.targets);
  Tensor joined = Tensor::empty(DataType::kFloat64, Dims{rows, columns});
  const auto numbers = joined.mutable_data<double>();
  for (std::int64_t c = 0; c < columns; ++c) {
    const Tensor& column = data.targets[static_cast<std::size_t>(c)].tensor;
    if (column.num_elements() != rows || column.dtype() == DataType::kString) {
      throw DataError(
          {.what = fmt::format("target column {} of {} has shape {} and type {}", c + 1, columns,
                               column.dims().to_string(), dtype_name(column.dtype())),
           .hint = "Give one array of all columns, or columns of one number a row."});
    }
    const std::vector<double> given = column.to_doubles();
    for (std::int64_t row = 0; row < rows; ++row) {
      numbers[static_cast<std::size_t>(row * columns + c)] = given[static_cast<std::size_t>(row)];
    }
  }
  data.target = std::move(joined);
  data.targets.clear();
}

}  // namespace

void ChunkedSource::set_size(std::int64_t rows, std::int64_t chunks, bool any_order) {
  rows_ = rows;
  chunks_ = chunks;
  any_order_ = any_order;
}

bool ChunkedSource::take_rows(std::int64_t begin, std::int64_t end) {
  begin_ = begin;
  end_ = end;
  return true;
}

std::int64_t ChunkedSource::chunk_at(std::int64_t position) const {
  if (chosen_) return (*chosen_)[static_cast<std::size_t>(position)];
  return order_ ? static_cast<std::int64_t>((*order_)(static_cast<std::uint64_t>(position)))
                : position;
}

std::int64_t ChunkedSource::rows_of(std::int64_t chunk) const {
  return (chunk + 1 < chunks_ ? first_row_of(chunk + 1) : rows_) - first_row_of(chunk);
}

void ChunkedSource::start(const Pass& pass) {
  position_ = 0;
  row_ = 0;
  order_.reset();
  if (!pass.shuffle || !any_order_) return;
  order_.emplace(static_cast<std::uint64_t>(chunks_), pass.seed ^ kChunkStream, pass.epoch);
}

std::vector<Piece> ChunkedSource::pieces() const {
  std::vector<Piece> pieces;
  if (!any_order_) return pieces;
  pieces.reserve(static_cast<std::size_t>(chunks_));
  for (std::int64_t chunk = 0; chunk < chunks_; ++chunk) {
    pieces.push_back(
        {.first_row = first_row_of(chunk), .rows = rows_of(chunk), .bytes = bytes_of(chunk)});
  }
  return pieces;
}

std::unique_ptr<DataSource> ChunkedSource::open_pieces(
    const std::vector<std::int64_t>& numbers) const {
  auto copy = make_copy();
  copy->set_size(rows_, chunks_, any_order_);
  copy->chosen_ = numbers;
  return copy;
}

std::optional<Dataset> ChunkedSource::next() {
  const std::int64_t end = end_ < 0 ? rows_ : end_;
  const std::int64_t chunks = chosen_ ? std::ssize(*chosen_) : chunks_;
  for (; position_ < chunks && row_ < end; ++position_) {
    const std::int64_t chunk = chunk_at(position_);
    const std::int64_t rows = rows_of(chunk);
    const std::int64_t first = std::max(begin_ - row_, std::int64_t{0});
    const std::int64_t last = std::min(end - row_, rows);
    row_ += rows;
    if (first >= rows) {
      if (!any_order_) read_chunk(chunk);  // later chunks can only be read after it
      continue;
    }
    ++position_;
    Dataset data = read_chunk(chunk);
    join_targets(data);
    return last - first == rows ? std::move(data) : cut_rows(data, first, last - first);
  }
  return std::nullopt;
}

Dataset cut_rows(const Dataset& chunk, std::int64_t first, std::int64_t count) {
  const auto cut = [&](const Tensor& all) -> Tensor {
    if (!all.is_defined()) return {};
    std::vector<std::int64_t> sizes(all.dims().begin(), all.dims().end());
    const std::int64_t rows = sizes.at(0);
    sizes[0] = count;
    if (all.dtype() == DataType::kString) {
      const auto texts = all.strings();
      const auto each = std::ssize(texts) / std::max<std::int64_t>(rows, 1);
      const auto begin = texts.begin() + first * each;
      return Tensor::from_strings({begin, begin + count * each}, Dims(sizes));
    }
    const auto whole = std::make_shared<Tensor>(all);
    std::byte* const begin = whole->mutable_raw() + whole->size_bytes() / rows * first;
    return Tensor::view(all.dtype(), Dims(sizes), begin, whole);
  };
  Dataset part = chunk;
  for (auto& input : part.inputs) input.tensor = cut(input.tensor);
  for (auto& target : part.targets) target.tensor = cut(target.tensor);
  part.target = cut(chunk.target);
  part.sample_weight = cut(chunk.sample_weight);
  part.first_row += first;
  return part;
}

std::int64_t rows_in(const Dataset& chunk) {
  const auto rows = [](const Tensor& tensor) { return tensor.dims()[0]; };
  if (!chunk.inputs.empty()) return rows(chunk.inputs.front().tensor);
  return rows(chunk.target.is_defined() ? chunk.target : chunk.targets.front().tensor);
}

std::vector<TargetColumn> target_columns(const FileLayout& layout) {
  if (!layout.targets.empty()) return layout.targets;
  return {{.output = {}, .column = layout.target, .is_text = layout.target_is_text}};
}

bool are_of_one_target(const FileLayout& layout) {
  return layout.targets.size() > 1 && layout.targets[1].output.empty();
}

void place_targets(Dataset& data, const FileLayout& layout) {
  for (const TargetColumn& target : layout.targets) {
    data.targets.push_back({.name = target.output, .tensor = {}});
  }
}

Tensor& target_at(Dataset& data, std::size_t i) {
  return data.targets.empty() ? data.target : data.targets[i].tensor;
}

namespace {

// True for a number that is no column's number: pandas writes those of unnamed columns.
bool looks_like_data(const std::string& name) {
  double number = 0;
  return name.find_first_not_of("0123456789") != std::string::npos && parse_number(name, number);
}

// The columns that the keys of a map name, or none if the file has one that is not there.
std::vector<std::int64_t> columns_of_keys(const std::string& path, const ColumnIndex& index,
                                          const ValueInfo& map, const std::vector<bool>& is_taken) {
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < map.keys.num_elements(); ++i) {
    const auto k = static_cast<std::size_t>(i);
    const std::string key = map.keys.dtype() == DataType::kString
                                ? map.keys.strings()[k]
                                : std::to_string(map.keys.data<std::int64_t>()[k]);
    const std::int64_t place = index.find(key);
    if (place < 0 || is_taken[static_cast<std::size_t>(place)]) {
      throw DataError({.what = "no column for the key '" + key + "' of the maps '" + map.name + "'",
                       .where = {.file = path, .value = key},
                       .hint = "Add a column of that name; its cells may be empty."});
    }
    places.push_back(place);
  }
  return places;
}

}  // namespace

ColumnPlan plan_columns(const std::string& path, const std::vector<std::string>& columns,
                        const FileLayout& layout, bool stacks) {
  ColumnPlan plan;
  const ColumnIndex index(path, columns);
  std::vector<bool> is_taken(columns.size(), false);
  const auto take = [&](std::int64_t place) {
    is_taken[static_cast<std::size_t>(place)] = true;
    return place;
  };
  for (const TargetColumn& target : target_columns(layout)) {
    plan.targets.push_back(take(index.find_or_refuse(target.column)));
  }
  if (!layout.sample_weight.empty()) {
    plan.sample_weight = take(index.find_or_refuse(layout.sample_weight));
  }
  for (const std::string& name : layout.ignored) take(index.find_or_refuse(name));
  std::vector<std::size_t> open;
  for (const ValueInfo& input : layout.inputs) {
    std::int64_t place = index.find(input.name);
    if (place < 0) place = index.find_as_exported(input.name, is_taken);
    const bool is_there = place >= 0 && !is_taken[static_cast<std::size_t>(place)];
    if (!is_there) open.push_back(plan.inputs.size());
    plan.inputs.push_back(is_there ? take(place) : -1);
  }
  std::vector<std::int64_t> left;
  for (std::size_t c = 0; c < columns.size(); ++c) {
    if (!is_taken[c]) left.push_back(static_cast<std::int64_t>(c));
  }
  if (open.empty()) return plan;
  const ValueInfo& first = layout.inputs[open.front()];
  if (stacks && open.size() == 1 && first.keys.is_defined()) {
    plan.stacked_input = static_cast<std::int64_t>(open.front());
    plan.stacked = columns_of_keys(path, index, first, is_taken);
    plan.fills_empty_cells = true;
    return plan;
  }
  // If other inputs have columns of their names, a remaining one is not used for another input.
  const bool by_name = open.size() < layout.inputs.size() && left.size() == 1;
  if (open.size() > 1 || left.empty() || by_name || (!stacks && left.size() > 1)) {
    std::vector<std::string> names;
    for (const ValueInfo& input : layout.inputs) names.push_back(input.name);
    const std::string& missing = names[open.front()];
    if (index.find(missing) >= 0) {
      throw DataError({.what = "column '" + missing +
                               "' is an input of the model, so it cannot be " +
                               "the target, a weight or ignored too",
                       .where = {.file = path, .value = missing},
                       .hint = "Choose another column, or train a model without that input."});
    }
    if (std::ranges::any_of(columns, looks_like_data)) {
      throw DataError(
          {.what = "no column for the model's input '" + missing + "'",
           .where = {.file = path, .value = missing},
           .detail = "The first line has " + base::quote_list(columns) + ".",
           .hint = "It looks like data: write a line with the names of the columns before it."});
    }
    throw DataError(
        {.what = "no column for the model's input '" + missing + "'",
         .where = {.file = path, .value = missing},
         .detail = "The model reads " + base::quote_list(names) + "; the file has " +
                   base::quote_list(columns) + ".",
         .hint = base::nearest_or(missing, columns, "Name columns (or arrays) like the inputs.")});
  }
  if (stacks) {
    plan.stacked_input = static_cast<std::int64_t>(open.front());
    plan.stacked = std::move(left);
  } else {
    plan.inputs[open.front()] = left.front();
  }
  return plan;
}

}  // namespace onnxgrad::train
