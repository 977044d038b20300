/* SPDX-License-Identifier: BSD-3-Clause */
/* The table that the library finds in libbanyan-lgc.so. oneDNN runs on OpenMP's threads, by
 * default one a CPU in every rank: each call limits them, for this thread, and sets back what
 * the program had. */
#include "methods/lgc/module/encoder_net.h"

/* libgomp's: clang has no omp.h without LLVM's own OpenMP. */
int omp_get_max_threads(void);
void omp_set_num_threads(int n);

static struct bny_net *of(struct bny_lgc_net *net)
{
    return (struct bny_net *)net;
}

static int limit(int threads)
{
    int before = omp_get_max_threads();

    omp_set_num_threads(threads);
    return before;
}

static int unlimit(int before, int rc)
{
    omp_set_num_threads(before);
    return rc;
}

static int create(struct bny_lgc_net **out, const struct bny_lgc_net_conf *conf, char *text)
{
    int before = limit(conf->threads);
    struct bny_net *n;
    int rc = bny_net_create(&n, conf, text);

    *out = n ? &n->net : NULL;
    return unlimit(before, rc);
}

static void destroy(struct bny_lgc_net *net)
{
    bny_net_destroy(net ? of(net) : NULL);
}

static int lgc_module_pack(struct bny_lgc_net *net)
{
    int before = limit(of(net)->conf.threads);

    return unlimit(before, bny_net_pack(of(net)));
}

static int lgc_module_encode(struct bny_lgc_net *net, const float *x, float *code)
{
    int before = limit(of(net)->conf.threads);

    return unlimit(before, bny_net_encode(of(net), x, code));
}

static int lgc_module_decode(struct bny_lgc_net *net, int d, const float *code,
                             const float *innovation, float *x)
{
    int before = limit(of(net)->conf.threads);

    return unlimit(before, bny_net_decode(of(net), d, code, innovation, x));
}

static int gradients(struct bny_lgc_net *net, const float *x, const float *innovation,
                     int chosen, float *y, double *loss)
{
    int before = limit(of(net)->conf.threads);

    return unlimit(before, bny_net_gradients(of(net), x, innovation, chosen, y, loss));
}

static int update(struct bny_lgc_net *net)
{
    int before = limit(of(net)->conf.threads);

    return unlimit(before, bny_net_update(of(net)));
}

static const struct bny_lgc_net_ops table = {
    .version = BNY_LGC_NET_VERSION,
    .create = create,
    .destroy = destroy,
    .pack = lgc_module_pack,
    .encode = lgc_module_encode,
    .decode = lgc_module_decode,
    .gradients = gradients,
    .update = update,
};

bny_lgc_net_fn bny_lgc_module;
__attribute__((visibility("default"))) const struct bny_lgc_net_ops *bny_lgc_module(void)
{
    return &table;
}
