/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules: shared objects of this project that link a large library (DPDK, oneDNN), loaded on
 * first use, so that libbanyan works where that library is absent. */
#ifndef BNY_BASE_MODULE_H
#define BNY_BASE_MODULE_H

#include <stddef.h>

/* Where a module lies: beside libbanyan, or in ../lib of a program that has the library inside,
 * or in `folder` of a build ("transport/dpdk/module/", with the slash). Writes the path, or the
 * bare name of the file, for the loader to look for. Any thread. */
void bny_module_find(char *path, size_t cap, const char *file, const char *folder);

/* 1: this program has no dynamic linker. It can load small C libraries, but those with threads
 * or C++ inside (oneDNN) crash in it. Any thread. */
int bny_module_static_program(void);

#endif
