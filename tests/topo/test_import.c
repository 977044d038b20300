/* SPDX-License-Identifier: BSD-3-Clause */
/* Promises of imports: every format gives the graph that it describes, own JSON survives a
 * round trip, and a file that is wrong or hostile gets one sentence that names the file and the
 * place. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "banyan/banyan.h"
#include "topo/import.h"

static struct bny_graph *parse(const char *text)
{
    struct bny_graph *g;
    int e = bny_graph_parse(&g, "dir/f", text, strlen(text));

    cr_assert_eq(e, 0, "%s\n%s", banyan_last_error(), text);
    return g;
}

static int64_t cap(const struct bny_graph *g, const char *a, const char *b)
{
    for (int l = 0; l < g->nlinks; l++)
        if (!strcmp(g->nodes[g->links[l].from].name, a) &&
            !strcmp(g->nodes[g->links[l].to].name, b))
            return g->links[l].cap;
    return 0;
}

static void refuse(const char *text, size_t len, const char *says)
{
    struct bny_graph *g;
    int e = bny_graph_parse(&g, "dir/f", text, len);

    cr_assert_eq(e, -BANYAN_EINVAL, "accepted (%d): %.200s", e, text);
    cr_assert_null(g);
    cr_assert(!strncmp(banyan_last_error(), "dir/f:", 6), "%s", banyan_last_error());
    cr_assert(strstr(banyan_last_error(), says), "\"%s\" lacks \"%s\"", banyan_last_error(),
              says);
}

Test(import, json_survives_a_round_trip)
{
    static const char *const texts[] = { "torus:4x4", "dgx-a100:2!dead=gpu0.3-ib", "dgx-1",
                                         "star:3x100+2x25!dead=0", "mesh:3x3!slow=0-1/2" };

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct bny_graph *g, *h;
        char *text;
        size_t len;
        FILE *f = open_memstream(&text, &len);
        cr_assert_eq(bny_graph_make(&g, texts[i]), 0);
        cr_assert_eq(bny_graph_save(g, f, ", \"date\": \"today\""), 0);
        fclose(f);
        h = parse(text);
        cr_assert(h->nnodes == g->nnodes && h->nlinks == g->nlinks && h->nranks == g->nranks);
        cr_assert_eq(memcmp(g->nodes, h->nodes, (size_t)g->nnodes * sizeof *g->nodes), 0, "%s",
                     texts[i]);
        cr_assert_eq(memcmp(g->links, h->links, (size_t)g->nlinks * sizeof *g->links), 0, "%s",
                     texts[i]);
        cr_assert(h->unit_Bps == g->unit_Bps && !strcmp(h->name, g->name));
        free(text);
        bny_graph_free(g);
        bny_graph_free(h);
    }
}

Test(import, json_takes_bytes_per_second_fractions_and_rank_lists)
{
    struct bny_graph *g = parse(
        "{\"nodes\":[{\"id\":0},{\"id\":\"b\",\"host\":4},{\"id\":\"s\",\"kind\":\"switch\"}],"
        "\"links\":[{\"src\":0,\"dst\":\"s\",\"cap\":12500000000,\"dir\":\"both\"},"
        "{\"src\":\"b\",\"dst\":\"s\",\"cap\":\"37500000000/2\",\"lat\":700,\"dir\":\"both\"}],"
        "\"ranks\":[\"b\",0]}");

    cr_assert(g->nranks == 2 && g->nodes[0].rank == 1 && g->nodes[1].rank == 0 &&
              g->nodes[1].host == 4);
    cr_assert(cap(g, "0", "s") == 2 && cap(g, "s", "b") == 3 && g->unit_Bps == 6.25e9);
    cr_assert_eq(g->links[2].lat_ns, 700);
    bny_graph_free(g);
}

Test(import, edge_lists_have_decimals_directions_and_directives)
{
    struct bny_graph *g =
        parse("src,dst,GBps,us\n# a comment\n@switch leaf\n@host 7 b c\n\n"
              "a, leaf, 12.5, 1.5\nb leaf 25 0 both # with a comment\r\n"
              "c leaf 0.5 0 one\nleaf c 25 2 one\nleaf c 25 1 one\n@rank c b a");

    cr_assert(g->nranks == 3 && g->nnodes == 4);
    cr_assert(cap(g, "a", "leaf") == 25 && cap(g, "leaf", "b") == 50 && g->unit_Bps == 5e8);
    cr_assert(cap(g, "c", "leaf") == 1 && cap(g, "leaf", "c") == 100, "parallel links add");
    cr_assert_str_eq(g->nodes[g->rank_node[0]].name, "c");
    cr_assert(g->nodes[g->rank_node[0]].host == 7 && g->nodes[g->rank_node[1]].host == 7);
    cr_assert_neq(g->nodes[g->rank_node[2]].host, 7);
    bny_graph_free(g);
    g = parse("2 0\n0 1\n1 2\n");
    cr_assert(g->nodes[0].rank == 2 && g->unit_Bps == 1e9, "numbers are the ranks");
    bny_graph_free(g);
}

Test(import, graphml_of_networkx)
{
    struct bny_graph *g = parse("<?xml version='1.0' encoding='utf-8'?>\n<!-- a comment -->\n"
                                "<graphml xmlns=\"http://graphml.graphdrawing.org/xmlns\"><key "
                                "id=\"d1\" for=\"edge\" attr.name=\"GBps\"/>\n"
                                "<key id=\"d2\" for=\"node\" attr.name=\"kind\"/><key "
                                "id=\"d3\" for=\"edge\" attr.name=\"us\"/>\n"
                                "<graph edgedefault=\"undirected\"><node id=\"0\"/><node "
                                "id=\"1\"/><node id=\"hub\"><data key=\"d2\"> switch </data>"
                                "</node><edge source=\"0\" target=\"hub\"><data "
                                "key=\"d1\">12.5</data><data key=\"d3\">0.25</data></edge>"
                                "<edge source=\"1\" target=\"hub\"/></graph></graphml>");

    cr_assert(g->nranks == 2 && g->nnodes == 3 && g->nodes[2].kind == BNY_NODE_SWITCH);
    cr_assert(cap(g, "0", "hub") == 25 && cap(g, "hub", "1") == 2 && g->links[0].lat_ns == 250);
    bny_graph_free(g);
}

static const char nccl[] = "<system version=\"1\">\n"
                           "  <cpu numaid=\"0\" affinity=\"ff\" arch=\"x86_64\" "
                           "vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"85\">\n"
                           "    <pci busid=\"0000:11:00.0\" class=\"0x060400\" link_speed=\"8 "
                           "GT/s\" link_width=\"16\">\n"
                           "      <pci busid=\"0000:12:00.0\" class=\"0x030200\" "
                           "link_speed=\"8.0 GT/s PCIe\" link_width=\"16\">\n"
                           "        <gpu dev=\"0\" sm=\"80\" rank=\"1\" gdr=\"1\"><nvlink "
                           "target=\"0000:42:00.0\" count=\"4\" tclass=\"0x030200\"/></gpu>\n"
                           "      </pci>\n"
                           "      <pci busid=\"0000:13:00.0\" class=\"0x020700\" "
                           "link_speed=\"8 GT/s\" link_width=\"16\">\n"
                           "        <nic><net name=\"mlx5_0\" dev=\"0\" speed=\"100000\" "
                           "port=\"1\" gdr=\"1\"/></nic>\n"
                           "      </pci>\n"
                           "    </pci>\n"
                           "  </cpu>\n"
                           "  <cpu numaid=\"1\" affinity=\"ff00\" arch=\"x86_64\">\n"
                           "    <pci busid=\"0000:42:00.0\" class=\"0x030200\" link_speed=\"16 "
                           "GT/s\" link_width=\"8\">\n"
                           "      <gpu dev=\"1\" sm=\"80\" rank=\"0\" gdr=\"1\"><nvlink "
                           "target=\"0000:12:00.0\" count=\"4\" tclass=\"0x030200\"/></gpu>\n"
                           "    </pci>\n"
                           "  </cpu>\n"
                           "</system>\n";

Test(import, nccl_xml_has_pci_sockets_nvlinks_and_nics)
{
    struct bny_graph *g = parse(nccl);
    double mb = g->unit_Bps / 1e6;

    cr_assert(g->nranks == 2 && g->nodes[g->rank_node[0]].host == 0);
    cr_assert_str_eq(g->nodes[g->rank_node[1]].name, "0000:12:00.0");
    cr_assert_eq((double)cap(g, "0000:12:00.0", "0000:11:00.0") * mb, 16000);
    cr_assert_eq((double)cap(g, "cpu0", "cpu1") * mb, 16000);
    cr_assert_eq((double)cap(g, "0000:42:00.0", "0000:12:00.0") * mb, 80000, "4 NVLinks");
    cr_assert_eq((double)cap(g, "mlx5_0", "0000:13:00.0") * mb, 12500);
    bny_graph_free(g);
}

static const char ib_blocks[] =
    "#\n# Topology file: generated on "
    "Mon\n#\nvendid=0x2c9\ndevid=0xc738\nsysimgguid=0xe41d2d0300000001\n"
    "switchguid=0xe41d2d0300000001(e41d2d0300000001)\n"
    "Switch\t36 \"S-e41d2d0300000001\"\t\t# \"MF0;sw1:SX6036/U1\" enhanced port 0 lid 4 lmc 0\n"
    "[1]\t\"H-0002c90300000011\"[1](2c90300000012) \t\t# \"node1 HCA-1\" lid 5 4xFDR10\n"
    "[2]\t\"H-0002c90300000021\"[1](2c90300000022) \t\t# \"node2 mlx5_0\" lid 6 4xEDR\n"
    "[3]\t\"H-0002c90300000031\"[1](2c90300000032) \t\t# \"node2 mlx5_1\" lid 7 4xEDR\n"
    "[9]\t\"H-0002c90300000099\"[1](2c90300000099) \t\t# \"Mellanox Technologies Aggregation "
    "Node\" lid 8 4xEDR\n\n"
    "vendid=0x2c9\ncaguid=0x2c90300000011\nCa\t1 \"H-0002c90300000011\"\t\t# \"node1 HCA-1\"\n"
    "[1](2c90300000012) \t\"S-e41d2d0300000001\"[1]\t\t# lid 5 lmc 0 \"MF0;sw1:SX6036/U1\" lid "
    "4 4xFDR10\n\n"
    "Ca\t1 \"H-0002c90300000021\"\t\t# \"node2 mlx5_0\"\n"
    "[1](2c90300000022) \t\"S-e41d2d0300000001\"[2]\t\t# lid 6 lmc 0 \"MF0;sw1:SX6036/U1\" lid "
    "4 4xEDR\n\n"
    "Ca\t1 \"H-0002c90300000031\"\t\t# \"node2 mlx5_1\"\n"
    "[1](2c90300000032) \t\"S-e41d2d0300000001\"[3]\t\t# lid 7 lmc 0 \"MF0;sw1:SX6036/U1\" lid "
    "4 4xEDR\n";

static const char ib_ports[] =
    "SW     4  1 0xe41d2d0300000001 4x QDR - CA     5  1 0x0002c90300000011 ( 'sw1' - 'node1 "
    "HCA-1' )\n"
    "SW     4  2 0xe41d2d0300000001 4x HDR - CA     6  1 0x0002c90300000021 ( 'sw1' - 'node2 "
    "HCA-1' )\n"
    "SW     4  3 0xe41d2d0300000001 4x SDR                                    ( 'sw1' )\n"
    "CA     5  1 0x0002c90300000011 4x QDR - SW     4  1 0xe41d2d0300000001 ( 'node1 HCA-1' - "
    "'sw1' )\n"
    "CA     6  1 0x0002c90300000021 4x HDR - SW     4  2 0xe41d2d0300000001 ( 'node2 HCA-1' - "
    "'sw1' )\n";

Test(import, ibnetdiscover_in_both_forms)
{
    struct bny_graph *g = parse(ib_blocks);

    cr_assert(g->nranks == 2 && g->nnodes == 6, "%d ranks %d nodes", g->nranks, g->nnodes);
    cr_assert_eq((double)cap(g, "S-e41d2d0300000001", "H-0002c90300000011") * g->unit_Bps, 5e9);
    cr_assert_eq((double)cap(g, "node2", "H-0002c90300000031") * g->unit_Bps, 12.5e9);
    cr_assert_eq((double)cap(g, "H-0002c90300000031", "node2") * g->unit_Bps, 12.5e9);
    bny_graph_free(g);
    g = parse(ib_ports);
    cr_assert(g->nranks == 2 && g->nnodes == 5, "%d ranks %d nodes", g->nranks, g->nnodes);
    cr_assert_eq((double)cap(g, "H-0002c90300000021", "S-e41d2d0300000001") * g->unit_Bps,
                 25e9);
    cr_assert_eq((double)cap(g, "node1", "H-0002c90300000011") * g->unit_Bps, 4e9);
    bny_graph_free(g);
    /* A description that is empty, or begins like the line between two. */
    for (int i = 0; i < 2; i++)
        bny_graph_free(parse(i ? "CA 5 1 0x11 4x QDR - SW 4 1 0xe4 ( '' - 'sw1' )\n"
                               : "CA 5 1 0x11 4x QDR - SW 4 1 0xe4 ( ' - 'x' - 'sw1' )\n"));
}

static double rate(const struct bny_graph *g, const char *a, const char *b)
{
    return (double)cap(g, a, b) * g->unit_Bps / 1e9;
}

static int rank_of(const struct bny_graph *g, const char *name)
{
    for (int v = 0; v < g->nnodes; v++)
        if (!strcmp(g->nodes[v].name, name))
            return g->nodes[v].rank;
    return -2;
}

#define CPU(attributes, inside) "<cpu " attributes ">" inside "</cpu>\n"
#define GPU(bus, attributes, links)                                                            \
    "<pci busid='" bus                                                                         \
    "' class='0x030200' link_speed='16 GT/s' link_width='16'><gpu " attributes ">" links       \
    "</gpu></pci>\n"
#define NET(name, speed) "<nic><net name='" name "' speed='" speed "'/></nic>\n"
#define SYSTEM(inside)   "<system version='1'>\n" inside "</system>"

Test(import, rccl_xml_has_xgmi_links)
{
    struct bny_graph *g =
        parse(SYSTEM(CPU("numaid='0'", GPU("c1", "gcn='910' rank='1'",
                                           "<xgmi target='c5' count='2' tclass='0x038000'/>")
                                           GPU("c5", "gcn='gfx942:sramecc+' rank='0'",
                                               "<xgmi target='c1' count='1' "
                                               "tclass='0x120000'/>"))));

    cr_assert(rate(g, "c1", "c5") == 72 && rate(g, "c5", "c1") == 48, "%g %g",
              rate(g, "c1", "c5"), rate(g, "c5", "c1"));
    cr_assert(rank_of(g, "c1") == 1 && rate(g, "c1", "cpu0") == 32);
    bny_graph_free(g);
}

/* POWER9: the links of a GPU lead to its CPU. Grace: so does C2C. */
Test(import, nccl_links_to_cpus_and_switches)
{
    struct bny_graph *g = parse(SYSTEM(
        CPU("numaid='0'",
            GPU("41", "sm='70' rank='0'", "<nvlink target='40' count='3' tclass='0x068001'/>"))
            CPU("numaid='8'",
                GPU("61", "sm='100' rank='1'",
                    "<nvlink target='fffffff:ffff:ff' count='18' tclass='0x068000'/>"
                    "<c2c bw='40000' count='5'/>"))));

    cr_assert(rate(g, "41", "cpu0") == 32 + 60 && rate(g, "cpu0", "41") == 32 + 60);
    cr_assert(rate(g, "61", "nvswitch") == 720 && rate(g, "61", "cpu8") == 32 + 200);
    cr_assert(rate(g, "41", "nvswitch") == 0 && g->nnodes == 5);
    bny_graph_free(g);
}

/* As in virtual machines, and where a job leaves GPUs out. */
Test(import, nccl_links_that_lead_nowhere_are_left_out)
{
    struct bny_graph *g = parse(SYSTEM(
        CPU("", GPU("1", "rank='0'", "<nvlink target='1' count='12'/>")
                    GPU("2", "rank='1'", "<nvlink target='9' count='4' tclass='0x030200'/>"))));

    cr_assert(g->nnodes == 3 && g->nlinks == 4);
    bny_graph_free(g);
}

Test(import, nccl_file_of_a_second_host)
{
    struct bny_graph *g = parse(
        SYSTEM(CPU("host_hash='0x2'", GPU("61", "rank='9'", "") GPU("41", "rank='8'", ""))));

    cr_assert(g->nranks == 2 && rank_of(g, "41") == 0 && rank_of(g, "61") == 1);
    bny_graph_free(g);
}

Test(import, nccl_file_of_several_hosts)
{
#define HOST(hash, rank, links)                                                                \
    CPU("host_hash='" hash "' numaid='0'",                                                     \
        GPU("41", "sm='90' rank='" rank "'", links) NET("mlx5_0", "400000"))
    struct bny_graph *g = parse(SYSTEM(HOST("0x1", "1", "") HOST("0x2", "0", "")));

    cr_assert(g->nranks == 2 && rank_of(g, "41@1") == 0 && rank_of(g, "41") == 1);
    cr_assert(g->nodes[g->rank_node[0]].host == 1 && g->nodes[g->rank_node[1]].host == 0);
    cr_assert(rate(g, "cpu0", "cpu0@1") == 0 && rate(g, "mlx5_0@1", "network") == 50);
    bny_graph_free(g);
    /* NVLinks name a device of their own host. */
    g = parse(SYSTEM(HOST("1", "0", "<nvlink target='61' count='1'/>")
                         HOST("2", "1", "<nvlink target='61' count='1'/>")
                             CPU("host_hash='2' numaid='1'", GPU("61", "rank='2'", ""))));
    cr_assert(rate(g, "41@1", "61@1") == 20 && rank_of(g, "61@1") == 2);
    cr_assert(rate(g, "cpu0@1", "cpu1@1") == 16 && cap(g, "41", "61@1") == 0);
    bny_graph_free(g);
    /* No NIC, and no switch that hosts share. */
    g = parse(SYSTEM(CPU("host_hash='1'", GPU("41", "rank='0'", ""))
                         CPU("host_hash='2'", GPU("41", "rank='1'", ""))));
    cr_assert(rate(g, "cpu0", "network") == 1.25 && rate(g, "network", "cpu0@1") == 1.25);
    bny_graph_free(g);
    g = parse(SYSTEM(
        CPU("host_hash='1'", GPU("41", "rank='0'", "<nvlink target='x' tclass='0x068000'/>"))
            CPU("host_hash='2'",
                GPU("41", "rank='1'", "<nvlink target='x' tclass='0x068000'/>"))));
    cr_assert(rate(g, "nvswitch", "41@1") == 20 && rate(g, "cpu0", "network") == 0);
    bny_graph_free(g);
}

/* What clouds ship for NCCL_TOPO_FILE names no GPU but their PCI devices; some switches show
 * one address at several places; several ranks may have one GPU. */
Test(import, nccl_files_as_clouds_and_switches_have_them)
{
    struct bny_graph *g = parse(SYSTEM(
        CPU("numaid='0'", "<pci busid='s' class='0x060400' link_speed='' link_width='0'>"
                          "<pci busid='1' class='0x030200'/><pci busid='2' class='0x030200'/>"
                          "<pci busid='3' class='0x020700'/></pci>")));

    cr_assert(g->nranks == 2 && g->nnodes == 5 && rate(g, "1", "s") == 12);
    bny_graph_free(g);
    g = parse(SYSTEM(CPU("", "<pci busid='s' class='0x060400'>" GPU(
                                 "1", "rank='0'", "") "</pci>"
                                                      "<pci busid='s' class='0x060400'>" GPU(
                                                          "2", "rank='1'", "") "</pci>")));
    cr_assert(rate(g, "2", "s#2") == 32 && rate(g, "s#2", "cpu0") == 12);
    bny_graph_free(g);
    g = parse(SYSTEM(CPU("", "<pci busid='1'><gpu rank='0'><c2c bw='1000' count='4'/></gpu>"
                             "<gpu rank='1'><c2c bw='1000' count='4'/></gpu></pci>")));
    cr_assert(rank_of(g, "1#2") == 1 && rate(g, "1", "cpu0") == 16);
    bny_graph_free(g);
}

/* Hosts without a name of their own: each card is one; two adapters of a card are of one host.
 */
Test(import, ibnetdiscover_with_descriptions_that_name_no_host)
{
#define AT(n, guid, desc)                                                                      \
    "[" n "]\t\"H-" guid "\"[1](" guid ") \t\t# \"" desc "\" lid 2 4xEDR\n"
#define CA(n, card, guid, desc)                                                                \
    "vendid=0x2c9\nsysimgguid=0x" card "\nCa\t1 \"H-" guid "\"\t# \"" desc "\"\n[1](" guid     \
    ") \t\"S-1\"[" n "]\t# lid 2 lmc 0 \"leaf\" lid 1 4xEDR\n\n"
    struct bny_graph *g = parse(
        "vendid=0x2c9\nsysimgguid=0x1\nSwitch\t36 \"S-1\"\t# \"leaf\" base port 0 lid 1 lmc "
        "0\n" AT("1", "a1", "localhost mlx5_0") AT("2", "a2", "localhost mlx5_1") AT(
            "3", "b1", "localhost mlx5_0") AT("4", "c1", "node1 mlx5_0")
            AT("5", "d1", "node1 mlx5_1") AT("6", "e1", "MT4115 Technologies") AT(
                "7", "f1", "MT4115 Technologies") "\n" CA("1", "a0", "a1", "localhost mlx5_0")
                CA("2", "a0", "a2", "localhost mlx5_1") CA("3", "b0", "b1", "localhost mlx5_0")
                    CA("4", "c0", "c1", "node1 mlx5_0") CA("5", "d0", "d1", "node1 mlx5_1")
                        CA("6", "e0", "e1", "MT4115 Technologies")
                            CA("7", "f0", "f1", "MT4115 Technologies"));

    cr_assert_eq(g->nranks, 5, "%d", g->nranks);
    cr_assert(rate(g, "host-a0", "H-a1") == 12.5 && rate(g, "host-a0", "H-a2") == 12.5);
    cr_assert(rate(g, "host-b0", "H-b1") == 12.5 && rate(g, "node1", "H-d1") == 12.5);
    bny_graph_free(g);
    g = parse("CA 5 1 0x11 4x QDR - SW 4 1 0xe4 ( 'localhost HCA-1' - 'sw1' )\n"
              "SW 4 1 0xe4 4x QDR - CA 5 1 0x11 ( 'sw1' - 'localhost HCA-1' )\n"
              "CA 6 1 0x12 4x QDR - SW 4 2 0xe4 ( 'localhost HCA-1' - 'sw1' )\n"
              "SW 4 2 0xe4 4x QDR - CA 6 1 0x12 ( 'sw1' - 'localhost HCA-1' )\n"
              "SW 4 3 0xe4 4x SDR                 'sw1 - spare'\n"
              "SW 4 4 0xe4 4x ???                 'sw1'\n");
    cr_assert(g->nranks == 2 && rate(g, "host-12", "H-12") == 4);
    bny_graph_free(g);
}

/* As in its manual: grouped by chassis, indented, blanks for tabs. */
Test(import, ibnetdiscover_out_of_a_terminal)
{
    struct bny_graph *g =
        parse("   #\n   # Topology file\n\n   Chassis 1 (guid 0x8f1)\n\n"
              "   vendid=0x8f1\n   Switch  24 \"S-2\"   # \"spine\" base port 0 lid 6 lmc 0\n"
              "   [1][ext 5]   \"S-1\"[24]   # \"leaf\" lid 1 4xEDR\n"
              "   Non-Chassis Nodes\n\n   vendid=0x8f1\n"
              "   Switch  24 \"S-1\"         # \"leaf\" base port 0 lid 6 lmc 0\n"
              "   [22]    \"H-a\"[1](b)         # \"node1 HCA-1\" lid 4 4xEDR\n"
              "   [24]    \"S-2\"[1][ext 5]     # \"spine\" lid 4 4xEDR\n   \n"
              "   Ca      2 \"H-a\"          # \"node1 HCA-1\"\n"
              "   [1](b)     \"S-1\"[22]         # lid 4 lmc 1 \"leaf\" lid 6 4xEDR\n");

    cr_assert(g->nranks == 1 && g->nnodes == 4 && rate(g, "S-1", "H-a") == 12.5);
    cr_assert(rate(g, "S-2", "S-1") == 12.5 && rate(g, "S-1", "S-2") == 12.5);
    bny_graph_free(g);
}

/* Run in a locale with a decimal comma, too. */
Test(import, decimals_of_all_formats_have_points)
{
    struct bny_graph *g = parse("{\"nodes\":[{\"id\":0},{\"id\":1}],\"unit\":1000.5,\"links\":"
                                "[{\"src\":0,\"dst\":1,\"cap\":0.5,\"dir\":\"both\"}]}");
    struct bny_graph *h;
    char *text;
    size_t len;
    FILE *f = open_memstream(&text, &len);

    cr_assert(cap(g, "0", "1") == 1 && g->unit_Bps == 500.25, "%g", g->unit_Bps);
    cr_assert_eq(bny_graph_save(g, f, NULL), 0);
    fclose(f);
    h = parse(text);
    cr_assert_eq(h->unit_Bps, g->unit_Bps);
    free(text);
    bny_graph_free(g);
    bny_graph_free(h);
    bny_graph_free(parse("<graphml><key id='a' for='node' attr.name='x'/><graph><node id='n'>"
                         "<data key='a'>1.5</data></node></graph></graphml>"));
    g = parse("<system version='1'><cpu numaid='0'><pci busid='a' class='0x030000' "
              "link_speed='2.5 GT/s' link_width='16'><gpu rank='0'/></pci></cpu></system>");
    cr_assert_eq((double)cap(g, "a", "cpu0") * g->unit_Bps, 5e9, "%g",
                 (double)cap(g, "a", "cpu0") * g->unit_Bps);
    bny_graph_free(g);
}

/* No two nodes on one place, ranks below switches. */
Test(import, graphs_without_places_get_some)
{
    struct bny_graph *g =
        parse("@switch s0 s1 leaf0 leaf1\na leaf0\nb leaf0\nc leaf1\nd leaf1\nleaf0 s0\n"
              "leaf1 s0\nleaf0 s1\nleaf1 s1\n");

    for (int v = 0; v < g->nnodes; v++)
        for (int w = 0; w < v; w++)
            cr_assert(g->nodes[v].x != g->nodes[w].x || g->nodes[v].y != g->nodes[w].y,
                      "%s and %s", g->nodes[v].name, g->nodes[w].name);
    cr_assert(g->nodes[0].y == -2 && g->nodes[2].y == -1 && g->nodes[g->rank_node[3]].y == 0);
    bny_graph_free(g);
    g = parse("0 1\n1 2\n2 3\n3 0\n");
    cr_assert(g->nodes[3].x == 1 && g->nodes[3].y == 1, "a square");
    bny_graph_free(g);
}

static const struct {
    const char *text, *says;
} bad[] = {
    { "", "no link" },
    { "{", "1: no JSON" },
    { "{\n\"nodes\": [\n}", ":3: no JSON" },
    { "{}", "\"nodes\"" },
    { "{\"nodes\":[],\"links\":[]}", "no compute node" },
    { "{\"nodes\":[],\"links\":[]} x", "follows" },
    { "{\"nodes\":[7],\"links\":[]}", "nodes[0]" },
    { "{\"nodes\":[{\"id\":\"a\"},{\"id\":\"a\"}],\"links\":[]}", "twice" },
    { "{\"nodes\":[{\"id\":\"a\",\"kind\":\"gpu\"}],\"links\":[]}", "kind" },
    { "{\"nodes\":[{\"id\":\"a\",\"rank\":1.5}],\"links\":[]}", "nodes[0].rank" },
    { "{\"nodes\":[{\"id\":\"a\",\"rank\":3}],\"links\":[]}", "rank 3" },
    { "{\"nodes\":[{\"id\":\"a\",\"rnak\":0}],\"links\":[]}", "rnak" },
    { "{\"nodes\":[{\"id\":\"a\"},{\"id\":\"b\"}],\"links\":[{\"src\":\"a\",\"dst\":\"b\"}]"
      "}",
      "links[0].cap" },
    { "{\"nodes\":[{\"id\":\"a\"},{\"id\":\"b\"}],\"links\":[{\"src\":\"a\",\"dst\":\"c\","
      "\"cap\":1}]}",
      "\"c\"" },
    { "{\"nodes\":[{\"id\":\"a\"},{\"id\":\"b\"}],\"links\":[{\"src\":\"a\",\"dst\":\"b\","
      "\"cap\":0}]}",
      "links[0]" },
    { "{\"nodes\":[{\"id\":\"a\"},{\"id\":\"b\"}],\"links\":[{\"src\":\"a\",\"dst\":\"b\","
      "\"cap\":-2}]}",
      "above 0" },
    { "{\"nodes\":[{\"id\":\"a\"},{\"id\":\"b\"}],\"links\":[{\"src\":\"a\",\"dst\":\"a\","
      "\"cap\":2}]}",
      "itself" },
    { "{\"nodes\":[{\"id\":\"a\"},{\"id\":\"b\"}],\"links\":[{\"src\":\"a\",\"dst\":\"b\","
      "\"cap\":2}]}",
      "disconnected" },
    { "{\"nodes\":[{\"id\":\"a\"}],\"links\":[],\"ranks\":[\"b\"]}", "ranks[0]" },
    { "{\"nodes\":[{\"id\":\"a\"}],\"links\":[],\"unit\":0}", "unit" },
    { "a b\nb c 0\n", ":2: the capacity" },
    { "a b\nb c -3\n", ":2: the capacity" },
    { "a b\nb a\n", "since line 1" },
    { "a b x\n", ":1: capacity" },
    { "a b 1 -4\n", ":1: the latency" },
    { "a b 1 1 neither\n", "neither" },
    { "a\n", "not 1 words" },
    { "a a\n", "itself" },
    { "a b\nc d\n", "disconnected" },
    { "a b\n@rank a a\n", ":2: node a has rank" },
    { "a b\n@hots 3\n", "@hots" },
    { "a b 1e9\n", "no number" },
    { "a b nan\n", "no number" },
    { "<graphml><node id='a'/><edge source='a' target='b'/></graphml>", ":1: an edge" },
    { "<graphml>\n<node id='a'></graphml>", ":2: mismatched tag" },
    { "<!DOCTYPE x [<!ENTITY a 'b'>]>\n<graphml><node id='&a;'/></graphml>", "DOCTYPE" },
    { "<graphml><node id='&a;'/></graphml>", ":1: undefined entity" },
    { "<graphml><node/></graphml>", "without id" },
    { "<graphml/>", "no compute node" },
    { "<svg></svg>", "neither GraphML" },
    { "<system><gpu/></system>", "pci" },
    { "<system><cpu numaid='0'><pci busid='1'><gpu rank='x'/></pci></cpu></system>",
      "rank=\"x\"" },
    { "<system><cpu numaid='0'><pci busid='1'/><pci busid='1'/></cpu></system>", "twice" },
    { "<system><cpu numaid='0'><gpu/></cpu></system>", ":1: a gpu that is not below a pci" },
    { "<system><cpu numaid='0'/>\n<cpu numaid='0'/></system>", ":2: cpu0 is there twice" },
    { "<system><cpu><pci busid='1'><gpu rank='4'/></pci>"
      "<pci busid='2'><gpu rank='4'/></pci></cpu></system>",
      "both have rank 4" },
    { "<system><cpu numaid='0'/></system>", "neither a gpu" },
    { "<topology version='2.0'>\n<object type='Machine'/>\n<object type='Machine'/></topology>",
      ":3: a second machine" },
    { "<topology version='4.0'></topology>", ":1: version \"4.0\"" },
    { "vendid=0x2c9\nSwitch\t36\n", ":2: a device" },
    { "vendid=0x2c9\nSwitch\t3 \"S-1\"\t# \"s\"\n[1]\t\"H-2\"[1](3) # \"n HCA-1\" lid 5 "
      "4xWRONG\n",
      ":3: no width" },
    { "vendid=0x2c9\nrubbish\n", ":2: \"rubbish\"" },
    { "SW 4 1 0xe4 4x QDR - CA 5 1 0x02 ( 'sw1' )\n", ":1: no width" },
};

Test(import, wrong_files_are_refused_with_their_place)
{
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse(bad[i].text, strlen(bad[i].text), bad[i].says);
    refuse("a b\n\0c d", 8, "zero byte");
}

/* Depth bombs, long names and lines, and a file over the limit. */
Test(import, hostile_files_are_refused)
{
    size_t len = BNY_IMPORT_BYTES_MAX + 1;
    char *text = malloc(len + 1);

    cr_assert_not_null(text);
    memset(text, ' ', len);
    text[len] = 0;
    refuse(text, len, "MiB");
    memset(text, '[', 100000);
    text[0] = '{';
    text[100000] = 0;
    refuse(text, 100000, "no JSON");
    memset(text, 'a', 70000);
    text[70000] = 0;
    refuse(text, 70000, "longer than");
    memcpy(text + 1000, " b\n", 4);
    refuse(text, 1003, ":1: the name");
    strcpy(text, "<graphml>");
    for (int i = 0; i < 100; i++)
        strcat(text, "<g>");
    refuse(text, strlen(text), "nest deeper");
    free(text);
}

Test(import, files_are_found_and_missing_ones_named)
{
    struct bny_graph *g;

    cr_assert_eq(bny_graph_make(&g, "no/such/file.json"), -BANYAN_ESYSTEM);
    cr_assert(strstr(banyan_last_error(), "no/such/file.json"), "%s", banyan_last_error());
    cr_assert_eq(bny_graph_make(&g, "/dev/zero"), -BANYAN_EINVAL);
    cr_assert_eq(bny_graph_make(&g, "/dev"), -BANYAN_EINVAL);
}
