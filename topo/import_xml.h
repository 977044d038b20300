/* SPDX-License-Identifier: BSD-3-Clause */
/* XML by expat, for importers: no document type, so no entities; depth and attributes bounded.
 */
#ifndef BNY_TOPO_IMPORT_XML_H
#define BNY_TOPO_IMPORT_XML_H

#include "topo/import.h"

struct bny_xml {
    struct bny_import *im;
    void *arg;
    /* Names come without namespace prefixes. attr: name, value, ..., NULL. text: the text
     * between the element's tags without nested elements, at most 255 bytes, trimmed. Each
     * returns 0 or an error. */
    int (*start)(struct bny_xml *x, const char *name, const char **attr);
    int (*end)(struct bny_xml *x, const char *name, const char *text);
    int bare_doctype; /* accept a document type without declarations */
    /* Set by bny_xml_parse. */
    int line, depth, error;
    char text[256];
    size_t text_len;
    void *parser;
};

/* Returns 0, or the first error: the document's (file and line) or a handler's. */
int bny_xml_parse(struct bny_xml *x);
/* The value of that attribute, or NULL. */
const char *bny_xml_attr(const char **attr, const char *name);
/* Is the first element of the text <name ...>? */
int bny_xml_root_is(const char *text, size_t len, const char *name);

#endif
