// SPDX-License-Identifier: BSD-3-Clause
// A small library's header: classes and exceptions, exported as libbaraquant.so exports its own.
#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/sequential.h>

#include <memory>
#include <stdexcept>

#include "api/export.h"

namespace baraquant::border {

// A second base class, behind the first: its functions are entered with another `this`.
class BARAQUANT_API Shape {
 public:
  virtual ~Shape();
  virtual double area() const = 0;
};

class BARAQUANT_API Square : public torch::nn::Module, public Shape {
 public:
  explicit Square(double side);
  double area() const override;
  torch::Tensor forward(const torch::Tensor& input);

 private:
  double side_;
};

class BARAQUANT_API OwnError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Not marked.
double hidden(double side);

BARAQUANT_API std::shared_ptr<torch::nn::Module> make_square(double side);
BARAQUANT_API torch::Tensor run(torch::nn::Sequential& model, const torch::Tensor& input);
BARAQUANT_API bool is_square(const torch::nn::Module& module);
BARAQUANT_API void fail(int how);

}  // namespace baraquant::border
