"""Two seats: one offers a share of ten coins, the other takes it or not. Each has its own reward; a third may judge."""

import verifiers.v1 as vf

__all__ = ["SplitEnv", "SplitTaskset"]
COINS = 10


class SplitTaskset(vf.Taskset[vf.Task, vf.TasksetConfig]):
    def load(self):
        return [
            vf.Task(vf.TaskData(prompt=f"Round {n}: offer 0 to {COINS} coins."), self.config.task) for n in range(50)
        ]


class SplitConfig(vf.EnvConfig):
    giver: vf.AgentConfig = vf.AgentConfig()
    taker: vf.AgentConfig = vf.AgentConfig()


class SplitEnv(vf.Env[SplitConfig]):
    async def run(self, task, agents):
        offered = await agents.giver.run(task)
        offer = offered.last_reply
        asked = vf.Task(vf.TaskData(prompt=f"You get {offer} of {COINS} coins: yes or no?"))
        answered = await agents.taker.run(asked)
        legal = offer.isdecimal() and int(offer) <= COINS
        agreed = legal and answered.last_reply == "yes"
        offered.record_reward("coins", COINS - int(offer) if agreed else 0.0)
        answered.record_reward("coins", float(offer) if agreed else 0.0)
        offered.record_metric("illegal", not legal)
