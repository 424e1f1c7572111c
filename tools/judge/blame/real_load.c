// Licensed under the Apache License, Version 2.0 (the "License"); you may
// not use this file except in compliance with the License. You may obtain
// a copy of the License at
//
//      http://www.apache.org/licenses/LICENSE-2.0
//
// Unless required by applicable law or agreed to in writing, software
// distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
// WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
// License for the specific language governing permissions and limitations
// under the License.

/*
 * A load on real memory, for real_judge.py.
 *
 * usage: real_load FILE SLOT KIND MEGABYTES CHAINS COMPUTE
 *
 * KIND is chase (CHAINS independent pointer chases at a time), stream (read
 * and write in order) or none (computation alone). After each chunk of memory
 * accesses follows computation that lasts COMPUTE times as long as the chunk
 * did when the load began: a fixed number of operations. The load counts its
 * bytes and its CPU time in slot SLOT of FILE, and works there only in the phases that it is
 * told: a phase of on_ns in each period_ns of the monotonic clock, from
 * offset_ns on, or always if always is not 0.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { LINE = 64, CHASED = 512, STREAMED = 4096, MOST_CHAINS = 16, SLOTS = 16 };

struct slot {
	volatile uint64_t bytes, ready, period_ns, on_ns, offset_ns, always, cpu_ns;
	uint64_t unused;
};

static uint64_t read_clock(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* Return a buffer whose lines are one cycle in random order. */
static uint64_t *make_cycle(size_t bytes, uint64_t seed)
{
	uint64_t *lines, count = bytes / LINE, *order, i, j, swap;

	if (posix_memalign((void **)&lines, 2 << 20, bytes))
		exit(3);
	madvise(lines, bytes, MADV_HUGEPAGE);
	memset(lines, 1, bytes);
	order = malloc(count * sizeof(*order));
	for (i = 0; i < count; i++)
		order[i] = i;
	for (i = count - 1; i > 0; i--) {
		j = next_random(&seed) % (i + 1);
		swap = order[i];
		order[i] = order[j];
		order[j] = swap;
	}
	for (i = 0; i < count; i++)
		lines[order[i] * 8] = order[(i + 1) % count] * 8;
	free(order);
	return lines;
}

static uint64_t compute(uint64_t rounds, uint64_t state)
{
	while (rounds--)
		next_random(&state);
	return state;
}

struct load {
	uint64_t *lines, count, place[MOST_CHAINS], rounds, state;
	int chains, streams;
};

/* Access one chunk of memory; return its bytes. */
static uint64_t access_memory(struct load *load)
{
	uint64_t i, *line, done = 0;
	int chain;

	if (!load->chains && !load->streams)
		return 0;
	if (load->streams) {
		for (i = 0; i < STREAMED; i++) {
			line = load->lines + load->place[0] * 8;
			line[1] += line[2];
			if (++load->place[0] == load->count)
				load->place[0] = 0;
		}
		return STREAMED * 2 * LINE;	/* each line is written back */
	}
	for (i = 0; i < CHASED; i += load->chains)
		for (chain = 0; chain < load->chains; chain++, done++)
			load->place[chain] = load->lines[load->place[chain]];
	return done * LINE;
}

static void start(struct load *load, double share)
{
	uint64_t begun, chunk, sum = 0;
	int i;

	for (i = 0; i < 8; i++) {
		begun = now_ns();
		access_memory(load);
		chunk = now_ns() - begun;
		if (i >= 4)
			sum += chunk / 4;
	}
	begun = now_ns();
	load->state = compute(1000000, 1);
	load->rounds = share * sum * 1000000 / (now_ns() - begun);
	if (!load->chains && !load->streams)
		load->rounds = 20000;
}

static int is_resting(struct slot *slot)
{
	return !slot->always && slot->period_ns &&
	       (now_ns() + slot->offset_ns) % slot->period_ns >= slot->on_ns;
}

int main(int argc, char **argv)
{
	struct timespec rest = { 0, 1000000 };
	struct load load = { 0 };
	struct slot *slot;
	size_t bytes;
	int file, i;

	if (argc != 7)
		return 2;
	file = open(argv[1], O_RDWR);
	slot = mmap(NULL, SLOTS * sizeof(*slot), PROT_READ | PROT_WRITE,
		    MAP_SHARED, file, 0);
	if (file < 0 || slot == MAP_FAILED)
		return 3;
	slot += atoi(argv[2]);
	bytes = strtoull(argv[4], NULL, 10) << 20;
	load.streams = !strcmp(argv[3], "stream");
	load.chains = strcmp(argv[3], "chase") ? 0 : atoi(argv[5]);
	load.count = bytes / LINE;
	if (load.streams || load.chains)
		load.lines = make_cycle(bytes, 88172645463325252ull + bytes);
	for (i = 0; i < load.chains; i++)
		load.place[i] = load.count / load.chains * i * 8;
	start(&load, atof(argv[6]));
	slot->ready = 1;
	for (;;) {
		if (is_resting(slot)) {
			nanosleep(&rest, NULL);
			continue;
		}
		slot->bytes += access_memory(&load);
		load.state = compute(load.rounds, load.state | 1);
		slot->cpu_ns = read_clock(CLOCK_THREAD_CPUTIME_ID);
	}
}
