#ifndef ONNXGRAD_ONNX_REWRITING_H_
#define ONNXGRAD_ONNX_REWRITING_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/builder.h"

namespace onnxgrad::onnx_io {

inline ir::Attribute attribute(std::string name, ir::AttributeValue value) {
  return {.name = std::move(name), .value = std::move(value)};
}

/// The result of a rule: one value per output of the node, or nullopt if the node, possibly
/// changed, is kept.
using Replacement = std::optional<std::vector<ir::Value*>>;

/// A row of a table of rules; the table defines what `opset` bounds.
struct RewriteRule {
  std::string_view op_type;
  std::int64_t opset;
  Replacement (*apply)(ir::Node& node, ir::GraphBuilder& g);
};

/// The values in `results`, written through `g` as nodes [first_new, ...) of its graph, take over
/// the names and uses of the outputs of `node`, which is in no list. Outputs without a result
/// lose their producer and are returned.
std::vector<ir::Value*> adopt_results(ir::Node& node, const std::vector<ir::Value*>& results,
                                      std::size_t first_new, ir::GraphBuilder& g,
                                      const ir::TypeInferer& inferer);

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_REWRITING_H_
