"""Which denoising step a forward call belongs to."""

from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.untransformed import untransformed

WAYS = ("timestep", "told")


class StepCount:
    """The step of a run: counted from the timesteps of its forward calls, or told.

    Guidance calls a model twice with one timestep: that is one step. Timesteps fall during a run,
    so a rise starts another run at step 0.
    """

    def __init__(self, way: str) -> None:
        if way not in WAYS:
            raise PlanError(
                sentence(
                    what="unknown way to know the step",
                    where="steps",
                    got=repr(way),
                    wanted=" or ".join(map(repr, WAYS)),
                    remedy="pass one of these",
                )
            )
        self.step: int | None = 0 if way == "timestep" else None
        self._counts = way == "timestep"
        self._last: float | None = None

    def tell(self, step: int) -> None:
        """Say which step the next forward call belongs to.

        Raises:
            PlanError: if steps are counted here.
        """
        if self._counts:
            raise PlanError(
                sentence(
                    what="step is told where it is counted",
                    where="step",
                    got=step,
                    wanted="no step: timesteps are counted",
                    remedy='attach with steps="told"',
                )
            )
        self.step = step

    def of_call(self, timestep: Tensor) -> int:
        """The step of a forward call with `timestep`, a number or one a sample or token.

        Raises:
            PlanError: if the step is yet to be told.
        """
        if self._counts:
            now = largest(timestep)  # Wan 2.2 gives the frame it conditions on timestep 0
            if self._last is None or now > self._last:
                self.step = 0
            elif now < self._last:
                assert self.step is not None, "counting starts at 0"
                self.step += 1
            self._last = now
        if self.step is None:
            raise PlanError(
                sentence(
                    what="step is not known",
                    where="forward of the transformer",
                    got="no step yet",
                    wanted="to be told",
                    remedy='set step = 0 and pass on_step_end to the pipeline, or steps="timestep"',
                )
            )
        return self.step


@untransformed
def largest(timestep: Tensor) -> float:
    """Its largest number.

    Raises:
        UnsupportedError: if it is vmapped.
    """
    return float(timestep.max())
