/*
 * Licensed under the Apache License, Version 2.0 (the "License"); you may
 * not use this file except in compliance with the License. You may obtain
 * a copy of the License at
 *
 *      http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing, software
 * distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
 * WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
 * License for the specific language governing permissions and limitations
 * under the License.
 */

/*
 * Prints the percentage that a resctrl schemata line shows after a percentage
 * was written, for each MPAM driver and each width of its control.
 *
 * The arithmetic of the drivers is restated here as they publish it, with
 * their types, because overflow and integer division are part of it:
 *
 * linux: torvalds/linux, master (7.1 to 7.3), drivers/resctrl/mpam_resctrl.c
 *     (percent_to_mbw_max, mbw_max_to_percent, get_mba_granularity,
 *     get_mba_min) behind fs/resctrl/ctrlmondata.c (bw_validate).
 * linux-unrounded: the same without rounding up to bandwidth_gran first, as
 *     resctrl_arch_preconvert_bw() of the series of July 2026 leaves it.
 * olk-6.6: openEuler OLK-6.6, drivers/platform/mpam/mpam_resctrl.c
 *     (get_wd_precision, percent_to_mbw_max, mbw_max_to_percent) behind
 *     fs/resctrl/ctrlmondata.c (bw_validate); read in buweiorz/kernel
 *     19a2e6f7 and openvelinux/kernel 127385d6, which agree.
 * olk-5.10-max, olk-5.10-min: openEuler OLK-5.10,
 *     arch/arm64/kernel/mpam/mpam_resctrl.c (parse_bw,
 *     mpam_update_from_resctrl_cfg, mbw_rdmsr), mpam_device.c
 *     (mpam_component_read_mpamcfg), mpam_resource.h and mpam_setup.c; read
 *     in openeuler-mirror/kernel 08127bbf, b6104376 and 2b304186.
 *
 * Each line of output: name, bits, info/MB/min_bandwidth,
 * info/MB/bandwidth_gran, and what is shown for 0 to 100; -1 stands for a
 * write that is refused.
 */

#include <stdint.h>
#include <stdio.h>

static uint32_t up(uint32_t value, uint32_t step)
{
	return (value + step - 1) / step * step;
}

static uint32_t nearest(uint32_t dividend, uint32_t divisor)
{
	return (dividend + divisor / 2) / divisor;
}

/* Linux: the register names one of 2^bits equal bands by its upper bound. */

static uint16_t linux_register(uint8_t percent, int bits)
{
	uint32_t band = nearest((uint32_t)percent << bits, 100);

	band = band ? band - 1 : 0;
	return (uint16_t)(band << (16 - bits));
}

static int linux_percent(uint16_t reg, int bits)
{
	return nearest(((reg >> (16 - bits)) + 1u) * 100, 1u << bits);
}

static uint32_t linux_gran(int bits)
{
	return (100 + (1u << bits) - 1) >> bits;
}

static int linux_rounded(int percent, int bits)
{
	if (percent < linux_percent(0, bits))
		return -1;
	return linux_percent(
		linux_register(up(percent, linux_gran(bits)), bits), bits);
}

static int linux_unrounded(int percent, int bits)
{
	if (percent < linux_percent(0, bits))
		return -1;
	return linux_percent(linux_register(percent, bits), bits);
}

/*
 * OLK-6.6: the bits of the register stand for 1/2, 1/4, ... of 100 times a
 * precision, each cut off to a whole number; the largest are taken first.
 */

static uint32_t olk66_weight(int place, int bits)
{
	uint32_t precision = (1u << bits) / 100;

	return 100 * (precision ? precision : 1) / (1u << place);
}

static uint16_t olk66_all(int bits)
{
	return (uint16_t)(0xffffu << (16 - bits));
}

static uint16_t olk66_register(uint32_t percent, int bits)
{
	uint32_t precision = (1u << bits) / 100;
	uint32_t left = percent * (precision ? precision : 1);
	uint16_t reg = 0;

	if (bits > 15)		/* the driver warns, and returns a percentage */
		return 100;
	if (percent == 100)
		return olk66_all(bits);
	for (int place = 1; place <= 15; place++) {
		uint32_t weight = olk66_weight(place, bits);

		if (left >= weight) {
			left -= weight;
			reg |= 1u << (16 - place);
		}
		if (!left || !olk66_weight(place + 1, bits))
			break;
	}
	return reg & olk66_all(bits);
}

static int olk66_percent(uint16_t reg, int bits)
{
	uint32_t precision = (1u << bits) / 100;
	uint32_t sum = 0;

	precision = precision ? precision : 1;
	if (reg == olk66_all(bits))
		return 100;
	for (int place = 1; place <= 15; place++)
		if (reg >> (16 - place) & 1)
			sum += olk66_weight(place, bits);
	return (sum + precision - 1) / precision;
}

static uint32_t olk66_gran(int bits)
{
	uint32_t gran = 100 / (1u << bits);

	return gran ? gran : 1;
}

static int olk66(int percent, int bits)
{
	uint32_t written = up(percent, olk66_gran(bits));

	return olk66_percent(olk66_register(written, bits), bits);
}

/* OLK-5.10: a multiple of 2, as a share of the largest register value. */

static uint32_t olk510_min(int bits)
{
	uint32_t min = 100 / ((1u << bits) - 1);

	return min ? min : 1;
}

static int olk510(int percent, int bits, int least)
{
	uint64_t range = (1u << bits) - 1;
	uint32_t written = percent < least ? least : percent;
	uint16_t reg;

	written = up(written, 2);
	if (written > 100)
		return -1;
	reg = (uint16_t)(written * range / 99);
	if (reg > range)
		reg = (uint16_t)range;
	return up((uint32_t)(reg * UINT64_C(99) / range), 2);
}

static int olk510_maximum(int percent, int bits)
{
	return olk510(percent, bits, olk510_min(bits));
}

static int olk510_minimum(int percent, int bits)
{
	return olk510(percent, bits, 0);
}

static uint32_t one(int bits)
{
	(void)bits;
	return 1;
}

static uint32_t two(int bits)
{
	(void)bits;
	return 2;
}

static uint32_t linux_min(int bits)
{
	return linux_percent(0, bits);
}

static const struct {
	const char *name;
	uint32_t (*min)(int bits);
	uint32_t (*gran)(int bits);
	int (*shown)(int percent, int bits);
} drivers[] = {
	{ "linux", linux_min, linux_gran, linux_rounded },
	{ "linux-unrounded", linux_min, linux_gran, linux_unrounded },
	{ "olk-6.6", one, olk66_gran, olk66 },
	{ "olk-5.10-max", olk510_min, two, olk510_maximum },
	{ "olk-5.10-min", olk510_min, two, olk510_minimum },
};

int main(void)
{
	for (unsigned int i = 0; i < sizeof(drivers) / sizeof(*drivers); i++)
		for (int bits = 1; bits <= 16; bits++) {
			printf("%s %d %u %u", drivers[i].name, bits,
			       drivers[i].min(bits), drivers[i].gran(bits));
			for (int percent = 0; percent <= 100; percent++)
				printf(" %d", drivers[i].shown(percent, bits));
			printf("\n");
		}
	return 0;
}
