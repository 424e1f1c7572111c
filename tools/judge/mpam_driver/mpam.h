/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0 */
/*
 * Stands for asm/mpam.h: no processor has what a thread's registers would hold.
 */
#ifndef _ASM_UM_MPAM_H
#define _ASM_UM_MPAM_H

#include <linux/arm_mpam.h>
#include <linux/bitfield.h>
#include <linux/bits.h>
#include <linux/jump_label.h>
#include <linux/percpu.h>
#include <linux/sched.h>

/* Arm ARM, D24.2 MPAM0_EL1. */
#define MPAM0_EL1_PARTID_I	GENMASK_ULL(15, 0)
#define MPAM0_EL1_PARTID_D	GENMASK_ULL(31, 16)
#define MPAM0_EL1_PMG_I		GENMASK_ULL(39, 32)
#define MPAM0_EL1_PMG_D		GENMASK_ULL(47, 40)

#define system_supports_mpam()	true

DECLARE_STATIC_KEY_FALSE(mpam_enabled);
DECLARE_PER_CPU(u64, arm64_mpam_default);
extern u64 arm64_mpam_global_default;

static inline u64 um_mpam_value(u16 data, u16 code, u8 data_pmg, u8 code_pmg)
{
	return FIELD_PREP(MPAM0_EL1_PARTID_D, data) |
	       FIELD_PREP(MPAM0_EL1_PARTID_I, code) |
	       FIELD_PREP(MPAM0_EL1_PMG_D, data_pmg) |
	       FIELD_PREP(MPAM0_EL1_PMG_I, code_pmg);
}

static inline void mpam_set_cpu_defaults(int cpu, u16 data, u16 code,
					 u8 data_pmg, u8 code_pmg)
{
	per_cpu(arm64_mpam_default, cpu) =
		um_mpam_value(data, code, data_pmg, code_pmg);
}

static inline u64 mpam_get_regval(struct task_struct *thread)
{
	return 0;
}

static inline void mpam_set_task_partid_pmg(struct task_struct *thread,
					    u16 data, u16 code,
					    u8 data_pmg, u8 code_pmg)
{ }

static inline void mpam_thread_switch(struct task_struct *thread) { }

#endif
