// SPDX-License-Identifier: BSD-3-Clause
// What crosses the border of a library: exceptions, dynamic_cast, typeid, torch's containers, and
// classes that the program derives. Prints a line for each that works.
#include <iostream>
#include <typeinfo>

#include "shapes.h"

using namespace baraquant::border;

namespace {

// It overrides nothing of Shape: its vtable holds the library's functions.
class Cube : public Square {
 public:
  using Square::Square;
};

template <typename Error>
bool is_caught(int how) {
  try {
    fail(how);
  } catch (const Error&) {
    return true;
  } catch (...) {
  }
  return false;
}

void check(const char* what, bool works) {
  std::cout << what << (works ? ": works\n" : ": FAILS\n");
}

}  // namespace

int main() {
  const std::shared_ptr<torch::nn::Module> module = make_square(3);
  check("dynamic_cast to a class", dynamic_cast<Square*>(module.get()) != nullptr);
  check("dynamic_cast to the second base", dynamic_cast<Shape*>(module.get())->area() == 9);
  check("dynamic_pointer_cast", std::dynamic_pointer_cast<Square>(module) != nullptr);
  check("torch::nn::Module::as", module->as<Square>() != nullptr);
  check("typeid", typeid(*module) == typeid(Square));

  const auto cube = std::make_shared<Cube>(2);
  const Shape& shape = *cube;
  check("a derived class", shape.area() == 4 && is_square(*cube));

  torch::nn::Sequential model;
  model->push_back(std::dynamic_pointer_cast<Square>(module));
  model->push_back(Square(2));
  check("torch::nn::Sequential", run(model, at::ones({1})).item<double>() == 6);

  check("c10::ValueError", is_caught<c10::ValueError>(0));
  check("c10::IndexError", is_caught<c10::IndexError>(1));
  check("c10::Error", is_caught<c10::Error>(2) && is_caught<c10::Error>(0));
  check("std::exception", is_caught<std::exception>(0));
  check("an exception of the library", is_caught<OwnError>(3));
}
