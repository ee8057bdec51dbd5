#include "train/data/augment.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/philox.h"
#include "onnxgrad/option_error.h"

namespace onnxgrad::train {
namespace {

/// The random numbers of one change of one row.
base::PhiloxStream stream_of(std::uint64_t seed, std::uint32_t epoch, std::int64_t row,
                             std::size_t change) {
  constexpr std::uint32_t kKeys = 0x101;  // apart from the streams of RandomUse
  constexpr std::uint32_t kUse = 0x102;
  const auto number = static_cast<std::uint64_t>(row);
  const base::PhiloxBlock words = base::philox4x32(
      {epoch, static_cast<std::uint32_t>(number >> 32), static_cast<std::uint32_t>(change), kKeys},
      seed);
  return {std::uint64_t{words[0]} << 32 | words[1], static_cast<base::RandomUse>(kUse),
          static_cast<std::uint32_t>(number)};
}

/// The pixels of a row: `planes` images of `height` lines of `width` pixels, one after another.
struct Pixels {
  std::byte* data = nullptr;
  std::int64_t planes = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t bytes = 0;  ///< of a pixel

  std::byte* line(std::int64_t plane, std::int64_t y) const {
    return data + (plane * height + y) * width * bytes;
  }
};

Pixels pixels_of(std::byte* data, const std::vector<std::int64_t>& axes, std::int64_t bytes,
                 bool channels_last) {
  if (channels_last) {
    return {
        .data = data, .planes = 1, .height = axes[0], .width = axes[1], .bytes = axes[2] * bytes};
  }
  return {.data = data, .planes = axes[0], .height = axes[1], .width = axes[2], .bytes = bytes};
}

void flip_lines(const Pixels& image) {
  const auto bytes = static_cast<std::size_t>(image.width * image.bytes);
  for (std::int64_t plane = 0; plane < image.planes; ++plane) {
    for (std::int64_t y = 0; y < image.height / 2; ++y) {
      std::byte* line = image.line(plane, y);
      std::swap_ranges(line, line + bytes, image.line(plane, image.height - 1 - y));
    }
  }
}

void flip_columns(const Pixels& image) {
  for (std::int64_t line = 0; line < image.planes * image.height; ++line) {
    std::byte* left = image.line(0, line);
    std::byte* right = left + (image.width - 1) * image.bytes;
    for (; left < right; left += image.bytes, right -= image.bytes) {
      std::swap_ranges(left, left + image.bytes, right);
    }
  }
}

// Pixel (y, x) becomes that at (y + down, x + right), or 0.
void shift(const Pixels& image, std::int64_t down, std::int64_t right) {
  const std::int64_t kept = std::max<std::int64_t>(image.width - std::abs(right), 0);
  for (std::int64_t plane = 0; plane < image.planes; ++plane) {
    for (std::int64_t i = 0; i < image.height; ++i) {
      const std::int64_t y = down >= 0 ? i : image.height - 1 - i;  // sources stay ahead
      std::byte* to = image.line(plane, y);
      const auto size = static_cast<std::size_t>(image.width * image.bytes);
      if (y + down < 0 || y + down >= image.height || kept == 0) {
        std::memset(to, 0, size);
        continue;
      }
      const std::byte* from = image.line(plane, y + down);
      const auto gap = static_cast<std::size_t>((image.width - kept) * image.bytes);
      const auto moved = static_cast<std::size_t>(kept * image.bytes);
      if (right >= 0) {
        std::memmove(to, from + gap, moved);
        std::memset(to + moved, 0, gap);
      } else {
        std::memmove(to + gap, from, moved);
        std::memset(to, 0, gap);
      }
    }
  }
}

// log of a number of the Gamma distribution (Marsaglia and Tsang, 2000).
double log_gamma_number(base::PhiloxStream& stream, double alpha) {
  double shift = 0;
  if (alpha < 1) {
    shift = std::log(stream.uniform()) / alpha;
    alpha += 1;
  }
  const double d = alpha - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = stream.normal();
    const double root = 1 + c * x;
    if (root <= 0) continue;
    const double v = root * root * root;
    if (std::log(stream.uniform()) < 0.5 * x * x + d * (1 - v + std::log(v))) {
      return std::log(d * v) + shift;
    }
  }
}

double beta_number(base::PhiloxStream& stream, double alpha) {
  const double a = log_gamma_number(stream, alpha);
  const double b = log_gamma_number(stream, alpha);
  return 1 / (1 + std::exp(b - a));
}

template <class T>
void mix(std::byte* to, const std::byte* other, std::int64_t elements, double share) {
  auto* x = reinterpret_cast<T*>(to);
  const auto* y = reinterpret_cast<const T*>(other);
  const auto a = static_cast<T>(share);
  for (std::int64_t i = 0; i < elements; ++i) x[i] = a * x[i] + (1 - a) * y[i];
}

void mix(DataType dtype, std::byte* to, const std::byte* other, std::int64_t elements,
         double share) {
  if (dtype == DataType::kFloat64) return mix<double>(to, other, elements, share);
  mix<float>(to, other, elements, share);
}

template <class T>
void add_noise(base::PhiloxStream& stream, std::byte* to, std::int64_t elements, double scale) {
  auto* x = reinterpret_cast<T*>(to);
  for (std::int64_t i = 0; i < elements; ++i) x[i] += static_cast<T>(scale * stream.normal());
}

bool can_compute(DataType dtype) {
  return dtype == DataType::kFloat32 || dtype == DataType::kFloat64;
}

const NumberRange kProbability{.minimum = 0, .maximum = 1};
constexpr const char* kLast = "Whether images are [N, H, W, C].";

void add_mixing(DescriptionTable<Augmentation>& table) {
  table.add(Described<Mixup>{
      .type = "Mixup",
      .summary = "Mixup",
      .source = "Zhang et al., 2018",
      .formula = "x = l * x + (1 - l) * x' for every floating-point input and the target, with "
                 "another row x' and l from Beta(alpha, alpha), for each row.",
      .fields = {field("alpha", &Mixup::alpha, kAboveZero),
                 field("probability", &Mixup::probability, kProbability, "Of mixing a row.")},
      .names = {{"mixup", {}}},
  });
  table.add(Described<CutMix>{
      .type = "CutMix",
      .summary = "CutMix",
      .source = "Yun et al., 2019",
      .formula = "A box of sqrt(1 - l) of height and width, at a random place, is that of another "
                 "row; targets are mixed by its area. l is from Beta(alpha, alpha).",
      .fields = {field("alpha", &CutMix::alpha, kAboveZero),
                 field("probability", &CutMix::probability, kProbability, "Of mixing a row."),
                 field("channels_last", &CutMix::channels_last, kLast)},
      .names = {{"cutmix", {}}},
  });
}

}  // namespace

const DescriptionTable<Augmentation>& augmentation_rows() {
  static const DescriptionTable<Augmentation> table = [] {
    DescriptionTable<Augmentation> made("augmentation");
    made.add(Described<RandomFlip>{
        .type = "RandomFlip",
        .python_name = "Flip",
        .summary = "Mirrored images",
        .formula = "Left and right, or top and bottom, change places.",
        .fields = {field("probability", &RandomFlip::probability, kProbability,
                         "Of mirroring a row."),
                   field("vertical", &RandomFlip::vertical,
                         "Whether top and bottom change places."),
                   field("channels_last", &RandomFlip::channels_last, kLast)},
        .names = {{"flip", {}}},
    });
    made.add(Described<RandomCrop>{
        .type = "RandomCrop",
        .python_name = "Crop",
        .summary = "Shifted images",
        .formula = "A window of the image's size, at a random place of the image with a border of "
                   "zeros.",
        .fields = {field("padding", &RandomCrop::padding, kAtLeastOne, "Pixels of the border."),
                   field("channels_last", &RandomCrop::channels_last, kLast)},
        .names = {{"crop", {}}},
    });
    made.add(Described<GaussianNoise>{
        .type = "GaussianNoise",
        .python_name = "Noise",
        .summary = "Normal noise",
        .formula = "x += scale * n, with n from the standard normal distribution, for every "
                   "element of floating-point inputs.",
        .fields = {field("scale", &GaussianNoise::scale, kAboveZero, "Standard deviation.")},
        .names = {{"noise", {}}},
    });
    add_mixing(made);
    made.finish();
    return made;
  }();
  return table;
}

bool mixes_targets(std::span<const Augmentation> augmentations) {
  return std::ranges::any_of(augmentations, [](const Augmentation& one) {
    return std::holds_alternative<Mixup>(one) || std::holds_alternative<CutMix>(one);
  });
}

/// Applies one augmentation to a row.
class Augmenter::Change {
 public:
  Change(const Augmenter& owner, const Pool& pool, std::int64_t row, std::size_t number,
         const Row& to, std::size_t depth)
      : owner_(owner),
        pool_(pool),
        number_(number),
        to_(to),
        depth_(depth),
        stream_(stream_of(owner.seed_, owner.epoch_, pool.data->row_number(row), number)) {}

  void operator()(const RandomFlip& spec) {
    if (stream_.uniform() >= spec.probability) return;
    for_images(spec.channels_last, [&](std::size_t, const Pixels& image) {
      spec.vertical ? flip_lines(image) : flip_columns(image);
    });
  }
  void operator()(const RandomCrop& spec) {
    const auto places = static_cast<std::uint64_t>(2 * spec.padding + 1);
    const std::int64_t down = static_cast<std::int64_t>(stream_.below(places)) - spec.padding;
    const std::int64_t right = static_cast<std::int64_t>(stream_.below(places)) - spec.padding;
    for_images(spec.channels_last,
               [&](std::size_t, const Pixels& image) { shift(image, down, right); });
  }
  void operator()(const GaussianNoise& spec) {
    for (std::size_t i = 0; i < owner_.parts_.size(); ++i) {
      const Part& part = owner_.parts_[i];
      if (!part.is_input || !can_compute(part.dtype)) continue;
      part.dtype == DataType::kFloat64
          ? add_noise<double>(stream_, to_[i], part.elements, spec.scale)
          : add_noise<float>(stream_, to_[i], part.elements, spec.scale);
    }
  }
  void operator()(const Mixup& spec) {
    const double share = beta_number(stream_, spec.alpha);
    if (stream_.uniform() >= spec.probability) return;
    const Row& other = render_other();
    for (std::size_t i = 0; i < owner_.parts_.size(); ++i) {
      const Part& part = owner_.parts_[i];
      if (!part.is_input || !can_compute(part.dtype)) continue;
      mix(part.dtype, to_[i], other[i], part.elements, share);
    }
    mix_targets(other, share);
  }
  void operator()(const CutMix& spec) {
    const double share = beta_number(stream_, spec.alpha);
    const double across = stream_.uniform();
    const double along = stream_.uniform();
    if (stream_.uniform() >= spec.probability) return;
    const Row& other = render_other();
    double kept = 1;
    const double side = std::sqrt(1 - share);
    for_images(spec.channels_last, [&](std::size_t i, const Pixels& image) {
      Pixels from = image;
      from.data = other[i];
      const auto cut = [side](std::int64_t size, double place) {
        const auto half = static_cast<std::int64_t>(static_cast<double>(size) * side) / 2;
        const auto middle = static_cast<std::int64_t>(static_cast<double>(size) * place);
        return std::pair(std::max<std::int64_t>(middle - half, 0), std::min(middle + half, size));
      };
      const auto [top, bottom] = cut(image.height, across);
      const auto [left, right] = cut(image.width, along);
      for (std::int64_t plane = 0; plane < image.planes; ++plane) {
        for (std::int64_t y = top; y < bottom; ++y) {
          std::memcpy(image.line(plane, y) + left * image.bytes,
                      from.line(plane, y) + left * image.bytes,
                      static_cast<std::size_t>((right - left) * image.bytes));
        }
      }
      kept = 1 - static_cast<double>((bottom - top) * (right - left)) /
                     static_cast<double>(image.height * image.width);
    });
    mix_targets(other, kept);
  }

 private:
  template <class F>
  void for_images(bool channels_last, F&& f) {
    for (std::size_t i = 0; i < owner_.parts_.size(); ++i) {
      const Part& part = owner_.parts_[i];
      if (!part.is_input || part.axes.size() != 3) continue;
      f(i, pixels_of(to_[i], part.axes, part.row_bytes / std::max<std::int64_t>(part.elements, 1),
                     channels_last));
    }
  }
  const Row& render_other() {
    const std::span<const std::int64_t> partners = pool_.partners;
    const std::int64_t count = partners.empty() ? pool_.data->rows : std::ssize(partners);
    const std::uint64_t place = stream_.below(static_cast<std::uint64_t>(count));
    const std::int64_t row = partners.empty() ? static_cast<std::int64_t>(place) : partners[place];
    const Row& other = owner_.others_[depth_];
    owner_.render(pool_, row, number_, other, depth_ + 1);
    return other;
  }
  void mix_targets(const Row& other, double share) {
    for (std::size_t i = 0; i < owner_.parts_.size(); ++i) {
      const Part& part = owner_.parts_[i];
      if (part.is_target) mix(part.dtype, to_[i], other[i], part.elements, share);
    }
  }

  const Augmenter& owner_;
  const Pool& pool_;
  std::size_t number_;
  const Row& to_;
  std::size_t depth_;
  base::PhiloxStream stream_;
};

Augmenter::Augmenter(std::span<const Augmentation> augmentations, std::uint64_t seed,
                     const PreparedData& like, const Target& target)
    : augmentations_(augmentations.begin(), augmentations.end()), seed_(seed) {
  bool has_images = false;
  bool has_numbers = false;
  const bool mixes = mixes_targets(augmentations);
  for (std::size_t c = 0; c < like.columns.size(); ++c) {
    const Column& column = like.columns[c];
    if (column.is_constant) continue;
    const Dims& dims = column.values.dims();
    Part part{
        .column = c,
        .dtype = column.values.dtype(),
        .elements = Dims(std::vector<std::int64_t>(dims.begin() + 1, dims.end())).num_elements(),
        .row_bytes = column.row_bytes,
        .axes = std::vector<std::int64_t>(dims.begin() + 1, dims.end())};
    const bool is_weight = like.has_weights && c == like.weights;
    part.is_target = c == like.target;
    part.is_input = !part.is_target && !is_weight;
    if (part.is_target && mixes && !can_compute(part.dtype)) {
      part.axes = target.axes;
      part.dtype = target.dtype;
      part.classes = part.elements = Dims(target.axes).num_elements();
      part.row_bytes = Dims(target.axes).size_bytes(target.dtype);
    }
    has_images |= part.is_input && part.axes.size() == 3 && part.dtype != DataType::kString;
    has_numbers |= part.is_input && can_compute(part.dtype);
    if (part.is_input && part.dtype == DataType::kString) {
      throw OptionError({.what = fmt::format("augment: '{}' has texts", column.name),
                         .hint = "Leave out augment=."});
    }
    parts_.push_back(std::move(part));
  }
  for (const Augmentation& one : augmentations_) {
    augmentation_rows().check(one, "augment: ");
    const bool needs_numbers =
        std::holds_alternative<GaussianNoise>(one) || std::holds_alternative<Mixup>(one);
    if (needs_numbers ? has_numbers : has_images) continue;
    throw OptionError({.what = fmt::format("augment: {} changes {}, and there is no such input",
                                           augmentation_rows().info(one).python_name,
                                           needs_numbers ? "float32 or float64 numbers"
                                                         : "images, inputs of four axes"),
                       .hint = "Leave it out, or give the rows in that form."});
  }
  const auto mixing = std::ranges::count_if(
      augmentations_, [](const Augmentation& one) { return mixes_targets({&one, 1}); });
  to_.resize(parts_.size());
  for (std::ptrdiff_t i = 0; i < mixing; ++i) {
    Row row;
    for (const Part& part : parts_) {
      row.push_back(memory_.emplace_back(static_cast<std::size_t>(part.row_bytes) + 1).data());
    }
    others_.push_back(std::move(row));
  }
}

Dims Augmenter::batch_dims(const Column& column, std::size_t number, std::int64_t rows) const {
  for (const Part& part : parts_) {
    if (part.column != number || part.classes == 0) continue;
    std::vector<std::int64_t> dims{rows};
    dims.insert(dims.end(), part.axes.begin(), part.axes.end());
    return Dims(dims);
  }
  return column.batch_dims(rows);
}

DataType Augmenter::dtype(const Column& column, std::size_t number) const {
  for (const Part& part : parts_) {
    if (part.column == number) return part.dtype;
  }
  return column.values.dtype();
}

void Augmenter::copy(const Pool& pool, std::int64_t row, const Row& to) const {
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const Column& column = pool.data->columns[part.column];
    if (part.classes == 0) {
      std::memcpy(to[i], column.row(row), static_cast<std::size_t>(part.row_bytes));
      continue;
    }
    std::int64_t number = 0;
    ONNXGRAD_ASSERT(column.values.dtype() == DataType::kInt64);
    std::memcpy(&number, column.row(row), sizeof number);
    std::memset(to[i], 0, static_cast<std::size_t>(part.row_bytes));
    const auto place = static_cast<std::size_t>(part.classes > 1 ? number : 0);
    const double value = part.classes > 1 ? 1 : static_cast<double>(number);
    if (part.dtype == DataType::kFloat64) {
      reinterpret_cast<double*>(to[i])[place] = value;
    } else {
      reinterpret_cast<float*>(to[i])[place] = static_cast<float>(value);
    }
  }
}

void Augmenter::render(const Pool& pool, std::int64_t row, std::size_t changes, const Row& to,
                       std::size_t depth) const {
  if (changes == 0) return copy(pool, row, to);
  render(pool, row, changes - 1, to, depth);
  std::visit(Change(*this, pool, row, changes - 1, to, depth), augmentations_[changes - 1]);
}

void Augmenter::fill(const Pool& pool, std::int64_t begin, std::int64_t rows,
                     std::span<Tensor> batches) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      to_[p] = batches[parts_[p].column].mutable_raw() + i * parts_[p].row_bytes;
    }
    const std::int64_t row =
        pool.order.empty() ? begin + i : pool.order[static_cast<std::size_t>(begin + i)];
    render(pool, row, augmentations_.size(), to_, 0);
  }
}

}  // namespace onnxgrad::train
