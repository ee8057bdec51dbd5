// Rows in chunks, from files and from Python, and metrics.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings.h"
#include "device_tensor_caster.h"
#include "onnxgrad/data_files.h"
#include "onnxgrad/metrics.h"
#include "onnxgrad/tables.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace onnxgrad::python {
namespace {

/// A Python object that may be dropped by any thread.
std::shared_ptr<nb::object> shared_object(nb::object object) {
  return {new nb::object(std::move(object)), [](nb::object* held) {
            const nb::gil_scoped_acquire lock;
            delete held;
          }};
}

/// Some pieces of a source that is written in Python: what `read_pieces(numbers)` yields.
class PythonPieces final : public DataSource {
 public:
  PythonPieces(std::shared_ptr<nb::object> read, std::vector<std::int64_t> numbers)
      : read_(std::move(read)), numbers_(std::move(numbers)) {}

  std::optional<std::int64_t> num_rows() const override { return std::nullopt; }
  void start(const Pass& /*pass*/) override {
    const nb::gil_scoped_acquire lock;
    chunks_ = shared_object(nb::iter((*read_)(numbers_)));
  }
  std::optional<Dataset> next() override {
    const nb::gil_scoped_acquire lock;
    const auto chunk = nb::steal<nb::object>(PyIter_Next(chunks_->ptr()));
    if (chunk.is_valid()) return nb::cast<Dataset>(chunk);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    return std::nullopt;
  }

 private:
  std::shared_ptr<nb::object> read_;
  std::vector<std::int64_t> numbers_;
  std::shared_ptr<nb::object> chunks_;
};

/// A source that is written in Python: `start(epoch, shuffle, seed)` and `next()`, which gives a
/// Dataset or None, and, unless None, `take_rows(begin, end)`. If its rows are in pieces that can
/// be read apart from each other, `pieces` has the rows of each, and `read_pieces(numbers)` returns
/// an iterable of their Datasets. They are called by the reading thread, which takes the
/// interpreter lock.
class PythonSource final : public DataSource {
 public:
  PythonSource(nb::object start, nb::object next, std::optional<std::int64_t> num_rows,
               bool can_start_again, nb::object take_rows, const std::vector<std::int64_t>& pieces,
               nb::object read_pieces, std::int64_t piece_bytes)
      : start_(std::move(start)),
        next_(std::move(next)),
        take_rows_(std::move(take_rows)),
        read_pieces_(shared_object(std::move(read_pieces))),
        num_rows_(num_rows),
        can_start_again_(can_start_again) {
    std::int64_t first = 0;
    for (const std::int64_t rows : pieces) {
      pieces_.push_back({.first_row = first, .rows = rows, .bytes = piece_bytes});
      first += rows;
    }
  }

  std::optional<std::int64_t> num_rows() const override { return num_rows_; }
  bool can_start_again() const override { return can_start_again_; }
  bool take_rows(std::int64_t begin, std::int64_t end) override {
    const nb::gil_scoped_acquire lock;
    if (take_rows_.is_none()) return false;
    take_rows_(begin, end);
    return true;
  }
  std::vector<Piece> pieces() const override { return pieces_; }
  std::unique_ptr<DataSource> open_pieces(const std::vector<std::int64_t>& numbers) const override {
    return std::make_unique<PythonPieces>(read_pieces_, numbers);
  }
  void start(const Pass& pass) override {
    const nb::gil_scoped_acquire lock;
    start_(pass.epoch, pass.shuffle, pass.seed);
  }
  std::optional<Dataset> next() override {
    const nb::gil_scoped_acquire lock;
    const nb::object chunk = next_();
    if (chunk.is_none()) return std::nullopt;
    return nb::cast<Dataset>(chunk);
  }

 private:
  nb::object start_;
  nb::object next_;
  nb::object take_rows_;  // or None
  std::shared_ptr<nb::object> read_pieces_;
  std::vector<Piece> pieces_;
  std::optional<std::int64_t> num_rows_;
  bool can_start_again_;
};

/// Calls Python's `open()`; the object that it returns lives as long as the source.
std::shared_ptr<DataSource> call_open(const std::shared_ptr<nb::object>& open) {
  const nb::gil_scoped_acquire lock;
  auto held = shared_object((*open)());
  return {held, nb::cast<DataSource*>(*held)};
}

/// Name, function that opens it, number of rows or None, rows of its pieces and bytes of the
/// largest one, of each shard.
using ShardTuple = std::tuple<std::string, nb::object, std::optional<std::int64_t>,
                              std::vector<std::int64_t>, std::int64_t>;

std::unique_ptr<DataSource> shards_of(const std::vector<ShardTuple>& given) {
  std::vector<Shard> shards;
  for (const auto& [name, open, rows, pieces, piece_bytes] : given) {
    shards.push_back({.name = name,
                      .open = [held = shared_object(open)] { return call_open(held); },
                      .rows = rows,
                      .piece_rows = pieces,
                      .piece_bytes = piece_bytes});
  }
  return open_shards(std::move(shards));
}

Metric metric_of(const std::string& name, nb::object function) {
  if (function.is_none()) return {.name = name};
  const auto held = shared_object(std::move(function));
  return {.name = name, .function = [held](const Predictions& rows) {
            const nb::gil_scoped_acquire lock;
            const nb::object weight =
                rows.sample_weight.is_defined() ? nb::cast(rows.sample_weight) : nb::none();
            return nb::cast<double>((*held)(rows.target, rows.predicted, weight));
          }};
}

using ColumnNames = std::vector<std::pair<std::string, std::vector<std::string>>>;

std::vector<DataOrigin::Columns> columns_of(const ColumnNames& given) {
  std::vector<DataOrigin::Columns> columns;
  for (const auto& [array, names] : given) columns.push_back({.array = array, .names = names});
  return columns;
}

/// `line_of` is None, or a function of a row; which is called for messages alone.
std::shared_ptr<DataOrigin> make_origin(const std::string& file, nb::object line_of,
                                        const ColumnNames& inputs, const ColumnNames& targets,
                                        const std::string& sample_weight) {
  auto origin = std::make_shared<DataOrigin>();
  origin->file = file;
  origin->inputs = columns_of(inputs);
  origin->targets = columns_of(targets);
  if (!sample_weight.empty()) origin->sample_weight.names = {sample_weight};
  if (line_of.is_none()) return origin;
  origin->line_of = [held = shared_object(std::move(line_of))](std::int64_t row) {
    const nb::gil_scoped_acquire lock;
    return nb::cast<std::int64_t>((*held)(row));
  };
  return origin;
}

void bind_dataset(nb::module_& module) {
  nb::class_<DataOrigin>(module, "DataOrigin")
      .def(nb::new_(&make_origin), "file"_a, "line_of"_a.none(), "inputs"_a, "targets"_a,
           "sample_weight"_a);
  nb::class_<Dataset>(module, "Dataset")
      .def(
          "__init__",
          [](Dataset* place, const NamedTensors& inputs, const std::optional<Tensor>& target,
             const NamedTensors& targets, const std::optional<Tensor>& sample_weight,
             std::int64_t first_row, const std::shared_ptr<DataOrigin>& origin,
             const NamedDeviceTensors& placed, const NamedDeviceTensors& placed_targets,
             const std::optional<DeviceTensor>& placed_weight) {
            new (place) Dataset{.inputs = inputs,
                                .placed = placed,
                                .placed_targets = placed_targets,
                                .placed_weight = placed_weight.value_or(DeviceTensor{}),
                                .target = target.value_or(Tensor{}),
                                .targets = targets,
                                .sample_weight = sample_weight.value_or(Tensor{}),
                                .first_row = first_row,
                                .origin = origin};
          },
          "inputs"_a, "target"_a.none(), "targets"_a, "sample_weight"_a.none(), "first_row"_a = 0,
          "origin"_a.none() = nb::none(), "placed"_a = nb::dict(), "placed_targets"_a = nb::dict(),
          "placed_weight"_a.none() = nb::none())
      .def_ro("inputs", &Dataset::inputs)
      .def_ro("target", &Dataset::target)
      .def_prop_ro("sample_weight",
                   [](const Dataset& data) {
                     return data.sample_weight.is_defined() ? std::optional(data.sample_weight)
                                                            : std::nullopt;
                   })
      .def_ro("first_row", &Dataset::first_row);
}

void bind_sources(nb::module_& module) {
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<DataSource>(module, "DataSource")
      .def_prop_ro("num_rows", &DataSource::num_rows)
      .def_prop_ro("can_start_again", &DataSource::can_start_again)
      .def(
          "start",
          [](DataSource& source, std::uint32_t epoch, bool shuffle, std::uint64_t seed) {
            source.start({.epoch = epoch, .shuffle = shuffle, .seed = seed});
          },
          "epoch"_a = 0, "shuffle"_a = false, "seed"_a = 0, Unlocked())
      .def("next", &DataSource::next, Unlocked())
      .def("take_rows", &DataSource::take_rows, "begin"_a, "end"_a, Unlocked())
      .def("pieces",
           [](const DataSource& source) {
             std::vector<std::pair<std::int64_t, std::int64_t>> pieces;  // rows and bytes
             for (const Piece& piece : source.pieces())
               pieces.emplace_back(piece.rows, piece.bytes);
             return pieces;
           })
      .def("open_pieces", &DataSource::open_pieces, "numbers"_a, nb::keep_alive<0, 1>());
  nb::class_<PythonSource, DataSource>(module, "PythonSource")
      .def(nb::init<nb::object, nb::object, std::optional<std::int64_t>, bool, nb::object,
                    const std::vector<std::int64_t>&, nb::object, std::int64_t>(),
           "start"_a, "next"_a, "num_rows"_a.none(), "can_start_again"_a = true,
           "take_rows"_a.none() = nb::none(), "pieces"_a = std::vector<std::int64_t>{},
           "read_pieces"_a.none() = nb::none(), "piece_bytes"_a = 0);
  module.attr("SHARDS_AS_PIECES") = kShardsAsPieces;
}

FileLayout layout_of(const std::vector<ValueInfo>& inputs, const std::string& target,
                     bool target_is_text, const std::string& sample_weight,
                     const std::vector<std::string>& ignored,
                     const std::vector<TargetColumn>& targets) {
  return {.inputs = inputs,
          .target = target,
          .target_is_text = target_is_text,
          .sample_weight = sample_weight,
          .ignored = ignored,
          .targets = targets};
}

void bind_files(nb::module_& module) {
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<TargetColumn>(module, "TargetColumn")
      .def(
          "__init__",
          [](TargetColumn* place, const std::string& output, const std::string& column,
             bool is_text) {
            new (place) TargetColumn{.output = output, .column = column, .is_text = is_text};
          },
          "output"_a, "column"_a, "is_text"_a);
  nb::class_<FileLayout>(module, "FileLayout")
      .def(
          "__init__",
          [](FileLayout* place, const std::vector<ValueInfo>& inputs, const std::string& target,
             bool target_is_text, const std::string& sample_weight,
             const std::vector<std::string>& ignored, const std::vector<TargetColumn>& targets) {
            new (place) FileLayout(
                layout_of(inputs, target, target_is_text, sample_weight, ignored, targets));
          },
          "inputs"_a, "target"_a, "target_is_text"_a, "sample_weight"_a, "ignored"_a,
          "targets"_a = std::vector<TargetColumn>{});
  module.def("number_hint", &number_hint, "text"_a, "column"_a = "");
  module.def(
      "open_csv",
      [](const std::string& path, const FileLayout& layout, char delimiter,
         std::int64_t chunk_bytes) {
        return open_csv(path, layout, {.delimiter = delimiter, .chunk_bytes = chunk_bytes});
      },
      "path"_a, "layout"_a, "delimiter"_a, "chunk_bytes"_a, Unlocked());
  module.def("open_npz", &open_npz, "path"_a, "layout"_a, "chunk_bytes"_a, Unlocked());
  module.def("npz_names", &npz_names, "path"_a, Unlocked());
  module.def("read_npz", &read_npz, "path"_a, "name"_a, Unlocked());
  module.def("read_npy", &read_npy, "path"_a, Unlocked());
  module.def("open_shards", &shards_of, "shards"_a);
  module.def("open_npy", &open_npy, "files"_a, "layout"_a, "chunk_bytes"_a, Unlocked());
}

}  // namespace

void bind_data(nb::module_& module) {
  bind_dataset(module);
  bind_sources(module);
  bind_files(module);
  nb::class_<Metric>(module, "Metric")
      .def(
          "__init__",
          [](Metric* place, const std::string& name, nb::object function) {
            new (place) Metric(metric_of(name, std::move(function)));
          },
          "name"_a, "function"_a.none())
      .def_ro("name", &Metric::name);
  nb::class_<MetricInfo>(module, "MetricInfo")
      .def_ro("name", &MetricInfo::name)
      .def_ro("is_of_classes", &MetricInfo::is_of_classes)
      .def_ro("is_larger_better", &MetricInfo::is_larger_better)
      .def_ro("meaning", &MetricInfo::meaning);
  module.def("metric_table", &metric_table);
  module.def("metric_names", &metric_names);
  module.def("is_larger_better", &is_larger_better, "metric"_a);
  module.def(
      "metric_value",
      [](const std::string& name, const Tensor& target, const Tensor& predicted,
         const std::optional<Tensor>& sample_weight) {
        return metric_value(name, {.target = target,
                                   .predicted = predicted,
                                   .sample_weight = sample_weight.value_or(Tensor{})});
      },
      "name"_a, "target"_a, "predicted"_a, "sample_weight"_a.none());
}

}  // namespace onnxgrad::python
