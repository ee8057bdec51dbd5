#ifndef ONNXGRAD_OPDEF_FUSED_H_
#define ONNXGRAD_OPDEF_FUSED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "opdef/expr.h"

// Operators that are computed in one kernel, as typed structs: the code that creates such nodes,
// the passes that rewrite them and the kernels that run them read and write attributes here.

namespace onnxgrad::opdef {

/// Operation with which a reduction combines elements.
enum class Fold : std::uint8_t { kSum, kMax, kMin };

/// `Elementwise` of domain `onnxgrad.fused`: `program` over inputs that are broadcast to a common
/// shape F. Its first `stored` results are outputs of shape F; the others are reduced over
/// `reduce_axes` of F, each by one of `folds`, and are outputs, or the first operands of `post`,
/// whose results are then outputs. Inputs: the operands of `program`, then the others of `post`.
struct Elementwise {
  ExprProgram program = {};
  DataType compute = DataType::kFloat32;  ///< float32, float64 or int64
  std::int64_t stored = 0;
  std::vector<Fold> folds = {};
  std::vector<std::int64_t> reduce_axes = {};
  std::optional<ExprProgram> post = {};
  /// True if subnormal numbers may be treated as zero and flushed to zero.
  bool flush_denormals = false;

  static Elementwise read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kElementwise = "Elementwise";

/// `Gemm` of domain `onnxgrad.fused`, (A, B, operands...) -> (C, sums?): C = epilogue(op(A) op(B),
/// operands...); the leading axes of A are collapsed. Without an epilogue, the product itself.
/// sums: of each column of C, N elements in any shape.
struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  std::optional<ExprProgram> epilogue = {};
  bool sums_columns = false;

  static Gemm read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kGemm = "Gemm";

/// `GemmUpdate` of domain `onnxgrad.fused`, (W, A, B, rate?): W + scale * rate * op(A) op(B).
struct GemmUpdate {
  bool transpose_a = false;
  bool transpose_b = false;
  double scale = 1;

  static GemmUpdate read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
  /// The update as a function of the product, W and, if there is one, the rate.
  ExprProgram program(bool has_rate) const;
};
inline constexpr std::string_view kGemmUpdate = "GemmUpdate";

/// `LinearStep` of domain `onnxgrad.fused`, (X, w, b?, y, rate?) -> (loss, w', b'?): a step of
/// gradient descent of a linear model with one column of scores and squared errors. X: [N, K]; w: K
/// elements; y: N elements; b, rate, loss: one. With z = X w + bias * b + target * y + shift [N]
/// and rate 1 if absent:
///   loss = loss_scale * sum(z^2),  w' = w + weight_step * rate * X^T z,
///   b' = b + bias_step * rate * sum(z)
struct LinearStep {
  double bias = 1;
  double target = -1;
  double shift = 0;
  double loss_scale = 1;
  double weight_step = -1;
  double bias_step = -1;

  static LinearStep read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kLinearStep = "LinearStep";

/// Update formula of a weight; see WeightUpdate for the formulas.
enum class UpdateRule : std::uint8_t {
  kMomentum,
  kNesterov,
  kAdam,
  kRoot,
  kLion,
  kVelocity,
  kNesterovVelocity,
};
inline constexpr int kNumUpdateRules = 7;

/// Name of a rule: "momentum", "nesterov", "adam", ...
std::string_view update_rule_name(UpdateRule rule);

/// One step of an optimizer for one weight, function `WeightUpdate` of domain `onnxgrad`:
///
///   (gradient, w, m, v, rate, epsilon, shrink) -> (w', m', v')
///
/// v, v' only for kAdam, epsilon only for kAdam and kRoot, shrink only if `shrinks`: operands that
/// a rule lacks are omitted, later ones move up. gradient, w, m, v: one shape and dtype; rate,
/// epsilon and shrink: rank 0, the same dtype. With g = gradient + decay * w and start = w, or
/// shrink * w if `shrinks`:
///   kMomentum  m' = beta1 * m + g;  w' = start - rate * m'
///   kNesterov  m' = beta1 * m + g;  w' = start - rate * (g + beta1 * m')
///   kAdam      m' = beta1 * m + share1 * g;  v' = beta2 * v + share2 * g^2;
///              w' = start - rate * m' / (sqrt(v') + epsilon)
///   kRoot      m' = beta1 * m + share1 * g^2;  w' = start - rate * g / (sqrt(m') + epsilon)
///   kLion      w' = start - rate * sign(beta1 * m + share1 * g);  m' = beta2 * m + share2 * g
///   kVelocity  m' = beta1 * m - rate * g;  w' = start + m'
///   kNesterovVelocity  the same m';  w' = start + (beta1 * m' - rate * g)
struct WeightUpdate {
  UpdateRule rule = UpdateRule::kMomentum;
  double decay = 0;
  double beta1 = 0;
  double share1 = 1;
  double beta2 = 0;
  double share2 = 1;
  bool shrinks = false;
  bool operator==(const WeightUpdate&) const = default;

  bool has_v() const { return rule == UpdateRule::kAdam; }
  bool has_epsilon() const { return rule == UpdateRule::kAdam || rule == UpdateRule::kRoot; }
  std::size_t num_outputs() const { return has_v() ? 3 : 2; }

  static WeightUpdate read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
  /// The formulas of WeightUpdate as a program over the function's operands, in order. Function
  /// body and plain kernel are generated from it.
  ExprProgram program() const;
  /// A key in letters, digits and underscores that encodes all fields.
  std::string key() const;
};
inline constexpr std::string_view kWeightUpdate = "WeightUpdate";

/// Gradients of pools of domain `onnxgrad.fused`, with operands (dy, indices) and (dy) and the
/// attributes of the pool: the functions of these names without their last input, which has the
/// shape of the result.
inline constexpr std::string_view kMaxPoolGrad = "MaxPoolGrad";
inline constexpr std::string_view kAveragePoolGrad = "AveragePoolGrad";

/// `GemmWeightUpdate` of domain `onnxgrad.fused`, (A, B, w, m, ...): WeightUpdate with the product
/// op(A) op(B) as the gradient.
struct GemmWeightUpdate {
  bool transpose_a = false;
  bool transpose_b = false;
  WeightUpdate update = {};

  static GemmWeightUpdate read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kGemmWeightUpdate = "GemmWeightUpdate";

/// True for a node of domain `onnxgrad.fused` with this name.
bool is_fused(const ir::Node* node, std::string_view op_type);
/// True for a product without an epilogue.
bool is_plain_matmul(const ir::Node* node);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_FUSED_H_
