/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules: shared objects of this project that link a large library (DPDK, oneDNN), loaded on
 * first use, so that libbanyan works without that library. */
#ifndef BNY_BASE_MODULE_H
#define BNY_BASE_MODULE_H

#include <stddef.h>

/* Location of a module: next to libbanyan, in ../lib of a program with the library inside, or
 * in `folder` of a build ("transport/dpdk/module/", with the slash). Writes the path, or the
 * bare file name, which the loader then searches. Any thread. */
void bny_module_find(char *path, size_t cap, const char *file, const char *folder);

/* 1: this program has no dynamic linker. It can load small C libraries, but those with threads
 * or C++ inside (oneDNN) crash in it. Any thread. */
int bny_module_static_program(void);

#endif
