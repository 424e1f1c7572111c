/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
#include "driver.h"
#include "host.h"
#include "../../../../fs/resctrl/ctrlmondata.c"

bool um_bandwidth(char *text, u32 *value, struct rdt_resource *resource)
{
	return bw_validate(text, value, resource);
}

bool um_portions(char *text, u32 *value, struct rdt_resource *resource)
{
	return cbm_validate(text, value, resource);
}
