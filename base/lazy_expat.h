/* SPDX-License-Identifier: BSD-3-Clause */
/* expat, loaded on first use (lazy.h). */
#ifndef BNY_BASE_LAZY_EXPAT_H
#define BNY_BASE_LAZY_EXPAT_H

#include <expat.h>

#define BNY_EXPAT_FUNCTIONS(F)                                                                 \
    F(XML_ParserCreate)                                                                        \
    F(XML_ParserFree)                                                                          \
    F(XML_SetUserData)                                                                         \
    F(XML_SetElementHandler)                                                                   \
    F(XML_SetCharacterDataHandler)                                                             \
    F(XML_SetStartDoctypeDeclHandler)                                                          \
    F(XML_SetParamEntityParsing)                                                               \
    F(XML_Parse)                                                                               \
    F(XML_StopParser)                                                                          \
    F(XML_GetCurrentLineNumber)                                                                \
    F(XML_GetErrorCode)                                                                        \
    F(XML_ErrorString)

#define BNY_LAZY_MEMBER(f) __typeof__(&f) f;
struct bny_expat_table {
    BNY_EXPAT_FUNCTIONS(BNY_LAZY_MEMBER)
};
#undef BNY_LAZY_MEMBER
extern struct bny_expat_table bny_expat_table;

/* 0, or -BANYAN_ENOTSUP: not installed. */
int bny_lazy_expat(void);

#define XML_ParserCreate               bny_expat_table.XML_ParserCreate
#define XML_ParserFree                 bny_expat_table.XML_ParserFree
#define XML_SetUserData                bny_expat_table.XML_SetUserData
#define XML_SetElementHandler          bny_expat_table.XML_SetElementHandler
#define XML_SetCharacterDataHandler    bny_expat_table.XML_SetCharacterDataHandler
#define XML_SetStartDoctypeDeclHandler bny_expat_table.XML_SetStartDoctypeDeclHandler
#define XML_SetParamEntityParsing      bny_expat_table.XML_SetParamEntityParsing
#define XML_Parse                      bny_expat_table.XML_Parse
#define XML_StopParser                 bny_expat_table.XML_StopParser
#define XML_GetCurrentLineNumber       bny_expat_table.XML_GetCurrentLineNumber
#define XML_GetErrorCode               bny_expat_table.XML_GetErrorCode
#define XML_ErrorString                bny_expat_table.XML_ErrorString

#endif
