// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * A memory system component (MSC) with an L3 cache's portions and bandwidth
 * control, in memory, as "MPAM system component specification" (Arm IHI 0099)
 * describes its registers: those that configure a partition are one set for
 * each PARTID, chosen by MPAMCFG_PART_SEL; with narrowing they are chosen by
 * internal PARTID, and MPAMCFG_INTPARTID says which one a PARTID has.
 */
#include "driver.h"
#include "../../../../drivers/resctrl/mpam_internal.h"
#include "host.h"

#define SIZE 0x3000
#define PARTIDS 256

#define PMGS 4

int bits, partids, internal, portions;
/* What the specification calls errors, and values outside of a register. */
unsigned int errors;
static u32 page[SIZE / 4];
static u32 banks[PARTIDS][SIZE / 4];
static u32 narrowed[PARTIDS];
static struct resource range = { .start = 0, .end = SIZE };

DEFINE_STATIC_KEY_FALSE(mpam_enabled);
DEFINE_PER_CPU(u64, arm64_mpam_default);
u64 arm64_mpam_global_default;

static bool is_banked(unsigned int offset)
{
	return offset == MPAMCFG_CPBM || offset == MPAMCFG_MBW_MAX ||
	       offset == MPAMCFG_MBW_MIN || offset == MPAMCFG_PRI ||
	       offset == MPAMCFG_MBW_PROP;
}

/* Bits that the hardware has of a value; it ignores writes to the others. */
static u32 kept(unsigned int offset, u32 value)
{
	if (offset == MPAMCFG_MBW_MAX)
		return value & (BIT(31) | GENMASK(15, 16 - bits));
	if (offset == MPAMCFG_MBW_MIN)
		return value & GENMASK(15, 16 - bits);
	if (offset == MPAMCFG_CPBM)
		return value & GENMASK(portions - 1, 0);
	return value;
}

static u32 *bank(unsigned int offset)
{
	u32 selected = page[MPAMCFG_PART_SEL / 4];
	u32 id = FIELD_GET(MPAMCFG_PART_SEL_PARTID_SEL, selected);
	bool is_internal = selected & MPAMCFG_PART_SEL_INTERNAL;

	if (id >= (internal ?: partids) || is_internal != !!internal) {
		errors++;
		return &page[offset / 4];
	}
	return &banks[id][offset / 4];
}

u32 um_msc_read(const void __iomem *address)
{
	unsigned int offset = (u32 __force *)address - page;

	offset *= 4;
	if (is_banked(offset))
		return *bank(offset);
	return page[offset / 4];
}

void um_msc_write(u32 value, void __iomem *address)
{
	unsigned int offset = (u32 __force *)address - page;
	u32 selected = page[MPAMCFG_PART_SEL / 4];
	u32 id = FIELD_GET(MPAMCFG_PART_SEL_PARTID_SEL, selected);

	offset *= 4;
	if (is_banked(offset)) {
		*bank(offset) = kept(offset, value);
	} else if (offset == MPAMCFG_INTPARTID) {
		if (!internal || selected & MPAMCFG_PART_SEL_INTERNAL ||
		    id >= partids || FIELD_GET(GENMASK(15, 0), value) >= internal)
			errors++;
		else
			narrowed[id] = value;
	} else if (offset >= 0x100) {
		page[offset / 4] = value;
	}
}

void __iomem *um_msc_map(struct platform_device *device,
			 struct resource **found)
{
	*found = &range;
	return (void __iomem __force *)page;
}

int acpi_mpam_count_msc(void)
{
	return 1;
}

int acpi_mpam_parse_resources(struct mpam_msc *msc,
			      struct acpi_mpam_msc_node *table)
{
	return mpam_ris_create(msc, 0, MPAM_CLASS_CACHE, 3, 0);
}

u32 um_register(unsigned int id, unsigned int offset)
{
	return banks[id][offset / 4];
}

u32 um_internal(unsigned int id)
{
	return narrowed[id];
}

void um_msc_make(void)
{
	page[MPAMF_AIDR / 4] = MPAM_ARCHITECTURE_V1;
	page[MPAMF_IDR / 4] =
		FIELD_PREP(MPAMF_IDR_PARTID_MAX, partids - 1) |
		FIELD_PREP(MPAMF_IDR_PMG_MAX, PMGS - 1) |
		MPAMF_IDR_HAS_CPOR_PART | MPAMF_IDR_HAS_MBW_PART |
		MPAMF_IDR_HAS_PRI_PART |
		(internal ? MPAMF_IDR_HAS_PARTID_NRW : 0);
	page[MPAMF_CPOR_IDR / 4] = portions;
	page[MPAMF_MBW_IDR / 4] = bits | MPAMF_MBW_IDR_HAS_MAX |
		MPAMF_MBW_IDR_HAS_MIN | MPAMF_MBW_IDR_HAS_PROP;
	page[MPAMF_PRI_IDR / 4] = MPAMF_PRI_IDR_HAS_INTPRI |
		MPAMF_PRI_IDR_INTPRI_0_IS_LOW |
		FIELD_PREP(MPAMF_PRI_IDR_INTPRI_WD, 3);
	page[MPAMF_PARTID_NRW_IDR / 4] = internal ? internal - 1 : 0;
}
