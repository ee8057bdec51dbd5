// A fine-tuning through the C++ interface, one of the entry points that
// tests/python/test_fine_tuning_pairs.py crosses:
//
//   fine_tuning MODEL ROWS RESULT EPOCHS [KEY=VALUE]...
//
// ROWS is an .npz file with x and label; RESULT gets the trained model. Keys: adapter, rank,
// targets; base with block_size, or quantize; precision, accumulate, batch; checkpoint, a folder:
// the last epoch is then done by another trainer, which continues from there. Several workers are
// those of the launcher.
#include <onnxgrad/data_files.h>
#include <onnxgrad/distributed.h>
#include <onnxgrad/onnxgrad.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace og = onnxgrad;

namespace {

using Options = std::map<std::string, std::string>;

constexpr std::uint64_t kSeed = 3;
constexpr std::int64_t kCalibrationRows = 32;  // of a batch

std::string text_of(const Options& options, const std::string& key, const std::string& fallback) {
  const auto found = options.find(key);
  return found == options.end() ? fallback : found->second;
}

std::int64_t number_of(const Options& options, const std::string& key, std::int64_t fallback) {
  const auto found = options.find(key);
  return found == options.end() ? fallback : std::stoll(found->second);
}

og::Model quantized(const og::Model& model, const og::Tensor& x,
                    const og::QuantizationOptions& how) {
  const std::int64_t columns = x.dims()[1];
  const auto size = static_cast<std::size_t>(kCalibrationRows * columns);
  std::vector<og::NamedTensors> batches;
  for (std::span<const float> left = x.data<float>(); !left.empty(); left = left.subspan(size)) {
    const og::Dims dims{kCalibrationRows, columns};
    batches.push_back({{.name = "x", .tensor = og::Tensor::from(left.first(size), dims)}});
  }
  return og::quantize(model, batches, how);
}

og::Model changed(og::Model model, const og::Tensor& x, const Options& options) {
  if (const std::string base = text_of(options, "base", ""); !base.empty()) {
    model = og::quantize_weights(model, {.format = og::weight_format_from_name(base),
                                         .block_size = number_of(options, "block_size", 32)});
  }
  if (const std::string type = text_of(options, "quantize", ""); !type.empty()) {
    model = quantized(model, x, {.weights = og::dtype_from_name(type).value()});
  }
  og::AdapterOptions adapter{
      .kind = og::adapter_kind_from_name(text_of(options, "adapter", "lora")),
      .rank = number_of(options, "rank", 8),
      .seed = kSeed};
  if (const std::string target = text_of(options, "targets", ""); !target.empty()) {
    adapter.targets = {target};
  }
  return og::add_adapter(model, adapter);
}

og::MixedPrecision precision_of(const Options& options) {
  const std::string name = text_of(options, "precision", "float32");
  if (name == "bf16") return {.type = og::Precision::kBfloat16};
  // A scale whose first steps do not overflow.
  if (name == "fp16") return {.type = og::Precision::kFloat16, .loss_scale = 64};
  return {};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5)
    throw std::runtime_error("usage: fine_tuning MODEL ROWS RESULT EPOCHS [KEY=VALUE]...");
  Options options;
  for (int i = 5; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t at = word.find('=');
    options[word.substr(0, at)] = word.substr(at + 1);
  }
  const og::Dataset data{.inputs = {{.name = "x", .tensor = og::read_npz(argv[2], "x")}},
                         .target = og::read_npz(argv[2], "label")};
  const og::Model model = changed(og::Model::load(argv[1]), data.inputs.front().tensor, options);
  const auto workers = og::connect_workers();
  const og::TrainingOptions training{.update = {.accumulate = number_of(options, "accumulate", 1)},
                                     .precision = precision_of(options),
                                     .workers = {.communicator = workers},
                                     .engine = {.threads = 1, .seed = kSeed}};
  og::FitOptions fit{.epochs = std::stoll(argv[4]),
                     .batch_size = number_of(options, "batch", 16),
                     .shuffle = false,
                     .seed = kSeed};
  const auto make = [&] {
    return og::Trainer(model, {.function = og::SoftmaxCrossEntropy{}},
                       og::Sgd{.learning_rate = 0.2}, training);
  };
  og::Trainer trainer = make();
  if (const std::string folder = text_of(options, "checkpoint", ""); !folder.empty()) {
    og::FitOptions first = fit;
    --first.epochs;
    first.checkpoint = og::CheckpointOptions{.folder = folder};
    trainer.fit(data, first);
    trainer = make();
    fit.resume = folder;
  }
  trainer.fit(data, fit);
  if (og::workers_info(*workers).rank == 0) trainer.save(argv[3]);
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 1;
}
