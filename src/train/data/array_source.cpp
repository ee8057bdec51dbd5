#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/rounding.h"
#include "onnxgrad/data_files.h"
#include "train/data/byte_stream.h"
#include "train/data/chunked_source.h"
#include "train/data/npy.h"

// Arrays in .npz and .npy files, read in chunks of rows.

namespace onnxgrad::train {
namespace {

using base::ReadableFile;

struct NamedStream {
  std::string name;
  std::string file;
  std::function<std::unique_ptr<ByteStream>()> open;
};

class ArraySource final : public ChunkedSource {
 public:
  // `streams`: only those named in `plan` are opened.
  ArraySource(const std::string& path, const std::vector<NamedStream>& streams,
              const FileLayout& layout, std::int64_t chunk_bytes)
      : path_(path), streams_(streams), layout_(layout), chunk_bytes_(chunk_bytes) {
    std::vector<std::string> names;
    for (const NamedStream& stream : streams) names.push_back(stream.name);
    plan_ = plan_columns(path, names, layout_, false);
    std::map<std::int64_t, std::size_t> opened;  // an array may be the target of two outputs
    const auto open = [&](std::int64_t place) {
      if (place < 0) return std::size_t{0};
      const auto [known, is_new] = opened.emplace(place, arrays_.size());
      if (!is_new) return known->second;
      const NamedStream& stream = streams[static_cast<std::size_t>(place)];
      arrays_.emplace_back(stream.open(), stream.file, stream.name);
      return arrays_.size() - 1;
    };
    for (const std::int64_t place : plan_.inputs) inputs_.push_back(open(place));
    for (const std::int64_t place : plan_.targets) targets_.push_back(open(place));
    weight_ = open(plan_.sample_weight);
    check_rows(path);
    bool any_order = true;
    for (const NpyArray& array : arrays_) {
      row_bytes_ += array.row_bytes();
      any_order = any_order && array.has_random_access();
    }
    rows_ = arrays_.front().rows();
    chunk_rows_ = std::clamp<std::int64_t>(chunk_bytes / std::max<std::int64_t>(row_bytes_, 1), 1,
                                           std::max<std::int64_t>(rows_, 1));
    set_size(rows_, base::ceil_div(rows_, chunk_rows_), any_order);
  }

 private:
  void check_rows(const std::string& path) const {
    const NpyArray& target = arrays_[targets_.front()];
    for (const NpyArray& array : arrays_) {
      if (array.rows() == target.rows()) continue;
      throw DataError({.what = fmt::format("'{}' has {} rows, '{}' has {}", array.name(),
                                           array.rows(), target.name(), target.rows()),
                       .where = {.file = path, .value = array.name()},
                       .hint = "Save arrays with one row for each row of the target."});
    }
    if (target.rows() == 0) {
      throw DataError({.what = "there are no rows",
                       .where = {.file = path},
                       .hint = "Save arrays whose first dimension counts rows."});
    }
  }

  std::int64_t first_row_of(std::int64_t chunk) const override { return chunk * chunk_rows_; }
  std::int64_t bytes_of(std::int64_t /*chunk*/) const override { return chunk_rows_ * row_bytes_; }
  std::unique_ptr<ChunkedSource> make_copy() const override {
    return std::make_unique<ArraySource>(path_, streams_, layout_, chunk_bytes_);
  }

  Dataset read_chunk(std::int64_t chunk) override {
    const std::int64_t first = chunk * chunk_rows_;
    const std::int64_t count = std::min(chunk_rows_, rows_ - first);
    Dataset data{.inputs = {}, .target = {}, .first_row = first};
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      data.inputs.push_back(
          {.name = layout_.inputs[i].name, .tensor = arrays_[inputs_[i]].read(first, count)});
    }
    place_targets(data, layout_);
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const auto before = std::find(targets_.begin(), targets_.end(), targets_[i]);
      const auto earlier = static_cast<std::size_t>(before - targets_.begin());
      target_at(data, i) =
          earlier < i ? target_at(data, earlier) : arrays_[targets_[i]].read(first, count);
    }
    if (plan_.sample_weight >= 0) data.sample_weight = arrays_[weight_].read(first, count);
    return data;
  }

  std::string path_;
  std::vector<NamedStream> streams_;
  FileLayout layout_;
  std::int64_t chunk_bytes_;
  ColumnPlan plan_;
  std::vector<NpyArray> arrays_;
  std::vector<std::size_t> inputs_;
  std::vector<std::size_t> targets_;
  std::size_t weight_ = 0;
  std::int64_t rows_ = 0;
  std::int64_t row_bytes_ = 0;
  std::int64_t chunk_rows_ = 0;
};

std::shared_ptr<const ReadableFile> open_file(const std::string& path) {
  try {
    return std::make_shared<ReadableFile>(ReadableFile::open(path));
  } catch (const Error& error) {
    throw DataError(error.problem());
  }
}

std::string without_suffix(const std::string& name) {
  return name.ends_with(".npy") ? name.substr(0, name.size() - 4) : name;
}

std::vector<ZipMember> list_arrays(const ReadableFile& file) {
  std::vector<ZipMember> members = list_zip(file);
  std::erase_if(members, [](const ZipMember& member) { return !member.name.ends_with(".npy"); });
  return members;
}

Tensor read_whole(std::unique_ptr<ByteStream> bytes, const std::string& path,
                  const std::string& name) {
  NpyArray array(std::move(bytes), path, name, NpyUse::kWhole);
  return array.read(0, array.rows());
}

}  // namespace
}  // namespace onnxgrad::train

namespace onnxgrad {

std::unique_ptr<DataSource> open_npz(const std::string& path, const FileLayout& layout,
                                     std::int64_t chunk_bytes) {
  const auto file = train::open_file(path);
  std::vector<train::NamedStream> streams;
  for (const train::ZipMember& member : train::list_arrays(*file)) {
    streams.push_back({.name = train::without_suffix(member.name),
                       .file = path,
                       .open = [file, member] { return train::open_zip_member(file, member); }});
  }
  return std::make_unique<train::ArraySource>(path, streams, layout, chunk_bytes);
}

std::vector<std::string> npz_names(const std::string& path) {
  std::vector<std::string> names;
  for (const train::ZipMember& member : train::list_arrays(*train::open_file(path))) {
    names.push_back(train::without_suffix(member.name));
  }
  return names;
}

Tensor read_npz(const std::string& path, const std::string& name) {
  const auto file = train::open_file(path);
  for (const train::ZipMember& member : train::list_arrays(*file)) {
    if (train::without_suffix(member.name) != name) continue;
    if (!member.is_deflated) train::check_stored_member(file, member);
    return train::read_whole(train::open_zip_member(file, member), path, name);
  }
  throw DataError({.what = fmt::format("there is no array '{}'", name),
                   .where = {.file = path, .value = name},
                   .hint = base::nearest_or(name, npz_names(path), "Use one that is in it.")});
}

Tensor read_npy(const std::string& path) {
  const auto file = train::open_file(path);
  return train::read_whole(train::file_part(file, 0, file->size_bytes()), path, "");
}

std::unique_ptr<DataSource> open_npy(const NpyFiles& files, const FileLayout& layout,
                                     std::int64_t chunk_bytes) {
  std::vector<train::NamedStream> streams;
  for (const auto& [name, path] : files) {
    streams.push_back({.name = name, .file = path, .open = [file = train::open_file(path)] {
                         return train::file_part(file, 0, file->size_bytes());
                       }});
  }
  const std::string first = files.empty() ? "" : files.front().second;
  return std::make_unique<train::ArraySource>(first, streams, layout, chunk_bytes);
}

}  // namespace onnxgrad
