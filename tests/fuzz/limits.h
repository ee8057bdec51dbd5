#ifndef ONNXGRAD_TESTS_FUZZ_LIMITS_H_
#define ONNXGRAD_TESTS_FUZZ_LIMITS_H_

#include "stages.h"

namespace onnxgrad::fuzz {

/// Makes each integer tensor of a case an input of its own, of open dimensions, and feeds the
/// limits of its type, their neighbours, -1, and nothing at all, to forward and backward passes.
/// Returns how often a feed was tried. Throws as try_model() does.
std::size_t feed_limits(const Seed& seed);

/// Loads a case with each set of inputs of each node left out (of nodes with many inputs, each
/// pair), and with each input replaced by each other one, and lists its weights. Returns how many
/// models were tried. Throws as try_model() does.
std::size_t change_inputs(const Seed& seed);

}  // namespace onnxgrad::fuzz

#endif  // ONNXGRAD_TESTS_FUZZ_LIMITS_H_
