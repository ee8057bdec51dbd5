#include "train/graphs/teacher.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/check.h"
#include "onnx/inference.h"
#include "train/graphs/step_parts.h"

namespace onnxgrad::train {
namespace {

using ir::GraphBuilder;
using ir::Value;

std::vector<Value*> fed_inputs(const ir::Graph& graph) {
  std::vector<Value*> inputs;
  for (Value* input : graph.inputs) {
    if (!input->is_initializer()) inputs.push_back(input);
  }
  return inputs;
}

std::vector<std::string> names_of_values(const std::vector<Value*>& values) {
  std::vector<std::string> names;
  for (const Value* value : values) names.push_back(value->name);
  return names;
}

// The part of the teacher that computes these values, its outputs; inputs with defaults are
// constants.
ir::Model cut_teacher(const TeacherGraph& teacher, const std::vector<std::string>& values,
                      const ir::TypeInferer& inferer) {
  ir::Model part = ir::clone(*teacher.model);
  ir::Graph& graph = *part.graph;
  close_defaults(graph, inferer);
  std::vector<Value*> outputs;
  for (const std::string& name : values) {
    Value* value = graph.find(name);
    if (value == nullptr) {
      std::vector<std::string> known = names_of_values(graph.outputs);
      for (const ir::Node* node : graph.nodes) {
        for (const Value* output : node->outputs) {
          if (output != nullptr) known.push_back(output->name);
        }
      }
      throw ModelError({.what = teacher.name + " has no value '" + name + "'",
                        .where = {.value = name},
                        .hint = base::nearest_or(name, known)});
    }
    outputs.push_back(value);
  }
  graph.outputs = std::move(outputs);
  cut_to_outputs(graph);
  return part;
}

/// Finds the student's input for an input of the teacher.
class InputFinder {
 public:
  InputFinder(const TeacherGraph& teacher, const ir::Graph& student)
      : teacher_(teacher), all_(fed_inputs(*teacher.model->graph)), students_(fed_inputs(student)) {
    for (const auto& [mine, students] : teacher.inputs) {
      if (std::ranges::find(all_, mine, &Value::name) != all_.end()) continue;
      throw ModelError({.what = teacher.name + " has no input '" + mine + "'",
                        .where = {.value = mine},
                        .detail = "Its inputs: " + base::quote_list(names_of_values(all_)) + ".",
                        .hint = base::nearest_or(mine, names_of_values(all_))});
    }
  }

  Value* find(const Value& input) const {
    for (const auto& [mine, students] : teacher_.inputs) {
      if (mine == input.name) return named(students, input);
    }
    if (Value* same = find_named(input.name)) return same;
    const auto place = std::ranges::find(all_, input.name, &Value::name);
    if (all_.size() == students_.size() && place != all_.end()) {
      return students_[static_cast<std::size_t>(place - all_.begin())];
    }
    refuse(input, base::nearest_or(
                      input.name, names_of_values(students_),
                      "Name the student's input for it: inputs={'" + input.name + "': NAME}."));
  }

 private:
  Value* find_named(const std::string& name) const {
    const auto found = std::ranges::find(students_, name, &Value::name);
    return found == students_.end() ? nullptr : *found;
  }
  Value* named(const std::string& name, const Value& input) const {
    if (Value* found = find_named(name)) return found;
    refuse(input, base::nearest_or(name, names_of_values(students_)));
  }
  [[noreturn]] void refuse(const Value& input, const std::string& hint) const {
    throw ModelError(
        {.what = "the student has no input for input '" + input.name + "' of " + teacher_.name,
         .where = {.value = input.name},
         .detail = "Inputs of the student: " + base::quote_list(names_of_values(students_)) + ".",
         .hint = hint});
  }

  const TeacherGraph& teacher_;
  std::vector<Value*> all_;
  std::vector<Value*> students_;
};

// Whether two shapes may be equal but for their rows.
bool has_like_places(const ir::Type& a, const ir::Type& b) {
  if (!a.has_rank() || !b.has_rank()) return true;
  if (a.rank() != b.rank()) return false;
  for (std::size_t axis = 1; axis < a.rank(); ++axis) {
    const ir::Dim& mine = (*a.shape)[axis];
    const ir::Dim& other = (*b.shape)[axis];
    if (mine.is_static() && other.is_static() && mine.value() != other.value()) return false;
  }
  return true;
}

// The student's value as the teacher reads it.
Value* in_type_of(GraphBuilder& g, const TeacherGraph& teacher, Value* given, const Value& input) {
  const DataType wanted = input.dtype();
  const bool fits = has_like_places(given->type, input.type);
  if (fits && given->dtype() == wanted) return given;
  const bool is_number =
      given->type.is_tensor() && wanted != DataType::kString && given->dtype() != DataType::kString;
  const bool is_like = is_floating(wanted) == is_floating(given->dtype());
  if (fits && input.type.is_tensor() && is_number && is_like) return g.cast(given, wanted);
  throw ModelError({.what = fmt::format("{} reads {} as input '{}', the student has {} as '{}'",
                                        teacher.name, input.type.to_string(), input.name,
                                        given->type.to_string(), given->name),
                    .where = {.value = input.name},
                    .hint = "Export the two for the same inputs, or name another with inputs=."});
}

// A batch that both fix is the same.
void check_rows(const TeacherGraph& teacher, const Value& given) {
  if (teacher.fixed_rows == 0 || !given.type.has_rank() || given.type.rank() == 0) return;
  const ir::Dim& rows = given.type.shape->front();
  if (rows.is_static() && rows.value() == teacher.fixed_rows) return;
  throw ModelError({.what = fmt::format("{} computes {} rows at a time, and its batch "
                                        "dimension cannot be opened",
                                        teacher.name, teacher.fixed_rows),
                    .where = {.value = given.name},
                    .hint = "Export the teacher with a dynamic batch."});
}

// Shapes of the teacher's file may have symbols that mean another thing in the student's.
void infer_again(const ir::TypeInferer& inferer, const std::vector<ir::Node*>& nodes) {
  for (ir::Node* node : nodes) {
    for (Value* output : node->outputs) {
      if (output != nullptr && output->type.is_tensor()) output->type.shape.reset();
    }
    inferer.infer(*node);
  }
}

void place_teacher(GraphBuilder& g, const TeacherGraph& teacher,
                   const std::vector<std::string>& values, PlacedTeachers& placed) {
  ir::Graph& graph = g.graph();
  ir::Model part = cut_teacher(teacher, values, g.inferer());
  for (const ir::Function& function : part.functions) {
    if (g.model().find_function(function.domain, function.name) == nullptr) {
      g.model().functions.push_back(function);
    }
  }
  const InputFinder finder(teacher, graph);
  std::unordered_map<const Value*, Value*> map;
  for (const Value* input : fed_inputs(*part.graph)) {
    Value* given = finder.find(*input);
    check_rows(teacher, *given);
    if (std::ranges::find(placed.inputs, given) == placed.inputs.end()) {
      placed.inputs.push_back(given);
    }
    Value* read = in_type_of(g, teacher, given, *input);
    if (read != given) placed.inner.insert(read);
    map.emplace(input, read);
  }
  const std::size_t first = graph.nodes.size();
  ir::append_nodes(*part.graph, graph, map, "teacher/");
  const std::vector<ir::Node*> nodes(graph.nodes.begin() + static_cast<std::ptrdiff_t>(first),
                                     graph.nodes.end());
  infer_again(g.inferer(), nodes);
  for (const ir::Node* node : nodes)
    placed.inner.insert(node->outputs.begin(), node->outputs.end());
  for (std::size_t i = 0; i < values.size(); ++i) {
    placed.values[{&teacher, values[i]}] = map.at(part.graph->outputs[i]);
  }
}

}  // namespace

PlacedTeachers place_teachers(GraphBuilder& g, const Loss& loss) {
  std::vector<std::pair<const TeacherGraph*, std::vector<std::string>>> wanted;
  const auto want = [&](const Loss& one) {
    if (one.teacher == nullptr) return;
    const auto is_it = [&](const auto& entry) { return entry.first == one.teacher.get(); };
    auto known = std::ranges::find_if(wanted, is_it);
    if (known == wanted.end()) known = wanted.insert(known, {one.teacher.get(), {}});
    const auto same = std::ranges::find(known->second, one.target_value);
    if (same == known->second.end()) known->second.push_back(one.target_value);
  };
  want(loss);
  for (const Loss& match : loss.matches) want(match);
  PlacedTeachers placed;
  for (const auto& [teacher, values] : wanted) place_teacher(g, *teacher, values, placed);
  return placed;
}

}  // namespace onnxgrad::train
