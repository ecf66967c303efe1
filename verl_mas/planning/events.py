"""The moments of a run at which memory is allocated, for the policies of one pool, in chronological order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from verl_mas.planning import serving, training
from verl_mas.planning.load import Policy, Terms

START, SYNC, ROLLOUT, LOG_PROBS, UPDATE = "engine start", "weight sync", "rollout", "log-probs", "update"
# Label of the memory that one policy holds while others are active. Unlike the labels above, it is not the label of a
# moment in `Pool.events`.
WAITING = "waiting"


@dataclass(frozen=True)
class Moment:
    """Memory that one GPU holds at one moment."""

    phase: str
    policy: str | None  # The policy that starts, receives weights or computes; None: all policies, in a rollout
    own: Terms  # Bytes of this policy by purpose, or of all policies if `policy` is None
    others: float  # Bytes of the pool's other policies

    @property
    def total(self) -> float:
        return sum(self.own.values()) + self.others

    @property
    def parts(self) -> Terms:
        return {**self.own, "other policies": self.others}


class Pool:
    """One GPU of a pool. On this GPU, every policy has one trainer process and a part of an engine."""

    def __init__(self, policies: Sequence[Policy], card: float, *, phases: bool = False):
        self.policies, self.card = policies, card
        self.phases = phases and len(policies) > 1
        self.caches: dict[str, float] = {}
        for policy in policies:
            free = card - self._before(policy)
            self.caches[policy.name] = serving.kv_cache(policy, card, free)

    def of(self, policies: Iterable[Policy], *, phases: bool | None = None) -> Pool:
        """Return a pool on the same GPU with other policies, or other sizes of the same policies."""
        phases = self.phases if phases is None else phases
        return Pool(list(policies), self.card, phases=phases)

    def events(self) -> Iterator[Moment]:
        yield from (self.start(policy) for policy in self.policies)
        yield from (self.sync(policy) for policy in self.policies)
        yield from self.rollout()
        for policy in self.policies:
            for phase, moment in ((LOG_PROBS, training.log_probs), (UPDATE, training.update)) if policy.trains else ():
                yield Moment(phase, policy.name, added(moment(policy), self._asleep(policy)), self._waiting(policy))

    def start(self, policy: Policy) -> Moment:
        """The start of a policy's engine. Policies are built one after another; the engines of earlier policies are
        asleep."""
        own = training.at_rest(policy, begun=False)
        return Moment(START, policy.name, added(own, self._awake(policy)), self._before(policy) - total(own))

    def sync(self, policy: Policy) -> Moment:
        """The weight sync of a policy, for which engines wake in turn.

        With serving `together`, engines that woke earlier stay awake; in phases, they sleep again. On a pool that only
        serves, all other engines are awake, and other pools send weights to it at the same time. A policy that is a
        snapshot already has its KV cache, since its engine is awake.
        """
        others = 0.0
        for other in self._others(policy):
            earlier = policy.receives or self.policies.index(other) < self.policies.index(policy)
            engine = self._awake(other) if earlier and not self.phases else self._asleep(other)
            others += total(training.at_rest(other)) + total(engine)
        own = training.at_rest(policy)
        cache = {"KV cache": max(0.0, self.caches[policy.name])} if policy.snapshot else {}
        syncing = added(own, staged(policy), serving.syncing(policy), cache)
        return Moment(SYNC, policy.name, syncing, others + self._sent_meanwhile(policy))

    def _sent_meanwhile(self, policy: Policy) -> float:
        """Bytes of the buckets that this pool's engines receive from other training pools during the sync of `policy`.
        A training pool sends one policy at a time, so only the largest bucket of each pool counts."""
        buckets: dict[str, float] = {}
        for other in self.policies if policy.receives else ():
            if other.receives and other.pool != policy.pool:
                buckets[other.pool] = max(buckets.get(other.pool, 0.0), serving.received(other))
        return sum(buckets.values())

    def rollout(self) -> Iterator[Moment]:
        rest = [training.at_rest(policy) for policy in self.policies]
        if not self.phases:
            yield Moment(ROLLOUT, None, added(*rest, *map(self._awake, self.policies)), 0.0)
            return
        for policy, own in zip(self.policies, rest, strict=True):
            yield Moment(ROLLOUT, policy.name, added(own, self._awake(policy)), self._waiting(policy))

    def waiting(self, policy: Policy) -> Terms:
        """Memory that a policy holds while another policy computes."""
        return added(training.at_rest(policy), self._asleep(policy))

    def _waiting(self, policy: Policy) -> float:
        return sum(total(self.waiting(other)) for other in self._others(policy))

    def _before(self, policy: Policy) -> float:
        """Bytes in use before the policy's engine starts: engines of earlier policies, and training processes."""
        index = self.policies.index(policy)
        engines = sum(total(self._asleep(other)) for other in self.policies[:index])
        trainers = (training.at_rest(p, begun=False) for p in self.policies[: index + 1])
        return engines + sum(map(total, trainers))

    def _others(self, policy: Policy) -> list[Policy]:
        return [other for other in self.policies if other is not policy]

    def _awake(self, policy: Policy) -> Terms:
        return serving.awake(policy, self.caches[policy.name])

    def _asleep(self, policy: Policy) -> Terms:
        return serving.asleep(policy, self.caches[policy.name])

    # -- host memory -----------------------------------------------------------------------------------------

    def host(self, gpus_on_node: int) -> Terms:
        """Host memory of a node at the worst moment: while a model is loaded, or after training has begun."""
        trained = (training.host(policy, gpus_on_node) for policy in self.policies)
        moments = [added(*trained, *(self._copies(policy, gpus_on_node) for policy in self.policies))]
        held = list[Terms]()
        for policy in self.policies:
            moments += [added(*held, loading) for loading in _loading([policy], gpus_on_node)]
            held += [training.host(policy, gpus_on_node, begun=False), self._copies(policy, gpus_on_node)]
        if not self.phases and not any(policy.measures for policy in self.policies):
            # The policies start together (`engines.serving.start_together`).
            moments += _loading(self.policies, gpus_on_node)
        return max(moments, key=total)

    def _copies(self, policy: Policy, gpus: int) -> Terms:
        return {"engines' copies": gpus / policy.replica * serving.host_copy(policy, phases=self.phases)}


def _loading(policies: Sequence[Policy], gpus: int) -> Iterator[Terms]:
    """Yield the host memory while the critics of policies are loaded, and then while the policies are loaded."""
    purpose = "a model being loaded" if len(policies) == 1 else "models being loaded"
    critics = [policy.critic for policy in policies if policy.critic]
    yield {purpose: sum(training.load_host(critic, gpus) for critic in critics)}
    held = sum(total(training.host(critic, gpus, begun=False)) for critic in critics)
    yield added({purpose: sum(training.load_host(policy, gpus) for policy in policies), "critic": held})


def staged(policy: Policy) -> Terms:
    """Memory of offloaded parameters that FSDP1, and FSDP2 with LoRA, load to the GPU for the sync."""
    if not policy.trains or policy.always_on_cpu or (policy.fsdp2 and not policy.lora):
        return {}
    return {"parameters": training.parameters(policy) if policy.param_offload else 0.0}


def added(*terms: Mapping[str, float]) -> Terms:
    found: Counter[str] = Counter()
    for part in terms:
        found.update(part)
    return {name: size for name, size in found.items() if size}


def total(terms: Terms) -> float:
    return sum(terms.values())
