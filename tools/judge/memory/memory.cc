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

// Simulate servers beside streams on one memory and print what each group got,
// as JSON.
//
// A server computes, waits for one access to memory, and so on: a number of
// accesses is a request. A stream has several accesses under way and never
// waits for one of them. Both groups pass the controls of MPAM before they
// enter the memory controller: a cap, a guarantee and a priority.
//
// usage: memory CONFIGURATION [NAME=NUMBER]...

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "classes.h"
#include "simulator.h"

bool judge::by_class = false;

namespace {

constexpr int kServers = 0, kStreams = 1;
// Service classes; the higher one goes first.
constexpr int kBeyondCap = 0, kBelowGuarantee = 7;

using Options = std::map<std::string, double>;

struct Access {
    uint64_t address;
    bool write;
    int group;
    int source;
    uint64_t born;
};

// A control group. Amounts are cache lines per cycle.
struct Group {
    double guarantee, cap;
    bool hard;
    int priority;
    // Cycles between two refills of the cap; 0 refills at every cycle.
    uint64_t window;
    double averaging;
    double used = 0, tokens = 0;
    // Accesses that wait at the entrance, by channel.
    std::vector<std::deque<Access>> waiting;

    void refill(uint64_t clock) {
        if (!window)
            tokens = std::min(tokens + cap, 16.0);
        else if (clock % window == 0)
            tokens = cap * double(window);
    }

    // The class of the next access; -1 where it may not enter.
    int next_class() const {
        if (guarantee > 0 && used < guarantee) return kBelowGuarantee;
        if (tokens >= 1) return priority;
        return hard ? -1 : kBeyondCap;
    }
};

struct Server {
    bool waits = false;
    int accesses_left = 0;
    double gap = 0;
    uint64_t ready = 0, began = 0;
    std::vector<double> services;
};

struct Stream {
    int under_way = 0;
    uint64_t next = 0;
    double tokens = 0;
};

class Simulation {
   public:
    Simulation(const char* configuration, const Options& options);
    void run();
    void print() const;

   private:
    double option(const char* name, double otherwise) const {
        auto found = options_.find(name);
        return found == options_.end() ? otherwise : found->second;
    }
    double uniform() { return std::generate_canonical<double, 53>(random_); }
    uint64_t line(double part) { return uint64_t(part * double(lines_)); }
    Group group(const std::string& prefix) const;
    void step_servers();
    void begin_access(Server& server, int number);
    void step_streams();
    void enter(const Access& access);
    void arbitrate(int channel);
    void done(uint64_t tagged);

    const Options& options_;
    std::mt19937_64 random_;
    uint64_t clock_ = 0, cycles_, warm_up_;
    double cycle_ns_, fixed_, peak_;
    int channels_, channel_shift_, channel_mask_;
    uint64_t lines_;
    int accesses_, outstanding_;
    double demand_, writes_, random_part_;
    std::gamma_distribution<double> computing_;
    std::vector<Group> groups_;
    std::vector<Server> servers_;
    std::vector<Stream> streams_;
    std::vector<Access> under_way_;
    std::vector<uint32_t> free_;
    uint64_t lines_done_[2] = {0, 0}, count_ = 0;
    double latency_sum_ = 0;
    std::unique_ptr<judge::Simulator> memory_;
};

Simulation::Simulation(const char* configuration, const Options& options)
    : options_(options),
      random_(uint64_t(option("seed", 1))),
      cycles_(uint64_t(option("cycles", 4e6))),
      warm_up_(cycles_ / 10),
      channels_(int(option("channels", 1))),
      channel_shift_(int(option("channel_shift", 6))),
      channel_mask_(channels_ - 1),
      lines_(uint64_t(channels_) << 27),
      accesses_(int(option("accesses", 30))),
      outstanding_(int(option("outstanding", 12))),
      demand_(option("demand", 1)),
      writes_(option("writes", 0.25)),
      random_part_(option("random", 0)),
      computing_(4.0, option("computing_ns", 8000) / 4.0),
      servers_(size_t(option("servers", 8))),
      streams_(size_t(option("streams", 8))),
      under_way_(1 << 16) {
    memory_ = judge::open_simulator(configuration,
                                    [this](uint64_t tagged) { done(tagged); });
    cycle_ns_ = memory_->cycle_ns();
    fixed_ = option("fixed_ns", 55) / cycle_ns_;
    peak_ = channels_ / memory_->line_cycles();
    judge::by_class = option("inside", 0) > 0;
    groups_ = {group("server_"), group("stream_")};
    for (uint32_t i = 0; i < under_way_.size(); i++) free_.push_back(i);
    for (size_t i = 0; i < streams_.size(); i++)
        streams_[i].next = (lines_ / streams_.size() * i + line(0.01 * uniform()));
}

Group Simulation::group(const std::string& prefix) const {
    auto of = [&](const char* name, double otherwise) {
        return option((prefix + name).c_str(), otherwise);
    };
    Group group{of("guarantee", 0) * peak_,
                of("cap", 4) * peak_,
                of("hard", 1) > 0,
                int(of("priority", 3)),
                uint64_t(of("window_us", 0) * 1e3 / cycle_ns_),
                1.0 / of("averaging", 4000)};
    group.waiting.resize(size_t(channels_));
    return group;
}

void Simulation::enter(const Access& access) {
    size_t channel = (access.address >> channel_shift_) & uint64_t(channel_mask_);
    groups_[size_t(access.group)].waiting[channel].push_back(access);
}

void Simulation::begin_access(Server& server, int number) {
    enter({line(uniform()) << 6, false, kServers, number, clock_});
    server.waits = true;
}

void Simulation::step_servers() {
    for (size_t i = 0; i < servers_.size(); i++) {
        Server& server = servers_[i];
        if (server.waits || clock_ < server.ready) continue;
        if (server.accesses_left > 0) {
            begin_access(server, int(i));
            continue;
        }
        if (server.began > warm_up_)
            server.services.push_back(double(clock_ - server.began) * cycle_ns_);
        server.began = clock_;
        server.accesses_left = accesses_;
        server.gap = computing_(random_) / accesses_ / cycle_ns_;
        server.ready = clock_ + uint64_t(server.gap);
    }
}

void Simulation::step_streams() {
    for (size_t i = 0; i < streams_.size(); i++) {
        Stream& stream = streams_[i];
        stream.tokens = std::min(stream.tokens + demand_ * peak_ / double(streams_.size()),
                                 double(outstanding_));
        while (stream.under_way < outstanding_ && stream.tokens >= 1) {
            bool write = uniform() < writes_;
            uint64_t at = uniform() < random_part_ ? line(uniform()) : stream.next++;
            // What a stream writes is in other rows than what it reads.
            if (write) at ^= lines_ >> 4;
            enter({(at % lines_) << 6, write, kStreams, int(i), clock_});
            stream.tokens -= 1;
            stream.under_way++;
        }
    }
}

void Simulation::arbitrate(int channel) {
    int chosen = -1, best = -1;
    for (int i = 0; i < 2; i++) {
        Group& group = groups_[size_t(i)];
        auto& waiting = group.waiting[size_t(channel)];
        if (waiting.empty()) continue;
        int its = group.next_class();
        if (its < 0 || its < best) continue;
        if (its == best && groups_[size_t(chosen)].waiting[size_t(channel)].front().born <=
                               waiting.front().born)
            continue;
        chosen = i, best = its;
    }
    for (int k = 0; k < 2 && chosen >= 0; k++, chosen = 1 - chosen) {
        Group& group = groups_[size_t(chosen)];
        auto& waiting = group.waiting[size_t(channel)];
        int its = group.next_class();
        if (waiting.empty() || its < 0) continue;
        Access access = waiting.front();
        uint32_t slot = free_.back();
        uint64_t tagged = judge::tag(access.address, slot, its);
        if (!memory_->add(tagged, access.write)) continue;
        free_.pop_back();
        waiting.pop_front();
        under_way_[slot] = access;
        group.tokens -= 1;
        group.used += group.averaging;
        return;
    }
}

void Simulation::done(uint64_t tagged) {
    uint32_t slot = judge::slot(tagged);
    Access access = under_way_[slot];
    free_.push_back(slot);
    bool counts = clock_ > warm_up_;
    if (counts) lines_done_[access.group]++;
    if (access.group == kStreams) {
        streams_[size_t(access.source)].under_way--;
        return;
    }
    Server& server = servers_[size_t(access.source)];
    server.waits = false;
    server.accesses_left--;
    server.ready = clock_ + uint64_t(fixed_ + server.gap);
    if (!server.accesses_left) server.ready = clock_ + uint64_t(fixed_);
    if (!counts) return;
    latency_sum_ += (double(clock_ - access.born) + fixed_) * cycle_ns_;
    count_++;
}

void Simulation::run() {
    for (; clock_ < cycles_; clock_++) {
        step_servers();
        step_streams();
        for (Group& group : groups_) {
            group.refill(clock_);
            group.used -= group.used * group.averaging;
        }
        for (int channel = 0; channel < channels_; channel++) arbitrate(channel);
        memory_->tick();
    }
}

void Simulation::print() const {
    double most = double(cycles_ - warm_up_) * peak_;
    std::printf("{\"latency_ns\": %.3f, \"servers\": %.5f, \"streams\": %.5f, "
                "\"services_ns\": [",
                count_ ? latency_sum_ / double(count_) : 0.0,
                double(lines_done_[kServers]) / most,
                double(lines_done_[kStreams]) / most);
    for (size_t i = 0; i < servers_.size(); i++) {
        std::printf("%s[", i ? ", " : "");
        for (size_t k = 0; k < servers_[i].services.size(); k++)
            std::printf("%s%.0f", k ? ", " : "", servers_[i].services[k]);
        std::printf("]");
    }
    std::printf("]}\n");
}

}  // namespace

int main(int count, char** words) {
    if (count < 2) {
        std::fprintf(stderr, "usage: memory CONFIGURATION [NAME=NUMBER]...\n");
        return 2;
    }
    Options options;
    for (int i = 2; i < count; i++) {
        std::string word = words[i];
        size_t at = word.find('=');
        if (at == std::string::npos) {
            std::fprintf(stderr, "memory: %s: not NAME=NUMBER\n", words[i]);
            return 2;
        }
        options[word.substr(0, at)] = std::atof(word.c_str() + at + 1);
    }
    Simulation simulation(words[1], options);
    simulation.run();
    simulation.print();
}
