// SPDX-License-Identifier: BSD-3-Clause
// libbaraquant.so is compiled with -fvisibility=hidden: BARAQUANT_API marks what others may link
// against (baraquant._C and C++ programs). The ops need no mark, the dispatcher finds them by name.
#pragma once

#define BARAQUANT_API __attribute__((visibility("default")))
