"""The part of each method's mAP that comes from learned database codes."""

from __future__ import annotations

from reproduction.document import Entry, GroupedTable
from reproduction.study import TASKS, Study
from reproduction.tables.quality import label_of, seeds_of, task_of


def share_bits(study: Study) -> int:
    """Return the code length that is shown: 64 where it was run, else the longest."""
    return 64 if 64 in study.bits else max(study.bits)


def lost(study: Study, label: str, task: str, bits: int, kind: str) -> float | None:
    """Return the part of the learned database's mAP above chance that another does not have, above its own chance."""
    learned, other = (study.mean(label, bits, task, k) for k in ("learned", kind))
    chance, own = (study.chance(task, k) for k in ("learned", kind))
    if learned is None or other is None or chance is None or own is None or learned - chance < 0.02:
        return None
    return 1 - (other - own) / (learned - chance)


def percent(share: float) -> str:
    """Format a fraction, e.g. ``−7 %``, without a negative zero."""
    return f"{round(100 * share) + 0:d} %".replace("-", "−")


def shares(study: Study) -> GroupedTable:
    """Tabulate how much of each method's mAP comes from learned database codes."""
    bits = share_bits(study)
    rows = []
    for label in study.labels:
        if study.experiment.row(label).quoted:
            continue
        entries = []
        for task in TASKS:
            values = [study.mean(label, bits, task, kind) for kind in ("learned", "hashed", "unseen")]
            entries += [Entry() if value is None else Entry(f"{value:.4f}") for value in values]
            gone = [lost(study, label, task, bits, kind) for kind in ("hashed", "unseen")]
            entries += [Entry() if g is None else Entry(percent(g), bold=g > 0.5) for g in gone]
        rows.append((label_of(study.experiment, label), entries))
    chance = [[study.chance(task, kind) for kind in ("learned", "hashed", "unseen")] for task in TASKS]
    rows.append(
        (
            "random ranking",
            [e for line in chance for e in (*(Entry(f"{v:.4f}") if v else Entry() for v in line), *[Entry()] * 2)],
        )
    )
    names = ["learned", "hashed", "unseen", "lost hashed", "lost unseen"]
    return GroupedTable(
        "Beyond the paper",
        f"What learned database codes bring. {study.described}, {study.experiment.scenario} data, {bits} bits, "
        f"mAP, mean over {seeds_of(study)}.",
        "method",
        names * 2,
        [("", rows)],
        [(task_of(study, task), 5) for task in TASKS],
        [
            "Lost: the part of the learned database's mAP above chance that is gone when the same items get their "
            "codes from features (*hashed*), or when items are searched that training never saw (*unseen*, above "
            "its own chance level). **Bold** above one half; – where the learned mAP is less than 0.02 above "
            "chance; negative where the other codes are the better ones.",
        ],
    )
