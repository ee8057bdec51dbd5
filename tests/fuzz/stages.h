#ifndef ONNXGRAD_TESTS_FUZZ_STAGES_H_
#define ONNXGRAD_TESTS_FUZZ_STAGES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "onnxgrad/onnxgrad.h"

namespace onnxgrad::fuzz {

/// The stages that each mutant passes through.
inline constexpr std::array<const char*, 9> kStages = {
    "load", "weights", "report", "run", "feeds", "gradient", "jvp", "forward/backward", "step"};

inline constexpr std::int64_t kBudgetBytes = 256LL << 20;  // memory that onnxgrad may use

/// A model that mutants are made of.
struct Seed {
  std::string path = {};
  std::string bytes = {};
  Loss loss = {};
  bool has_loss = false;     ///< among its outputs
  bool is_case = false;      ///< case of an operator, which need not pass all stages
  bool is_complete = false;  ///< unchanged it gets through every stage
  std::vector<ValueInfo> inputs = {};
};

/// Three lists that mutants take turns in: whole models, cases of operators, and those cases again
/// that have operators of other domains, sequences or bodies. Ordered by path, so that mutant n is
/// the same everywhere. `folders`: one or two, with a comma between them.
class Seeds {
 public:
  explicit Seeds(const std::string& folders);
  const Seed& of(std::size_t mutant) const;
  std::vector<const Seed*> all() const;

 private:
  std::vector<Seed> models_;
  std::vector<Seed> cases_;
  std::vector<Seed> foreign_;
};

/// The stages that a model got through, by the order of kStages.
using Passed = std::array<bool, kStages.size()>;
using Report = std::function<void(const char* stage, const std::string& result)>;

/// Tries all stages, whatever became of the ones before. `odd`: some feeds are out of any range.
/// Throws what is no Error, and std::runtime_error for an InternalError.
Passed try_model(const std::string& bytes, const Seed& seed, std::uint64_t random_seed, bool odd,
                 const Report& report);

}  // namespace onnxgrad::fuzz

#endif  // ONNXGRAD_TESTS_FUZZ_STAGES_H_
