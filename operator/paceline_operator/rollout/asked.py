"""What a staged rollout is asked to do, and what is seen of it. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline_crds.rollout import OnBreach, OnNotKnown, OrderAction
from paceline_shadow_traffic.verdict import Said, Verdict


@dataclass(frozen=True, slots=True)
class Order:
    """A person's order. It counts once, and for its revision only. Promote: all traffic at once; Skip: the next step;
    Abort: back to the base. (A Pin is none: it makes its revision the one that is asked for.)

    Attributes:
        id: of this order; another one has another.
        who, why: are recorded.
        named: whether a person gave it the id, which then never counts again. Else it is made of the words, and counts
            again when another order has been followed.
    """

    id: str
    revision: str
    action: OrderAction
    who: str
    why: str
    named: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """A share of the traffic, and how long it is watched.

    Attributes:
        weight: the candidate's whole percent, 1 to 100.
        hold: seconds that it is watched at the least.
        most: seconds after which a verdict that is not known counts as that.
        replicas: of the candidate; None: as its weight asks for.
    """

    weight: int
    hold: float
    most: float
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """How a revision is rolled out.

    Attributes:
        steps: rising weights, the last one 100.
        shadow: times of the shadow step (its weight is not looked at), or None for none.
    """

    steps: tuple[Step, ...]
    shadow: Step | None = None
    on_not_known: OnNotKnown = OnNotKnown.PAUSE
    on_breach: OnBreach = OnBreach.ROLLBACK

    def __post_init__(self) -> None:
        weights = [step.weight for step in self.steps]
        if not weights or weights != sorted(set(weights)) or weights[0] < 1 or weights[-1] != 100:
            raise ValueError(f"steps have the weights {weights}; write rising ones from 1 on that end with 100")
        for step in (*self.steps, *([self.shadow] if self.shadow else [])):
            if not 0.0 <= step.hold <= step.most:
                raise ValueError(
                    f"a step holds for {step.hold} s of at most {step.most}; write a maximum of at least the hold"
                )
            if step.replicas is not None and step.replicas < 1:
                raise ValueError(f"a step has {step.replicas} replicas; write 1 or more")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the spec asks for now.

    Attributes:
        revision: that should serve in the end.
        order: the order that stands, whether it was followed or not.
        paused: nothing is given more traffic; a rollback goes on.
    """

    revision: str
    policy: Policy
    order: Order | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a gate can say of one place by the end of a step, computed beforehand.

    Attributes:
        name: of the gate.
        seconds: until an unchanged candidate is called no worse; None where that cannot be, or is not known.
        detectable: the smallest regression, in the gate's unit, that is called worse by the end; None where none is,
            or that is not known.
        message: a sentence.
    """

    place: str
    name: str
    seconds: float | None
    detectable: float | None
    message: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, with what it is about: one of another candidate, step or traffic, or from before, counts for nothing.

    Attributes:
        revision: the candidate.
        generation: of the traffic that was judged.
        step: as in `State.step`.
        since: of its oldest evidence, seconds since the epoch.
        at: when it was given, seconds since the epoch.
        findings: by place (pool and shape, or pool) and gate.
        foreseen: what the step can find out, as it was computed before it.
        prospect: the same in a sentence.
    """

    revision: str
    generation: int
    step: int
    since: float
    verdict: Verdict
    message: str
    at: float = 0.0
    findings: tuple[tuple[str, Said], ...] = ()
    foreseen: tuple[Foreseen, ...] = ()
    prospect: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """The world.

    Attributes:
        total: replicas that the load asks for, both revisions together, of the pools that the candidate changes; 0
            where the service is at zero.
        free: replicas that would find a place beside those that are there; None where that is not known.
        ready: ready replicas by revision.
        acknowledged: the lowest generation of traffic that every ready router follows; None where not known.
        judgement: the newest verdict; None where there is none.
        broken: why the candidate cannot start, where that is certain (for example a model that is not found).
        pools: how many pools `total` is spread over; each has its own replicas.
    """

    total: int
    free: int | None
    ready: Mapping[str, int] = field(default_factory=dict)
    acknowledged: int | None = None
    judgement: Judgement | None = None
    broken: str | None = None
    pools: int = 1
