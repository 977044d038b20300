/* SPDX-License-Identifier: BSD-3-Clause */
/* cJSON, loaded on first use (lazy.h). */
#ifndef BNY_BASE_LAZY_CJSON_H
#define BNY_BASE_LAZY_CJSON_H

#include <cjson/cJSON.h>

#define BNY_CJSON_FUNCTIONS(F)                                                                 \
    F(cJSON_ParseWithLengthOpts)                                                               \
    F(cJSON_Delete)                                                                            \
    F(cJSON_GetObjectItemCaseSensitive)                                                        \
    F(cJSON_GetArraySize)                                                                      \
    F(cJSON_IsArray)                                                                           \
    F(cJSON_IsNumber)                                                                          \
    F(cJSON_IsObject)                                                                          \
    F(cJSON_IsString)

#define BNY_LAZY_MEMBER(f) __typeof__(&f) f;
struct bny_cjson_table {
    BNY_CJSON_FUNCTIONS(BNY_LAZY_MEMBER)
};
#undef BNY_LAZY_MEMBER
extern struct bny_cjson_table bny_cjson_table;

/* 0, or -BANYAN_ENOTSUP: not installed. */
int bny_lazy_cjson(void);

#define cJSON_ParseWithLengthOpts        bny_cjson_table.cJSON_ParseWithLengthOpts
#define cJSON_Delete                     bny_cjson_table.cJSON_Delete
#define cJSON_GetObjectItemCaseSensitive bny_cjson_table.cJSON_GetObjectItemCaseSensitive
#define cJSON_GetArraySize               bny_cjson_table.cJSON_GetArraySize
#define cJSON_IsArray                    bny_cjson_table.cJSON_IsArray
#define cJSON_IsNumber                   bny_cjson_table.cJSON_IsNumber
#define cJSON_IsObject                   bny_cjson_table.cJSON_IsObject
#define cJSON_IsString                   bny_cjson_table.cJSON_IsString

#endif
