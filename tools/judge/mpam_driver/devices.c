/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
#include "driver.h"
#include "host.h"
#include "../../../../drivers/resctrl/mpam_devices.c"

int um_driver_init(void)
{
	return mpam_msc_driver_init();
}
