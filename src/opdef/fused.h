#ifndef ONNXGRAD_OPDEF_FUSED_H_
#define ONNXGRAD_OPDEF_FUSED_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "opdef/expr.h"

// Operators that are computed in one kernel, as typed structs: what writes a node of theirs, the
// passes that rewrite it and the kernels that run it read and write its attributes here.

namespace onnxgrad::opdef {

/// How a reduction combines elements.
enum class Fold : std::uint8_t { kSum, kMax, kMin };

/// `Elementwise` of domain `onnxgrad.fused`: `program` over inputs that are broadcast to a common
/// shape F. Its first `stored` results are outputs of shape F; the others are folded over
/// `reduce_axes` of F, one of `folds` each, and are outputs, or the first operands of `post`, whose
/// results are outputs then. Inputs: the operands of `program`, then the other ones of `post`.
struct Elementwise {
  ExprProgram program = {};
  DataType compute = DataType::kFloat32;  ///< float32, float64 or int64
  std::int64_t stored = 0;
  std::vector<Fold> folds = {};
  std::vector<std::int64_t> reduce_axes = {};
  std::optional<ExprProgram> post = {};
  /// Numbers below the smallest normal one may be taken for and become zero.
  bool flush_denormals = false;

  static Elementwise read(const ir::Node& node);
  std::vector<ir::Attribute> attributes() const;
};
inline constexpr std::string_view kElementwise = "Elementwise";

/// `Gemm` of domain `onnxgrad.fused`, (A, B, operands...): epilogue(op(A) op(B), operands...); the
/// leading axes of A collapse. Without an epilogue the product itself.
struct Gemm {
  bool transpose_a = false;
  bool transpose_b = false;
  std::optional<ExprProgram> epilogue = {};

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
  /// The update over the product, W and, if there is one, the rate.
  ExprProgram program(bool has_rate) const;
};
inline constexpr std::string_view kGemmUpdate = "GemmUpdate";

/// How one weight moves; see WeightUpdate for the formulas.
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

/// "momentum", "nesterov", "adam", ...
std::string_view update_rule_name(UpdateRule rule);

/// One step of an optimizer for one weight, function `WeightUpdate` of domain `onnxgrad`:
///
///   (gradient, w, m, v, rate, epsilon, shrink) -> (w', m', v')
///
/// v, v' only of kAdam, epsilon only of kAdam and kRoot, shrink only if `shrinks`: what a rule does
/// not have is left out, later operands move up. gradient, w, m, v: one shape and dtype; rate,
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
  /// The formulas above over the function's operands, in their order. Function body and plain
  /// kernel are made from it.
  ExprProgram program() const;
  /// Letters, digits and underscores that say all of it.
  std::string key() const;
};
inline constexpr std::string_view kWeightUpdate = "WeightUpdate";

/// Which fused operators the kernels of a device take. The passes make no others; `WeightUpdate` is
/// its body where no kernel takes it.
struct FusedSupport {
  bool elementwise_groups = true;  ///< `Elementwise` of several nodes, and reductions in it
  bool gemm = true;                ///< `Gemm`
  bool gemm_epilogue = true;       ///< element-wise work behind a product, in its kernel
  bool gemm_update = true;         ///< `GemmUpdate`
  bool gemm_weight_update = true;  ///< `GemmWeightUpdate`
};

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
bool is_plain_product(const ir::Node* node);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_FUSED_H_
