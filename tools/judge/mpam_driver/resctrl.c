/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
#include "driver.h"
#include "host.h"
#include "../../../../drivers/resctrl/mpam_resctrl.c"

int um_cacheinfo_ready(void)
{
	return __cacheinfo_ready();
}
