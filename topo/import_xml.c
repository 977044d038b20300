/* SPDX-License-Identifier: BSD-3-Clause */
/* XML by expat (import_xml.h). */
#include "topo/import_xml.h"

#include <string.h>

#include "base/err.h"
#include "base/lazy_expat.h"

#define DEPTH_MAX 64

static const char *plain(const char *name)
{
    const char *colon = strrchr(name, ':');

    return colon ? colon + 1 : name;
}

/* Only the first error counts: expat may call again after XML_StopParser. */
static void result(struct bny_xml *x, int e)
{
    if (e && !x->error) {
        x->error = e;
        XML_StopParser(x->parser, XML_FALSE);
    }
}

static void on_start(void *arg, const char *name, const char **attr)
{
    struct bny_xml *x = arg;

    if (x->error)
        return;
    x->line = (int)XML_GetCurrentLineNumber(x->parser);
    x->text_len = 0;
    if (++x->depth > DEPTH_MAX)
        result(x, bny_import_fail(x->im, x->line, "elements nest deeper than %d", DEPTH_MAX));
    else
        result(x, x->start(x, plain(name), attr));
}

static void on_end(void *arg, const char *name)
{
    struct bny_xml *x = arg;
    const char *text = x->text;

    if (x->error)
        return;
    x->line = (int)XML_GetCurrentLineNumber(x->parser);
    x->depth--;
    while (x->text_len && strchr(" \t\r\n", x->text[x->text_len - 1]))
        x->text_len--;
    x->text[x->text_len] = 0;
    x->text_len = 0;
    if (x->end)
        result(x, x->end(x, plain(name), text + strspn(text, " \t\r\n")));
}

static void on_text(void *arg, const char *text, int len)
{
    struct bny_xml *x = arg;
    size_t n = (size_t)len;

    if (n > sizeof x->text - 1 - x->text_len)
        n = sizeof x->text - 1 - x->text_len;
    memcpy(x->text + x->text_len, text, n);
    x->text_len += n;
}

/* Entities are declared in a document type, so there are none to expand or fetch. */
static void on_doctype(void *arg, const char *name, const char *sysid, const char *pubid,
                       int internal)
{
    struct bny_xml *x = arg;

    if (internal || !x->bare_doctype)
        result(x, bny_import_fail(
                      x->im, (int)XML_GetCurrentLineNumber(x->parser),
                      "a document type declaration (<!DOCTYPE) is refused; delete it"));
}

int bny_xml_parse(struct bny_xml *x)
{
    int e = bny_lazy_expat();
    XML_Parser p = e ? NULL : XML_ParserCreate(NULL);

    if (e)
        return e;
    if (!p)
        return bny_fail(BANYAN_ENOMEM, "no memory for the XML of %s", x->im->file);
    x->parser = p;
    x->error = x->depth = 0;
    x->text_len = 0;
    XML_SetUserData(p, x);
    XML_SetElementHandler(p, on_start, on_end);
    XML_SetCharacterDataHandler(p, on_text);
    XML_SetStartDoctypeDeclHandler(p, on_doctype);
    XML_SetParamEntityParsing(p, XML_PARAM_ENTITY_PARSING_NEVER);
    if (XML_Parse(p, x->im->text, (int)x->im->len, 1) != XML_STATUS_OK && !x->error)
        x->error = bny_import_fail(x->im, (int)XML_GetCurrentLineNumber(p), "%s",
                                   XML_ErrorString(XML_GetErrorCode(p)));
    XML_ParserFree(p);
    x->parser = NULL;
    return x->error;
}

const char *bny_xml_attr(const char **attr, const char *name)
{
    for (; attr[0]; attr += 2)
        if (!strcmp(attr[0], name))
            return attr[1];
    return NULL;
}

int bny_xml_root_is(const char *text, size_t len, const char *name)
{
    const char *s = text, *stop = text + len;
    size_t n = strlen(name);

    if (len >= 3 && !memcmp(s, "\xef\xbb\xbf", 3))
        s += 3;
    for (;;) {
        s += strspn(s, " \t\r\n");
        if (s >= stop || *s != '<')
            return 0;
        if (s[1] == '!' && s[2] == '-') {
            s = strstr(s, "-->");
            s = s ? s + 3 : stop;
        } else if (s[1] == '?' || s[1] == '!') {
            s += strcspn(s, "[>");
            if (*s == '[')
                s += strcspn(s, "]");
            s = strchr(s, '>');
            s = s ? s + 1 : stop;
        } else {
            return !strncmp(s + 1, name, n) && s[1 + n] && strchr(" \t\r\n>/", s[1 + n]);
        }
    }
}
