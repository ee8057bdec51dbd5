// A training with checkpoints that is killed and made to fail by checkpoint_faults_test.cpp:
//
//   checkpoint_tool FOLDER EPOCHS RESULT
//
// trains a small network, continuing from the newest checkpoint of FOLDER, prints a line for each
// checkpoint ("saved <path>" or "problem <why>"), and at the end writes weights, optimizer state
// and history to RESULT. Status 0: done; 6: CheckpointError before the first step; 7: anything
// else.
#include <onnxgrad/onnxgrad.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace og = onnxgrad;

namespace {

constexpr const char* kModel = R"(
<ir_version: 8, opset_import: ["" : 17]>
network (float[N, 3] x) => (float[N, 1] y)
<float[3, 4] W1 = {0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8, 0.9, -0.1, 0.2, 0.3},
 float[4] b1 = {0, 0.1, 0, -0.1}, float[4, 1] W2 = {0.5, -0.4, 0.3, 0.2}, float[1] b2 = {0}>
{ h = MatMul(x, W1)  i = Add(h, b1)  a = Tanh(i)  o = MatMul(a, W2)  y = Add(o, b2) }
)";

// One line for a reader that may look after this process was killed: a pipe loses nothing then.
void say(const std::string& line) {
  const std::string text = line + "\n";
  (void)!::write(STDOUT_FILENO, text.data(), text.size());
}

og::Dataset make_data() {
  constexpr std::int64_t kRows = 40;
  std::vector<float> x;
  std::vector<float> y;
  std::uint32_t state = 12345;
  const auto draw = [&state] {
    state = state * 1664525U + 1013904223U;
    return static_cast<float>(state >> 8U) / 16777216.0F - 0.5F;
  };
  for (std::int64_t i = 0; i < kRows; ++i) {
    const float a = draw();
    const float b = draw();
    const float c = draw();
    x.insert(x.end(), {a, b, c});
    y.push_back(a * b + c + 0.1F * draw());
  }
  return {.inputs = {{.name = "", .tensor = og::Tensor::from(x, {kRows, 3})}},
          .target = og::Tensor::from(y, {kRows})};
}

void write_result(const std::string& path, const og::Trainer& trainer) {
  std::ofstream file(path, std::ios::binary);
  for (const og::NamedTensor& entry : trainer.session().state()) {
    file << entry.name << ' ';
    file.write(reinterpret_cast<const char*>(entry.tensor.raw()), entry.tensor.size_bytes());
  }
  const og::History& history = trainer.history();
  const auto write_number = [&file](double value) {
    file.write(reinterpret_cast<const char*>(&value), sizeof value);
  };
  for (const double loss : history.step_losses) write_number(loss);
  for (const og::EpochLog& log : history.epochs) {
    write_number(log.train_loss);
    write_number(log.val_loss.value());
    write_number(log.is_best ? 1 : 0);
  }
  file << history.stop_reason << history.best_epoch.value_or(0);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 4) throw std::runtime_error("usage: checkpoint_tool FOLDER EPOCHS RESULT");
  const std::string folder = argv[1];
  og::Trainer trainer(og::Model::from_text(kModel), {}, og::Adam{.learning_rate = 0.01},
                      {.engine = {.threads = 1}});
  const bool is_plain = folder == "-";
  og::FitOptions options{
      .epochs = std::stoll(argv[2]),
      .batch_size = 8,
      .validation_fraction = 0.2,
      .early_stopping = {{.patience = 1000, .min_delta = 0}},
      .keep_step_losses = true,
      .on_checkpoint = [](const og::CheckpointLog& log) {
        say(log.problem.empty() ? "saved " + log.path : "problem " + log.problem);
      }};
  if (!is_plain) {
    options.checkpoint = {{.folder = folder, .every_steps = 3, .keep = 2}};
    options.resume = folder;
    options.resume_if_any = true;
  }
  say("start");
  const og::History& history = trainer.fit(make_data(), options);
  if (!history.checkpoint_problem.empty()) say("last " + history.checkpoint_problem);
  write_result(argv[3], trainer);
  return 0;
} catch (const og::CheckpointError& error) {
  std::fprintf(stderr, "CheckpointError: %s\n", error.what());
  return 6;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 7;
}
