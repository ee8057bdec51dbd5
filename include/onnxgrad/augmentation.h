#ifndef ONNXGRAD_AUGMENTATION_H_
#define ONNXGRAD_AUGMENTATION_H_

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "onnxgrad/tensor.h"

// Random changes of the rows that are trained on. What happens to a row is a pure function of the
// seed, the epoch, the number of the row and the position of the change in the list: it does not
// depend on threads, workers or batches. augmentation_table() (onnxgrad/tables.h) has the formulas.
// Images are the inputs of four axes, [N, C, H, W] or with `channels_last` [N, H, W, C].

namespace [[gnu::visibility("default")]] onnxgrad {

/// Mirrors images.
struct RandomFlip {
  double probability = 0.5;
  bool vertical = false;  ///< top and bottom, not left and right
  bool channels_last = false;
};

/// Shifts images: a window of the image's size out of one that is padded with zeros.
struct RandomCrop {
  std::int64_t padding = 4;
  bool channels_last = false;
};

/// Adds normal numbers to floating-point inputs.
struct GaussianNoise {
  double scale = 0.1;  ///< standard deviation
};

/// l x + (1 - l) x' of a row and another row of the same data, also of their targets, with l from
/// Beta(alpha, alpha).
struct Mixup {
  double alpha = 0.2;
  double probability = 1;
};

/// Replaces a box of an image by that of another one; targets are mixed by area.
struct CutMix {
  double alpha = 1;
  double probability = 1;
  bool channels_last = false;
};

using Augmentation = std::variant<RandomFlip, RandomCrop, GaussianNoise, Mixup, CutMix>;

/// Rows as fit() trains on them in epoch `epoch` (from 1): changed copies of `inputs` and `target`,
/// all [N, ...], in that order. Targets that are mixed are floating-point numbers: probabilities of
/// classes [N, C]. Throws: OptionError, DataError.
std::vector<Tensor> augmented_rows(std::span<const Tensor> inputs, const Tensor& target,
                                   std::span<const Augmentation> augmentations,
                                   std::uint64_t seed = 0, std::int64_t epoch = 1);
/// Text such as "RandomCrop(padding=4)".
std::string to_string(const Augmentation& augmentation);

}  // namespace onnxgrad

#endif  // ONNXGRAD_AUGMENTATION_H_
