#include "train/data/array_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace onnxgrad::train {
namespace {

ArrayPlace place_in(const Dataset& data, const std::string& name, const std::string& part) {
  ArrayPlace place(name);
  place.first_row = data.first_row;
  place.part = part;
  place.origin = data.origin.get();
  return place;
}

const DataOrigin::Columns* find(const std::vector<DataOrigin::Columns>& all,
                                const std::string& array) {
  const auto found = std::ranges::find(all, array, &DataOrigin::Columns::array);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

std::string ArrayPlace::row(std::int64_t place) const {
  const std::int64_t number = first_row + place;
  const bool has_lines = origin != nullptr && origin->line_of;
  std::string text =
      has_lines ? fmt::format("line {}", origin->line_of(number)) : fmt::format("row {}", number);
  return part.empty() ? text : text + " of the " + part + " rows";
}

std::string ArrayPlace::element(const Dims& dims, std::int64_t place) const {
  if (dims.rank() == 0) return "the scalar";
  const std::int64_t count = dims.product(1, dims.rank());
  const std::string row_text = row(count == 0 ? 0 : place / count);
  const auto column = static_cast<std::size_t>(count == 0 ? 0 : place % count);
  if (columns != nullptr && column < columns->names.size()) {
    return fmt::format("{}, column '{}'", row_text, columns->names[column]);
  }
  return dims.rank() == 1 ? row_text : fmt::format("{}, column {}", row_text, column);
}

Place ArrayPlace::where() const {
  const bool is_column = columns != nullptr && columns->names.size() == 1;
  return {.file = origin == nullptr ? "" : origin->file,
          .value = is_column ? columns->names.front() : value};
}

ArrayPlace input_place(const Dataset& data, const std::string& name, const std::string& part) {
  ArrayPlace place = place_in(data, name, part);
  if (place.origin != nullptr) place.columns = find(place.origin->inputs, name);
  return place;
}

ArrayPlace target_place() {
  ArrayPlace place("");
  place.subject = "the target";
  return place;
}

ArrayPlace target_place(const Dataset& data, const std::string& output, const std::string& part) {
  ArrayPlace place = place_in(data, "", part);
  place.subject = data.targets.empty() ? "the target" : "the target of '" + output + "'";
  if (place.origin != nullptr) {
    place.columns = find(place.origin->targets, data.targets.empty() ? "" : output);
  }
  return place;
}

ArrayPlace weight_place(const Dataset& data, const std::string& part) {
  ArrayPlace place = place_in(data, "", part);
  place.subject = "the sample weight";
  if (place.origin != nullptr && !place.origin->sample_weight.names.empty()) {
    place.columns = &place.origin->sample_weight;
  }
  return place;
}

}  // namespace onnxgrad::train
