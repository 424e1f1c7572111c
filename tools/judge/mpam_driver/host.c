// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0
/*
 * Runs the driver as a program: finds its device, lets it probe, and carries
 * out commands from standard input with fs/resctrl's check of a value and the
 * driver's functions, as rdtgroup_schemata_write() does:
 *
 * MB PARTID PERCENT, L3 PARTID MASK, reset: write; each answers with a line
 * PARTID MB L3 MBW_MAX MBW_MIN CPBM PRI INTPARTID errors, or "refused".
 *
 * What the driver needs of the kernel is here as far as it is called; there is
 * one processor and one thread.
 */
#include "driver.h"
#include <linux/cacheinfo.h>
#include <linux/cpuhotplug.h>
#include <linux/mutex.h>
#include <linux/resctrl.h>
#include <linux/slab.h>
#include <linux/srcu.h>
#include <linux/workqueue.h>
#include "../../../../drivers/resctrl/mpam_internal.h"
#include "host.h"

extern void *calloc(size_t count, size_t size);
extern void free(void *memory);
#undef strtoul
extern unsigned long strtoul(const char *text, char **end, int base);
extern int printf(const char *format, ...);
extern int scanf(const char *format, ...);
extern int fflush(void *stream);
extern int atoi(const char *text);

static struct platform_device device;
static struct platform_driver *driver;
static struct work_struct *work;
static struct cacheinfo leaf = {
	.level = 3, .type = CACHE_TYPE_UNIFIED, .attributes = CACHE_ID,
	.size = 32 << 20,
};
static struct cpu_cacheinfo leaves = {
	.info_list = &leaf, .num_levels = 1, .num_leaves = 1,
};

bool static_key_initialized = true;
struct cpumask __cpu_possible_mask = { { 1 } }, __cpu_online_mask = { { 1 } };
struct workqueue_struct *system_percpu_wq;
kmem_buckets kmalloc_caches[NR_KMALLOC_TYPES];
unsigned int resctrl_rmid_realloc_limit, resctrl_rmid_realloc_threshold;
static struct task_struct thread;
struct task_struct *cpu_tasks[NR_CPUS] = { &thread };

void *__kmalloc_noprof(DECL_TOKEN_PARAMS(size, token), gfp_t flags)
{
	return calloc(1, size);
}

void *__kmalloc_cache_noprof(struct kmem_cache *cache, gfp_t flags, size_t size)
{
	return calloc(1, size);
}

void *__kmalloc_cache_node_noprof(struct kmem_cache *cache, gfp_t flags,
				  int node, size_t size)
{
	return calloc(1, size);
}

void *__kvmalloc_node_noprof(DECL_KMALLOC_PARAMS(size, b, token),
			     unsigned long align, gfp_t flags, int node)
{
	return calloc(1, size);
}

void *devm_kmalloc(struct device *dev, size_t size, gfp_t flags)
{
	return calloc(1, size);
}

void devm_kfree(struct device *dev, const void *memory)
{
	free((void *)memory);
}

void kfree(const void *memory)
{
	free((void *)memory);
}

void kvfree(const void *memory)
{
	free((void *)memory);
}

void mutex_init_generic(struct mutex *lock) { }
void mutex_lock(struct mutex *lock) { }
void mutex_unlock(struct mutex *lock) { }
int init_srcu_struct_generic(struct srcu_struct *all) { return 0; }
void __srcu_read_unlock(struct srcu_struct *all, int index) { }
void synchronize_srcu(struct srcu_struct *all) { }
int um_get_signals(void) { return 1; }
int um_set_signals(int enable) { return 1; }
int __cond_resched(void) { return 0; }
int __wake_up(struct wait_queue_head *queue, unsigned int mode, int count,
	      void *key)
{
	return 0;
}

int device_property_read_u32_array(const struct device *dev, const char *name,
				   u32 *value, size_t count)
{
	return -EINVAL;
}

int platform_get_irq_byname_optional(struct platform_device *dev,
				     const char *name)
{
	return -ENXIO;
}

int __cpuhp_setup_state(enum cpuhp_state state, const char *name, bool invoke,
			int (*startup)(unsigned int cpu),
			int (*teardown)(unsigned int cpu), bool multi)
{
	return startup(0) ?: 1;
}

void __cpuhp_remove_state(enum cpuhp_state state, bool invoke) { }

bool queue_work_on(int cpu, struct workqueue_struct *queue,
		   struct work_struct *wanted)
{
	work = wanted;
	return true;
}

int smp_call_on_cpu(unsigned int cpu, int (*call)(void *), void *argument,
		    bool physical)
{
	return call(argument);
}

struct cpu_cacheinfo *get_cpu_cacheinfo(unsigned int cpu)
{
	return &leaves;
}

int __platform_driver_register(struct platform_driver *found,
			       struct module *owner, const char *name)
{
	driver = found;
	return 0;
}

/* The option mba_MBps of the mount. */
bool is_mba_sc(struct rdt_resource *resource);
bool is_mba_sc(struct rdt_resource *resource) { return false; }

int resctrl_init(void) { return 0; }
void resctrl_online_cpu(unsigned int cpu) { }
int resctrl_online_ctrl_domain(struct rdt_resource *r,
			       struct rdt_ctrl_domain *d)
{
	return 0;
}

int kstrtouint(const char *text, unsigned int base, unsigned int *value)
{
	*value = strtoul(text, NULL, base);
	return 0;
}

int _kstrtoul(const char *text, unsigned int base, unsigned long *value)
{
	*value = strtoul(text, NULL, base);
	return 0;
}

int kstrtoull(const char *text, unsigned int base, unsigned long long *value)
{
	*value = strtoul(text, NULL, base);
	return 0;
}

void rdt_last_cmd_puts(const char *text);
void rdt_last_cmd_puts(const char *text) { }
void rdt_last_cmd_printf(const char *format, ...);
void rdt_last_cmd_printf(const char *format, ...) { }

int _printk(const char *format, ...)
{
	return 0;
}

/* The driver's own checks of itself. */
void warn_slowpath_fmt(const char *file, const int line, unsigned int taint,
		       const char *format, ...)
{
	errors++;
}

static struct rdt_ctrl_domain *domain(struct rdt_resource *resource)
{
	return list_first_entry(&resource->ctrl_domains,
				struct rdt_ctrl_domain, hdr.list);
}

static u32 shown(enum resctrl_res_level level, u32 id)
{
	struct rdt_resource *resource = resctrl_arch_get_resource(level);

	return resctrl_arch_get_config(resource, domain(resource), id,
				       CDP_NONE);
}

static void answer(u32 id)
{
	printf("%u %u %x %x %x %x %x %x %u\n", id,
	       shown(RDT_RESOURCE_MBA, id), shown(RDT_RESOURCE_L3, id),
	       um_register(id, MPAMCFG_MBW_MAX),
	       um_register(id, MPAMCFG_MBW_MIN), um_register(id, MPAMCFG_CPBM),
	       um_register(id, MPAMCFG_PRI), um_internal(id), errors);
}

static bool write(enum resctrl_res_level level, u32 id, char *text)
{
	struct rdt_resource *resource = resctrl_arch_get_resource(level);
	struct resctrl_staged_config *staged;
	u32 value;
	int error;

	if (!(level == RDT_RESOURCE_MBA ? um_bandwidth : um_portions)(
			text, &value, resource))
		return false;
	staged = &domain(resource)->staged_config[CDP_NONE];
	staged->new_ctrl = value;
	staged->have_new_ctrl = true;
	error = resctrl_arch_update_domains(resource, id);
	staged->have_new_ctrl = false;
	return !error;
}

static void reset(void)
{
	resctrl_arch_reset_all_ctrls(
		resctrl_arch_get_resource(RDT_RESOURCE_MBA));
	resctrl_arch_reset_all_ctrls(
		resctrl_arch_get_resource(RDT_RESOURCE_L3));
}

static int start(void)
{
	int error;

	um_msc_make();
	/* As for the processors. */
	mpam_register_requestor(partids - 1, 3);
	um_cacheinfo_ready();
	error = um_driver_init();
	if (!error)
		error = driver->probe(&device);
	if (!error && work)
		work->func(work);
	return error ?: !resctrl_arch_get_resource(
		RDT_RESOURCE_MBA)->alloc_capable;
}

int main(int count, char **words)
{
	struct rdt_resource *bandwidth;
	char what[8], text[16];
	u32 id;

	if (count != 5)
		return 2;
	bits = atoi(words[1]);
	partids = atoi(words[2]);
	internal = atoi(words[3]);
	portions = atoi(words[4]);
	if (start())
		return 1;
	bandwidth = resctrl_arch_get_resource(RDT_RESOURCE_MBA);
	printf("%u %u %u %x\n", resctrl_arch_get_num_closid(bandwidth),
	       bandwidth->membw.min_bw, bandwidth->membw.bw_gran,
	       resctrl_arch_get_resource(
		       RDT_RESOURCE_L3)->cache.shareable_bits);
	while (scanf("%7s %u %15s", what, &id, text) == 3) {
		if (id >= resctrl_arch_get_num_closid(bandwidth))
			return 2;
		if (what[0] == 'r')
			reset();
		else if (!write(what[0] == 'M' ? RDT_RESOURCE_MBA :
				RDT_RESOURCE_L3, id, text))
			printf("refused ");
		answer(id);
	}
	return fflush(NULL);
}
