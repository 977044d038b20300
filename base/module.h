/* SPDX-License-Identifier: BSD-3-Clause */
/* Modules: shared objects of this project that link a large library (DPDK, oneDNN), loaded on
 * first use, so that libbanyan works without that library. */
#ifndef BNY_BASE_MODULE_H
#define BNY_BASE_MODULE_H

#include <limits.h>
#include <stddef.h>

/* The file that holds this code: the library, or a program with the library inside. 1: it is in
 * out; 0: unknown. Any thread. */
int bny_module_own_file(char out[PATH_MAX]);
/* Location of a module: next to libbanyan or in banyan/ there, for an installed program with
 * the library inside in ../lib/banyan/ (BNY_MODULES_FROM_BIN), or in `folder` of a build
 * ("methods/lgc/module/", with the slash). Writes the path, or the bare file name, which the
 * loader then searches. -1: others than this user, root and who may change libbanyan can change
 * the file at the path, or its folder. Any thread. */
int bny_module_find(char path[PATH_MAX], const char *file, const char *folder);
/* Loads it for good. NULL: why[cap] says the reason, else the path. Any thread. */
void *bny_module_load(const char *file, const char *folder, char *why, size_t cap);

/* 1: this program has no dynamic linker. It can load small C libraries, but those with threads
 * or C++ inside (oneDNN) crash in it. Any thread. */
int bny_module_static_program(void);

#endif
