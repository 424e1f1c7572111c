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

// Ramulator2 as the memory simulator, and a scheduler that serves the highest
// service class first. ramulator2.py names the scheduler in the configuration
// of cells whose classes hold inside the controller.

#include <tuple>
#include <utility>
#include <vector>

#include "classes.h"
#include "ramulator/base/config.h"
#include "ramulator/controller/controller_base.h"
#include "ramulator/controller/scheduler/i_scheduler.h"
#include "ramulator/frontend/i_frontend.h"
#include "ramulator/memory_system/i_memory_system.h"
#include "simulator.h"

namespace Ramulator {

// Order ready commands by service class, then by age.
class ServiceClassScheduler : public IScheduler, public Implementation {
    RAMULATOR_REGISTER_IMPLEMENTATION(IScheduler, ServiceClassScheduler,
                                      "ServiceClass")

    void init() override { controller_ = cast_parent<ControllerBase>(); }

    ReqBuffer::iterator get_best_request(ReqBuffer& requests,
                                         RequestFilterRef eligible) override {
        auto best = requests.end();
        std::tuple<bool, int, Clk_t> best_rank;
        for (auto one = requests.begin(); one != requests.end(); one++) {
            one->command =
                controller_->get_preq_command(one->final_command, one->addr_vec);
            if (eligible && !eligible(*one)) continue;
            std::tuple<bool, int, Clk_t> rank{
                controller_->check_timing(one->command, one->addr_vec),
                judge::service_class(uint64_t(one->addr)), -one->arrive};
            if (best != requests.end() && rank <= best_rank) continue;
            best = one, best_rank = rank;
        }
        return best;
    }

    ControllerBase* controller_;
};

}  // namespace Ramulator

namespace {

class Ramulator2 : public judge::Simulator {
   public:
    Ramulator2(const char* path, judge::Done done)
        : done_(done),
          configuration_(Ramulator::Config::parse_config_file(path)),
          frontend_(Ramulator::Factory::create_frontend(configuration_)),
          memory_(Ramulator::Factory::create_memory_system(configuration_)) {
        frontend_->connect_memory_system(memory_);
        memory_->connect_frontend(frontend_);
    }

    double cycle_ns() const override { return memory_->get_tCK(); }

    double line_cycles() const override {
        return configuration_["line_cycles"].as<double>();
    }

    bool add(uint64_t tagged, bool write) override {
        using Type = Ramulator::Request::Type;
        if (!frontend_->receive_external_requests(
                write ? Type::Write : Type::Read, Ramulator::Addr_t(tagged), -1,
                [this, write](Ramulator::Request& request) {
                    if (!write) done_(uint64_t(request.addr));
                },
                memory_->get_tx_bytes()))
            return false;
        if (write) writes_.push_back(tagged);
        return true;
    }

    void tick() override {
        memory_->tick();
        // As in DRAMsim3, a write is done once it is in the write queue.
        for (uint64_t tagged : std::exchange(writes_, {})) done_(tagged);
    }

   private:
    judge::Done done_;
    Ramulator::ConfigNode configuration_;
    Ramulator::IFrontEnd* frontend_;
    Ramulator::IMemorySystem* memory_;
    std::vector<uint64_t> writes_;
};

}  // namespace

std::unique_ptr<judge::Simulator> judge::open_simulator(const char* configuration,
                                                        Done done) {
    return std::make_unique<Ramulator2>(configuration, done);
}
