// SPDX-License-Identifier: BSD-3-Clause
// Structs of arguments across the dispatcher, for every family. The schema of an op has no structs:
// it lists their fields one by one. An argument struct is an aggregate of these fields, in the order
// of the schema, tensors by reference and the rest by value, that says how many they are:
//   static constexpr int kFields
// A field may be an argument struct itself. One whose fields are not those of the schema has instead
//   Flat         the types of its fields in a schema, a std::tuple
//   flat()       its fields as such a tuple
//   from_flat()  the struct, from these fields
// With structs of both kinds
//   CoreOp<Signature>        calls an op through the dispatcher with structs
//   kernel_of<&function>     is a kernel for the dispatcher that calls a function with structs
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

namespace baraquant {

template <typename T>
concept ConvertedArguments = requires { typename std::remove_cvref_t<T>::Flat; };

template <typename T>
concept ListedArguments = requires { std::remove_cvref_t<T>::kFields; };

// The fields of a ListedArguments, as their declarations have them.
template <typename... T>
auto fields_as_declared(const T&... fields) {
  return std::tuple<std::conditional_t<std::is_same_v<T, at::Tensor> ||
                                           std::is_same_v<T, std::optional<at::Tensor>>,
                                       const T&, T>...>(fields...);
}

template <ListedArguments T>
auto fields_of(const T& s) {
  constexpr int n = T::kFields;
  static_assert(n >= 2 && n <= 16);
#define BARAQUANT_FIELDS(count, ...)        \
  if constexpr (n == count) {               \
    const auto& [__VA_ARGS__] = s;          \
    return fields_as_declared(__VA_ARGS__); \
  }
  BARAQUANT_FIELDS(2, a, b)
  BARAQUANT_FIELDS(3, a, b, c)
  BARAQUANT_FIELDS(4, a, b, c, d)
  BARAQUANT_FIELDS(5, a, b, c, d, e)
  BARAQUANT_FIELDS(6, a, b, c, d, e, f)
  BARAQUANT_FIELDS(7, a, b, c, d, e, f, g)
  BARAQUANT_FIELDS(8, a, b, c, d, e, f, g, h)
  BARAQUANT_FIELDS(9, a, b, c, d, e, f, g, h, i)
  BARAQUANT_FIELDS(10, a, b, c, d, e, f, g, h, i, j)
  BARAQUANT_FIELDS(11, a, b, c, d, e, f, g, h, i, j, k)
  BARAQUANT_FIELDS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  BARAQUANT_FIELDS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  BARAQUANT_FIELDS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, o)
  BARAQUANT_FIELDS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p)
  BARAQUANT_FIELDS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q)
#undef BARAQUANT_FIELDS
}

template <typename... Tuples>
using Concatenated = decltype(std::tuple_cat(std::declval<Tuples>()...));

// Parameters P of a function, out of the fields that stand for them in a schema, one after another.
template <template <typename> class Parameter, typename... P>
struct Parameters {
  using Flat = Concatenated<typename Parameter<P>::Flat...>;

  // Calls make with the parameters; `all` is a tuple of references to the fields.
  template <typename Make, typename All>
  static decltype(auto) made(const Make& make, All& all) {
    return take(make, all, std::index_sequence_for<P...>());
  }

 private:
  // The place of the first field of parameter number i.
  static constexpr size_t place_of(size_t i) {
    constexpr size_t kSizes[] = {std::tuple_size_v<typename Parameter<P>::Flat>...};
    size_t place = 0;
    for (size_t before = 0; before < i; ++before) place += kSizes[before];
    return place;
  }

  template <typename Make, typename All, size_t... i>
  static decltype(auto) take(const Make& make, All& all, std::index_sequence<i...>) {
    return make(one<P, place_of(i)>(
        all, std::make_index_sequence<std::tuple_size_v<typename Parameter<P>::Flat>>())...);
  }

  template <typename Q, size_t place, typename All, size_t... j>
  static decltype(auto) one(All& all, std::index_sequence<j...>) {
    return Parameter<Q>::from_flat(std::get<place + j>(std::move(all))...);
  }
};

// A parameter of a function, and what stands for it in a schema: itself.
template <typename T>
struct Parameter {
  using Flat = std::tuple<T>;
  static Flat flat(T value) { return Flat(std::forward<T>(value)); }
  static T from_flat(T value) { return std::forward<T>(value); }
};

template <ConvertedArguments T>
struct Parameter<T> {
  using Struct = std::remove_cvref_t<T>;
  using Flat = typename Struct::Flat;
  static Flat flat(const Struct& value) { return value.flat(); }
  template <typename... Fields>
  static auto from_flat(Fields&&... fields) {
    return Struct::from_flat(std::forward<Fields>(fields)...);
  }
};

// The same for a struct, whose fields are a Parameter each.
template <template <typename> class Parameter, ListedArguments T>
struct ListedParameter {
  using Struct = std::remove_cvref_t<T>;

  template <typename Tuple>
  struct Of;
  template <typename... Field>
  struct Of<std::tuple<Field...>> : Parameters<Parameter, Field...> {
    static auto flat(const std::tuple<Field...>& fields) {
      return std::apply(
          [](const auto&... field) { return std::tuple_cat(Parameter<Field>::flat(field)...); },
          fields);
    }
  };
  using Fields = Of<decltype(fields_of(std::declval<const Struct&>()))>;
  using Flat = typename Fields::Flat;

  static Flat flat(const Struct& value) { return Fields::flat(fields_of(value)); }
  template <typename... F>
  static Struct from_flat(F&&... fields) {
    auto all = std::forward_as_tuple(std::forward<F>(fields)...);
    return Fields::made(
        [](auto&&... field) { return Struct{std::forward<decltype(field)>(field)...}; }, all);
  }
};

template <ListedArguments T>
struct Parameter<T> : ListedParameter<Parameter, T> {};

// Calls an op through the dispatcher. Looking an op up takes a while: keep one in a static.
template <typename Signature>
class CoreOp;

template <typename R, typename... P>
class CoreOp<R(P...)> {
 public:
  explicit CoreOp(const char* name, const char* overload = "")
      : handle_(find(name, overload, std::type_identity<Flat>())) {}

  R operator()(P... arguments) const {
    return std::apply(
        [&](auto&&... flat) -> R { return handle_.call(std::forward<decltype(flat)>(flat)...); },
        flattened(std::forward<P>(arguments)...));
  }

  // Calls the kernel of the next keys.
  R redispatch(c10::DispatchKeySet keys, P... arguments) const {
    return std::apply(
        [&](auto&&... flat) -> R {
          return handle_.redispatch(keys, std::forward<decltype(flat)>(flat)...);
        },
        flattened(std::forward<P>(arguments)...));
  }

  // Calls use(name, tensor) for each tensor of the arguments, by its name in the schema.
  template <typename Use>
  void for_each_tensor(const Use& use, P... arguments) const {
    auto named = handle_.schema().arguments().begin();
    const auto visit = [&]<typename T>(const T& value) {
      const char* name = (named++)->name().c_str();
      if constexpr (std::is_same_v<T, at::Tensor>) use(name, value);
      if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
        if (value) use(name, *value);
      }
    };
    std::apply([&](const auto&... flat) { (visit(flat), ...); },
               flattened(std::forward<P>(arguments)...));
  }

 private:
  using Flat = typename Parameters<Parameter, P...>::Flat;

  static Flat flattened(P... arguments) {
    return std::tuple_cat(Parameter<P>::flat(std::forward<P>(arguments))...);
  }

  template <typename... Fields>
  static c10::TypedOperatorHandle<R(Fields...)> find(const char* name, const char* overload,
                                                     std::type_identity<std::tuple<Fields...>>) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    return op.typed<R(Fields...)>();
  }

  decltype(find("", "", std::type_identity<Flat>())) handle_;
};

// A function that takes structs, as one that takes their fields.
template <auto function, template <typename> class Parameter, typename Signature>
struct Flattened;

template <auto function, template <typename> class Parameter, typename R, typename... P>
struct Flattened<function, Parameter, R (*)(P...)> {
  using All = Parameters<Parameter, P...>;
  using Flat = typename All::Flat;

  template <typename... Fields>
  static R call(Fields... fields) {
    auto all = std::forward_as_tuple(std::forward<Fields>(fields)...);
    return All::made(
        [](auto&&... made) -> R { return function(std::forward<decltype(made)>(made)...); }, all);
  }

  template <typename... Fields>
  static constexpr auto pointer(std::type_identity<std::tuple<Fields...>>) {
    return &call<Fields...>;
  }
};

template <auto function>
constexpr auto kernel_of = Flattened<function, Parameter, decltype(function)>::pointer(
    std::type_identity<typename Flattened<function, Parameter, decltype(function)>::Flat>());

}  // namespace baraquant
