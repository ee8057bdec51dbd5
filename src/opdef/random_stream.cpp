#include "opdef/random_stream.h"

#include <algorithm>
#include <string>
#include <utility>

namespace onnxgrad::opdef {
namespace {

constexpr std::string_view kKey = "onnxgrad.draws_like";

auto find_note(const ir::Metadata& metadata) {
  return std::ranges::find(metadata, kKey, &ir::Metadata::value_type::first);
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
}

}  // namespace onnxgrad::opdef
