/* SPDX-License-Identifier: BSD-3-Clause */
/* Error phrases and the thread's last error sentence. */
#include "base/counts.h"
#include "base/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

static _Thread_local char last_error[512];
static _Thread_local int last_code; /* code of last_error; 0: unknown */

static const char *const phrases[BNY_ERROR_COUNT] = {
    [BANYAN_OK] = "success",
    [BANYAN_EINVAL] = "invalid argument",
    [BANYAN_ENOMEM] = "out of memory or another local resource",
    [BANYAN_ETIMEDOUT] = "deadline passed",
    [BANYAN_ERANKDEAD] = "a rank died or its connection was lost",
    [BANYAN_EMISMATCH] = "ranks disagree on the operation",
    [BANYAN_EABORTED] = "the communicator was aborted",
    [BANYAN_EPROTO] = "a peer broke the protocol",
    [BANYAN_ENOTSUP] = "not supported here",
    [BANYAN_ESYSTEM] = "a system call failed",
    [BANYAN_EFORK] = "called in a forked child",
    [BANYAN_EBUSY] = "the request or communicator is in use",
    [BANYAN_EVERSION] = "ranks run incompatible library versions",
    [BANYAN_ECONFIG] = "settings are wrong or differ between ranks",
};

const char *banyan_strerror(int code)
{
    unsigned c = code < 0 ? 0u - (unsigned)code : (unsigned)code;
    return c < BNY_ERROR_COUNT ? phrases[c] : "unknown error";
}

const char *banyan_last_error(void)
{
    return last_error;
}

void bny_set_last_error(const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text);
    bny_text_printable(last_error);
    last_code = 0;
}

const char *bny_why(int rc)
{
    return rc && rc == last_code ? last_error : banyan_strerror(rc);
}

void bny_first_error_note(struct bny_first_error *first, int rc)
{
    if (rc == 0 || first->rc)
        return;
    first->rc = rc;
    snprintf(first->text, sizeof first->text, "%s", last_error);
}

int bny_first_error_return(const struct bny_first_error *first)
{
    if (first->rc)
        bny_set_last_error(first->text);
    return first->rc;
}

int banyan_fail(enum banyan_error code, const char *fmt, ...)
{
    char text[sizeof last_error]; /* arguments may point into last_error */
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    bny_set_last_error(text);
    last_code = -(int)code;
    return last_code;
}

int bny_fail_errno(const char *fmt, ...)
{
    char text[sizeof last_error];
    int saved = errno;
    va_list ap;

    va_start(ap, fmt);
    bny_vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return bny_fail(BANYAN_ESYSTEM, "%.380s: %s%s", text, strerror(saved),
                    saved == EMFILE   ? "; raise ulimit -n"
                    : saved == ENFILE ? "; raise sysctl fs.file-max"
                                      : "");
}
