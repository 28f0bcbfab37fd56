// SPDX-License-Identifier: BSD-3-Clause
// Structs of arguments across the dispatcher, for every family. The schema of an op has no structs:
// it lists their fields one by one. An argument struct therefore has
//   Flat         the types of its fields in a schema, a std::tuple
//   flat()       its fields as such a tuple
//   from_flat()  the struct, from these fields
// and with these
//   CoreOp<Signature>        calls an op through the dispatcher with structs
//   kernel_of<&function>     is a kernel for the dispatcher that calls a function with structs
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <tuple>
#include <type_traits>
#include <utility>

namespace baraquant {

template <typename T>
concept ArgumentStruct = requires { typename std::remove_cvref_t<T>::Flat; };

// A parameter of a function, and what stands for it in a schema: itself.
template <typename T>
struct Parameter {
  using Flat = std::tuple<T>;
  static Flat flat(T value) { return Flat(std::forward<T>(value)); }
  static T from_flat(T value) { return std::forward<T>(value); }
};

template <ArgumentStruct T>
struct Parameter<T> {
  using Struct = std::remove_cvref_t<T>;
  using Flat = typename Struct::Flat;
  static Flat flat(const Struct& value) { return value.flat(); }
  template <typename... Fields>
  static auto from_flat(Fields&&... fields) {
    return Struct::from_flat(std::forward<Fields>(fields)...);
  }
};

template <typename... Tuples>
using Concatenated = decltype(std::tuple_cat(std::declval<Tuples>()...));

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

 private:
  using Flat = Concatenated<typename Parameter<P>::Flat...>;

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
  template <typename... Fields>
  static R call(Fields... fields) {
    auto all = std::forward_as_tuple(std::forward<Fields>(fields)...);
    return take(all, std::index_sequence_for<P...>());
  }

  template <typename... Fields>
  static constexpr auto pointer(std::type_identity<std::tuple<Fields...>>) {
    return &call<Fields...>;
  }

  using Flat = Concatenated<typename Parameter<P>::Flat...>;

 private:
  // The place of the first field of parameter number i.
  static constexpr size_t place_of(size_t i) {
    constexpr size_t kSizes[] = {std::tuple_size_v<typename Parameter<P>::Flat>...};
    size_t place = 0;
    for (size_t before = 0; before < i; ++before) place += kSizes[before];
    return place;
  }

  template <typename All, size_t... i>
  static R take(All& all, std::index_sequence<i...>) {
    return function(one<P, place_of(i)>(
        all, std::make_index_sequence<std::tuple_size_v<typename Parameter<P>::Flat>>())...);
  }

  template <typename Q, size_t place, typename All, size_t... j>
  static decltype(auto) one(All& all, std::index_sequence<j...>) {
    return Parameter<Q>::from_flat(std::get<place + j>(std::move(all))...);
  }
};

template <auto function>
constexpr auto kernel_of = Flattened<function, Parameter, decltype(function)>::pointer(
    std::type_identity<typename Flattened<function, Parameter, decltype(function)>::Flat>());

}  // namespace baraquant
