#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace tree {

OpCase ml(std::string name, const std::string& call, std::vector<CaseInput> inputs,
          std::string no_gradient = "which leaf a row falls into is constant almost everywhere") {
  return ml_call(std::move(name), call, std::move(inputs), std::move(no_gradient));
}

}  // namespace tree

std::vector<OpCase> tree_cases() {
  using tree::ml;
  const auto ensemble = [](const std::string& how) {
    return "TreeEnsemble <" + how +
           ", tree_roots = [0, 2], nodes_featureids = [0, 1, 1], "
           "nodes_modes = uint8[3] {0, 3, 6}, nodes_splits = $T[3] {0.25, -0.5, 1.0}, "
           "nodes_truenodeids = [1, 1, 3], nodes_trueleafs = [0, 1, 1], "
           "nodes_falsenodeids = [0, 2, 4], nodes_falseleafs = [1, 1, 1], "
           "nodes_missing_value_tracks_true = [1, 0, 0], nodes_hitrates = float[3] {1, 1, 1}, "
           "membership_values = $T[3] {0.5, 1.5, nan}, "
           "leaf_targetids = [0, 0, 0, 0, 0], leaf_weights = $T[5] {1, 2, -3, 0.5, 4}> (x)";
  };
  const CaseInput x = values({0.1, 0.5, 0.3, 1.5, 0.2, -0.75, 2, 0}, {4, 2});
  std::vector<OpCase> cases;
  for (const std::string aggregate : {"0", "1", "2", "3"}) {
    cases.push_back(ml("aggregate_" + aggregate,
                       ensemble("n_targets = 1, aggregate_function = " + aggregate), {x}));
  }
  cases.push_back(
      ml("no_rows", ensemble("n_targets = 1, post_transform = 0"), {uniform({0, 2}, -1, 1)}));
  cases.push_back(ml("one_row", ensemble("n_targets = 1"), {uniform({1, 2}, -1, 1)}));
  return cases;
}

std::vector<ErrorCase> tree_error_cases() {
  return {
      ml_refused("lengths",
                 "TreeEnsemble <tree_roots = [0], nodes_featureids = [0], nodes_modes = uint8[1] "
                 "{0}, nodes_splits = float[1] {0}, nodes_truenodeids = [0, 1], nodes_trueleafs = "
                 "[1], nodes_falsenodeids = [1], nodes_falseleafs = [1], leaf_targetids = [0, 0], "
                 "leaf_weights = float[2] {1, 2}> (x)",
                 {uniform({4, 2}, -1, 1).as(DataType::kFloat32)}, "ModelError",
                 "nodes_truenodeids has 2 elements")};
}

}  // namespace onnxgrad::ops_test
