"""Where reading is: a small JSON value, the same on every rank."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FORMAT = 1


class StateMismatch(ValueError):
    """The saved state is of other data, another plan or another run."""


@dataclass(frozen=True)
class State:
    """``position`` counts samples of the epoch's global order that were handed to the user, in whole steps."""

    plan: str
    epoch: int
    position: int
    virtual_ranks: int
    run: str | None = None
    # Of a foreign loader: which of its workers, of how many. It begins its next step as many steps after ``position`` as there
    # are workers before it.
    worker: tuple[int, int] | None = None
    # How many samples an epoch has, if not all of them.
    limit: int | None = None
    # The first digits of the digest of the transforms of pictures.
    transforms: str | None = None
    # The proportions of streams that a training has set: from which position on, and that of each stream.
    proportions: tuple[tuple[int, tuple[str, ...]], ...] = ()
    # Of a step that was begun and not finished: how many of its rank's micro-batches were handed out, of how many. Reading goes
    # on at the start of the step, which is what ``position`` says, and hands them out again.
    unfinished_step: tuple[int, int] | None = None
    # Samples of those micro-batches; not saved.
    given_again: int = 0

    def as_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {
            "shardd": FORMAT,
            "plan": self.plan,
            "epoch": self.epoch,
            "position": self.position,
            "virtual_ranks": self.virtual_ranks,
        }
        if self.run is not None:
            state["run"] = self.run
        if self.worker is not None:
            state["worker"] = list(self.worker)
        if self.limit is not None:
            state["limit"] = self.limit
        if self.transforms is not None:
            state["transforms"] = self.transforms
        if self.proportions:
            state["proportions"] = [[begin, list(shares)] for begin, shares in self.proportions]
        if self.unfinished_step is not None:
            state["unfinished_step"] = list(self.unfinished_step)
        return state

    def warn(self) -> None:
        """Warns if samples that were handed out come again."""
        if self.unfinished_step is not None:
            done, of = self.unfinished_step
            warnings.warn(
                f"the state is taken after {done} of {of} micro-batches of a step: reading continues at the start of the step, epoch "
                f"{self.epoch} position {self.position}, and repeats {self.given_again} samples of this rank. Take states when "
                "is_last_micro is true",
                stacklevel=3,
            )

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> State:
        """Reads what :meth:`as_dict` gave, of this release or an earlier one."""
        if not isinstance(state, Mapping) or "shardd" not in state:
            raise StateMismatch("this is not the state of a shardd loader; save loader.state_dict() and load that")
        if state["shardd"] != FORMAT:
            raise StateMismatch(f"the state has format {state['shardd']!r}, and this release reads {FORMAT}; upgrade shardd")
        worker = state.get("worker")
        try:
            read = cls(
                plan=str(state["plan"]),
                epoch=int(state["epoch"]),
                position=int(state["position"]),
                virtual_ranks=int(state["virtual_ranks"]),
                run=state.get("run"),
                worker=(int(worker[0]), int(worker[1])) if worker is not None else None,
                limit=int(state["limit"]) if state.get("limit") is not None else None,
                transforms=str(state["transforms"]) if state.get("transforms") is not None else None,
                proportions=tuple((int(begin), tuple(map(str, shares))) for begin, shares in state.get("proportions", ())),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StateMismatch(f"the state is damaged: {error!r}") from None
        if read.epoch < 0 or read.position < 0 or read.virtual_ranks < 1:
            raise StateMismatch(f"the state is damaged: {dict(state)}")
        return read

    def warn_of_others(self, transforms: str | None) -> None:
        """Warns if samples were transformed in another way before the state."""
        if self.transforms is not None and self.transforms != transforms:
            own = "none" if transforms is None else f"those of digest {transforms}"
            warnings.warn(
                f"the state was saved with transforms of digest {self.transforms}, and this loader has {own}: samples differ from those "
                "of a training that was not interrupted",
                stacklevel=3,
            )

    def check(self, plan: str, what: str, limit: int | None = None) -> None:
        """Refuses a state of another plan, or of epochs that end elsewhere."""
        if self.plan != plan:
            was_shuffled, is_shuffled = _is_shuffled(self.plan), _is_shuffled(plan)
            reasons, opened = "another version of the data, seed, q or number of partitions, or other streams or shares of them", ""
            if was_shuffled != is_shuffled:
                reasons = f"the state was saved with shuffle={was_shuffled}, and is loaded with shuffle={is_shuffled}"
                opened = f" with shuffle={was_shuffled}"
            raise StateMismatch(
                f"the state is of {_told(self.plan)}, and {what} follows {_told(plan)}: {reasons}. Open the data of the state{opened}, or "
                "pass force=True to use its epoch and position anyway"
            )
        if self.limit != limit:
            raise StateMismatch(
                f"the state was saved with limit={self.limit}, and {what} has limit={limit}: epochs would end elsewhere. Pass the limit of "
                "the state, or force=True to use its epoch and position anyway"
            )


def _is_shuffled(order: str) -> bool:
    return not order.startswith("stored-")


def _told(order: str) -> str:
    """What an order is called: ``plan 0123456789ab``."""
    kind, _, digest = order.rpartition("-")
    names = {"": "plan", "mixture": "mixture", "stored": "the stored order of version", "stored-mixture": "the stored order of mixture"}
    return f"{names.get(kind, kind)} {digest[:12]}"
