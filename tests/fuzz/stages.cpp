#include "stages.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <utility>

#include "feeder.h"
#include "mutator.h"
#include "onnxgrad/interrupt.h"
#include "onnxgrad/report.h"

namespace onnxgrad::fuzz {
namespace {

constexpr std::string_view kCaseWeight = "case_weight";  // see DumpCases.WritesTheirModels

// Models of tests/data/models that pass all stages unchanged.
constexpr std::string_view kComplete[] = {"contrastive_pair_loss.onnx",
                                          "dense_autoencoder_elu.onnx",
                                          "dense_mixture_of_experts_loss.onnx",
                                          "densenet_block_loss.onnx",
                                          "rmsnorm_gated_mlp.onnx",
                                          "sk_mlp_classifier_strings.onnx",
                                          "sk_mlp_regressor_two_targets.onnx",
                                          "squeeze_excite.onnx",
                                          "vgg_small_batchnorm.onnx"};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Seed> find_seeds(const std::string& folder, bool are_cases) {
  const Loss squares = {.function = SquaredError{}};
  std::vector<Seed> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (!name.ends_with(".onnx")) continue;
    Seed seed{.path = entry.path(), .bytes = read_file(entry.path()), .is_case = are_cases};
    seed.has_loss = !are_cases && name.ends_with("_loss.onnx");
    if (!name.starts_with("sk_")) seed.loss = squares;
    if (seed.has_loss) seed.loss.output = "loss";
    seed.is_complete = std::ranges::find(kComplete, name) != std::end(kComplete);
    const Model model = Model::from_bytes(seed.bytes);
    seed.inputs = model.inputs();
    for (const ValueInfo& output : model.outputs()) {
      if (are_cases && seed.loss.output.empty() && is_floating(output.dtype)) {
        seed.loss.output = output.name;
      }
    }
    seeds.push_back(std::move(seed));
  }
  std::ranges::sort(seeds, {}, &Seed::path);
  if (seeds.empty()) throw std::runtime_error("no .onnx files in " + folder);
  return seeds;
}

// True for cases of other domains and of sequences, optionals and bodies: few among all cases, and
// behind them is most of what reads a file's lists.
bool is_foreign(const Seed& seed) {
  return std::ranges::any_of(
      std::initializer_list<std::string_view>{"ai.onnx.ml", "com.microsoft", "Sequence", "Optional",
                                              "Loop", "Scan"},
      [&](std::string_view word) { return seed.bytes.find(word) != std::string::npos; });
}

// The floating inputs of a case, and the weight that was added to it.
std::vector<std::string> case_values(const Model& model) {
  std::vector<std::string> names;
  for (const ValueInfo& input : model.inputs()) {
    if (is_floating(input.dtype)) names.push_back(input.name);
  }
  for (const WeightInfo& weight : model.weights()) {
    if (weight.name == kCaseWeight) names.push_back(weight.name);
  }
  return names;
}

constexpr double kLoopSeconds = 0.25;  // processor time of one run
bool has_loop = false;                 // in the model at work
double run_began = 0;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Around a run: a Loop may have no end, and then only has to stop when it is told to. Whatever
// comes before a run has no such excuse.
class LoopLimit {
 public:
  LoopLimit() {
    run_began = processor_seconds();
    if (has_loop) {
      scope_.emplace([] { return processor_seconds() - run_began > kLoopSeconds; });
    }
  }

 private:
  std::optional<InterruptScope> scope_;
};

void run_gradient(const Model& model, const Seed& seed, Feeder& feeder,
                  const EngineOptions& engine) {
  GradientOptions options{.fill_grad = true};
  if (seed.is_case) {
    options.wrt = case_values(model);
  } else {
    options.outputs = {"loss"};
  }
  const bool is_lossy = seed.is_case || seed.has_loss;
  const Model gradients = gradient(is_lossy ? model : add_loss(model, seed.loss), options);
  InferenceSession session(gradients, engine);
  const NamedTensors feeds = feeder.feeds(session.inputs());
  const LoopLimit limit;
  (void)session.run({}, feeds);
}

// The second sweep goes through what the first one wrote.
void run_jvp(const Model& model, const Seed& seed, Feeder& feeder, const EngineOptions& engine) {
  const bool is_lossy = seed.is_case || seed.has_loss;
  DerivativeOptions options;
  if (seed.is_case) {
    options.wrt = case_values(model);
  } else {
    options.outputs = {"loss"};
  }
  InferenceSession session(jvp(is_lossy ? model : add_loss(model, seed.loss), options), engine);
  const NamedTensors feeds = feeder.feeds(session.inputs());
  const LoopLimit limit;
  (void)session.run({}, feeds);
}

// Sizes and numbers that a client of a service may send: each call is a new plan.
void run_hostile_feeds(InferenceSession& session, Feeder& feeder) {
  constexpr int kCalls = 3;
  for (int call = 0; call < kCalls; ++call) {
    const NamedTensors feeds = feeder.hostile_feeds(session.inputs());
    const LoopLimit limit;
    try {
      (void)session.run({}, feeds);
    } catch (const Error& error) {
      if (error.kind() == "InternalError") throw;
    }
  }
}

Optimizer pick_optimizer(Random& random) {
  static const std::vector<Optimizer> all = {Sgd{.learning_rate = 0.01},
                                             Sgd{.learning_rate = 0.01, .momentum = 0.9},
                                             Adam{},
                                             Adagrad{},
                                             RmsProp{},
                                             Lion{},
                                             Lamb{},
                                             Muon{}};
  return random.pick(all);
}

void run_passes(const Model& model, Feeder& feeder, const EngineOptions& engine) {
  ForwardBackward passes(model, {.engine = engine});
  const NamedTensors feeds = feeder.feeds(passes.inputs());
  const LoopLimit limit;
  const auto result = passes.forward(feeds);
  std::vector<Tensor> seeds;
  for (const Tensor& output : result.outputs) {
    const bool takes_one = is_floating(output.dtype());
    seeds.push_back(takes_one ? Tensor::zeros(output.dtype(), output.dims()) : Tensor());
  }
  (void)passes.backward(seeds);
}

void run_step(const Model& model, const Seed& seed, Feeder& feeder, const Optimizer& optimizer,
              const EngineOptions& engine) {
  TrainingOptions options{.engine = engine};
  if (seed.is_case) options.trainable = {std::string(kCaseWeight)};
  TrainingSession session(model, seed.loss, optimizer, options);
  NamedTensors feeds = feeder.feeds(session.inputs());
  feeds.push_back({session.loss().target.name, feeder.feed(session.loss().target)});
  {
    const LoopLimit limit;
    (void)session.step(feeds);
  }
  (void)session.trained_model();
}

}  // namespace

Seeds::Seeds(const std::string& folders) {
  const std::size_t comma = folders.find(',');
  models_ = find_seeds(folders.substr(0, comma), false);
  if (comma == std::string::npos) return;
  cases_ = find_seeds(folders.substr(comma + 1), true);
  std::ranges::copy_if(cases_, std::back_inserter(foreign_), is_foreign);
}

const Seed& Seeds::of(std::size_t mutant) const {
  if (cases_.empty()) return models_[mutant % models_.size()];
  const std::vector<Seed>* const lists[] = {&models_, &cases_, &foreign_};
  const std::vector<Seed>& list = *lists[mutant % 3];
  return list[mutant / 3 % list.size()];
}

std::vector<const Seed*> Seeds::all() const {
  std::vector<const Seed*> all;
  for (const Seed& seed : models_) all.push_back(&seed);
  for (const Seed& seed : cases_) all.push_back(&seed);
  return all;
}

Passed try_model(const std::string& bytes, const Seed& seed, std::uint64_t random_seed, bool odd,
                 const Report& report) {
  Random random(random_seed);
  Feeder feeder(seed, random, odd);
  const EngineOptions engine{.threads = 1, .memory_limit_bytes = kBudgetBytes};
  Passed passed{};
  std::size_t at = 0;
  has_loop = bytes.find("Loop") != std::string::npos;
  const auto stage = [&](const auto& body) {
    const char* name = kStages.at(at);
    try {
      body();
      passed.at(at) = true;
      report(name, "ok");
    } catch (const Interrupted&) {
      report(name, "ok");
    } catch (const Error& error) {
      report(name, std::string(error.kind()) + ": " + error.what());
      if (error.kind() == "InternalError") {
        throw std::runtime_error(std::string(name) + ": " + error.what());
      }
    } catch (const std::exception& error) {
      throw std::runtime_error(std::string(name) + ": foreign exception: " + error.what());
    }
    ++at;
  };
  std::optional<Model> model;
  stage([&] { model.emplace(Model::from_bytes(bytes, {.memory_limit_bytes = kBudgetBytes})); });
  if (!model) return passed;
  stage([&] { (void)model->weights(); });
  stage([&] { (void)onnxgrad::report(*model); });
  std::optional<InferenceSession> session;
  stage([&] {
    session.emplace(*model, engine);
    const NamedTensors feeds = feeder.feeds(session->inputs());
    const LoopLimit limit;
    (void)session->run({}, feeds);
  });
  stage([&] {
    if (session && odd) run_hostile_feeds(*session, feeder);
  });
  session.reset();
  stage([&] { run_gradient(*model, seed, feeder, engine); });
  stage([&] {
    if (odd && random.one_in(4)) run_jvp(*model, seed, feeder, engine);
  });
  stage([&] { run_passes(*model, feeder, engine); });
  const Optimizer optimizer = odd ? pick_optimizer(random) : Sgd{.learning_rate = 0.01};
  stage([&] { run_step(*model, seed, feeder, optimizer, engine); });
  return passed;
}

}  // namespace onnxgrad::fuzz
