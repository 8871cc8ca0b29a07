"""All cases of a device, the most important first."""

from maskplan.bench import attention_cases, planning_cases, token_cases, video_cases
from maskplan.bench.case import Case
from maskplan.bench.clock import Clock, CpuClock, CudaClock


def cases_for(device: str) -> list[Case]:
    """The cases of "cpu" or "cuda"."""
    if device == "cpu":
        attention, planning = attention_cases.cpu_cases(), planning_cases.cpu_cases()
        return [*attention[:2], *planning, *attention[2:], *token_cases.cpu_cases()]
    attention, planning = attention_cases.gpu_cases(), planning_cases.gpu_cases()
    video = video_cases.gpu_cases()
    first, rest = attention[:8], attention[8:]
    return [*first, *planning[:4], *video[:4], *planning[4:], *rest, *video[4:]]


def clock_for(device: str) -> Clock:
    """The usual clock of a device."""
    return CpuClock() if device == "cpu" else CudaClock()
