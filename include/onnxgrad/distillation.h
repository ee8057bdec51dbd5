#ifndef ONNXGRAD_DISTILLATION_H_
#define ONNXGRAD_DISTILLATION_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "onnxgrad/losses.h"
#include "onnxgrad/model.h"

// Knowledge distillation: a model, the student, is trained towards the values of another one, its
// teacher. The teacher becomes a part of the graphs of training and evaluation: it reads the
// student's inputs, stays in inference mode and takes no gradient. Its weights are those of the
// opened file, not copies. Checkpoints and the trained model do not have it.

namespace [[gnu::visibility("default")]] onnxgrad {

/// A value of the student that learns to be like one of the teacher. Where their widths differ (the
/// last axis, for four or more axes axis 1), the student's is multiplied by a matrix that is
/// trained with it.
struct ValueMatch {
  std::string student;
  std::string teacher = {};  ///< empty: as in the student
  /// SquaredError: the mean over all elements; Cosine: 1 - the cosine of vectors along the last
  /// axis.
  LossFunction function = SquaredError{};
  double factor = 1;
};

struct DistillationOptions {
  enum class Outputs : std::uint8_t {
    /// The loss of the student decides: classes kDivergence, numbers kSquaredError. Of several
    /// plain columns a Trainer's first labels decide.
    kAuto,
    kDivergence,    ///< KL divergence of softmax(s / T) from softmax(t / T), times T^2
    kSquaredError,  ///< of scores, or of values
    kNone,
  };
  Outputs outputs = Outputs::kAuto;
  double temperature = 2;
  /// The loss is alpha times what is learnt from the teacher, plus 1 - alpha times the task's. With
  /// 1 there is no task and there are no labels.
  double alpha = 0.5;
  /// Output or value of the teacher for the student's (first) scores; empty: found as for a loss,
  /// among several outputs the one of the student's name.
  std::string teacher_output = {};
  std::vector<ValueMatch> values = {};
  /// Factor of the squared error of attention maps; 0: they are not compared. Maps are the results
  /// of Softmax that a MatMul reads. Layer i of n learns from the last of the teacher's layers that
  /// are in the first i/n of it.
  double attention = 0;
  /// Names of maps, the student's and the teacher's; empty: found by that structure.
  std::vector<std::pair<std::string, std::string>> attention_maps = {};
  /// Inputs of the teacher and the student's inputs for them; others by name, or by their order.
  std::vector<std::pair<std::string, std::string>> inputs = {};
  std::uint64_t seed = 0;  ///< of the projections
};

/// Parses "auto", "kl", "mse", "none"; throws OptionError naming the nearest.
DistillationOptions::Outputs matched_outputs_from_name(std::string_view name);

/// The loss of `student` with `teacher`: `task` and what is compared with the teacher's values, as
/// Loss::matches. For any session, trainer or function that takes a loss; LossInfo::line says what
/// is compared with what. The teacher may be of another opset, with other names, batch size and
/// types. Throws: ModelError (no such value, values of different shapes or types, inputs that the
/// student does not have, no attention), OptionError.
Loss distill(const Model& student, const Model& teacher, const DistillationOptions& options = {},
             const Loss& task = {});

}  // namespace onnxgrad

#endif  // ONNXGRAD_DISTILLATION_H_
