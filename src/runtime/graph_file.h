#ifndef ONNXGRAD_RUNTIME_GRAPH_FILE_H_
#define ONNXGRAD_RUNTIME_GRAPH_FILE_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/plan.h"
#include "runtime/program.h"

// What a plan is made of, as bytes: the graph after all passes, and how its inputs are supplied.
// Large constants of the program are not in them, only their numbers.

namespace onnxgrad::runtime {

struct PlannedGraph {
  std::shared_ptr<ir::Model> model;
  GraphBinding binding;
  Recomputed recomputed;
};

/// Feeds `take` with everything that determines what compile() makes of a program: nodes, names,
/// types, constants with their numbers.
void describe_program(const Program& program,
                      const std::function<void(std::string_view bytes)>& take);

/// nullopt: there is something that has no form as bytes (subgraphs, text constants).
std::optional<std::string> write_planned_graph(const ir::Graph& graph, const GraphBinding& binding,
                                               const Recomputed& recomputed,
                                               const Program& program);

/// The inverse, for the same program. nullopt: the bytes are not what write_planned_graph() writes.
std::optional<PlannedGraph> read_planned_graph(std::string_view bytes, const Program& program);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_GRAPH_FILE_H_
