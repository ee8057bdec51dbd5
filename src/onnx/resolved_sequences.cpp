#include "onnx/resolved_sequences.h"

#include <algorithm>
#include <cstddef>
#include <unordered_set>
#include <vector>

namespace onnxgrad::onnx_io {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;
using Values = std::unordered_set<const Value*>;

void collect_reads(const Node& node, Values& reads) {
  for (const Value* input : node.inputs) reads.insert(input);
  for (const Value* captured : ir::captured_values(node)) reads.insert(captured);
}

// Values that `outputs` of the body depend on.
Values needed_for(const Graph& body, const std::vector<Value*>& outputs) {
  Values needed(outputs.begin(), outputs.end());
  for (std::size_t n = body.nodes.size(); n-- > 0;) {
    const Node& node = *body.nodes[n];
    const bool is_needed = std::ranges::any_of(
        node.outputs, [&](const Value* output) { return needed.contains(output); });
    if (is_needed) collect_reads(node, needed);
  }
  return needed;
}

template <class T>
void erase_at(std::vector<T>& list, std::size_t i) {
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(i));
}

void drop_states(Node& loop, const Values& read) {
  Graph& body = *loop.subgraphs().front();
  for (std::size_t s = loop.inputs.size() - 2; s-- > 0;) {
    const Value* result = loop.output(s);
    const bool is_sequence = body.inputs[s + 2]->type.kind == ir::Type::Kind::kSequence;
    if (!is_sequence || (result != nullptr && read.contains(result))) continue;
    std::vector<Value*> others = body.outputs;
    erase_at(others, s + 1);
    if (needed_for(body, others).contains(body.inputs[s + 2])) continue;
    body.outputs = std::move(others);
    erase_at(body.inputs, s + 2);
    erase_at(loop.inputs, s + 2);
    erase_at(loop.outputs, s);
    for (std::size_t i = s; i < loop.outputs.size(); ++i) {
      if (loop.outputs[i] != nullptr) Graph::set_output(&loop, i, loop.outputs[i]);
    }
  }
  ir::eliminate_dead_nodes(body);
}

// True for a node that only makes sequences or optionals which nothing reads.
bool is_resolved(const Node& node, const Values& read) {
  return std::ranges::all_of(node.outputs, [&](const Value* output) {
    return output == nullptr ||
           (!read.contains(output) && (output->type.kind == ir::Type::Kind::kSequence ||
                                       output->type.kind == ir::Type::Kind::kOptional));
  });
}

}  // namespace

void drop_resolved_sequences(Graph& graph) {
  Values read(graph.outputs.begin(), graph.outputs.end());
  for (std::size_t n = graph.nodes.size(); n-- > 0;) {
    Node& node = *graph.nodes[n];
    if (is_resolved(node, read)) {
      erase_at(graph.nodes, n);
      continue;
    }
    for (Graph* body : node.subgraphs()) drop_resolved_sequences(*body);
    const bool is_loop = node.domain.empty() && node.op_type == "Loop";
    if (is_loop && node.subgraphs().size() == 1) drop_states(node, read);
    collect_reads(node, read);
  }
}

}  // namespace onnxgrad::onnx_io
