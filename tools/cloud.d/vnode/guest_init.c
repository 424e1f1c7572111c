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
 * The nested guest's only process: says what the guest sees, and from then on
 * which PCI devices come and go. Told "count" on the console it computes, and
 * says how often it went round, until it is told something else. If the kernel
 * has a network bond, the program adds each network card to the bond, and sends
 * packets through it to a peer that returns them.
 *
 * The lines are those of tools/cloud.d/guest-init, which is a shell script. A
 * guest that is emulated twice takes seconds for each process that
 * a script starts; so this one is a single program, without even a C library.
 */

#include <asm/unistd.h>
#include <stddef.h>

#define O_RDONLY 0
#define O_WRONLY 1
#define O_DIRECTORY 0200000
#define POLLIN 1
#define CLOCK_MONOTONIC 1
#define NODES "/sys/devices/system/node"
#define DEVICES "/sys/bus/pci/devices"
#define NICS "/sys/class/net"
#define BOND "bond0"
/* The card with this vendor sends and receives while it is there. */
#define PREFERRED "0x8086"

/* The address of the bond, its mask, and that of the peer: 192.0.2.200/24,
 * 192.0.2.1. */
#define ADDRESS "\300\000\002\310"
#define MASK "\377\377\377\000"
#define PEER "\300\000\002\001"
#define PORT "\000\007"
#define AF_INET 2
#define SOCK_DGRAM 2
#define SOCK_NONBLOCK 04000
#define SIOCSIFFLAGS 0x8914
#define SIOCSIFADDR 0x8916
#define SIOCSIFNETMASK 0x891c
#define IFF_UP 1

static long
call(long number, long a, long b, long c, long d, long e)
{
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8)
                     : "rcx", "r11", "memory");
    return result;
}

/* One line of output, written at once. */
static char line[1024];
static size_t used;

static void
add(const char *text)
{
    while (*text && used < sizeof(line) - 1)
        line[used++] = *text++;
}

static void
end_line(void)
{
    line[used++] = '\n';
    call(__NR_write, 1, (long)line, used, 0, 0);
    used = 0;
}

static long
open_file(const char *directory, const char *name, const char *file, int flags)
{
    char path[256];
    const char *parts[] = {directory, "/", name, "/", file};
    size_t size = 0;

    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++)
        for (const char *c = parts[i]; *c && size < sizeof(path) - 1; c++)
            path[size++] = *c;
    path[size] = 0;
    return call(__NR_open, (long)path, flags, 0, 0, 0);
}

/* The content of DIRECTORY/NAME/FILE, without the newline at its end. */
static const char *
content(const char *directory, const char *name, const char *file)
{
    static char text[512];
    long fd, got;

    fd = open_file(directory, name, file, O_RDONLY);
    if (fd < 0)
        return "?";
    got = call(__NR_read, fd, (long)text, sizeof(text) - 1, 0, 0);
    call(__NR_close, fd, 0, 0, 0, 0);
    if (got > 0 && text[got - 1] == '\n')
        got--;
    text[got > 0 ? got : 0] = 0;
    return text;
}

/* The word after "MemTotal:" in a node's meminfo. */
static const char *
total(const char *meminfo)
{
    static char number[32];
    const char *key = "MemTotal:";
    size_t size = 0;

    for (; *meminfo; meminfo++) {
        size_t i = 0;

        while (key[i] && meminfo[i] == key[i])
            i++;
        if (key[i])
            continue;
        meminfo += i;
        while (*meminfo == ' ')
            meminfo++;
        while (*meminfo > ' ' && size < sizeof(number) - 1)
            number[size++] = *meminfo++;
        break;
    }
    number[size] = 0;
    return number;
}

static void
show_node(const char *name)
{
    if (name[0] != 'n' || name[4] < '0' || name[4] > '9')
        return;
    add("GUEST-NODE ");
    add(name);
    add(" cpus=");
    add(content(NODES, name, "cpulist"));
    add(" memkB=");
    add(total(content(NODES, name, "meminfo")));
    add(" distance=");
    add(content(NODES, name, "distance"));
    end_line();
}

static void
describe(const char *kind, const char *name)
{
    add(kind);
    add(" ");
    add(name);
    add(" ");
    add(content(DEVICES, name, "vendor"));
    add(":");
    add(content(DEVICES, name, "device"));
    add(" numa_node=");
    add(content(DEVICES, name, "numa_node"));
    end_line();
}

/* The devices that were said to be there. */
#define MOST 64
static struct device {
    char name[16];
    int there;
} known[MOST];
static size_t count;

static int
same(const char *a, const char *b)
{
    while (*a && *a == *b)
        a++, b++;
    return *a == *b;
}

static void
remember(const char *name)
{
    size_t i = 0;

    if (count == MOST)
        return;
    for (; name[i] && i < sizeof(known->name) - 1; i++)
        known[count].name[i] = name[i];
    known[count].name[i] = 0;
    known[count++].there = 1;
}

static void
show_device(const char *name)
{
    describe("GUEST-PCI", name);
    remember(name);
}

static void
look_at_device(const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (same(known[i].name, name)) {
            known[i].there = 1;
            return;
        }
    describe("GUEST-PCI-ADDED", name);
    remember(name);
}

struct entry {
    unsigned long inode;
    long offset;
    unsigned short size;
    unsigned char type;
    char name[];
};

static void
each(const char *directory, void (*show)(const char *))
{
    static char entries[8192];
    long fd, got;

    fd = call(__NR_open, (long)directory, O_RDONLY | O_DIRECTORY, 0, 0, 0);
    if (fd < 0)
        return;
    while ((got = call(__NR_getdents64, fd, (long)entries, sizeof(entries),
                       0, 0)) > 0) {
        for (long at = 0; at < got;) {
            struct entry *one = (struct entry *)(entries + at);

            if (one->name[0] != '.')
                show(one->name);
            at += one->size;
        }
    }
    call(__NR_close, fd, 0, 0, 0, 0);
}

static void
show_changes(void)
{
    for (size_t i = 0; i < count; i++)
        known[i].there = 0;
    each(DEVICES, look_at_device);
    for (size_t i = 0; i < count;) {
        if (known[i].there) {
            i++;
            continue;
        }
        add("GUEST-PCI-REMOVED ");
        add(known[i].name);
        end_line();
        known[i] = known[--count];
    }
}

static int counting;
/* The socket of what is sent through the bond; negative without a bond. */
static long echo = -1;

/* What is typed within a second. sysfs tells nobody without a network stack, so
 * that is how often it is asked. */
static const char *
typed(void)
{
    static char text[32];
    struct {
        int fd;
        short wanted, found;
    } console = {0, POLLIN, 0};
    long got;

    if (call(__NR_poll, (long)&console, 1,
             counting ? 0 : echo < 0 ? 1000 : 100, 0, 0) < 1)
        return "";
    got = call(__NR_read, 0, (long)text, sizeof(text) - 1, 0, 0);
    if (got > 0 && text[got - 1] == '\n')
        got--;
    text[got > 0 ? got : 0] = 0;
    return text;
}

static void
add_number(unsigned long number)
{
    char digits[24];
    size_t first = sizeof(digits) - 1;

    digits[first] = 0;
    do
        digits[--first] = '0' + number % 10;
    while (number /= 10);
    add(digits + first);
}

/* Hundredths of a second since the guest started. */
static unsigned long
now(void)
{
    unsigned long time[2];

    call(__NR_clock_gettime, CLOCK_MONOTONIC, (long)time, 0, 0, 0);
    return time[0] * 100 + time[1] / 10000000;
}

/* Two seconds' work. */
static void
count_rounds(void)
{
    static unsigned long rounds;
    unsigned long end = now() + 200;

    do {
        for (volatile int i = 0; i < 10000; i++)
            continue;
        rounds++;
    } while (now() < end);
    add("GUEST-COUNT ");
    add_number(now());
    add(" ");
    add_number(rounds);
    end_line();
}

static void
configure(long request, const char *value, size_t size)
{
    char data[40] = BOND;

    for (size_t i = 0; i < size; i++)
        data[16 + i] = value[i];
    call(__NR_ioctl, echo, request, (long)data, 0, 0);
}

/* Give the bond, if there is one, its address and a socket. */
static void
open_echo(void)
{
    static const char flags[] = {IFF_UP, 0};
    static const char peer[16] = {AF_INET, 0, PORT[0], PORT[1],
                                  PEER[0], PEER[1], PEER[2], PEER[3]};
    static const char own[] = {AF_INET, 0, 0, 0, ADDRESS[0], ADDRESS[1],
                               ADDRESS[2], ADDRESS[3]};
    static const char mask[] = {AF_INET, 0, 0, 0, MASK[0], MASK[1], MASK[2],
                                MASK[3]};

    if (*content(NICS, BOND, "bonding/mode") == '?')
        return;
    echo = call(__NR_socket, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0, 0, 0);
    configure(SIOCSIFADDR, own, sizeof(own));
    configure(SIOCSIFNETMASK, mask, sizeof(mask));
    configure(SIOCSIFFLAGS, flags, sizeof(flags));
    call(__NR_connect, echo, (long)peer, sizeof(peer), 0, 0);
}

static void
put(const char *file, const char *sign, const char *name)
{
    char text[32];
    size_t size = 0;
    long fd = open_file(NICS, BOND, file, O_WRONLY);

    for (; *sign; sign++)
        text[size++] = *sign;
    for (; *name && size < sizeof(text); name++)
        text[size++] = *name;
    call(__NR_write, fd, (long)text, size, 0, 0);
    call(__NR_close, fd, 0, 0, 0, 0);
}

/* A card that is new goes into the bond. */
static void
look_at_nic(const char *name)
{
    if (*content(NICS, name, "device/vendor") == '?'
        || *content(NICS, name, "bonding_slave/state") != '?')
        return;
    put("bonding/slaves", "+", name);
    if (same(content(NICS, name, "device/vendor"), PREFERRED))
        put("bonding/primary", "", name);
}

/* Say which card sends and receives, when that has changed. */
static void
show_active(void)
{
    static char before[16];
    const char *active = content(NICS, BOND, "bonding/active_slave");
    size_t i = 0;

    if (same(active, before))
        return;
    for (; active[i] && i < sizeof(before) - 1; i++)
        before[i] = active[i];
    before[i] = 0;
    add("GUEST-BOND ");
    add_number(now());
    add(" ");
    add(*before ? content(NICS, before, "device/vendor") : "none");
    end_line();
}

/* Send a packet, count those that have come back. */
static void
exchange(void)
{
    static unsigned long sent, received, rounds, last, gap;
    char data[16];

    if (rounds++ % 10 == 0) {
        each(NICS, look_at_nic);
        show_active();
    }
    sent++;
    call(__NR_write, echo, (long)&sent, sizeof(sent), 0, 0);
    while (call(__NR_read, echo, (long)data, sizeof(data), 0, 0) > 0) {
        if (received++ && now() - last > gap)
            gap = now() - last;
        last = now();
    }
    if (rounds % 20)
        return;
    add("GUEST-ECHO ");
    add_number(now());
    add(" ");
    add_number(sent);
    add(" ");
    add_number(received);
    add(" ");
    add_number(gap);
    end_line();
    gap = 0;
}

void
_start(void)
{
    unsigned long looked = 0;

    call(__NR_mkdir, (long)"/sys", 0755, 0, 0, 0);
    call(__NR_mount, (long)"sysfs", (long)"/sys", (long)"sysfs", 0, 0);
    add("GUEST-NUMA online=");
    add(content(NODES, "", "online"));
    end_line();
    each(NODES, show_node);
    each(DEVICES, show_device);
    open_echo();
    add("GUEST-READY");
    end_line();
    for (;;) {
        const char *word = typed();

        if (*word) {
            counting = same(word, "count");
            add("GUEST-LOAD ");
            add(word);
            end_line();
        }
        if (counting)
            count_rounds();
        if (echo >= 0) {
            exchange();
            if (now() - looked < 100)
                continue;
            looked = now();
        }
        show_changes();
    }
}
