// SPDX-License-Identifier: BSD-3-Clause
#include "shapes.h"

namespace baraquant::border {

double hidden(double side) { return side * side; }

Shape::~Shape() = default;
Square::Square(double side) : side_(side) {}
double Square::area() const { return hidden(side_); }
torch::Tensor Square::forward(const torch::Tensor& input) { return input * side_; }

std::shared_ptr<torch::nn::Module> make_square(double side) {
  return std::make_shared<Square>(side);
}

torch::Tensor run(torch::nn::Sequential& model, const torch::Tensor& input) {
  return model->forward(input);
}

bool is_square(const torch::nn::Module& module) {
  return dynamic_cast<const Square*>(&module) != nullptr && module.as<Square>() != nullptr;
}

void fail(int how) {
  TORCH_CHECK_VALUE(how != 0, "a value");
  TORCH_CHECK_INDEX(how != 1, "an index");
  TORCH_CHECK(how != 2, "something");
  throw OwnError("its own");
}

}  // namespace baraquant::border
