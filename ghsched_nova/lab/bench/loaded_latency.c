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

// Latency of memory beside a load of bandwidth.
//
// usage: loaded_latency MIB SECONDS PAUSE WRITES CPU...
//
// The first CPU follows a chain of pointers through MIB of memory in random
// order, one cache line after the other, so that no access begins before the
// one before it has ended. Each further CPU streams through MIB of its own and
// rests for PAUSE turns of an empty loop after each KiB; PAUSE -1 is no load.
// WRITES of 100 lines are written, the others read.
//
// SIGTERM ends the measurement before its SECONDS.
//
// Prints: nanoseconds per access, MB/s of the load.

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { LINE = 64, WORDS = LINE / sizeof(uint64_t), BATCH = 16 };

struct load {
    pthread_t thread;
    int cpu;
    uint64_t lines;
    char pad[LINE];
};

static size_t bytes;
static long pause_turns;
static int writes;
static atomic_int ready, go, stop;
static volatile sig_atomic_t ended;

static void end_early(int number)
{
    (void)number;
    ended = 1;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC_RAW, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void pin(int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set)) {
        perror("sched_setaffinity");
        exit(2);
    }
}

static uint64_t *memory(void)
{
    uint64_t *found = aligned_alloc(2 << 20, bytes);
    if (!found) {
        perror("aligned_alloc");
        exit(2);
    }
    // Pages are where the CPU is that touches them first, or where the
    // policy of the process says.
    for (size_t place = 0; place < bytes / sizeof(uint64_t); place++)
        found[place] = place;
    return found;
}

static void *work(void *given)
{
    struct load *load = given;
    pin(load->cpu);
    volatile uint64_t *array = memory();
    size_t lines = bytes / LINE, place = 0;
    uint64_t sum = 0, turn = 0;
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&go))
        sched_yield();
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        for (int number = 0; number < BATCH; number++) {
            volatile uint64_t *line = array + place * WORDS;
            if ((int)(turn++ * 37 % 100) < writes)
                *line = sum;
            else
                sum += *line;
            place = place + 1 < lines ? place + 1 : 0;
        }
        load->lines += BATCH;
        for (volatile long rest = 0; rest < pause_turns; rest++)
            ;
    }
    return (void *)(uintptr_t)(sum & 1);
}

// One cycle through all lines (Sattolo), with a generator of its own.
static uint64_t *chain(void)
{
    uint64_t *array = memory(), seed = 88172645463325252ull;
    size_t lines = bytes / LINE;
    size_t *order = malloc(lines * sizeof(size_t));
    if (!order) {
        perror("malloc");
        exit(2);
    }
    for (size_t place = 0; place < lines; place++)
        order[place] = place;
    for (size_t place = lines - 1; place > 0; place--) {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        size_t other = seed % place, kept = order[place];
        order[place] = order[other];
        order[other] = kept;
    }
    for (size_t place = 0; place < lines; place++)
        array[order[place] * WORDS] = order[(place + 1) % lines] * WORDS;
    free(order);
    return array;
}

static double chase(const uint64_t *array, double seconds, uint64_t *place)
{
    uint64_t steps = 0, here = *place;
    double begin = now(), end;
    atomic_thread_fence(memory_order_seq_cst);
    do {
        for (int number = 0; number < 4096; number++)
            here = *(volatile const uint64_t *)(array + here);
        steps += 4096;
        atomic_thread_fence(memory_order_seq_cst);
        end = now();
    } while (end - begin < seconds && !ended);
    *place = here;
    return (end - begin) / steps * 1e9;
}

int main(int count, char **words)
{
    if (count < 6) {
        fprintf(stderr, "usage: %s MIB SECONDS PAUSE WRITES CPU...\n",
                words[0]);
        return 2;
    }
    bytes = (size_t)atol(words[1]) << 20;
    double seconds = atof(words[2]);
    pause_turns = atol(words[3]);
    writes = atoi(words[4]);
    signal(SIGTERM, end_early);
    int loads = pause_turns < 0 ? 0 : count - 6;
    pin(atoi(words[5]));
    uint64_t *array = chain(), place = 0;
    struct load *all = calloc(count, sizeof(*all));
    for (int number = 0; number < loads; number++) {
        all[number].cpu = atoi(words[6 + number]);
        if (pthread_create(&all[number].thread, NULL, work, &all[number])) {
            perror("pthread_create");
            return 2;
        }
    }
    while (atomic_load(&ready) < loads)
        sched_yield();
    atomic_store(&go, 1);
    chase(array, seconds < 4 ? seconds / 4 : 1, &place);
    uint64_t before = 0, after = 0;
    for (int number = 0; number < loads; number++)
        before += all[number].lines;
    double begin = now(), latency = chase(array, seconds, &place);
    double spent = now() - begin;
    for (int number = 0; number < loads; number++)
        after += all[number].lines;
    atomic_store(&stop, 1);
    for (int number = 0; number < loads; number++)
        pthread_join(all[number].thread, NULL);
    // The chain moves a line for each access.
    printf("%.3f %.3f\n", latency,
           (after - before) * LINE / spent / 1e6 + LINE / latency * 1e3);
    return place == (uint64_t)-1;
}
