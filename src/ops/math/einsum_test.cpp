#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace einsum {

OpCase make_case(std::string name, const std::string& equation, std::vector<Dims> dims) {
  std::string operands;
  std::vector<CaseInput> inputs;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    operands += (i == 0 ? "x" : ", x") + std::to_string(i);
    inputs.push_back(uniform(std::move(dims[i]), -1, 1));
  }
  return {.name = std::move(name),
          .model = "y = Einsum <equation = \"" + equation + "\"> (" + operands + ")",
          .inputs = std::move(inputs)};
}

OpCase of_integers(DataType dtype) {
  return {.name = "integers_" + std::string(dtype_name(dtype)),
          .model = "y = Einsum <equation = \"ij,jk->ik\"> (a, b)",
          .inputs = {integers({2, 3}, 0, 5, dtype), integers({3, 2}, 0, 5, dtype)},
          .no_gradient = "integers"};
}

}  // namespace einsum

std::vector<OpCase> einsum_cases() {
  using einsum::make_case;
  std::vector<OpCase> cases{
      make_case("product", "ij,jk->ik", {{2, 3}, {3, 4}}),
      make_case("product_transposed", "ij,kj->ki", {{2, 3}, {4, 3}}),
      make_case("product_implicit", "ij,jk", {{2, 3}, {3, 4}}),
      make_case("implicit_order", "ba,Ac", {{2, 3}, {4, 2}}),
      make_case("implicit_trace", "ii", {{3, 3}}),
      make_case("rows", "bij,jk->bik", {{2, 3, 4}, {4, 2}}),
      make_case("matrix_vector", "ij,j->i", {{2, 3}, {3}}),
      make_case("vector_matrix", "j,jk->k", {{3}, {3, 2}}),
      make_case("vector_matrix_transposed", "j,kj->k", {{3}, {2, 3}}),
      make_case("matrix_vector_transposed", "ji,j->i", {{3, 2}, {3}}),
      make_case("vector_middle", "ijk,j->ik", {{2, 3, 2}, {3}}),
      make_case("inner", "i,i->", {{4}, {4}}),
      make_case("inner_of_rows", "bi,bi->b", {{2, 4}, {2, 4}}),
      make_case("outer", "i,j->ij", {{2}, {3}}),
      make_case("outer_swapped", "i,j->ji", {{2}, {3}}),
      make_case("elementwise", "ij,ij->ij", {{2, 3}, {2, 3}}),
      make_case("scaled", ",ij->ij", {{}, {2, 3}}),
      make_case("attention_scores", "bhqd,bhkd->bhqk", {{2, 2, 3, 4}, {2, 2, 2, 4}}),
      make_case("attention_heads_last", "bqhd,bkhd->bhqk", {{2, 3, 2, 4}, {2, 2, 2, 4}}),
      make_case("two_sums", "abcd,cdef->abef", {{2, 1, 3, 2}, {3, 2, 2, 2}}),
      make_case("two_sums_batch", "nabc,nbcd->nad", {{2, 2, 3, 2}, {2, 3, 2, 2}}),
      make_case("batch_rows", "nabc,ncd->nabd", {{2, 2, 3, 4}, {2, 4, 2}}),
      make_case("batch_vector", "nij,nj->ni", {{2, 3, 4}, {2, 4}}),
      make_case("sum_of_one", "ij,k->k", {{2, 3}, {4}}),
      make_case("transpose", "ijk->kij", {{2, 3, 4}}),
      make_case("same", "ij->ij", {{2, 3}}),
      make_case("sum", "ij->", {{2, 3}}),
      make_case("sum_rows", "ij->j", {{2, 3}}),
      make_case("diagonal", "ii->i", {{3, 3}}),
      make_case("diagonal_batch", "...ii->...i", {{2, 3, 3}}),
      make_case("diagonal_apart", "iji->ji", {{3, 2, 3}}),
      make_case("diagonal_three", "iii->i", {{3, 3, 3}}),
      make_case("diagonal_product", "ii,ij->j", {{3, 3}, {3, 2}}),
      make_case("ellipsis", "...ij,...jk->...ik", {{2, 2, 3}, {2, 3, 4}}),
      make_case("ellipsis_implicit", "...ij,...jk", {{2, 2, 3}, {2, 3, 4}}),
      make_case("ellipsis_broadcast", "...ij,...jk->...ik", {{2, 1, 2, 3}, {1, 3, 3, 2}}),
      make_case("ellipsis_shared", "...ij,jk->...ik", {{2, 2, 3}, {3, 4}}),
      make_case("ellipsis_last", "i...->...", {{3, 2}}),
      make_case("ellipsis_none", "...i,...i->...", {{3}, {3}}),
      make_case("spaces", " i j , j k -> i k ", {{2, 3}, {3, 4}}),
      make_case("bilinear", "bi,oij,bj->bo", {{2, 3}, {4, 3, 2}, {2, 2}}),
      make_case("chain", "ij,jk,kl,lm->im", {{2, 3}, {3, 2}, {2, 4}, {4, 2}}),
      make_case("moments", "bi,bj,b->ij", {{3, 2}, {3, 2}, {3}}),
      make_case("empty_sum", "ij,jk->ik", {{2, 0}, {0, 3}}),
      make_case("empty_rows", "ij,jk->ik", {{0, 2}, {2, 3}}),
      make_case("one", "ij,jk->ik", {{1, 1}, {1, 1}}),
  };
  cases.push_back({.name = "used_twice",
                   .model = "y = Einsum <equation = \"ij,kj->ik\"> (x, x)",
                   .inputs = {uniform({3, 2}, -1, 1)}});
  for (const DataType dtype : {DataType::kInt64, DataType::kInt32}) {
    cases.push_back(einsum::of_integers(dtype));
  }
  for (const DataType dtype : {DataType::kInt8, DataType::kUint8, DataType::kUint64}) {
    cases.push_back(einsum::of_integers(dtype));
  }
  return cases;
}

std::vector<ErrorCase> einsum_error_cases() {
  const auto one = [](std::string name, const std::string& equation, std::string kind) {
    return ErrorCase{.name = std::move(name),
                     .model = "[summed] y = Einsum <equation = \"" + equation + "\"> (a, b)",
                     .inputs = {uniform({2, 3}, -1, 1), uniform({3, 4}, -1, 1)},
                     .error = std::move(kind),
                     .fragments = {"summed"}};
  };
  return {one("terms", "ij->ij", "ModelError"),
          one("rank", "ijk,jk->i", "ModelError"),
          one("letter", "ij,jk->iz", "ModelError"),
          one("character", "i1,1k->ik", "ModelError"),
          one("two_ellipses", "......,jk->jk", "ModelError"),
          one("sizes", "ij,ik->jk", "ShapeError")};
}

}  // namespace onnxgrad::ops_test
