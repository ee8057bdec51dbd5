#ifndef ONNXGRAD_TRAIN_GRAPHS_TEACHER_H_
#define ONNXGRAD_TRAIN_GRAPHS_TEACHER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "onnxgrad/losses.h"

namespace onnxgrad {

/// The teacher of a distillation: a working copy in inference mode, which shares its tensors with
/// the opened file.
struct TeacherGraph {
  std::string name;                        ///< in messages and reports: "the teacher 'big.onnx'"
  std::shared_ptr<const ir::Model> model;  ///< with an open batch dimension if possible
  std::int64_t fixed_rows = 0;             ///< rows of every batch; 0: any number
  /// Inputs and the student's inputs for them; others by name, or by their order.
  std::vector<std::pair<std::string, std::string>> inputs = {};
};

namespace train {

/// The teachers of a loss in its graph.
struct PlacedTeachers {
  /// The values that the loss asks for.
  std::map<std::pair<const TeacherGraph*, std::string>, ir::Value*> values = {};
  std::unordered_set<const ir::Value*> inner = {};  ///< all that they compute
  std::vector<ir::Value*> inputs = {};              ///< inputs of the student that they read
};

/// Appends to the graph that `g` writes the parts of the teachers of `loss` that it needs, under
/// new names and with types inferred from the student's inputs. Throws: ModelError (no such value;
/// an input that the student does not have, or of another type; a fixed batch), ShapeError.
PlacedTeachers place_teachers(ir::GraphBuilder& g, const Loss& loss);

}  // namespace train
}  // namespace onnxgrad

#endif  // ONNXGRAD_TRAIN_GRAPHS_TEACHER_H_
