#include "opdef/random_stream.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

namespace onnxgrad::opdef {
namespace {

constexpr std::string_view kKey = "onnxgrad.draws_like";
constexpr std::string_view kRowAxis = "onnxgrad.row_axis";

auto find_note(const ir::Metadata& metadata, std::string_view key = kKey) {
  return std::ranges::find(metadata, key, &ir::Metadata::value_type::first);
}

}  // namespace

std::string_view random_stream(const ir::Node& node) {
  const auto note = find_note(node.metadata);
  if (note != node.metadata.end()) return note->second;
  const auto is_there = [](const ir::Value* value) { return value != nullptr; };
  const auto output = std::ranges::find_if(node.outputs, is_there);
  return output == node.outputs.end() ? std::string_view() : (*output)->name;
}

void set_random_stream(ir::Node& node, std::string stream) {
  if (find_note(node.metadata) == node.metadata.end()) {
    node.metadata.emplace_back(kKey, std::move(stream));
  }
}

bool draws_like_another(const ir::Node& node) {
  return find_note(node.metadata) != node.metadata.end();
}

void draw_like(const ir::Node& node, ir::Node& copy) {
  set_random_stream(copy, std::string(random_stream(node)));
  if (const std::int64_t axis = row_axis(node); axis >= 0) set_row_axis(copy, axis);
}

void set_row_axis(ir::Node& node, std::int64_t axis) {
  if (find_note(node.metadata, kRowAxis) == node.metadata.end()) {
    node.metadata.emplace_back(kRowAxis, std::to_string(axis));
  }
}

std::int64_t row_axis(const ir::Node& node) {
  const auto note = find_note(node.metadata, kRowAxis);
  if (note == node.metadata.end()) return -1;
  std::int64_t axis = -1;  // the default, if somebody has changed the note
  const char* const end = note->second.data() + note->second.size();
  const auto [last, error] = std::from_chars(note->second.data(), end, axis);
  return error == std::errc() && last == end ? axis : -1;
}

}  // namespace onnxgrad::opdef
