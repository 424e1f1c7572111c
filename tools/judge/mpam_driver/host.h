/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/* What the parts of the judge have of each other. */
extern int bits, partids, internal, portions;
extern unsigned int errors;

u32 um_register(unsigned int id, unsigned int offset);
u32 um_internal(unsigned int id);
void um_msc_make(void);

struct platform_driver;
struct rdt_resource;
int um_driver_init(void);
int um_cacheinfo_ready(void);
bool um_bandwidth(char *text, u32 *value, struct rdt_resource *resource);
bool um_portions(char *text, u32 *value, struct rdt_resource *resource);
