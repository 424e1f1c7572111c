/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Is read before the driver's own files: gives them registers in memory
 * instead of a device's, and one L3 cache instead of what ACPI names.
 */
#define CONFIG_ARM64_MPAM 1
#define CONFIG_ARM64_MPAM_DRIVER 1
#define CONFIG_ARM64_MPAM_RESCTRL_FS 1
#define CONFIG_ACPI_MPAM 1

#include <linux/acpi.h>
#include <linux/arm-smccc.h>
#include <linux/cpumask.h>
#include <linux/io.h>
#include <linux/ioport.h>
#include <linux/platform_device.h>
#include <linux/sched/signal.h>
#include <linux/sched/task.h>

/* The driver has its own. */
#undef pr_fmt

u32 um_msc_read(const void __iomem *address);
void um_msc_write(u32 value, void __iomem *address);
void __iomem *um_msc_map(struct platform_device *device,
			 struct resource **found);

#undef readl_relaxed
#define readl_relaxed(address) um_msc_read(address)
#undef writel_relaxed
#define writel_relaxed(value, address) um_msc_write(value, address)
#define devm_platform_get_and_ioremap_resource(device, index, found) \
	um_msc_map(device, found)

static inline int um_cpus_of_cache(unsigned long id, cpumask_t *cpus)
{
	cpumask_copy(cpus, cpu_possible_mask);
	return 0;
}
#define acpi_pptt_get_cpumask_from_cache_id(id, cpus) um_cpus_of_cache(id, cpus)
#define acpi_pptt_get_cpus_from_container(id, cpus) um_cpus_of_cache(id, cpus)
#define arm_smccc_get_soc_id_version() (-1)
