#include "train/fit/fit_loop.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "onnxgrad/option_error.h"
#include "train/data/sampler.h"
#include "train/testing/malloc_counter.h"
#include "train/testing/resumed_fit.h"

namespace onnxgrad::train::fit_loop_test {

using testing::HasSubstr;

constexpr std::int64_t kRows = 23;

// Without noise.
Dataset linear_data(std::int64_t rows = kRows, std::uint64_t seed = 1) {
  return train_test::LinearRows(rows, seed, 0).all();
}

struct Fixture : train_test::FitProcess {
  explicit Fixture(const Optimizer& optimizer = Sgd{.learning_rate = 0.1}, const Loss& loss = {})
      : FitProcess(optimizer, loss) {}
};

// Trains by steps of the session, in the order of the rows.
std::vector<double> train_by_hand(Session& session, const Dataset& data, std::int64_t batch,
                                  bool drop_last, std::vector<double>& weights) {
  const auto x = data.inputs[0].tensor.data<float>();
  const auto y = data.target.data<float>();
  const std::int64_t rows = data.target.dims()[0];
  std::vector<double> losses;
  for (std::int64_t begin = 0; begin < rows; begin += batch) {
    const std::int64_t size = std::min(batch, rows - begin);
    if (drop_last && size < batch) break;
    const auto b = static_cast<std::size_t>(begin);
    const auto n = static_cast<std::size_t>(size);
    const NamedTensors feeds{
        {.name = "x", .tensor = Tensor::from(x.subspan(2 * b, 2 * n), Dims{size, 2})},
        {.name = "label", .tensor = Tensor::from(y.subspan(b, n), Dims{size, 1})}};
    losses.push_back(session.step(feeds).loss);
  }
  weights = session.state()[0].tensor.to_doubles();
  return losses;
}

TEST(FitLoop, WithoutShufflingIsTheSameAsSteps) {
  for (const bool drop_last : {false, true}) {
    const Dataset data = linear_data();
    Fixture fixture;
    const History& history =
        fixture.fit(data, {.epochs = 1, .batch_size = 5, .shuffle = false, .drop_last = drop_last});
    Fixture by_hand;
    std::vector<double> weights;
    const auto losses = train_by_hand(by_hand.session, data, 5, drop_last, weights);
    EXPECT_EQ(history.step_losses, losses);
    EXPECT_EQ(fixture.weights(), weights);
    ASSERT_EQ(history.epochs.size(), 1U);
    double mean = 0;
    double rows = 0;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      const double n = i == 4 ? 3 : 5;
      mean += losses[i] * n;
      rows += n;
    }
    EXPECT_NEAR(history.epochs[0].train_loss, mean / rows, 1e-9);
    EXPECT_EQ(history.epochs[0].steps, drop_last ? 4 : 5);
  }
}

TEST(FitLoop, AnEpochWithoutANumberIsNeverTheBest) {
  Fixture fixture(Sgd{.learning_rate = 1e30});
  const History& history = fixture.fit(
      linear_data(), {.epochs = 3, .batch_size = 5, .on_non_finite = OnNonFinite::kIgnore});
  ASSERT_EQ(history.epochs.size(), 3U);
  EXPECT_TRUE(std::isnan(history.epochs.back().train_loss));
  for (const EpochLog& log : history.epochs) {
    EXPECT_FALSE(std::isnan(log.train_loss) && log.is_best) << log.epoch;
  }
}

// The rows [start, start + 5) of every window, by hand.
TEST(FitLoop, WindowsAreTheirConsecutiveRows) {
  const Dataset data = linear_data();
  const auto x = data.inputs[0].tensor.data<float>();
  const auto y = data.target.data<float>();
  Fixture fixture;
  const History& history =
      fixture.fit(data, {.epochs = 2, .batch_size = 5, .sampling = Sampling::kWindows, .seed = 8});
  Fixture by_hand;
  std::vector<double> losses;
  for (const std::uint32_t epoch : {0U, 1U}) {
    std::vector<std::int64_t> order(25);
    draw_windows(8, epoch, kRows, 5, order);
    for (std::size_t i = 0; i < order.size(); i += 5) {
      const auto b = static_cast<std::size_t>(order[i]);
      const NamedTensors feeds{
          {.name = "x", .tensor = Tensor::from(x.subspan(2 * b, 10), Dims{5, 2})},
          {.name = "label", .tensor = Tensor::from(y.subspan(b, 5), Dims{5, 1})}};
      losses.push_back(by_hand.session.step(feeds).loss);
    }
  }
  EXPECT_EQ(history.step_losses, losses);
  EXPECT_EQ(fixture.weights(), by_hand.weights());
  EXPECT_EQ(history.epochs[1].rows, 25);
}

TEST(FitLoop, WindowsOfAllRowsAreOneBatch) {
  const Dataset data = linear_data();
  Fixture windows;
  windows.fit(data, {.epochs = 3, .batch_size = 40, .sampling = Sampling::kWindows});
  Fixture rows;
  rows.fit(data, {.epochs = 3, .batch_size = 40, .shuffle = false});
  EXPECT_EQ(windows.weights(), rows.weights());
  EXPECT_EQ(windows.history.step_losses.size(), 3U);
}

// With a split the windows are of the rows that are left for training.
TEST(FitLoop, WindowsLeaveValidationRowsAlone) {
  Dataset data = linear_data(20);
  const Split split = split_rows(20, 0.5, 4);
  const auto y = data.target.mutable_data<float>();
  for (const std::int64_t row : split.validation) y[static_cast<std::size_t>(row)] = 1e6F;
  Fixture fixture;
  const FitOptions options{.epochs = 50,
                           .batch_size = 3,
                           .sampling = Sampling::kWindows,
                           .seed = 4,
                           .validation_fraction = 0.5};
  for (const EpochLog& log : fixture.fit(data, options).epochs) {
    EXPECT_LT(log.train_loss, 100);
    EXPECT_EQ(log.rows, 12);
  }
}

TEST(FitLoop, WindowsNeedRandomPlaces) {
  Fixture fixture;
  EXPECT_THROW(fixture.fit(linear_data(), {.shuffle = false, .sampling = Sampling::kWindows}),
               OptionError);
}

TEST(FitLoop, ConvergesAndReportsEveryEpoch) {
  Fixture fixture;
  const History& history = fixture.fit(linear_data(), {.epochs = 100, .batch_size = 4});
  ASSERT_EQ(history.epochs.size(), 100U);
  EXPECT_EQ(history.step_losses.size(), 600U);
  EXPECT_LT(history.epochs.back().train_loss, 1e-8);
  EXPECT_NEAR(fixture.weights()[0], 2, 1e-3);
  EXPECT_NEAR(fixture.weights()[1], -1, 1e-3);
  EXPECT_TRUE(history.stop_reason.empty());
  for (std::size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(history.epochs[i].epoch, static_cast<std::int64_t>(i + 1));
    EXPECT_GT(history.epochs[i].rows_per_s, 0);
    EXPECT_FALSE(history.epochs[i].val_loss.has_value());
  }
}

TEST(FitLoop, ShufflingIsAFunctionOfTheSeed) {
  const auto losses = [](std::uint64_t seed) {
    Fixture fixture;
    return fixture.fit(linear_data(), {.epochs = 2, .batch_size = 5, .seed = seed}).step_losses;
  };
  EXPECT_EQ(losses(3), losses(3));
  EXPECT_NE(losses(3), losses(4));
}

TEST(FitLoop, EveryRowIsSeenOncePerEpoch) {
  // With rate 0 the losses of an epoch add up to the loss of the whole, whatever the order.
  Fixture fixture(Sgd{.learning_rate = 0});
  const Dataset data = linear_data();
  const History& history = fixture.fit(data, {.epochs = 3, .batch_size = 4});
  double expected = 0;
  for (const float y : data.target.data<float>()) expected += static_cast<double>(y) * y / kRows;
  for (const EpochLog& log : history.epochs) EXPECT_NEAR(log.train_loss, expected, 1e-5);
}

TEST(FitLoop, ValidatesOnAFractionOrOnItsOwnRows) {
  Fixture fixture;
  const History& history =
      fixture.fit(linear_data(), {.epochs = 30, .batch_size = 4, .validation_fraction = 0.25});
  EXPECT_LT(*history.epochs.back().val_loss, 1e-2);
  EXPECT_FALSE(history.epochs.back().val_accuracy.has_value());
  EXPECT_EQ(history.step_losses.size(), 30U * 5U);  // 17 rows in batches of 4

  Fixture frozen(Sgd{.learning_rate = 0});
  const Dataset other = linear_data(301, 2);
  const History& logs =
      frozen.fit(linear_data(), {.epochs = 4, .validation = &other, .validation_every = 2});
  double expected = 0;
  for (const float y : other.target.data<float>()) expected += static_cast<double>(y) * y / 301;
  EXPECT_FALSE(logs.epochs[0].val_loss.has_value());
  ASSERT_TRUE(logs.epochs[1].val_loss.has_value());
  EXPECT_NEAR(*logs.epochs[1].val_loss, expected, 1e-4 * expected);
}

TEST(FitLoop, EndsWithTheLastOfSoManySteps) {
  const auto fit = [](std::int64_t max_steps) {  // 5 steps in an epoch
    Fixture fixture;
    return fixture.fit(linear_data(), {.epochs = 3, .batch_size = 5, .max_steps = max_steps});
  };
  const History all = fit(0);
  EXPECT_EQ(all.step_losses.size(), 15U);
  for (const std::int64_t steps : {1, 5, 7, 15, 16}) {
    const History history = fit(steps);
    const std::size_t done = std::min<std::size_t>(static_cast<std::size_t>(steps), 15);
    EXPECT_EQ(history.step_losses,
              std::vector<double>(all.step_losses.begin(),
                                  all.step_losses.begin() + static_cast<std::ptrdiff_t>(done)));
    EXPECT_EQ(history.epochs.size(), (done + 4) / 5) << steps;  // with the part of one
    EXPECT_EQ(history.epochs.back().rows, done % 5 == 0 ? kRows : done % 5 * 5) << steps;
    EXPECT_EQ(history.stop_reason,
              steps < 15 ? fmt::format("all of max_steps={} are done", steps) : std::string());
  }
}

TEST(FitLoop, AScheduleEndsWithTheLastOfSoManySteps) {
  Fixture fixture;
  std::vector<double> rates;
  FitOptions options{.epochs = 9, .batch_size = 5, .max_steps = 8};
  options.schedule = LinearRate{.start_factor = 1, .end_factor = 0};
  options.every_n_steps = 1;
  options.on_step_end = [&](const StepLog&) {
    rates.push_back(fixture.session.runner().learning_rate());
    return false;
  };
  fixture.fit(linear_data(), options);
  ASSERT_EQ(rates.size(), 8U);
  EXPECT_NEAR(rates[4], 0.05, 1e-12);
  EXPECT_NEAR(rates[7], 0.0125, 1e-12);
}

TEST(FitLoop, StopsEarlyWithTheBestWeights) {
  Fixture fixture(Sgd{.learning_rate = 0});
  const History& history =
      fixture.fit(linear_data(), {.epochs = 50, .early_stopping = EarlyStopping{.patience = 3}});
  EXPECT_EQ(history.epochs.size(), 4U);
  EXPECT_THAT(history.stop_reason, HasSubstr("no improvement for 3 epochs"));
  EXPECT_EQ(history.best_epoch, 1);

  // A rate that rises makes the loss rise again: the best weights are those of an earlier epoch.
  Fixture rising(Sgd{.learning_rate = 0.05});
  std::vector<std::vector<double>> weights;
  FitOptions options{.epochs = 60,
                     .batch_size = kRows,
                     .shuffle = false,
                     .early_stopping = EarlyStopping{.patience = 4}};
  options.learning_rate = [](std::int64_t step) { return step < 5 ? 0.1 : -0.2; };
  options.on_epoch_end = [&](const EpochLog&) {
    weights.push_back(rising.weights());
    return false;
  };
  const History& risen = rising.fit(linear_data(), options);
  ASSERT_TRUE(risen.best_epoch.has_value());
  EXPECT_LT(*risen.best_epoch, 8);
  EXPECT_LT(risen.epochs.size(), 60U);
  EXPECT_EQ(rising.weights(), weights.at(static_cast<std::size_t>(*risen.best_epoch - 1)));
}

TEST(FitLoop, CallbacksSeeAndStop) {
  Fixture fixture;
  std::vector<std::int64_t> steps;
  FitOptions options{.epochs = 10, .batch_size = 5};
  options.every_n_steps = 3;
  options.on_step_end = [&](const StepLog& log) {
    steps.push_back(log.step);
    return log.step == 9;
  };
  EXPECT_EQ(fixture.fit(linear_data(), options).stop_reason, "a callback asked to stop");
  EXPECT_THAT(steps, testing::ElementsAre(3, 6, 9));
  EXPECT_EQ(fixture.history.step_losses.size(), 9U);

  options = {.epochs = 10};
  options.on_epoch_end = [](const EpochLog& log) { return log.epoch == 2; };
  EXPECT_EQ(fixture.fit(linear_data(), options).epochs.size(), 2U);

  options.on_epoch_end = [&](const EpochLog&) {
    fixture.stop.stop();
    return false;
  };
  EXPECT_EQ(fixture.fit(linear_data(), options).stop_reason, "stop() was called");
}

TEST(FitLoop, InterruptsAreAskedAbout) {
  Fixture fixture;
  int asked = 0;
  FitOptions options{.epochs = 4, .batch_size = 5};
  options.every_n_steps = 1;
  options.on_step_end = [&](const StepLog& log) {
    if (log.step % 3 == 0) fixture.stop.interrupt();
    return false;
  };
  options.on_interrupt = [&] {
    ++asked;
    return false;
  };
  fixture.stop.interrupt();  // just before it begins
  EXPECT_EQ(fixture.fit(linear_data(), options).stop_reason, "");
  EXPECT_EQ(fixture.history.step_losses.size(), 20U);
  EXPECT_EQ(asked, 1 + 20 / 3);

  options.on_interrupt = [&] { return ++asked == 10; };
  EXPECT_EQ(fixture.fit(linear_data(), options).stop_reason, "interrupted");
  EXPECT_EQ(fixture.history.step_losses.size(),
            10U);  // asked after the step that follows the ninth

  options.on_interrupt = []() -> bool { throw std::runtime_error("of a handler"); };
  EXPECT_THROW(fixture.fit(linear_data(), options), std::runtime_error);
  options.on_interrupt = {};
  EXPECT_EQ(fixture.fit(linear_data(), options).stop_reason, "");
}

// More shapes than plans are kept must not take the loop's own plans away.
TEST(FitLoop, CallbacksMayEvaluateAnyNumberOfShapes) {
  const auto losses = [](bool evaluates) {
    Fixture fixture;
    FitOptions options{.epochs = 3, .batch_size = 5, .validation_fraction = 0.3};
    options.on_epoch_end = [&](const EpochLog&) {
      for (std::int64_t rows = 1; evaluates && rows <= 100; ++rows) {
        const Dataset data = linear_data(rows);
        fixture.session.evaluate(
            {{.name = "x", .tensor = data.inputs[0].tensor},
             {.name = "label", .tensor = data.target.reshaped(Dims{rows, 1})}});
      }
      return false;
    };
    std::vector<double> result;
    for (const EpochLog& log : fixture.fit(linear_data(), options).epochs) {
      result.push_back(*log.val_loss);
      result.push_back(log.train_loss);
    }
    return result;
  };
  EXPECT_EQ(losses(true), losses(false));
}

TEST(FitLoop, AnExceptionOfACallbackPassesThrough) {
  Fixture fixture;
  FitOptions options{.epochs = 10};
  options.on_epoch_end = [](const EpochLog&) -> bool { throw std::runtime_error("mine"); };
  EXPECT_THROW(fixture.fit(linear_data(), options), std::runtime_error);
  EXPECT_EQ(fixture.fit(linear_data(), {.epochs = 2}).epochs.size(), 2U);
}

// The message of the error; the fixture's session is left as fit() left it.
std::string convergence_error(Fixture& fixture, const Dataset& data, const FitOptions& options) {
  try {
    fixture.fit(data, options);
  } catch (const ConvergenceError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(FitLoop, ANonFiniteLossIsAnErrorWithTheLastFiniteWeights) {
  const FitOptions options{.epochs = 3, .batch_size = 5, .shuffle = false};
  Fixture fixture(Sgd{.learning_rate = 1e30});
  const std::string message = convergence_error(fixture, linear_data(), options);
  EXPECT_THAT(message, HasSubstr("at epoch 1, step 2 (batch 2, rows 5, 6, 7, 8, ...)"));
  EXPECT_THAT(message, HasSubstr("not finite is 'loss/Mul', of Mul node 'loss/Mul"));
  EXPECT_THAT(message, HasSubstr("The weights are those before step 2"));
  // One step by hand gives the weights that the second step did not survive.
  Fixture by_hand(Sgd{.learning_rate = 1e30});
  const Dataset first = linear_data(5);
  by_hand.session.step({{.name = "x", .tensor = first.inputs[0].tensor},
                        {.name = "label", .tensor = first.target.reshaped(Dims{5, 1})}});
  EXPECT_EQ(fixture.weights(), by_hand.weights());
  EXPECT_THAT(fixture.weights(),
              testing::Each(testing::Truly([](double w) { return std::isfinite(w) && w != 0; })));
  EXPECT_EQ(fixture.session.runner().steps(), 1);
}

TEST(FitLoop, WeightsThatOverflowAreTakenBack) {
  // The first update overflows, which the loss shows one step later.
  Fixture fixture(Sgd{.learning_rate = 3e38});
  const std::string message =
      convergence_error(fixture, linear_data(), {.epochs = 1, .batch_size = 5});
  EXPECT_THAT(message, HasSubstr("at epoch 1, step 2 (batch 2"));
  EXPECT_THAT(message, HasSubstr("node 'update/"));
  EXPECT_THAT(message, HasSubstr("' in step 1"));
  EXPECT_THAT(message, HasSubstr("The weights are those before step 1"));
  EXPECT_THAT(fixture.weights(), testing::Each(0));
  EXPECT_EQ(fixture.session.runner().steps(), 0);
}

TEST(FitLoop, WeightsThatOverflowInTheLastStepAreTakenBack) {
  // One batch per epoch: no loss of this epoch shows the overflow of its update.
  for (const std::int64_t epochs : {1, 3}) {
    Fixture fixture(Sgd{.learning_rate = 3e38});
    const std::string message =
        convergence_error(fixture, linear_data(), {.epochs = epochs, .batch_size = 1000});
    EXPECT_THAT(message, HasSubstr("a weight is not finite at epoch 1, step 1 (batch 1"));
    EXPECT_THAT(message, HasSubstr("The weights are those before step 1"));
    EXPECT_THAT(fixture.weights(), testing::Each(0));
    EXPECT_EQ(fixture.session.runner().steps(), 0);
  }
}

TEST(FitLoop, StepsBeforeAFaultAreKeptToTheBit) {
  // Rates that make the third epoch fail in its fourth step; the twin stops before that.
  const auto options_until = [](std::int64_t bad_step) {
    FitOptions options{.epochs = 3, .batch_size = 5};
    options.learning_rate = [bad_step](std::int64_t step) {
      return step == bad_step ? 1e35 : 0.1 / static_cast<double>(step + 1);
    };
    return options;
  };
  Fixture fixture;
  convergence_error(fixture, linear_data(), options_until(12));  // 5 steps an epoch
  EXPECT_EQ(fixture.session.runner().steps(), 13);
  Fixture twin;
  FitOptions options = options_until(12);
  options.every_n_steps = 13;
  options.on_step_end = [](const StepLog&) { return true; };
  twin.fit(linear_data(), options);
  EXPECT_EQ(fixture.weights(), twin.weights());
}

TEST(FitLoop, NonFiniteLossesCanStopOrPass) {
  Fixture fixture(Sgd{.learning_rate = 1e30});
  FitOptions options{.epochs = 3, .batch_size = 5};
  options.on_non_finite = OnNonFinite::kStop;
  EXPECT_THAT(fixture.fit(linear_data(), options).stop_reason, HasSubstr("the training loss is"));
  options.on_non_finite = OnNonFinite::kIgnore;
  EXPECT_EQ(fixture.fit(linear_data(), options).epochs.size(), 3U);
}

// Steps that nobody watches run in series.
TEST(FitLoop, SeriesAreTheirSteps) {
  const Dataset data = linear_data(1203);
  for (const std::int64_t batch : {1, 5}) {
    for (const bool shuffle : {false, true}) {
      for (const auto sampling : {Sampling::kRows, Sampling::kWindows}) {
        if (sampling == Sampling::kWindows && !shuffle) continue;
        FitOptions options{
            .epochs = 2, .batch_size = batch, .shuffle = shuffle, .sampling = sampling};
        Fixture watched(Sgd{.learning_rate = 0.01});
        watched.fit(data, options);
        options.keep_step_losses = false;
        Fixture fixture(Sgd{.learning_rate = 0.01});
        fixture.fit(data, options);
        EXPECT_EQ(fixture.weights(), watched.weights());
        EXPECT_EQ(fixture.session.runner().steps(), watched.session.runner().steps());
        for (std::size_t epoch = 0; epoch < 2; ++epoch) {
          EXPECT_EQ(fixture.history.epochs[epoch].train_loss,
                    watched.history.epochs[epoch].train_loss);
          EXPECT_EQ(fixture.history.epochs[epoch].steps, watched.history.epochs[epoch].steps);
        }
      }
    }
  }
}

TEST(FitLoop, ASeriesEndsWithItsFirstFault) {
  Dataset data = linear_data(900);
  auto x = data.inputs[0].tensor.mutable_data<float>();
  x[2 * 700] = 1e30F;  // the loss of this row is infinite
  FitOptions options{.epochs = 1, .batch_size = 1, .shuffle = false};
  Fixture watched(Sgd{.learning_rate = 0.01});
  const std::string message = convergence_error(watched, data, options);
  EXPECT_THAT(message, HasSubstr("at epoch 1, step 701 (batch 701, row 700)"));
  options.keep_step_losses = false;
  Fixture fixture(Sgd{.learning_rate = 0.01});
  EXPECT_EQ(convergence_error(fixture, data, options), message);
  EXPECT_EQ(fixture.weights(), watched.weights());
  EXPECT_EQ(fixture.session.runner().steps(), 700);
}

TEST(FitLoop, TheScheduleSetsEveryStepsRate) {
  const Dataset data = linear_data();
  Fixture scheduled(Sgd{.learning_rate = 99});
  FitOptions options{.epochs = 1, .batch_size = kRows, .shuffle = false};
  options.learning_rate = [](std::int64_t step) { return step == 0 ? 0.1 : 0; };
  EXPECT_EQ(scheduled.fit(data, options).epochs[0].learning_rate, 0.1);
  Fixture plain;
  plain.fit(data, {.epochs = 1, .batch_size = kRows, .shuffle = false});
  EXPECT_EQ(scheduled.weights(), plain.weights());
}

TEST(FitLoop, SampleWeightsCountRows) {
  // Weight 2 is the same as the row twice, weight 0 as no row.
  const Loss loss{.sample_weight = "weight"};
  Dataset weighted = linear_data(4);
  weighted.sample_weight = Tensor::from(std::vector<double>{2, 0, 1, 1}, Dims{4});
  Fixture with(Sgd{.learning_rate = 0.1}, loss);
  const FitOptions options{.epochs = 3, .batch_size = 4, .shuffle = false};
  const History& history = with.fit(weighted, options);

  const Dataset four = linear_data(4);
  const auto x = four.inputs[0].tensor.data<float>();
  const auto y = four.target.data<float>();
  const std::vector<float> rows{x[0], x[1], x[0], x[1], x[4], x[5], x[6], x[7]};
  const std::vector<float> targets{y[0], y[0], y[2], y[3]};
  const Dataset repeated{.inputs = {{.name = "x", .tensor = Tensor::from(rows, Dims{4, 2})}},
                         .target = Tensor::from(targets, Dims{4})};
  Fixture without;
  const History& expected = without.fit(repeated, options);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(history.epochs[i].train_loss, expected.epochs[i].train_loss, 1e-5);
  }
  EXPECT_NEAR(with.weights()[0], without.weights()[0], 1e-5);
}

void expect_refused(const Dataset& data, const FitOptions& options, const std::string& part) {
  Fixture fixture;
  try {
    fixture.fit(data, options);
    FAIL() << "no error, expected: " << part;
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(part));
  }
  EXPECT_EQ(fixture.session.runner().steps(), 0);
}

TEST(FitLoop, BadDataIsRefusedBeforeTheFirstStep) {
  const Dataset good = linear_data();
  Dataset data = good;
  std::vector<float> x(46, 0);
  x[35] = std::nanf("");
  data.inputs[0].tensor = Tensor::from(x, Dims{23, 2});
  expect_refused(data, {}, "'x' has NaN in row 17, column 1");
  data.inputs[0].tensor = Tensor::from(std::vector<float>(69), Dims{23, 3});
  expect_refused(data, {}, "'x' has 3 columns, but the model reads 2 columns");
  data.inputs[0].tensor = Tensor::from(std::vector<float>(44), Dims{22, 2});
  expect_refused(data, {}, "'x' has 22 rows, the target has 23");
  data = good;
  data.inputs[0].name = "z";
  expect_refused(data, {}, "no input 'z'");
  data = good;
  data.sample_weight = Tensor::from(std::vector<float>(23, 1), Dims{23});
  expect_refused(data, {}, "the loss takes none");
  expect_refused(good, {.batch_size = -1}, "batch_size is -1");
  expect_refused(good, {.epochs = -1}, "epochs is -1");
  expect_refused(good, {.drop_last = true}, "drop_last");
  expect_refused(good, {.validation_fraction = 1.5}, "validation fraction");
  data = good;
  data.target = Tensor::from(std::vector<float>{}, Dims{0});
  expect_refused(data, {}, "no rows");
}

TEST(FitLoop, ConvertsNumbersAndSharesWhatNeedsNoConversion) {
  const Dataset data = linear_data();
  Dataset doubles = data;
  doubles.inputs[0].tensor = data.inputs[0].tensor.cast(DataType::kFloat64);
  doubles.target = data.target.cast(DataType::kFloat64);
  Fixture a;
  Fixture b;
  EXPECT_EQ(a.fit(data, {.epochs = 2}).step_losses, b.fit(doubles, {.epochs = 2}).step_losses);

  const PreparedData prepared =
      prepare_data(a.session.schema(), a.session.runner().data_ports(), data, false);
  EXPECT_EQ(prepared.columns[0].values.raw(), data.inputs[0].tensor.raw());
}

TEST(FitLoop, AllocatesNothingInTheSteadyState) {
  if (!train_test::counts_allocations())
    GTEST_SKIP() << "a sanitizer, or the simulated device's queue, allocates itself";
  const std::int64_t before = train_test::allocation_count();
  const auto probe = std::make_unique<int>(1);
  ASSERT_EQ(train_test::allocation_count(), before + 1) << "the counter does not count";
  for (const Optimizer& optimizer : {Optimizer(Sgd{.learning_rate = 0.01}), Optimizer(Adam{})}) {
    for (const bool shuffle : {false, true}) {
      Fixture fixture(optimizer);
      FitOptions options{.epochs = 20, .batch_size = 5, .shuffle = shuffle};
      options.validation_fraction = shuffle ? 0.2 : 0;
      options.early_stopping = EarlyStopping{.patience = 100};
      std::vector<std::int64_t> counts;
      counts.reserve(100);
      options.on_epoch_end = [&](const EpochLog&) {
        counts.push_back(train_test::allocation_count());
        return false;
      };
      fixture.fit(linear_data(), options);
      EXPECT_EQ(counts.at(19) - counts.at(0), 0) << "shuffle " << shuffle;
    }
  }
}

}  // namespace onnxgrad::train::fit_loop_test
