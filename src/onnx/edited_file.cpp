#include "onnx/edited_file.h"

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "onnx/exporter.h"
#include "onnx/file_edit.h"

namespace onnxgrad::onnx_io {
namespace {

// The tensors of a file: the same memory under the same name is the same tensor.
using Places = std::map<std::pair<const std::byte*, std::string_view>, std::string_view>;

// `path`: from the main graph, as in WeightOrigin.
void collect(const ir::Graph& graph, std::vector<std::pair<std::string, std::string>>& path,
             const FileIndex& index, Places& places) {
  const std::string scope = FileIndex::scope_of("", path);
  for (const ir::Value* value : graph.initializers) {
    const PlacePath* place = index.initializer(scope, value->name);
    if (place == nullptr || value->initializer.num_elements() == 0) continue;
    places.try_emplace({value->initializer.raw(), value->name}, index.text_at(place->back()));
  }
  for (const ir::Node* node : graph.nodes) {
    for (const ir::Attribute& attribute : node->attributes) {
      const auto* body = std::get_if<ir::GraphPtr>(&attribute.value);
      if (body == nullptr || node->output(0) == nullptr) continue;
      path.emplace_back(node->output(0)->name, attribute.name);
      collect(**body, path, index, places);
      path.pop_back();
    }
  }
}

}  // namespace

FileModel edited_file(const FileModel& base, std::shared_ptr<const ir::Model> edited) {
  ONNXGRAD_ASSERT(base.bytes != nullptr);
  const auto write = [original = base.model, edited](std::string_view bytes) {
    const FileIndex index(bytes);
    Places places;
    std::vector<std::pair<std::string, std::string>> path;
    collect(*original->graph, path, index, places);
    return export_model(*edited, nullptr, [&places](const ir::Value& value) {
      const auto place = places.find({value.initializer.raw(), value.name});
      return place == places.end() ? std::string_view() : place->second;
    });
  };
  return {.path = base.path,
          .bytes = std::make_shared<const FileBytes>(base.bytes, write),
          .model = std::move(edited),
          .external_root = base.external_root};
}

}  // namespace onnxgrad::onnx_io
