/* SPDX-License-Identifier: BSD-3-Clause */
/* Reads the structure of an MSCCL file (msccl.h) with expat. Document types, and so entities,
 * are refused; the numbers are put into ranges that the rest may rely on. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/lazy_expat.h"
#include "base/text.h"
#include "collectives/program/msccl.h"

#define GPUS_MAX   4096
#define CHUNKS_MAX 65536
#define STEPS_MAX  (1 << 24)

struct parser {
    XML_Parser xml;
    const char *name; /* of the file */
    struct bny_msccl *m;
    int depth, gpu, rc;
    int gpus_cap, tbs_cap, steps_cap;
};

static void msccl_xml_bad(struct parser *p, int code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void msccl_xml_bad(struct parser *p, int code, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    if (p->rc)
        return;
    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    p->rc = bny_fail((enum banyan_error)code, "%s:%lu: %s", p->name,
                     (unsigned long)XML_GetCurrentLineNumber(p->xml), text);
    XML_StopParser(p->xml, XML_FALSE);
}

static const char *attribute(const XML_Char **attrs, const char *name)
{
    for (; *attrs; attrs += 2)
        if (!strcmp(attrs[0], name))
            return attrs[1];
    return NULL;
}

static int msccl_xml_number(struct parser *p, const XML_Char **attrs, const char *name,
                            long min, long max)
{
    const char *text = attribute(attrs, name);
    char *end = NULL;
    long v = 0;

    errno = 0;
    if (text)
        v = strtol(text, &end, 10);
    if (!text || end == text || *end || errno || v < min || v > max) {
        msccl_xml_bad(p, BANYAN_EINVAL,
                      "%s=\"%.40s\": a whole number from %ld to %ld is expected", name,
                      text ? text : "", min, max);
        return (int)min;
    }
    return (int)v;
}

/* One more element. NULL with the error set. */
static void *msccl_xml_grow(struct parser *p, void **array, int *cap, int used, int max,
                            size_t size)
{
    int more = *cap ? 2 * *cap : 16;
    void *at;

    if (used == max) {
        msccl_xml_bad(p, BANYAN_EINVAL, "more than %d of these are too many", max);
        return NULL;
    }
    if (used == *cap) {
        at = reallocarray(*array, (size_t)more, size);
        if (!at) {
            msccl_xml_bad(p, BANYAN_ENOMEM, "no memory for its elements");
            return NULL;
        }
        *array = at;
        *cap = more;
    }
    at = (char *)*array + (size_t)used * size;
    memset(at, 0, size);
    return at;
}

static void start_algo(struct parser *p, const XML_Char **attrs)
{
    static const struct {
        const char *name;
        enum bny_collective collective;
    } colls[] = { { "allreduce", BNY_ALLREDUCE },
                  { "allgather", BNY_ALLGATHER },
                  { "reduce_scatter", BNY_REDUCE_SCATTER },
                  { "reducescatter", BNY_REDUCE_SCATTER } };
    const char *coll = attribute(attrs, "coll"), *name = attribute(attrs, "name");
    int known = 0;

    for (size_t i = 0; coll && i < sizeof colls / sizeof colls[0]; i++)
        if (!strcmp(coll, colls[i].name)) {
            p->m->collective = colls[i].collective;
            known = 1;
        }
    if (!known)
        msccl_xml_bad(p, BANYAN_ENOTSUP,
                      "coll=\"%.40s\": allreduce, allgather and reduce_scatter can be imported",
                      coll ? coll : "");
    snprintf(p->m->name, sizeof p->m->name, "%s", name && *name ? name : "msccl");
    p->m->ngpus = msccl_xml_number(p, attrs, "ngpus", 2, GPUS_MAX);
    p->m->nchunks = msccl_xml_number(p, attrs, "nchunksperloop", 1, CHUNKS_MAX);
    p->m->inplace =
        attribute(attrs, "inplace") ? msccl_xml_number(p, attrs, "inplace", 0, 1) : 0;
}

static void start_gpu(struct parser *p, const XML_Char **attrs)
{
    int id = msccl_xml_number(p, attrs, "id", 0, p->m->ngpus - 1);
    struct bny_msccl_gpu *g;

    if (id != p->gpu)
        msccl_xml_bad(p, BANYAN_EINVAL, "gpu %d stands where gpu %d is expected", id, p->gpu);
    g = p->rc ? NULL
              : msccl_xml_grow(p, (void **)&p->m->gpus, &p->gpus_cap, p->gpu, p->m->ngpus,
                               sizeof *g);
    if (!g)
        return;
    p->gpu++;
    g->line = (int)XML_GetCurrentLineNumber(p->xml);
    g->chunks[0] = msccl_xml_number(p, attrs, "i_chunks", 0, CHUNKS_MAX);
    g->chunks[1] = msccl_xml_number(p, attrs, "o_chunks", 0, CHUNKS_MAX);
    g->chunks[2] = msccl_xml_number(p, attrs, "s_chunks", 0, CHUNKS_MAX);
    g->first = p->m->ntbs;
}

static void start_tb(struct parser *p, const XML_Char **attrs)
{
    struct bny_msccl_gpu *g = &p->m->gpus[p->gpu - 1];
    int id = msccl_xml_number(p, attrs, "id", 0, CHUNKS_MAX);
    struct bny_msccl_tb *tb;

    if (id != g->ntbs)
        msccl_xml_bad(p, BANYAN_EINVAL, "tb %d stands where tb %d is expected", id, g->ntbs);
    tb = p->rc ? NULL
               : msccl_xml_grow(p, (void **)&p->m->tbs, &p->tbs_cap, p->m->ntbs, STEPS_MAX,
                                sizeof *tb);
    if (!tb)
        return;
    p->m->ntbs++;
    g->ntbs++;
    tb->line = (int)XML_GetCurrentLineNumber(p->xml);
    tb->send = msccl_xml_number(p, attrs, "send", -1, p->m->ngpus - 1);
    tb->recv = msccl_xml_number(p, attrs, "recv", -1, p->m->ngpus - 1);
    tb->chan = msccl_xml_number(p, attrs, "chan", 0, 255);
    tb->first = p->m->nsteps;
    if (tb->send == p->gpu - 1 || tb->recv == p->gpu - 1)
        msccl_xml_bad(p, BANYAN_EINVAL, "gpu %d sends to itself", p->gpu - 1);
}

static int type_of(struct parser *p, const char *text)
{
    static const char *const names[] = { "nop", "s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy" };

    for (int i = 0; text && i < (int)(sizeof names / sizeof names[0]); i++)
        if (!strcmp(text, names[i]))
            return i;
    msccl_xml_bad(p, text && !strcmp(text, "re") ? BANYAN_ENOTSUP : BANYAN_EINVAL,
                  "type=\"%.40s\": this kind of step cannot be imported", text ? text : "");
    return MSCCL_NOP;
}

static char buffer(struct parser *p, const XML_Char **attrs, const char *name)
{
    const char *text = attribute(attrs, name);

    if (text && strlen(text) == 1 && strchr("ios", *text))
        return *text;
    msccl_xml_bad(p, BANYAN_EINVAL, "%s=\"%.40s\": i, o or s is expected", name,
                  text ? text : "");
    return 'i';
}

static void range(struct parser *p, char buf, int off, int cnt, const char *name)
{
    const struct bny_msccl_gpu *g = &p->m->gpus[p->gpu - 1];
    int chunks = g->chunks[buf == 'i' ? 0 : buf == 'o' ? 1 : 2];

    if (off + cnt > chunks)
        msccl_xml_bad(p, BANYAN_EINVAL,
                      "%s=\"%d\" with cnt=\"%d\": buffer %c of gpu %d has %d chunks", name, off,
                      cnt, buf, p->gpu - 1, chunks);
}

static void start_step(struct parser *p, const XML_Char **attrs)
{
    struct bny_msccl_tb *tb = &p->m->tbs[p->m->ntbs - 1];
    struct bny_msccl_step *s = msccl_xml_grow(p, (void **)&p->m->steps, &p->steps_cap,
                                              p->m->nsteps, STEPS_MAX, sizeof *s);

    if (!s)
        return;
    p->m->nsteps++;
    tb->nsteps++;
    s->line = (int)XML_GetCurrentLineNumber(p->xml);
    if (msccl_xml_number(p, attrs, "s", 0, STEPS_MAX) != tb->nsteps - 1)
        msccl_xml_bad(p, BANYAN_EINVAL, "this is step %d of its tb", tb->nsteps - 1);
    s->type = (uint8_t)type_of(p, attribute(attrs, "type"));
    s->depid =
        attribute(attrs, "depid") ? msccl_xml_number(p, attrs, "depid", -1, CHUNKS_MAX) : -1;
    s->deps = attribute(attrs, "deps") ? msccl_xml_number(p, attrs, "deps", -1, STEPS_MAX) : -1;
    if (s->type == MSCCL_NOP)
        return;
    s->cnt = msccl_xml_number(p, attrs, "cnt", 1, CHUNKS_MAX);
    s->srcbuf = buffer(p, attrs, "srcbuf");
    s->dstbuf = buffer(p, attrs, "dstbuf");
    s->srcoff = msccl_xml_number(p, attrs, "srcoff", -1, CHUNKS_MAX);
    s->dstoff = msccl_xml_number(p, attrs, "dstoff", -1, CHUNKS_MAX);
    if (s->type != MSCCL_R && s->type != MSCCL_RCS) {
        range(p, s->srcbuf, s->srcoff, s->cnt, "srcoff");
        if (s->srcoff < 0)
            msccl_xml_bad(p, BANYAN_EINVAL, "srcoff=\"-1\": this step reads a chunk");
    }
    if (s->type != MSCCL_S && s->type != MSCCL_RRS) {
        range(p, s->dstbuf, s->dstoff, s->cnt, "dstoff");
        if (s->dstoff < 0)
            msccl_xml_bad(p, BANYAN_EINVAL, "dstoff=\"-1\": this step writes a chunk");
    }
    if (s->type != MSCCL_R && s->type != MSCCL_RRC && s->type != MSCCL_CPY && tb->send < 0)
        msccl_xml_bad(p, BANYAN_EINVAL, "this step sends, and its tb has nobody to send to");
    if (s->type != MSCCL_S && s->type != MSCCL_CPY && tb->recv < 0)
        msccl_xml_bad(p, BANYAN_EINVAL,
                      "this step receives, and its tb has nobody to receive from");
}

static void XMLCALL msccl_xml_start(void *arg, const XML_Char *name, const XML_Char **attrs)
{
    static const char *const levels[] = { "algo", "gpu", "tb", "step" };
    static void (*const handlers[])(
        struct parser *, const XML_Char **) = { start_algo, start_gpu, start_tb, start_step };
    struct parser *p = arg;
    int at = p->depth++;

    if (p->rc)
        return;
    if (at > 3 || strcmp(name, levels[at]) != 0)
        msccl_xml_bad(p, BANYAN_EINVAL, "<%.40s> stands where <%s> is expected", name,
                      at > 3 ? "/step" : levels[at]);
    else
        handlers[at](p, attrs);
}

static void XMLCALL msccl_xml_end(void *arg, const XML_Char *name)
{
    struct parser *p = arg;

    p->depth--;
}

static void XMLCALL doctype(void *arg, const XML_Char *name, const XML_Char *sysid,
                            const XML_Char *pubid, int internal)
{
    msccl_xml_bad(arg, BANYAN_EINVAL, "a document type has no place here");
}

/* Checks references to other parts of the file. */
static int check_references(struct parser *p)
{
    const struct bny_msccl *m = p->m;

    if (p->gpu != m->ngpus)
        return bny_fail(BANYAN_EINVAL, "%s: %d of %d gpus are there", p->name, p->gpu,
                        m->ngpus);
    for (int g = 0; g < m->ngpus; g++)
        for (int t = m->gpus[g].first; t < m->gpus[g].first + m->gpus[g].ntbs; t++)
            for (int i = m->tbs[t].first; i < m->tbs[t].first + m->tbs[t].nsteps; i++) {
                const struct bny_msccl_step *s = &m->steps[i];

                if (s->depid >= 0 && (s->depid >= m->gpus[g].ntbs || s->deps < 0 ||
                                      s->deps >= m->tbs[m->gpus[g].first + s->depid].nsteps))
                    return bny_fail(
                        BANYAN_EINVAL,
                        "%s:%d: it waits for step %d of tb %d, which gpu %d does not have",
                        p->name, s->line, s->deps, s->depid, g);
            }
    return 0;
}

int bny_msccl_read(struct bny_msccl *out, const char *text, size_t len, const char *name)
{
    struct parser p = { .name = name, .m = out };

    memset(out, 0, sizeof *out);
    if (len > BNY_MSCCL_BYTES_MAX)
        return bny_fail(BANYAN_EINVAL, "%s is too large", name);
    if (bny_lazy_expat())
        return -BANYAN_ENOTSUP;
    p.xml = XML_ParserCreate(NULL);
    if (!p.xml)
        return bny_fail(BANYAN_ENOMEM, "%s: no memory for a parser", name);
    XML_SetUserData(p.xml, &p);
    XML_SetElementHandler(p.xml, msccl_xml_start, msccl_xml_end);
    XML_SetStartDoctypeDeclHandler(p.xml, doctype);
    if (XML_Parse(p.xml, text, (int)len, 1) != XML_STATUS_OK && !p.rc)
        msccl_xml_bad(&p, BANYAN_EINVAL, "%s", XML_ErrorString(XML_GetErrorCode(p.xml)));
    XML_ParserFree(p.xml);
    if (!p.rc)
        p.rc = check_references(&p);
    if (p.rc)
        bny_msccl_free(out);
    return p.rc;
}

void bny_msccl_free(struct bny_msccl *m)
{
    free(m->gpus);
    free(m->tbs);
    free(m->steps);
    m->gpus = NULL;
    m->tbs = NULL;
    m->steps = NULL;
}
