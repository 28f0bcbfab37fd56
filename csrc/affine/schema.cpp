// SPDX-License-Identifier: BSD-3-Clause
// The ops of the affine family: schemas, and the public ops. A public op names a granularity and
// calls the core op of its direction, which checks its arguments; numerics in math.h.
//   quantize      q = clamp(rint(x / s) + z, quant_min, quant_max)
//   dequantize    y = (q - z) * s
//   fake_quantize y = (clamp(rint(x / s) + z, quant_min, quant_max) - z) * s
#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include "affine/checks.h"
#include "affine/core_ops.h"
#include "frame/checks.h"

namespace baraquant::affine {
namespace {

// The scale and zero point of a public op, as given.
struct Given {
  const at::Tensor& scale;
  const OptionalTensor& zero_point;
};

// One granularity's own arguments, and the integer range.
struct Scope {
  Granularity granularity;
  int64_t axis = -1;
  c10::SymInt group_size = 1;
  int64_t quant_min = -128, quant_max = 127;
};

// Calls f(QuantArgs) with a scale tensor.
template <typename F>
auto with_tensors(const OpName& op, const at::Tensor& input, const at::Tensor& scale,
                  const OptionalTensor& zero_point, const Scope& scope, const F& f) {
  check_dispatchable(op, "input", input);
  check_dispatchable(op, "scale", scale);
  if (zero_point) check_dispatchable(op, "zero_point", *zero_point);
  const OptionalTensor given_scale(scale);
  return f(QuantArgs{given_scale, zero_point, 1, 0, scope.granularity, scope.axis, scope.group_size,
                     scope.quant_min, scope.quant_max});
}

// Calls f(QuantArgs) with numbers, or with a scale tensor and a number as its zero point.
template <typename F>
auto with_numbers(const OpName& op, const at::Tensor& input, double scale,
                  std::optional<int64_t> zero_point, int64_t quant_min, int64_t quant_max,
                  const F& f) {
  check_dispatchable(op, "input", input);
  static const OptionalTensor none;
  return f(QuantArgs{none, none, scale, zero_point.value_or(0), Granularity::kPerTensor, -1, 1,
                     quant_min, quant_max});
}

template <typename F>
auto with_numbers(const OpName& op, const at::Tensor& input, const at::Tensor& scale,
                  int64_t zero_point, int64_t quant_min, int64_t quant_max, const F& f) {
  check_dispatchable(op, "input", input);
  check_dispatchable(op, "scale", scale);
  static const OptionalTensor none;
  const OptionalTensor given_scale(scale);
  return f(QuantArgs{given_scale, none, 1, zero_point, Granularity::kPerTensor, -1, 1, quant_min,
                     quant_max});
}

at::Tensor quantize_in(const at::Tensor& input, const at::Tensor& scale,
                       const OptionalTensor& zero_point, const Scope& scope, at::ScalarType dtype,
                       std::optional<bool> save_mask) {
  return with_tensors({"quantize", scope.granularity}, input, scale, zero_point, scope,
                      [&](const QuantArgs& q) { return quantize(input, q, dtype, save_mask); });
}

at::Tensor fake_quantize_in(const at::Tensor& input, const at::Tensor& scale,
                            const OptionalTensor& zero_point, const Scope& scope,
                            std::optional<bool> save_mask) {
  return with_tensors({"fake_quantize", scope.granularity}, input, scale, zero_point, scope,
                      [&](const QuantArgs& q) { return fake_quantize(input, q, save_mask); });
}

at::Tensor dequantize_in(const at::Tensor& input, const at::Tensor& scale,
                         const OptionalTensor& zero_point, const Scope& scope,
                         std::optional<at::ScalarType> dtype) {
  return with_tensors({"dequantize", scope.granularity}, input, scale, zero_point, scope,
                      [&](const QuantArgs& q) {
                        return dequantize(input, q, dtype.value_or(scale.scalar_type()));
                      });
}

template <bool through_quantize>
at::Tensor backward_in(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& scale,
                       const OptionalTensor& zero_point, const Scope& scope) {
  const OpName op{through_quantize ? "quantize" : "fake_quantize", scope.granularity, "_backward"};
  check_dispatchable(op, "grad", grad);
  return with_tensors(op, input, scale, zero_point, scope, [&](const QuantArgs& q) {
    return input_gradient(input, q, grad, through_quantize);
  });
}

TensorTriple backward_qparams_in(const at::Tensor& grad, const at::Tensor& input,
                                 const at::Tensor& scale, const OptionalTensor& zero_point,
                                 const Scope& scope) {
  const OpName op{"fake_quantize", scope.granularity, "_backward_qparams"};
  check_dispatchable(op, "grad", grad);
  return with_tensors(op, input, scale, zero_point, scope, [&](const QuantArgs& q) {
    return qparams_gradient(input, q, grad, /*zero_point_gradient=*/true);
  });
}

// dq = dy * s: dequantize with a zero point of 0.
at::Tensor dequantize_backward_in(const at::Tensor& grad, const at::Tensor& scale,
                                  const Scope& scope, std::optional<at::ScalarType> dtype) {
  const OpName op{"dequantize", scope.granularity, "_backward"};
  check_dispatchable(op, "grad", grad);
  check_floating(op, "grad", grad);
  return with_tensors(op, grad, scale, {}, scope, [&](const QuantArgs& q) {
    const at::ScalarType output = dtype.value_or(grad.scalar_type());
    check_dequantize(op, grad, q, output, "grad");
    TORCH_CHECK_NOT_IMPLEMENTED(!(at::GradMode::is_enabled() && scale.requires_grad()), op,
                                ": a gradient in scale is not implemented; detach it "
                                "(scale.detach())");
    return dequantize(grad, q, output);
  });
}

// The public ops of one granularity. G are its own arguments: none (per tensor, per token), an axis
// (per channel), or a group size and an axis (per group).
template <Granularity granularity, typename... G>
struct PublicOps {
  using Dtype = at::ScalarType;

  static Scope scope(int64_t quant_min, int64_t quant_max) {
    return {granularity, -1, 1, quant_min, quant_max};
  }
  static Scope scope(int64_t axis, int64_t quant_min, int64_t quant_max) {
    return {granularity, axis, 1, quant_min, quant_max};
  }
  static Scope scope(c10::SymInt group_size, int64_t axis, int64_t quant_min, int64_t quant_max) {
    return {granularity, axis, limited_group_size(std::move(group_size)), quant_min, quant_max};
  }

  static at::Tensor quantize(const at::Tensor& input, const at::Tensor& scale,
                             const OptionalTensor& zero_point, G... g, int64_t quant_min,
                             int64_t quant_max, Dtype dtype, std::optional<bool> save_mask) {
    return quantize_in(input, scale, zero_point, scope(g..., quant_min, quant_max), dtype,
                       save_mask);
  }
  static at::Tensor dequantize(const at::Tensor& input, const at::Tensor& scale,
                               const OptionalTensor& zero_point, G... g,
                               std::optional<Dtype> dtype) {
    return dequantize_in(input, scale, zero_point, scope(g..., -128, 127), dtype);
  }
  static at::Tensor fake_quantize(const at::Tensor& input, const at::Tensor& scale,
                                  const OptionalTensor& zero_point, G... g, int64_t quant_min,
                                  int64_t quant_max, std::optional<bool> save_mask) {
    return fake_quantize_in(input, scale, zero_point, scope(g..., quant_min, quant_max), save_mask);
  }
  template <bool through_quantize>
  static at::Tensor backward(const at::Tensor& grad, const at::Tensor& input,
                             const at::Tensor& scale, const OptionalTensor& zero_point, G... g,
                             int64_t quant_min, int64_t quant_max) {
    return backward_in<through_quantize>(grad, input, scale, zero_point,
                                         scope(g..., quant_min, quant_max));
  }
  static TensorTriple backward_qparams(const at::Tensor& grad, const at::Tensor& input,
                                       const at::Tensor& scale, const OptionalTensor& zero_point,
                                       G... g, int64_t quant_min, int64_t quant_max) {
    return backward_qparams_in(grad, input, scale, zero_point, scope(g..., quant_min, quant_max));
  }
  static at::Tensor dequantize_backward(const at::Tensor& grad, const at::Tensor& scale, G... g,
                                        std::optional<Dtype> dtype) {
    return dequantize_backward_in(grad, scale, scope(g..., -128, 127), dtype);
  }
};

// Per tensor, with at least one number. Scale and ZeroPoint: double and optional<int64_t>, or const
// Tensor& and int64_t.
template <typename Scale, typename ZeroPoint>
struct NumberOps {
  using Dtype = at::ScalarType;
  static constexpr Granularity kPerTensor = Granularity::kPerTensor;

  static void check_number(const OpName& op, ZeroPoint zero_point, int64_t low, int64_t high) {
    if constexpr (std::is_same_v<ZeroPoint, int64_t>) {
      check_zero_point_number(op, zero_point, low, high);
    }
  }

  static at::Tensor quantize(const at::Tensor& input, Scale scale, ZeroPoint zero_point,
                             int64_t quant_min, int64_t quant_max, Dtype dtype,
                             std::optional<bool> save_mask) {
    const OpName op{"quantize", kPerTensor};
    return with_numbers(op, input, scale, zero_point, quant_min, quant_max,
                        [&](const QuantArgs& q) {
                          check_number(op, zero_point, quant_min, quant_max);
                          return affine::quantize(input, q, dtype, save_mask);
                        });
  }
  static at::Tensor fake_quantize(const at::Tensor& input, Scale scale, ZeroPoint zero_point,
                                  int64_t quant_min, int64_t quant_max,
                                  std::optional<bool> save_mask) {
    const OpName op{"fake_quantize", kPerTensor};
    return with_numbers(op, input, scale, zero_point, quant_min, quant_max,
                        [&](const QuantArgs& q) {
                          check_number(op, zero_point, quant_min, quant_max);
                          return affine::fake_quantize(input, q, save_mask);
                        });
  }
  static at::Tensor dequantize(const at::Tensor& input, Scale scale, ZeroPoint zero_point,
                               std::optional<Dtype> dtype) {
    Dtype compute = at::kFloat;  // a number has no dtype
    if constexpr (std::is_same_v<Scale, double>) {
      if (input.scalar_type() == at::kDouble) compute = at::kDouble;
    } else {
      compute = scale.scalar_type();
    }
    return with_numbers(
        {"dequantize", kPerTensor}, input, scale, zero_point, -128, 127,
        [&](const QuantArgs& q) { return affine::dequantize(input, q, dtype.value_or(compute)); });
  }
};

// "quantize" and "per_channel" and the granularity's arguments make the schemas of the family.
void define_granularity(torch::Library& m, const std::string& name, const std::string& arguments) {
  const std::string tensors = "Tensor input, Tensor scale, Tensor? zero_point";
  const std::string range = "int quant_min=-128, int quant_max=127";
  const std::string mask = "bool? save_mask=None";
  const auto def = [&](const std::string& schema) {
    m.def(torch::schema(schema.c_str()), {at::Tag::pt2_compliant_tag});
  };
  def("quantize_" + name + "(" + tensors + arguments + ", " + range +
      ", *, ScalarType dtype=int8, " + mask + ") -> Tensor");
  def("dequantize_" + name + "(" + tensors + arguments + ", *, ScalarType? dtype=None) -> Tensor");
  def("fake_quantize_" + name + "(" + tensors + arguments + ", " + range + ", *, " + mask +
      ") -> Tensor");
  for (const char* verb : {"quantize_", "fake_quantize_"}) {
    def(verb + name + "_backward(Tensor grad, " + tensors + arguments + ", " + range +
        ") -> Tensor");
  }
  def("fake_quantize_" + name + "_backward_qparams(Tensor grad, " + tensors + arguments + ", " +
      range + ") -> (Tensor grad_input, Tensor grad_scale, Tensor grad_zero_point)");
  def("dequantize_" + name + "_backward(Tensor grad, Tensor scale" + arguments +
      ", *, ScalarType? dtype=None) -> Tensor");
}

template <typename Ops>
void implement_granularity(torch::Library& m, const std::string& name) {
  const auto impl = [&](const std::string& op, auto* function) { m.impl(op.c_str(), function); };
  impl("quantize_" + name, &Ops::quantize);
  impl("dequantize_" + name, &Ops::dequantize);
  impl("fake_quantize_" + name, &Ops::fake_quantize);
  impl("quantize_" + name + "_backward", &Ops::template backward<true>);
  impl("fake_quantize_" + name + "_backward", &Ops::template backward<false>);
  impl("fake_quantize_" + name + "_backward_qparams", &Ops::backward_qparams);
  impl("dequantize_" + name + "_backward", &Ops::dequantize_backward);
}

// The overloads of per tensor that take numbers.
void define_numbers(torch::Library& m, const std::string& name, const std::string& qparams) {
  const auto def = [&](const std::string& verb, const std::string& more) {
    const std::string schema =
        verb + "_per_tensor." + name + "(Tensor input, " + qparams + more + ") -> Tensor";
    m.def(torch::schema(schema.c_str()), {at::Tag::pt2_compliant_tag});
  };
  const std::string range = ", int quant_min=-128, int quant_max=127, *, ";
  def("quantize", range + "ScalarType dtype=int8, bool? save_mask=None");
  def("dequantize", ", *, ScalarType? dtype=None");
  def("fake_quantize", range + "bool? save_mask=None");
}

template <typename Ops>
void implement_numbers(torch::Library& m, const std::string& name) {
  m.impl(("quantize_per_tensor." + name).c_str(), &Ops::quantize);
  m.impl(("dequantize_per_tensor." + name).c_str(), &Ops::dequantize);
  m.impl(("fake_quantize_per_tensor." + name).c_str(), &Ops::fake_quantize);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(baraquant, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  define_granularity(m, "per_tensor", "");
  define_granularity(m, "per_channel", ", int axis");
  define_granularity(m, "per_token", "");
  define_granularity(m, "per_group", ", SymInt group_size, int axis=-1");
  // In this order: torch.ops takes the first that fits, and would make a float of a scale tensor.
  define_numbers(m, "scale_tensor", "Tensor scale, int zero_point");
  define_numbers(m, "number", "float scale, int? zero_point");

  // The core ops: see core_ops.h. A mask holds one bit per element, in the given memory order.
  const std::string args =
      "Tensor? scale, Tensor? zero_point, float scale_number, int zero_point_number, "
      "int granularity, int axis, SymInt group_size, int quant_min, int quant_max";
  const auto def = [&](const std::string& schema) { m.def(torch::schema(schema.c_str()), tags); };
  def("_quantize(Tensor input, " + args + ", ScalarType dtype, bool? save_mask) -> Tensor");
  def("_fake_quantize(Tensor input, " + args +
      ", bool? save_mask, Tensor? enabled=None) -> Tensor");
  def("_dequantize(Tensor input, " + args + ", ScalarType dtype) -> Tensor");
  def("_quantize_with_mask(Tensor input, " + args +
      ", ScalarType dtype, int[] order) -> "
      "(Tensor output, Tensor mask)");
  def("_fake_quantize_with_mask(Tensor input, " + args +
      ", int[] order, Tensor? enabled=None) -> "
      "(Tensor output, Tensor mask)");
  def("_input_gradient(Tensor input, " + args + ", Tensor grad, bool through_quantize) -> Tensor");
  def("_masked_gradient(Tensor grad, " + args +
      ", Tensor mask, int[] order, ScalarType dtype, "
      "bool through_quantize) -> Tensor");
  def("_qparams_gradient(Tensor input, " + args +
      ", Tensor grad, bool zero_point_gradient) -> "
      "(Tensor grad_input, Tensor grad_scale, Tensor grad_zero_point)");
}

TORCH_LIBRARY_IMPL(baraquant, CompositeImplicitAutograd, m) {
  implement_granularity<PublicOps<Granularity::kPerTensor>>(m, "per_tensor");
  implement_granularity<PublicOps<Granularity::kPerChannel, int64_t>>(m, "per_channel");
  implement_granularity<PublicOps<Granularity::kPerToken>>(m, "per_token");
  implement_granularity<PublicOps<Granularity::kPerGroup, c10::SymInt, int64_t>>(m, "per_group");
  implement_numbers<NumberOps<double, std::optional<int64_t>>>(m, "number");
  implement_numbers<NumberOps<const at::Tensor&, int64_t>>(m, "scale_tensor");
}

}  // namespace baraquant::affine
