#ifndef ONNXGRAD_OPDEF_FUSED_H_
#define ONNXGRAD_OPDEF_FUSED_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"

// Operators that are computed in one kernel, as typed structs: what writes a node of theirs, the
// passes that rewrite it and the kernels that run it read and write its attributes here.

namespace onnxgrad::opdef {

/// How one weight moves; the formulas stand at WeightUpdate.
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
///
/// In a plan, `GemmWeightUpdate` of domain `onnxgrad.fused` has the product op(A) op(B) in the
/// place of the gradient: operands A and B, attributes transA and transB.
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

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_FUSED_H_
