"""``modalhash compare``: TREC runs beside each other, with significance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modalhash.cli._common import console


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run files, the reference first; gzip too.")],
    qrels: Annotated[Path, typer.Option(help="The file that says what is relevant.", show_default=False)],
    measures: Annotated[
        str, typer.Option(help="Separated by commas: AP, P@k, R@k, nDCG, RR; each with a cut-off @k.")
    ] = "AP,P@10,nDCG@10",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A Markdown table.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="A LaTeX table (booktabs).")] = False,
    output: Annotated[Path | None, typer.Option(help="Write there instead of to the terminal.")] = None,
) -> None:
    """Compare TREC runs on the same queries, with the p-value of every difference.

    Runs may come from any system: a line is [b]query Q0 item rank score tag[/b], of
    the qrels [b]query 0 item relevance[/b]. Values are those of trec_eval -c: a query
    that a run lacks counts 0. The test is a paired randomisation test over queries,
    corrected by Holm. Your own runs: [b]modalhash.evaluation.write_run[/b].

    [bold]Examples[/bold]

    modalhash compare amsh.run rlh.run --qrels wiki.qrels

    modalhash compare base.run.gz a.run b.run --qrels q.txt --measures AP,P@1,nDCG@100 --latex --output table.tex
    """
    from modalhash.evaluation import RunMeasure, compare_runs, read_qrels, read_run

    if as_json + markdown + latex > 1:
        raise ValueError("take one of --json, --markdown and --latex")
    if len(runs) < 2:
        raise ValueError(f"one run, {runs[0]}; expected two or more to compare")
    chosen = [RunMeasure.parse(text) for text in measures.split(",")]
    if twice := [path for path in runs if runs.count(path) > 1]:
        raise ValueError(f"{twice[0]} is named twice; a run does not differ from itself")
    judged = read_qrels(qrels)
    names = [path.name for path in runs]
    shown = names if len(set(names)) == len(names) else [str(path) for path in runs]
    table = compare_runs({name: read_run(path) for name, path in zip(shown, runs, strict=True)}, judged, chosen)
    text = table.to_json() if as_json else table.to_latex() if latex else table.to_markdown()
    if output is not None:
        output.write_text(text.rstrip() + "\n", encoding="utf-8")
    elif as_json or markdown or latex:
        typer.echo(text.rstrip())
    else:
        console().print(table.to_rich())
