// Trains an ONNX model with one input and one output on arrays: train MODEL.onnx TRAINED.onnx
#include <onnxgrad/onnxgrad.h>

#include <cmath>
#include <iostream>
#include <random>
#include <stdexcept>
#include <vector>

namespace og = onnxgrad;

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: train MODEL.onnx TRAINED.onnx");
  const og::Model model = og::Model::load(argv[1]);

  const std::int64_t rows = 2000;
  const std::int64_t columns = model.inputs().at(0).shape->at(1).value;
  std::mt19937 random(0);
  std::vector<float> x(static_cast<std::size_t>(rows * columns));
  std::vector<float> y(static_cast<std::size_t>(rows));
  for (float& value : x) value = std::normal_distribution<float>()(random);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = std::sin(x[i * x.size() / y.size()]);

  og::Trainer trainer(model, {}, og::Adam{.learning_rate = 0.01});
  std::cout << trainer.session().loss().line << '\n';
  const og::History& history =
      trainer.fit(og::Tensor::from(x, {rows, columns}), og::Tensor::from(y, {rows}),
                  {.epochs = 30, .validation_fraction = 0.1});
  for (const auto& e : history.epochs) std::cout << e.train_loss << ' ' << *e.val_loss << '\n';
  trainer.save(argv[2]);
  return history.epochs.back().train_loss < history.epochs.front().train_loss ? 0 : 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << '\n';
  return 2;
}
